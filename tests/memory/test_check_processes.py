"""`check --processes N --device D`: what each process needs, and what would fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders import feature_rows, save_ragged
from surefit.cli import run
from surefit.inputs.tokenizer import train_tokenizer
from surefit.memory.limit import DEVICES

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of a small model on 60 rows of features."""
    data = tmp_path_factory.mktemp("data") / "data.npz"
    save_ragged(data, feature_rows(60))
    return ["check", "--data", str(data), "--model", "tiny:bert", "--batch-size", "2", "--json"]


def plan_of(arguments: list[str], capsys: Any, code: int = 0) -> dict[str, Any]:
    assert run(arguments) == code
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plan


def codes(plan: dict[str, Any]) -> set[str]:
    return {found["code"] for found in plan["findings"]}


def test_a_divided_model_on_devices_that_are_not_here(asked: list[str], capsys: Any) -> None:
    more = ["--processes", "4", "--device", "a100-40gb", "--set", "parallel=fsdp"]
    plan = plan_of([*asked, *more], capsys)
    shared, memory = plan["processes"], plan["memory"]
    assert shared["parallel"] == "fsdp"
    assert memory["predicted_peak_bytes"] == sum(memory["parts"].values())
    trained = 4 * plan["model"]["trainable_parameters"]
    assert memory["parts"]["optimizer"] == pytest.approx(2 * trained / 4, rel=0.05)
    assert memory["parts"]["gathers"] > 0
    assert memory["limit_bytes"] == 40_000_000_000
    assert shared["count"] == 4
    assert 0 <= shared["imbalance"] < 0.5
    assert plan["steps"] == 3 * -(-54 // 8)
    refused = plan_of([*asked, "--device", "a100"], capsys, 2)["error"]
    assert all(name in refused["fix"] for name in DEVICES)
    assert run([*asked, "--processes", "2", "--set", "fit=measured"]) == 2


def test_one_process_divides_nothing_and_others_may_have_no_rows(
    asked: list[str], capsys: Any
) -> None:
    plan = plan_of([*asked, "--set", "parallel=fsdp"], capsys)
    assert "SF446" in codes(plan)
    assert "processes" not in plan
    assert "gathers" not in plan["memory"]["parts"]
    plan = plan_of([*asked, "--processes", "40"], capsys)
    found = next(each for each in plan["findings"] if each["code"] == "SF447")
    assert "27 micro-batches" in found["message"]  # 54 training rows, two at a time
    assert "13 of them" in found["message"]


@pytest.fixture
def large(tmp_path: Path) -> list[str]:
    """A config without weights, of 170 million parameters."""
    folder = tmp_path / "llama"
    train_tokenizer(["red blue green " * 9], 300).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    rows = [json.dumps({"text": "red blue green " * 40}) for _ in range(64)]
    (tmp_path / "data.jsonl").write_text("\n".join(rows))
    asked = ["check", "--data", str(tmp_path / "data.jsonl"), "--model", str(folder)]
    return [*asked, "--task", "causal-lm", "--batch-size", "1", "--json", "--set", "keep=1"]


@pytest.mark.slow
def test_a_config_alone_can_be_planned_and_not_trained(
    large: list[str], tmp_path: Path, capsys: Any
) -> None:
    plan = plan_of([*large, "--set", "device_memory_gb=24"], capsys)
    assert "SF407" in codes(plan)
    assert plan["memory"]["fits"]
    weights = 4 * plan["model"]["parameters"]
    assert plan["memory"]["parts"]["weights"] == pytest.approx(weights, rel=0.01)
    assert plan["time"]["predicted_total_seconds"] is None
    options = [option for option in large[1:] if option != "--json"]
    train = ["train", *options, "--set", "device_memory_gb=24", "--output", str(tmp_path / "run")]
    assert run(train) == 2
    assert "no weights" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_cheapest_setting_that_fits(large: list[str], capsys: Any) -> None:
    device = ["--device", "t4-16gb", "--set", "device_memory_gb=3"]
    ddp = plan_of([*large, *device, "--processes", "4"], capsys, 1)
    found = next(each for each in ddp["findings"] if each["code"] == "SF400")
    assert "parallel=fsdp" in found["fix"]
    options = ddp["memory"]["advice"]
    first = next(option for option in options if option["fits"])
    assert first["set"] == {"parallel": "fsdp"}
    fsdp = plan_of([*large, *device, "--processes", "4", "--set", "parallel=fsdp"], capsys)
    assert fsdp["memory"]["predicted_peak_bytes"] == first["predicted_peak_bytes"]


@pytest.mark.slow
def test_the_disk_of_this_machine_is_not_that_of_the_device(
    large: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from surefit.plan import disk

    monkeypatch.setattr(disk, "free_bytes", lambda folder: 1000)
    assert "SF860" in codes(plan_of(large, capsys, 1))
    elsewhere = plan_of([*large, "--device", "a100-80gb"], capsys)
    assert "SF860" not in codes(elsewhere)
    assert not elsewhere["disk"]["fits"]
