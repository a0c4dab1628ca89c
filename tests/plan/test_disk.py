"""Disk as a contract: what a run will write is predicted, and never less than it writes."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

import surefit
from builders import MeanPool, echo_rows, feature_rows, sentiment_rows, write_jsonl
from surefit import gigabytes
from surefit.errors import FindingError
from surefit.gigabytes import size_of
from surefit.plan.plan import Plan
from surefit.request import make_request
from surefit.training.resume import resume_run
from surefit.training.work import Listeners

Usage = namedtuple("Usage", "free")
FEATURES: dict[str, Any] = {"data": feature_rows(40), "batch_size": 4, "epochs": 4}


def leave(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    """Let every file system report so many free bytes."""
    monkeypatch.setattr(gigabytes.shutil, "disk_usage", lambda path: Usage(num_bytes))


def check(tmp_path: Path, **options: Any) -> Plan:
    model = options.pop("model", None) or MeanPool()
    return surefit.check(model=model, output=str(tmp_path / "run"), **{**FEATURES, **options})


def test_a_run_that_does_not_fit_is_refused_with_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(monkeypatch, 1_000_000)
    plan = check(tmp_path)
    assert not plan.ok
    assert check(tmp_path, accept=["SF860"]).ok
    disk = plan.as_dict()["disk"]
    assert disk["fits"] is False
    assert disk["free_bytes"] == 1_000_000
    assert sum(disk["parts"].values()) == disk["predicted_bytes"]
    (message,) = (found.message for found in plan.findings if found.code == "SF860")
    assert all(part in message for part in ("checkpoints", "model", "report", "1.0 MB are free"))
    with pytest.raises(FindingError, match="The run writes up to"):
        surefit.train(model=MeanPool(), output=str(tmp_path / "run"), **FEATURES)
    assert not (tmp_path / "run").exists()


def test_what_a_resumed_run_has_is_not_counted_again(tmp_path: Path) -> None:
    run = surefit.train(model=MeanPool(), output=str(tmp_path / "run"), **FEATURES)
    extended = {**FEATURES, "epochs": 5}
    seen: list[Plan] = []
    request = make_request({"model": MeanPool(), **extended})
    listeners = Listeners(on_plan=lambda plan, _: seen.append(plan))
    resume_run(run.path, request, {"model", *extended}, listeners)
    disk = seen[0].as_dict()["disk"]
    held = sum(disk["parts"].values())
    assert disk["existing_bytes"] > 0
    assert disk["predicted_bytes"] == held - disk["existing_bytes"]


SETUPS: dict[str, dict[str, Any]] = {
    "module": {**FEATURES},
    "full": {"rows": echo_rows(60), "model": "tiny:llama", "epochs": 4},
    "lora": {"rows": echo_rows(60), "model": "tiny:llama", "lora_r": 8, "save_every": 3, "keep": 1},
    "classes": {"rows": sentiment_rows(60), "model": "tiny:bert", "epochs": 5, "keep": 3},
    "seq2seq": {
        "rows": echo_rows(60),
        "model": "tiny:t5",
        "task": "seq2seq",
        "epochs": 2,
        "eval_share": 0.0,
    },
}


@pytest.mark.parametrize(
    "name", ["module", *(pytest.param(n, marks=pytest.mark.slow) for n in [*SETUPS][1:])]
)
def test_a_run_writes_no_more_than_predicted(tmp_path: Path, name: str) -> None:
    """And a checkpoint, the model and the whole run hardly less."""
    options, folder, most = dict(SETUPS[name]), tmp_path / "run", 0
    if "rows" in options:
        options["data"] = str(write_jsonl(tmp_path / "a.jsonl", options.pop("rows")))
        options["generate"] = {"rows": 4, "max_new_tokens": 4}

    def measure(event: Any) -> None:
        nonlocal most
        most = max(most, size_of(folder))

    options = {"model": MeanPool(), **options}
    run = surefit.train(output=str(folder), callbacks=[measure], **options)
    disk, written = run.plan["disk"], size_of(folder)
    assert max(most, written) <= disk["predicted_bytes"]
    assert written <= disk["final_bytes"]
    saved = [size_of(path) for path in (folder / "checkpoints").iterdir()]
    spare = disk["parts"]["checkpoints"] - sum(saved)  # the best is often one of the latest
    assert disk["final_bytes"] - spare <= 1.1 * written + 2_000_000
    model = size_of(folder / "model")
    assert model <= disk["parts"]["model"] <= 1.1 * model + 100_000
