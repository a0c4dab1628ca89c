"""feature-classification with one class per time step: known answers, forms, axes, figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, f1_score
from steps_of_classes import NAMES, WIDTH, conv, step_arrays, step_rows
from torch import nn

import surefit
from builders import mostly_slow, write_jsonl
from surefit.cli import run as command
from surefit.errors import FindingError, UsageError
from surefit.plan.plan import Plan
from surefit.run.run_folder import open_run

MODULE = """
from torch import nn


def make(num_classes):
    return nn.Conv1d(4, num_classes, 3, padding=1)
"""


class ByStep(nn.Module):
    """Reads (B, T, W) and returns (B, T, C)."""

    def __init__(self, outputs: int = len(NAMES)) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Whole(nn.Module):
    """Runs on one sequence length only, and mixes all steps."""

    def __init__(self, length: int, outputs: int) -> None:
        super().__init__()
        self.shape = (length, outputs)
        self.linear = nn.Linear(length * WIDTH, length * outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(1)).view(-1, *self.shape)


def check(data: Any, model: Any = None, **options: Any) -> Plan:
    return surefit.check(data=data, model=model or conv(), **options)


def codes(plan: Plan) -> set[str]:
    return {found.code for found in plan.findings}


def test_the_raised_channel_is_learned_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps_net.py").write_text(MODULE)
    rows = [
        {"x": row["features"].tolist(), "y": [NAMES[place] for place in row["labels"]]}
        for row in step_rows(120)
    ]
    rows[3]["y"][:4] = [None] * 4  # without a class
    write_jsonl(tmp_path / "rows.jsonl", rows)
    arguments = ["train", "--data", "rows.jsonl", "--model", "steps_net:make", "--output", "run"]
    options = ["--epochs", "6", "--lr", "0.05", "--set", "loss.class_weights=balanced"]
    options += ["--set", "features.augment=[jitter, scale, channel_mask]"]
    assert command([*arguments, *options]) == 0
    metrics = surefit.evaluate("run")
    baseline = open_run(Path("run")).plan["baselines"]["majority class"]["accuracy"]
    assert metrics["accuracy"] > 0.95 > 0.6 > baseline
    test = step_rows(20, seed=7)
    write_jsonl(tmp_path / "new.jsonl", [{"x": row["features"].tolist()} for row in test])
    capsys.readouterr()
    assert command(["predict", "run", "--data", "new.jsonl", "--probabilities", "all"]) == 0
    made = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(row["prediction"]) for row in made] == [len(row["labels"]) for row in test]
    chances = made[0]["probabilities"][2]
    assert sum(chances.values()) == pytest.approx(1)
    assert max(chances, key=chances.__getitem__) == made[0]["prediction"][2]
    truth = [NAMES[place] for row in test for place in row["labels"]]
    guess = [name for row in made for name in row["prediction"]]
    named = [{"x": r["features"], "y": [NAMES[n] for n in r["labels"]]} for r in test]
    figures = surefit.evaluate("run", named)
    assert figures["accuracy"] == pytest.approx(np.mean([*map(str.__eq__, truth, guess)]))
    assert figures["macro_f1"] == pytest.approx(f1_score(truth, guess, average="macro"), abs=1e-6)
    assert figures["confusion"] == confusion_matrix(truth, guess).tolist()
    assert command(["export", "run", "out"]) == 0
    again = [*surefit.predict("out", named, trust_code=["steps_net:make"])]
    assert [row["prediction"] for row in again] == [row["prediction"] for row in made]


@pytest.mark.slow
def test_a_transformers_body_has_a_head_for_every_step(tmp_path: Path) -> None:
    rows, output = step_rows(60), str(tmp_path / "run")
    run = surefit.train(data=rows, model="tiny:bert", epochs=3, output=output)
    assert run.metrics["accuracy"] > 0.95
    model = surefit.load(run.path)
    batch = torch.from_numpy(rows[0]["features"])[None]
    logits = model(batch, torch.ones(batch.shape[:2]))
    made = next(iter(surefit.predict(run, rows[:1])))
    assert logits.argmax(-1)[0].tolist() == made["prediction"]


ARRAYS = step_arrays(40, 12)
X, Y = ARRAYS["features"], ARRAYS["labels"]
FORMS: dict[str, Any] = {
    "numbers": {"features": X, "labels": Y},
    "fractions": {"features": X, "labels": Y.astype(np.float32)},
    "one-hot steps": {"features": X, "labels": np.eye(3, dtype=np.int64)[Y]},
    "one column": {"features": X, "labels": Y[..., None]},
    "other names": {"series": X, "state": Y},
    "tuples": torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    "batches": torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=4
    ),
    "transposed": {"features": np.ascontiguousarray(X.transpose(0, 2, 1)), "labels": Y},
}


@pytest.mark.parametrize("form", mostly_slow(FORMS, 8))
def test_every_form_gives_the_same_labels(form: str) -> None:
    columns = {"columns": {"label": "state"}} if form == "other names" else {}
    plan = check(FORMS[form], **columns)
    assert plan.ok, plan.findings
    assert plan.job is not None
    train = plan.job.train
    for place in range(3):
        row = train.row(place)
        assert row["labels"].tolist() == Y[int(train.source_row[place])].tolist()
        assert np.array_equal(row["inputs_embeds"], X[int(train.source_row[place])])
    assert int(train.num_targets.sum()) == len(train) * 12


@pytest.mark.slow
def test_files_give_the_same_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = step_rows(30)
    np.savez(
        "flat.npz",
        features=np.concatenate([row["features"] for row in rows]),
        labels=np.concatenate([row["labels"] for row in rows]),
        lengths=[len(row["labels"]) for row in rows],
    )
    numbered = {f"x_{n}": row["features"] for n, row in enumerate(rows)}
    np.savez("numbered.npz", **numbered, **{f"y_{n}": r["labels"] for n, r in enumerate(rows)})
    lines = ["path,label"]
    for number, row in enumerate(rows):
        np.save(f"{number}.npy", row["features"])
        np.save(f"{number}_labels.npy", row["labels"])
        lines.append(f"{number}.npy,{number}_labels.npy")
    Path("rows.csv").write_text("\n".join(lines))
    for data in ("flat.npz", "numbered.npz", "rows.csv"):
        plan = check(data)
        assert plan.job is not None, plan.findings
        train = plan.job.train
        for place in range(len(train)):
            expected = rows[int(train.source_row[place])]["labels"].tolist()
            assert train.row(place)["labels"].tolist() == expected, data
    np.savez("names.npz", features=X, labels=np.array(NAMES)[Y])
    plan = check("names.npz")
    assert plan.job is not None, plan.findings
    assert plan.job.pipeline.encoder.classes == sorted(NAMES)


def test_univariate_series_need_no_feature_size() -> None:
    plan = check({"features": X[..., 0], "labels": Y}, nn.Conv1d(1, 3, 3, padding=1))
    assert plan.job is not None, plan.findings
    assert plan.job.train.row(0)["inputs_embeds"].shape == (12, 1)
    vectors = check({"features": X[..., 0], "labels": (Y > 0) * 1}, nn.Linear(12, 12))
    assert any(
        "read as vectors" in note for note in vectors.notes
    )  # a module of vectors, with twelve labels of 0 and 1


def test_ignored_masked_and_truncated_steps_are_no_targets() -> None:
    rows = [{**row, "mask": np.ones(len(row["labels"]), int)} for row in step_rows(20)]
    for row in rows:
        row["labels"] = row["labels"].copy()
        row["labels"][0] = -100
        row["mask"][-1] = 0
    plan = check(rows, "tiny:bert", padding_free="off")
    assert plan.job is not None, plan.findings
    pipeline, train = plan.job.pipeline, plan.job.train
    row, source = train.row(0), rows[int(train.source_row[0])]
    assert row["labels"].tolist() == [-100, *source["labels"][1:-1], -100]
    assert int(train.num_targets[0]) == len(source["labels"]) - 2
    batch = pipeline.batch(train, [0, 1])
    total, count = pipeline.loss(pipeline.outputs(batch), batch)
    logits, labels = pipeline.outputs(batch).logits, batch["labels"]
    expected = nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=-100
    )
    assert (count, int((labels >= 0).sum())) == (int(train.num_targets[:2].sum()),) * 2
    torch.testing.assert_close(total, expected)
    short = check(step_rows(20), "tiny:bert", max_seq_length=5)
    assert short.job is not None
    assert {short.job.train.row(n)["labels"].shape for n in range(5)} == {(5,)}


@pytest.mark.slow
def test_steps_beyond_the_limit_are_predicted_as_none(tmp_path: Path) -> None:
    run = surefit.train(
        data=step_rows(20), model=conv(), epochs=1, max_seq_length=5, output=str(tmp_path / "run")
    )
    made = next(iter(surefit.predict(run, step_rows(1))))
    size = len(step_rows(1)[0]["labels"])
    assert [name is None for name in made["prediction"]] == [False] * 5 + [True] * (size - 5)


AXES: dict[str, Any] = {
    "(B, T, C)": (ByStep(), None),
    "(B, C, T)": (conv(), {"classes_second": True, "stride": 1, "reads_time_last": True}),
    "(B, T, C) with C = T": (ByStep(12), None),
    "(B, C, T) with C = T": (
        conv(12),
        {"classes_second": True, "stride": 1, "reads_time_last": True},
    ),
}


@pytest.mark.parametrize("name", mostly_slow(AXES, 3))
def test_the_axes_of_a_module_are_tried(name: str) -> None:
    module, expected = AXES[name]
    plan = check({"features": X, "labels": Y}, module)
    assert plan.ok, plan.findings
    assert plan.choices.as_dict().get("step_scores") == expected
    assert plan.job is not None
    pipeline = plan.job.pipeline
    batch = pipeline.batch(plan.job.train, [0, 1])
    logits = pipeline.outputs(batch).logits
    assert logits.shape[:2] == (2, 12)
    steps = batch["inputs_embeds"]
    plain = module(steps) if expected is None else module(steps.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(logits, plain)


def test_axes_that_cannot_be_proved_are_refused_and_one_more_output_proves_them() -> None:
    data = {"features": X, "labels": Y}
    assert "SF305" in codes(check(data, Whole(12, 12)))
    assert check(data, Whole(12, 13)).ok


def test_fewer_outputs_than_steps_need_a_stated_stride() -> None:
    data, module = {"features": X, "labels": Y}, conv(stride=2)
    refused = next(found for found in check(data, module).findings if found.code == "SF305")
    assert "[2, 3, 6]" in refused.message
    assert "features.stride=2" in refused.fix
    plan = check(data, module, **{"features.stride": 2})
    assert plan.job is not None, plan.findings
    batch = plan.job.pipeline.batch(plan.job.train, [0, 1])
    logits = plan.job.pipeline.outputs(batch).logits
    own = module(batch["inputs_embeds"].transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(logits, own.repeat_interleave(2, 1))
    assert "SF305" in codes(check(data, module, **{"features.stride": 3}))


def test_mixup_is_refused_and_other_changes_keep_the_labels() -> None:
    data = {"features": X, "labels": Y}
    with pytest.raises((UsageError, FindingError), match="every time step two classes"):
        check(data, **{"features.augment": ["mixup"]})
    plan = check(data, **{"features.augment": ["jitter", "scale", "time_mask", "channel_mask"]})
    assert plan.job is not None, plan.findings
    assert plan.job.augment is not None
    made, plain = plan.job.augment.row(0, 1), plan.job.train.row(0)
    assert not np.array_equal(made["inputs_embeds"], plain["inputs_embeds"])
    assert np.array_equal(made["labels"], plain["labels"])
