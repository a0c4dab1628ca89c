"""Every command reads rows, makes batches and evaluates in the same way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import surefit
from builders import MeanPool, assert_same_predictions, echo_rows, feature_rows, write_jsonl
from surefit.cli import run as command
from surefit.data.roles import Role
from surefit.errors import FindingError, UsageError
from surefit.training import prove_plan

TINY: dict[str, Any] = {"model": "tiny:llama", "max_steps": 2, "batch_size": 4}
INSTRUCTIONS = [
    {"instruction": f"Repeat the word w{n % 7}.", "input": f"w{n % 7}", "output": f"w{n % 7}"}
    for n in range(40)
]
PLAIN = [{key: row[key] for key in ("instruction", "output")} for row in INSTRUCTIONS[:6]]


def test_measured_fit_sends_the_batch_that_training_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []
    real = prove_plan.prove

    def noted(job: Any, *args: Any, **kwargs: Any) -> Any:
        rows = job.batches.worst_rows(job.epochs)
        seen.append(set(job.pipeline.batch(job.train, rows)))
        return real(job, *args, **kwargs)

    monkeypatch.setattr(prove_plan, "prove", noted)
    data = echo_rows(40)
    plan = surefit.check(data=data, fit="measured", **TINY)
    surefit.train(data=data, output=str(tmp_path / "run"), **TINY)
    assert plan.ok
    measured, trained = seen
    assert measured == trained
    assert "row_lengths" in measured  # padding-free, with labelled positions only
    assert "labelled_positions" in measured


def test_a_run_evaluates_as_training_did(tmp_path: Path) -> None:
    data = str(write_jsonl(tmp_path / "rows.jsonl", echo_rows(60)))
    run = surefit.train(data=data, output=str(tmp_path / "run"), **TINY)
    again = surefit.evaluate(str(run.path))
    assert again == run.metrics  # the same operations twice, so to the bit


def test_a_column_that_may_be_missing_is_not_asked_for(tmp_path: Path) -> None:
    run = surefit.train(data=INSTRUCTIONS, output=str(tmp_path / "run"), **TINY)
    assert run.plan["roles"]["input"] == "input"
    assert surefit.evaluate(run, PLAIN)["loss"] > 0
    assert len(surefit.predict(run, [{"instruction": "Repeat the word w1."}])) == 1
    plan = surefit.check(data=INSTRUCTIONS, eval_data=PLAIN, **TINY)
    assert plan.ok, plan.findings
    assert plan.ledger is not None
    assert plan.ledger.eval_rows == len(PLAIN)


def test_a_needed_column_that_is_missing_is_named(tmp_path: Path) -> None:
    run = surefit.train(data=INSTRUCTIONS, output=str(tmp_path / "run"), **TINY)
    without = [{"instruction": "Repeat the word w1."}]
    with pytest.raises(FindingError, match=r"no column 'output' \(answer\)"):
        surefit.evaluate(run, without)
    plan = surefit.check(data=INSTRUCTIONS, eval_data=without, **TINY)
    assert [found.code for found in plan.findings if found.severity == "error"] == ["SF202"]


def test_every_role_of_the_task_can_be_chosen() -> None:
    rows = [
        {"ask": r["instruction"], "more": r["input"], "reply": r["output"]} for r in INSTRUCTIONS
    ]
    columns = {"prompt": "ask", "input": "more", "answer": "reply"}
    plan = surefit.check(data=rows, task="sft", columns=columns, **TINY)
    assert plan.ok, plan.findings
    assert plan.roles == columns


UNKNOWN: dict[str, tuple[str | None, str, str]] = {
    "a role of another task": ("regression", "target", "regression has no role 'target'"),
    "a column name for its role": ("regression", "rating", "Did you mean columns.label?"),
    "a slip of the pen": ("sft", "promt", "Did you mean columns.prompt?"),
    "a role that no task has": (None, "wieght", "no task has a role 'wieght'"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_role_that_the_task_does_not_have_is_refused(name: str) -> None:
    task, role, message = UNKNOWN[name]
    rows = [{"cnt": float(n), "hour": n % 24} for n in range(30)]
    with pytest.raises(UsageError) as caught:
        surefit.check(data=rows, task=task, columns={role: "cnt"}, model="tiny:mlp")
    assert message in caught.value.message
    assert "label" in caught.value.fix or "prompt" in caught.value.fix


def test_the_command_line_refuses_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", [{"cnt": n, "hour": n % 24} for n in range(30)])
    arguments = ["--data", str(data), "--model", "tiny:mlp", "--task", "regression"]
    assert command(["check", *arguments, "--set", "columns.target=cnt"]) == 2
    said = capsys.readouterr().err
    assert "Choose among its roles: image, label, audio, text, features" in said


def _own_task(**changes: Any) -> surefit.TaskSpec:
    """Counts the letter C in a molecule: a task with a role that surefit has never heard of."""

    def encode(row: Any, encoder: Any) -> dict[str, Any]:
        columns: dict[str, Any] = {"letters": [float(letter == "C") for letter in row["smiles"]]}
        if "carbons" in row:
            columns["labels"] = float(row["carbons"])
        return columns

    def loss(outputs: Any, batch: Any) -> tuple[Any, int]:
        errors = outputs.logits[:, 0] - batch["labels"]
        return errors.square().sum(), len(errors)

    settings: dict[str, Any] = {
        "name": "carbons",
        "fields": {
            "letters": surefit.Field(("time",), "float32"),
            "labels": surefit.Field((), "float32"),
        },
        "encode": encode,
        "loss": loss,
        "metrics": {"squares": loss},
        "needs": (("smiles", "carbons"),),
        "targets": ("carbons",),
        "count_targets": lambda columns: 1,
        "decode": lambda outputs, batch, encoder: [
            {"prediction": value} for value in outputs.logits[:, 0].tolist()
        ],
        **changes,
    }
    return surefit.TaskSpec(**settings)


class Sum(torch.nn.Module):
    """The scaled sum of the letters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.zeros(1))

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        return letters.sum(1, keepdim=True) * self.scale  # (B, 1)


