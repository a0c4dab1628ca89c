"""Every command reads rows, makes batches and evaluates in the same way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import surefit
from builders import MeanPool, echo_rows, feature_rows, same_pool, stop_at, write_jsonl
from surefit.cli import run as run_cli
from surefit.data.roles import Role
from surefit.errors import FindingError, UsageError

TINY: dict[str, Any] = {"model": "tiny:llama", "max_steps": 2, "batch_size": 4}
INSTRUCTIONS = [
    {"instruction": f"Repeat the word w{n % 7}.", "input": f"w{n % 7}", "output": f"w{n % 7}"}
    for n in range(40)
]
PLAIN = [{key: row[key] for key in ("instruction", "output")} for row in INSTRUCTIONS[:6]]


def test_a_run_evaluates_as_training_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", echo_rows(60))
    run = surefit.train(data=str(data), output=str(tmp_path / "run"), **TINY)
    monkeypatch.setenv("SUREFIT_CACHE", str(tmp_path / "empty"))  # rows are encoded again
    again = surefit.evaluate(str(run.path))
    assert again == run.metrics  # the same operations twice, so to the bit
    monkeypatch.setattr("surefit.training.resume.make_plan", None)  # nothing is planned
    assert surefit.evaluate(str(run.path)) == run.metrics
    write_jsonl(data, echo_rows(61))  # the rows of the run are those in the cache
    assert surefit.evaluate(str(run.path)) == run.metrics
    monkeypatch.undo()
    monkeypatch.setenv("SUREFIT_CACHE", str(tmp_path / "other"))
    with pytest.raises(FindingError, match="are not those it was trained with"):
        surefit.evaluate(str(run.path))


def test_a_column_that_may_be_missing_is_not_asked_for(tmp_path: Path) -> None:
    run = surefit.train(data=INSTRUCTIONS, output=str(tmp_path / "run"), **TINY)
    assert run.plan["roles"]["input"] == "input"
    assert surefit.evaluate(run, PLAIN)["loss"] > 0
    assert len(surefit.predict(run, [{"instruction": "Repeat the word w1."}])) == 1
    plan = surefit.check(data=INSTRUCTIONS, eval_data=PLAIN, **TINY)
    assert plan.ok, plan.findings
    assert plan.ledger.eval_rows == len(PLAIN)
    without = [{"instruction": "Repeat the word w1."}]
    with pytest.raises(FindingError, match=r"no column 'output' \(answer\)"):
        surefit.evaluate(run, without)
    plan = surefit.check(data=INSTRUCTIONS, eval_data=without, **TINY)
    assert [found.code for found in plan.findings if found.severity == "error"] == ["SF202"]


@pytest.mark.parametrize(
    ("task", "role", "said"),
    [
        ("regression", "target", "regression has no role 'target'"),
        ("regression", "rating", "Did you mean columns.label?"),  # the name of a column
        ("sft", "promt", "Did you mean columns.prompt?"),
        (None, "wieght", "no task has a role 'wieght'"),
    ],
)
def test_a_role_that_the_task_does_not_have_is_refused(
    task: str | None, role: str, said: str
) -> None:
    rows = [{"cnt": float(n), "hour": n % 24} for n in range(30)]
    with pytest.raises(UsageError) as caught:
        surefit.check(data=rows, task=task, columns={role: "cnt"}, model="tiny:mlp")
    assert said in caught.value.message
    assert "label" in caught.value.fix or "prompt" in caught.value.fix


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
    options = {"data": MOLECULES, "task": _own_task(), "epochs": 20, "lr": 0.1}
    run = surefit.train(model=Sum(), output=str(tmp_path / "run"), **options)
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


def test_a_run_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    run = surefit.train(
        data=feature_rows(40), model=MeanPool(), max_steps=2, output=str(tmp_path / "run")
    )
    plan = json.loads((run.path / "plan.json").read_text("utf-8"))
    del plan["run_format"]
    (run.path / "plan.json").write_text(json.dumps({**plan, "version": "0.5.0"}), "utf-8")
    again = {"data": feature_rows(40), "model": MeanPool()}
    for use in (
        lambda: surefit.predict(str(run.path), **again),
        lambda: surefit.evaluate(str(run.path), **again),
        lambda: surefit.train(resume=run.path, **again),
    ):
        with pytest.raises(UsageError, match=r"is a run of surefit 0\.5\.0"):
            use()
    assert run_cli(["report", str(run.path)]) == 2


def test_python_objects_must_be_passed_again_to_resume(tmp_path: Path) -> None:
    path, data = tmp_path / "run", feature_rows(40)
    options: dict[str, Any] = {"max_steps": 3, "save_every": 1, "callbacks": stop_at(1)}
    with pytest.raises(KeyboardInterrupt):
        surefit.train(data=data, model=MeanPool(), output=str(path), **options)
    with pytest.raises(UsageError, match=r"data \(list\), model \(MeanPool\)"):
        surefit.train(resume=path)
    assert surefit.train(resume=path, data=data, model=MeanPool()).finished


def test_a_row_that_the_users_own_encode_fails_on_is_named() -> None:
    rows = [*MOLECULES[:20], {"smiles": "CO", "carbons": "two"}, *MOLECULES[20:]]
    rows = [{**row, "carbons": str(row["carbons"])} for row in rows]
    plan = surefit.check(data=rows, model=Sum(), task=_own_task())
    (found,) = [found for found in plan.findings if found.severity == "error"]
    assert (found.code, found.where["row"]) == ("SF120", 20)
    assert "encode raised ValueError: could not convert string to float: 'two'" in found.message
    assert "drop_row" in found.fix


@pytest.mark.parametrize("setting", ["columns.answer", "split.by"])
def test_a_setting_that_names_a_missing_column_gets_the_nearest_name(setting: str) -> None:
    section, key = setting.split(".")
    plan = surefit.check(data=INSTRUCTIONS, **TINY, **{section: {key: "ouptut"}})
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
    assert plan.ledger.dropped_rows == {"mask_all_zero": 1}


def train(folder: Path, arrays: list[Any], model: nn.Module) -> Any:
    """Train on a CSV file beside arrays of one row each."""
    lines = ["file,label"]
    for number, array in enumerate(arrays):
        np.save(folder / f"{number}.npy", array)
        lines.append(f"{number}.npy,{number % 2}")
    data, output = folder / "rows.csv", str(folder / "run")
    data.write_text("\n".join(lines) + "\n")
    return surefit.train(data=str(data), model=model, max_steps=1, output=output)


def predicted(run: Any, data: Any) -> list[Any]:
    return [row["probability"] for row in surefit.predict(run, data)]


def test_one_vector_is_one_row(tmp_path: Path) -> None:
    arrays = list(np.random.default_rng(0).normal(size=(30, 6)).astype("float32"))
    run = train(tmp_path, arrays, nn.Linear(6, 2))
    every = predicted(run, {"file": np.stack(arrays)})
    assert predicted(run, str(tmp_path / "3.npy")) == [every[3]]
    np.save(tmp_path / "many.npy", np.stack(arrays[:6]))  # six rows, as before
    assert np.allclose(predicted(run, str(tmp_path / "many.npy")), every[:6])


def test_one_sequence_is_one_row_and_many_are_many(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = [random.normal(size=(5 + n % 3, 4)).astype("float32") for n in range(30)]
    run = train(tmp_path, arrays, same_pool())
    every = predicted(run, str(tmp_path / "rows.csv"))
    assert np.allclose(predicted(run, str(tmp_path / "7.npy")), [every[7]])
    np.save(tmp_path / "many.npy", random.normal(size=(3, 5, 4)).astype("float32"))
    assert len(predicted(run, str(tmp_path / "many.npy"))) == 3
    flat = {"file": random.normal(size=(3, 4)).astype("float32")}  # from no file: a step per row
    assert len(predicted(run, flat)) == 3
