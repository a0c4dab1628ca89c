"""What was proved of a model on its data is not proved again, until something of it changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaModel

import surefit
from builders import (
    MeanPool,
    echo_rows,
    events_of,
    feature_rows,
    save_ragged,
    save_tiny_base,
    write_jsonl,
    write_module,
)
from surefit.cli import run as run_cli
from surefit.data.cache import cache_folder, release_entries
from surefit.models import pretrained
from surefit.plan import proof

PROBED = {"first batch", "probes", "layout", "predicting memory"}


def check(options: dict[str, Any]) -> tuple[bool, list[Any]]:
    """Return whether the probes were remembered, and what the plan reports."""
    plan = surefit.check(**options)
    assert plan.ok, plan.findings
    assert {*plan.remembered} >= PROBED or not {*plan.remembered} & PROBED
    return {*plan.remembered} >= PROBED, [plan.findings, plan.notes, plan.choices, plan.baselines]


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    data = write_jsonl(tmp_path / "rows.jsonl", echo_rows(40))
    model = save_tiny_base(tmp_path / "base", echo_rows(40))
    return {"data": str(data), "model": model, "lora_r": 2, "quiet": True}


def replace_byte(path: Path, place: int, new: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[place : place + 1] = new
    path.write_bytes(content)


def change_data(options: dict[str, Any], _: Any) -> None:
    path = Path(options["data"])
    path.write_text(path.read_text().replace("red", "rid", 1))


def change_weights(options: dict[str, Any], _: Any) -> None:
    path = Path(options["model"]) / "model.safetensors"
    replace_byte(path, -3, b"\x3c")


def change_version(_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "_versions", lambda: ("torch 1.0",))


def change_config(options: dict[str, Any], _: Any) -> None:
    options["seed"] = 7


def test_what_changed_is_proved_again(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_remembered, first = check(options)
    assert not is_remembered
    assert check(options) == (True, first)
    for change in (change_data, change_weights, change_config, change_version):
        change(options, monkeypatch)
        assert not check(options)[0], change
    assert check(options)[0]


def test_changed_code_is_proved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = write_module(tmp_path)
    data = save_ragged(tmp_path / "rows.npz", feature_rows(30))
    options = {"data": str(data), "model": model, "quiet": True}
    assert [check(options)[0] for _ in range(2)] == [False, True]
    path = tmp_path / f"{model.partition(':')[0]}.py"
    path.write_text(path.read_text() + "\n# changed\n")
    assert not check(options)[0]
    module = MeanPool()
    assert not any(check({**options, "model": module})[0] for _ in range(2))  # of unknown code


def test_training_is_the_same_where_a_check_was_remembered(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options |= {"max_steps": 3, "batch_size": 4}
    alone = surefit.train(**options, output=str(tmp_path / "alone"))
    monkeypatch.setenv("SUREFIT_CACHE", str(tmp_path / "other"))
    surefit.check(**options)
    after = surefit.train(**options, output=str(tmp_path / "after"))
    assert events_of(after) == events_of(alone)
    assert after.plan["choices"] == alone.plan["choices"]


def test_weights_that_no_stage_reads_are_not_loaded(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["check", "--data", options["data"], "--model", options["model"], "--timings"]
    shown = []
    for json_option in (["--json"], ["--json"], []):
        assert run_cli([*command, *json_option]) == 0
        shown.append(capsys.readouterr().out)
        for module, name in ((pretrained, "load_weights"), (LlamaModel, "forward")):
            monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("weights were read"))
    first, second = (json.loads(text) for text in shown[:2])
    assert "layout" in second["remembered"]
    assert not first["remembered"]
    for key in ("findings", "notes", "model", "choices", "baselines", "steps", "batches"):
        assert first[key] == second[key], key
    assert "layout, remembered" in shown[2]


def test_a_damaged_proof_is_made_again(options: dict[str, Any]) -> None:
    _, first = check(options)
    for path in cache_folder().glob("proofs/*/proof.json"):
        replace_byte(path, 40, b"x")
    again = surefit.check(**options)
    assert {found.code for found in again.findings} == {"SF820"} | {each.code for each in first[0]}
    assert check(options) == (True, first)


def test_the_cache_keeps_only_the_last_proofs(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "MOST_PROOFS", 1)
    for seed in (1, 2):
        release_entries()  # those in use would stay
        check({**options, "seed": seed})
    assert len([*cache_folder().glob("proofs/[!.]*")]) == 1
