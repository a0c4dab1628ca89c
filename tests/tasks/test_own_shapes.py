"""custom: rows of any shape, padded with masks; and a `collate_fn` that is called as written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import surefit
from surefit.cli import run as run_command
from surefit.errors import FindingError, UsageError

RANDOM = np.random.default_rng(0)


def graphs(count: int = 40) -> list[dict[str, Any]]:
    made = []
    for size in RANDOM.integers(3, 7, count):
        edges = (RANDOM.random((size, size)) > 0.5).astype("float32")
        made.append({"edges": edges, "nodes": RANDOM.normal(size=(size, 2)).astype("float32")})
    return made


class GraphNet(nn.Module):
    """Sums over real nodes; `mean` over all, padding included."""

    def __init__(self, mean: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.node, self.head, self.mean = nn.Linear(2, 4), nn.Linear(4, 1), mean

    def forward(self, edges: torch.Tensor, nodes: torch.Tensor, nodes_mask: torch.Tensor) -> Any:
        hidden = torch.tanh(edges @ self.node(nodes))
        pooled = hidden.mean(1) if self.mean else (hidden * nodes_mask[..., None]).sum(1)
        return self.head(pooled)[:, 0]


def degree(outputs: Any, batch: Any) -> Any:
    wanted = batch["edges"].sum((1, 2)) / batch["edges_mask"].sum((1, 2))
    return (outputs - wanted).square().mean()


def test_two_axes_vary_and_the_loss_is_that_of_rows_alone(tmp_path: Path) -> None:
    rows = graphs()
    run = surefit.train(
        data=rows[:30], eval_data=rows[30:], model=GraphNet(), loss_fn=degree, max_steps=5,
        lr=0.01, batch_size=4, output=tmp_path / "run",
    )  # fmt: skip
    (padded, _) = (f for f in run.plan["findings"] if f["code"] == "SF760")
    assert "3…6 values along axis 0 and 3…6 values along axis 1" in padded["message"]
    assert "'edges_mask' is 1" in padded["message"]
    model, losses, made = run.model.eval(), [], []
    with torch.no_grad():
        for row in rows[30:]:
            edges, nodes = (torch.from_numpy(row[name])[None] for name in ("edges", "nodes"))
            made.append(float(model(edges, nodes, torch.ones(1, len(row["nodes"])))))
            losses.append((made[-1] - float(row["edges"].mean())) ** 2)
    assert run.metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    predicted = [row["prediction"] for row in surefit.predict(run, rows[30:])]
    assert predicted == pytest.approx(made, rel=1e-4)


def test_padding_that_changes_the_loss_is_found() -> None:
    plan = surefit.check(data=graphs(), model=GraphNet(mean=True), loss_fn=degree)
    (found,) = (f for f in plan.findings if f.code == "SF701")
    assert "nodes_mask" in found.fix
    plan = surefit.check(data=graphs(), model=GraphNet(), loss_fn=degree)
    assert "SF701" not in {f.code for f in plan.findings}


SEEN: list[dict[str, torch.Tensor]] = []


class Words(nn.Module):
    def __init__(self, column: str = "texts") -> None:
        super().__init__()
        self.words = nn.Embedding(30, 1)

    def forward(self, texts: torch.Tensor) -> Any:
        return self.words(texts.clamp(min=0))[..., 0].flatten(1).sum(1)


def seen(outputs: Any, batch: Any) -> Any:
    if not outputs.is_meta:
        SEEN.append({name: value.clone() for name, value in batch.items()})
    return outputs.mean()


TEXTS = [
    {"texts": [[*range(1, 2 + (n + place) % 4)] for place in range(n % 3 + 1)]} for n in range(30)
]


def test_several_sequences_per_row_are_padded_twice() -> None:
    SEEN.clear()
    assert surefit.check(data=TEXTS, model=Words(), loss_fn=seen).ok
    assert SEEN
    assert all(each.keys() == {"texts", "texts_mask"} for each in SEEN)
    known = {str(row["texts"]) for row in TEXTS}
    for each in SEEN:
        for text, mask in zip(each["texts"], each["texts_mask"], strict=True):
            kept = [line[row == 1].tolist() for line, row in zip(text, mask, strict=True)]
            assert text[mask == 0].sum() == 0
            assert str([line for line in kept if line]) in known


class Amounts(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def test_a_row_without_boxes_is_a_row() -> None:
    SEEN.clear()
    rows = [{"x": [1.0, n], "boxes": [[0, 0, 1, n + 1]] * (n % 3)} for n in range(30)]
    plan = surefit.check(data=rows, model=Amounts(), loss_fn=seen)
    assert plan.as_dict()["ledger"]["used_rows"] == 30, plan.findings
    assert {each["boxes"].shape[2:] for each in SEEN} == {(4,)}
    assert any(0 in each["boxes_mask"].sum(1).tolist() for each in SEEN)
    rows[5]["boxes"] = [[0, 0, 1]]
    with pytest.raises(FindingError, match=r"row 5: column 'boxes' has shape \[1, 3\]"):
        surefit.train(data=rows, model=Amounts(), loss_fn=seen, quiet=True)


def test_fields_are_changed_by_the_user() -> None:
    SEEN.clear()
    options = {"data": TEXTS, "model": Words(), "loss_fn": seen}
    plan = surefit.check(**options, fields={"texts": {"pad": -1}})
    (padded,) = (f for f in plan.findings if f.code == "SF760")
    assert "padded with -1" in padded.message
    assert any((each["texts"] == -1).any() for each in SEEN)
    assert all(((each["texts"] == -1) == (each["texts_mask"] == 0)).all() for each in SEEN)
    SEEN.clear()
    spec = surefit.Field(("text.time", "word.time"), "int64", pad=7, masked=False)
    assert surefit.check(**options, fields={"texts": spec}).ok
    assert {name for each in SEEN for name in each} == {"texts"}
    with pytest.raises(UsageError, match="names 1 axes; rows of the column have 2"):
        surefit.check(**options, fields={"texts": {"axes": ["time"]}})
    with pytest.raises(UsageError, match="'other', which is no column of numbers: texts"):
        surefit.check(**options, fields={"other": {"pad": 1}})


def test_fields_of_another_task_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = RANDOM.normal(size=(40, 3)).astype("float32")
    np.savez(tmp_path / "x.npz", x=x, y=(x[:, 0] > 0).astype("int64"))
    command = ["check", "--data", str(tmp_path / "x.npz"), "--model", "tiny:mlp"]
    assert run_command([*command, "--set", "fields.x.pad=-1"]) == 2
    assert "fields is set for x; the task" in capsys.readouterr().err


class Pairs(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, row: int) -> tuple[torch.Tensor, float]:
        drawn = np.random.default_rng(row)
        return torch.from_numpy(drawn.integers(1, 20, drawn.integers(2, 6))), float(row % 5)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.EmbeddingBag(20, 4), nn.Linear(4, 1)

    def forward(self, flat: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(flat, starts))[:, 0]


def laid_end_to_end(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[Any, ...]:
    texts, amounts = zip(*rows, strict=True)
    starts = torch.tensor([0, *(len(text) for text in texts[:-1])]).cumsum(0)
    return torch.cat(texts), starts, torch.stack(amounts)


def squared(outputs: Any, batch: Any) -> Any:
    return (outputs - batch[2]).square().mean()


def test_a_collate_fn_is_called_as_written(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "data": Pairs(), "loss_fn": squared, "collate_fn": laid_end_to_end, "eval_data": Pairs(),
        "epochs": 2, "lr": 0.01, "clip": None, "quiet": True,
    }  # fmt: skip
    runs = [
        surefit.train(**options, model=Bag(), batch_size=size, grad_accum=8 // size,
                      output=tmp_path / str(size))
        for size in (8, 2)
    ]  # fmt: skip
    assert runs[0].plan["task"] == "custom"
    losses = [[each["loss"] for each in run.history if each["event"] == "step"] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    run, rows = runs[0], [Pairs()[n] for n in range(len(Pairs()))]
    flat, starts, amounts = laid_end_to_end([(text, torch.tensor(y)) for text, y in rows])
    with torch.no_grad():
        made = run.model.eval()(flat, starts)
    assert run.metrics["loss"] == pytest.approx(float((made - amounts).square().mean()), rel=1e-5)
    predicted = [row["prediction"] for row in surefit.predict(run, Pairs(), quiet=True)]
    assert predicted == pytest.approx(made.tolist(), rel=1e-4)
    again = surefit.evaluate(run.path, Pairs(), Bag(), laid_end_to_end, loss_fn=squared, quiet=True)
    assert again["loss"] == pytest.approx(run.metrics["loss"], rel=1e-5)


def test_a_collate_fn_of_dicts_gets_the_columns_of_the_data_alone() -> None:
    got: list[set[str]] = []

    def joined(rows: list[dict[str, torch.Tensor]]) -> dict[str, Any]:
        got.append(set(rows[0]))
        return {
            "texts": nn.utils.rnn.pad_sequence([row["words"] for row in rows], batch_first=True),
            "sizes": [len(row["words"]) for row in rows],
        }

    rows = [{"words": [*range(1, 2 + n % 5)], "n": n} for n in range(30)]

    def loss(outputs: Any, batch: Any) -> Any:
        return (outputs * torch.tensor(batch["sizes"])).sum(), len(batch["sizes"])

    plan = surefit.check(data=rows, model=Words(), loss_fn=loss, collate_fn=joined)
    assert plan.ok
    assert plan.as_dict()["task"] == "custom"
    assert {*map(frozenset, got)} == {frozenset({"words", "n"})}
    assert not {f.code for f in plan.findings} & {"SF705", "SF760"}