MOLECULES = [
    {"smiles": "C" * (n % 5 + 1) + "O" * (n // 5), "carbons": n % 5 + 1} for n in range(60)
]


def test_a_task_may_bring_a_role_of_its_own(tmp_path: Path) -> None:
    run = surefit.train(
        data=MOLECULES,
        model=Sum(),
        task=_own_task(),
        epochs=20,
        lr=0.1,
        output=str(tmp_path / "run"),
    )
    assert run.metrics["squares"] < 0.05
    answers = surefit.predict(run, [{"smiles": "CCCO"}, {"smiles": "O"}])
    assert [round(answer["prediction"]) for answer in answers] == [3, 0]
    assert surefit.evaluate(run, MOLECULES[:10])["squares"] < 0.05


def test_a_role_of_its_own_is_recognised_by_its_names() -> None:
    role = Role("smiles", ("smiles", "molecule"))
    rows = [{"Molecule": row["smiles"], "carbons": row["carbons"]} for row in MOLECULES]
    plan = surefit.check(data=rows, model=Sum(), task=_own_task(roles=(role,)))
    assert plan.ok, plan.findings
    assert plan.roles == {"smiles": "Molecule", "carbons": "carbons"}
    chosen = surefit.check(
        data=[{"a": row["smiles"], "b": row["carbons"]} for row in MOLECULES],
        model=Sum(),
        task=_own_task(),
        columns={"smiles": "a", "carbons": "b"},
    )
    assert chosen.ok, chosen.findings


def test_a_run_of_the_version_before_opens_and_says_why_it_does_not_resume(tmp_path: Path) -> None:
    run = surefit.train(
        data=feature_rows(40), model=MeanPool(), max_steps=2, output=str(tmp_path / "run")
    )
    config = run.path / "config.yaml"
    text = config.read_text("utf-8").replace("data: []", "data:\n- python:list", 1)
    config.write_text(text.replace("model: ''", "model: python:MeanPool", 1), "utf-8")
    plan = json.loads((run.path / "plan.json").read_text("utf-8"))
    del plan["objects"]
    plan["version"] = "0.1.0"
    (run.path / "plan.json").write_text(json.dumps(plan), "utf-8")
    assert "python:" in config.read_text("utf-8")
    rows = feature_rows(8)
    predictions = surefit.predict(str(run.path), rows, model=MeanPool())
    assert_same_predictions(predictions, surefit.predict(run, rows))
    assert surefit.evaluate(str(run.path), rows, model=MeanPool())["loss"] > 0
    with pytest.raises(UsageError, match="trained on Python objects"):
        surefit.evaluate(str(run.path), model=MeanPool())
    (run.path / "model").rename(tmp_path / "elsewhere")  # as if it had been stopped
    with pytest.raises(UsageError, match=r"begun with surefit 0\.1\.0") as caught:
        surefit.train(resume=run.path, data=feature_rows(40), model=MeanPool())
    assert "Resume it with surefit 0.1.0" in caught.value.fix


def test_python_objects_must_be_passed_again_to_resume(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "run"
    options: dict[str, Any] = {"max_steps": 3, "save_every": 1}
    with pytest.raises(KeyboardInterrupt):
        surefit.train(
            data=feature_rows(40), model=MeanPool(), callbacks=stop, output=str(path), **options
        )
    with pytest.raises(UsageError, match=r"data \(list\), model \(MeanPool\)"):
        surefit.train(resume=path)
    run = surefit.train(resume=path, data=feature_rows(40), model=MeanPool())
    assert run.finished


def test_a_row_that_the_users_own_encode_fails_on_is_named() -> None:
    rows = [*MOLECULES[:20], {"smiles": "CO", "carbons": "two"}, *MOLECULES[20:]]
    rows = [{**row, "carbons": str(row["carbons"])} for row in rows]
    plan = surefit.check(data=rows, model=Sum(), task=_own_task())
    (found,) = [found for found in plan.findings if found.severity == "error"]
    assert (found.code, found.where["row"]) == ("SF120", 20)
    assert "encode raised ValueError: could not convert string to float: 'two'" in found.message
    assert "SkipRowError" in found.fix


NAMED = {
    "columns.answer": {"columns": {"answer": "ouptut"}},
    "split.by": {"split": {"by": "ouptut"}},
}


@pytest.mark.parametrize("setting", NAMED)
def test_a_setting_that_names_a_missing_column_gets_the_nearest_name(setting: str) -> None:
    plan = surefit.check(data=INSTRUCTIONS, **TINY, **NAMED[setting])
    assert [found.code for found in plan.findings] == ["SF202"]
    assert plan.findings[0].message.endswith("Did you mean 'output'?")
    assert plan.findings[0].fix == f"Name a column of the data: --set {setting}=output."


PADDED = [
    {
        "input_ids": [5, 6, 7, *range(8, 12 - n % 3), *[3] * (n % 3)],
        "attention_mask": [1] * (7 - n % 3) + [0] * (n % 3),
    }
    for n in range(30)
]


@pytest.mark.parametrize("task", ["sft", "causal-lm"])
def test_padded_rows_without_labels_are_healthy(task: str) -> None:
    plan = surefit.check(data=PADDED, task=task, autofix=False, **TINY)
    assert plan.ok, plan.findings
    assert "SF153" not in [found.code for found in plan.findings]
    hidden = [*PADDED, {"input_ids": [5, 6, 7], "attention_mask": [0, 0, 0]}]
    plan = surefit.check(data=hidden, task=task, autofix=False, **TINY)
    assert plan.ok, plan.findings
    assert plan.ledger is not None
    assert plan.ledger.dropped_rows == {"mask_all_zero": 1}
