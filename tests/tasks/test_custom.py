"""custom: a module with a loss_fn gets the columns as they are, and the loss is the true one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import surefit
from surefit.cli import run as run_command
from surefit.errors import UsageError

RANDOM = np.random.default_rng(0)
X = (RANDOM.normal(size=(60, 8)) * np.arange(1, 9)).astype("float32")


class AutoEncoder(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encode, self.decode = nn.Linear(width, 3), nn.Linear(3, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.encode.in_features != 8 or x.shape[1:] == (8,)
        return self.decode(self.encode(x))


class Sampled(nn.Module):
    """As a VAE or a GAN: several outputs, and noise in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.decode = nn.Linear(4, 28 * 28)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        assert x.shape[1:] == (1, 28, 28)
        noise = torch.randn(len(x), 4)
        return {"noise": noise, "made": self.decode(noise).view_as(x), "beside": noise.mean()}


class Ratings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, 4), nn.Embedding(30, 4)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        assert user.dtype == item.dtype == torch.int64
        return (self.users(user) * self.items(item)).sum(-1)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 4), nn.Linear(4, 20)

    def forward(self, codes: torch.Tensor, codes_mask: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(codes) * codes_mask[..., None])


def squared(column: str = "x") -> Callable[..., Any]:
    return lambda outputs, batch: (outputs - batch[column]).square().mean()


def codes(plan: surefit.Plan) -> list[str]:
    return [found.code for found in plan.findings]


def errors(**options: Any) -> list[Any]:
    plan = surefit.check(**options)
    return [found for found in plan.findings if found.severity == "error"]


def test_the_reported_loss_is_the_true_error(tmp_path: Path) -> None:
    seen, module = [], AutoEncoder()

    def loss(outputs: Any, batch: Any) -> Any:
        seen.append(None if batch["x"].is_meta else batch["x"].numpy().copy())
        return (outputs - batch["x"]).square().mean()

    run = surefit.train(
        data={"x": X[:40]}, eval_data={"x": X[40:]}, model=module, loss_fn=loss, epochs=2,
        lr=0.01, batch_size=6, output=tmp_path / "run",
    )  # fmt: skip
    assert run.plan["task"] == "custom"
    assert any("counts as the mean over the rows" in note for note in run.plan["notes"])
    known = {row.tobytes() for row in X}
    got = {row.tobytes() for batch in seen if batch is not None for row in batch}
    assert got >= known  # a probe changes inputs, too
    trained, rows = run.model.eval(), torch.from_numpy(X[40:])
    with torch.no_grad():
        made = trained(rows)
    assert run.metrics == {"loss": pytest.approx(float((made - rows).square().mean()), rel=1e-5)}
    assert surefit.evaluate(run, {"x": X[40:]}) == pytest.approx(run.metrics, rel=1e-5)
    predicted = [row["prediction"] for row in surefit.predict(run, {"x": X[40:]})]
    np.testing.assert_allclose(predicted, made.numpy(), rtol=1e-4, atol=1e-5)


def test_a_run_is_resumed_and_evaluated_with_its_loss_fn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "x.npz", x=X)
    options = {"data": str(tmp_path / "x.npz"), "loss_fn": squared(), "lr": 0.01}
    whole = surefit.train(**options, model=AutoEncoder(), max_steps=6, output=tmp_path / "a")
    surefit.train(**options, model=AutoEncoder(), max_steps=3, output=tmp_path / "b")
    surefit.train(resume=tmp_path / "b", **options, model=AutoEncoder(), max_steps=6)
    again = surefit.evaluate(tmp_path / "b", model=AutoEncoder(), loss_fn=squared())
    assert again["loss"] == pytest.approx(whole.metrics["loss"], rel=0.2)
    with pytest.raises(UsageError, match="no loss but your own loss_fn"):
        surefit.evaluate(tmp_path / "b", str(tmp_path / "x.npz"), model=AutoEncoder())
    assert run_command(["evaluate", str(tmp_path / "b"), "--data", str(tmp_path / "x.npz")]) == 2
    assert "loss_fn=f" in capsys.readouterr().err


CASES: dict[str, tuple[Any, nn.Module, Callable[..., Any], set[str]]] = {
    "another name": ({"signal": X}, AutoEncoder(), squared("signal"), {"signal"}),
    "tensors": ({"x": torch.from_numpy(X)}, AutoEncoder(), squared(), {"x"}),
    "rows": ([{"x": row.tolist()} for row in X], AutoEncoder(), squared(), {"x"}),
    "a column for the loss": (
        {"y": X[:, :2], "x": X},
        nn.Sequential(nn.Linear(8, 2)),
        squared("y"),
        {"x", "y"},
    ),
    "a label": (
        {"x": X, "label": (X[:, 0] > 0).astype("int64")},
        nn.Sequential(nn.Linear(8, 2)),
        lambda outputs, batch: nn.functional.cross_entropy(outputs, batch["label"]),
        {"x", "label"},
    ),
    "a frame of ids": (
        pd.DataFrame({"user": np.arange(60) % 20, "item": np.arange(60) % 30, "r": X[:, 0]}),
        Ratings(),
        squared("r"),
        {"user", "item", "r"},
    ),
    "a mask": (
        {"x": X, "known": X > 0},
        AutoEncoder(),
        lambda outputs, batch: (
            (outputs - batch["x"])[batch["known"]].square().sum(),
            batch["known"].sum(),
        ),
        {"x", "known"},
    ),
    "a loss in forward": ({"x": X}, AutoEncoder(), lambda outputs, batch: outputs.mean(), {"x"}),
}


@pytest.mark.parametrize("name", CASES)
def test_columns_come_under_their_own_names(name: str) -> None:
    data, module, loss_fn, columns = CASES[name]
    plan = surefit.check(data=data, model=module, loss_fn=loss_fn)
    assert plan.ok, plan.findings
    assert plan.as_dict()["task"] == "custom"
    assert plan.as_dict()["columns"] == {name: name for name in columns}
    assert not {"SF760", "SF705"} & {*codes(plan)}


def test_a_module_that_draws_noise_is_no_fault(tmp_path: Path) -> None:
    images = RANDOM.random((40, 1, 28, 28), "float32")

    def loss(outputs: Any, batch: Any) -> Any:
        return (outputs["made"] - batch["x"]).square().mean()

    options = {"data": {"x": images}, "model": Sampled(), "loss_fn": loss}
    run = surefit.train(**options, max_steps=2, output=tmp_path / "run")
    found = {each["code"]: each["severity"] for each in run.plan["findings"]}
    assert not {"error", "warning"} & {*found.values()}
    made = surefit.predict(run, {"x": images[:2]})[1]["prediction"]
    assert np.shape(made["made"]) == (1, 28, 28)
    assert made["beside"] is None  # one number for the batch


def test_an_output_that_is_not_per_row_is_not_predicted(tmp_path: Path) -> None:
    class Own(AutoEncoder):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (super().forward(x) - x).square().mean()

    options = {"data": {"x": X}, "model": Own(), "loss_fn": lambda outputs, batch: outputs}
    run = surefit.train(**options, max_steps=2, output=tmp_path / "run")
    with pytest.raises(UsageError, match="what forward returns is not per row: output has shape"):
        surefit.predict(run, {"x": X})


def test_rows_of_different_lengths_are_padded_with_a_mask() -> None:
    rows = [{"codes": list(range(1, 2 + n % 5))} for n in range(40)]

    def loss(outputs: Any, batch: Any) -> Any:
        known = batch["codes_mask"].bool()
        assert (batch["codes"].bool() == known).all()
        losses = nn.functional.cross_entropy(outputs[known], batch["codes"][known], reduction="sum")
        return losses, known.sum()

    plan = surefit.check(data=rows, model=Tokens(), loss_fn=loss)
    assert plan.ok
    assert "SF760" in codes(plan)
    assert not any("counts as the mean" in note for note in plan.notes)
    ids = [{"input_ids": row["codes"]} for row in rows]

    class Ids(Tokens):
        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return super().forward(input_ids, attention_mask)

    def of_ids(outputs: Any, batch: Any) -> Any:
        return loss(outputs, {"codes": batch["input_ids"], "codes_mask": batch["attention_mask"]})

    assert "SF760" in codes(surefit.check(data=ids, model=Ids(), loss_fn=of_ids))


FAULTY: dict[str, tuple[Any, str, int]] = {
    "another length": ([*({"x": row.tolist()} for row in X), {"x": [1.0]}], "has shape [1]", 60),
    "another size": (
        [*({"x": [[1.0, 2.0]] * 8} for _ in X), {"x": [[1.0, 2.0, 3.0]] * 8}],
        "has shape [8, 3]; other rows have [8, 2]",
        60,
    ),
    "no value": ([*({"x": row.tolist()} for row in X), {"x": None}], "has no value", 60),
    "no number": ({"x": np.where(np.arange(60)[:, None] == 7, np.nan, X)}, "contains nan", 7),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_row_that_differs_is_named(name: str) -> None:
    data, words, row = FAULTY[name]
    [found] = errors(data=data, model=nn.Flatten(), loss_fn=squared())[:1]
    assert words in found.message
    assert found.where["row"] == row


def test_what_cannot_be_called_is_refused_with_the_way() -> None:
    frame = pd.DataFrame(X, columns=[f"c{n}" for n in range(8)])
    [found] = errors(data=frame, model=AutoEncoder(), loss_fn=squared())
    assert "forward requires x" in found.message
    assert "Name the arguments of forward after the columns" in found.fix
    data = {"x": X, "label": np.arange(60) % 2}
    [found] = errors(data=data, model=AutoEncoder(), loss_fn=squared("labels"))
    assert "The batch has the columns x, label." in found.fix
    pixels = {"x": (X * 10).astype("int64")}
    [found] = errors(data=pixels, model=AutoEncoder(), loss_fn=squared())
    assert "x.float()" in found.fix
    with pytest.raises(UsageError, match="no loss but your own loss_fn"):
        surefit.check(data={"x": X}, model=AutoEncoder(), task="custom")


def test_one_argument_gets_the_only_column_that_the_module_runs_on() -> None:
    rng = np.random.default_rng(0)
    data = {
        "weight": rng.random((40, 3)).astype("float32"),
        "scan": rng.normal(size=(40, 1, 4, 4, 4)).astype("float32"),
        "organ": rng.integers(0, 2, (40, 4, 4, 4)),
    }
    loss = lambda outputs, batch: nn.functional.cross_entropy(outputs, batch["organ"])  # noqa: E731
    plan = surefit.check(data=data, model=nn.Conv3d(1, 2, 3, padding=1), loss_fn=loss, quiet=True)
    assert plan.ok
    assert plan.as_dict()["task"] == "custom"
    assert plan.as_dict()["model"]["columns"] == {"input": "scan"}
    data["other"] = data["scan"]
    both = surefit.check(data=data, model=nn.Conv3d(1, 2, 3, padding=1), loss_fn=loss, quiet=True)
    assert "SF202" in codes(both)


def test_masking_is_not_inferred_for_vectors() -> None:
    for rows in (X, X[:, None]):
        [found] = errors(data={"x": rows}, model=AutoEncoder())
        assert found.code == "SF202"
        assert "loss_fn=f" in found.fix


def test_masking_that_is_inferred_is_a_warning() -> None:
    series = {"x": RANDOM.normal(size=(40, 6, 4)).astype("float32")}
    inferred = surefit.check(data=series, model="tiny:bert")
    assert inferred.as_dict()["task"] == "feature-pretraining"
    assert "SF762" in codes(inferred)
    named = surefit.check(data=series, model="tiny:bert", task="feature-pretraining")
    assert "SF762" not in codes(named)
    accepted = surefit.check(data=series, model="tiny:bert", accept=["SF762"])
    assert "SF762" not in [f.code for f in accepted.findings if f.severity == "warning"]


def test_no_name_of_a_column_cuts_joins_or_hides_another(tmp_path: Path) -> None:
    """Arrays and files; `length` cuts padded rows of other tasks, and x1, x2 are rows of one."""
    steps = RANDOM.normal(size=(40, 5, 2)).astype("float32")
    data = {"x2": steps, "length": 1 + np.arange(40) % 5, "x1": steps + 1, "num_targets": steps}
    np.savez(tmp_path / "rows.npz", **data)
    seen: list[dict[str, Any]] = []

    class Net(nn.Linear):
        def forward(self, x1: Any, length: Any, x2: Any) -> Any:
            assert x1.shape[1:] == x2.shape[1:] == (5, 2)
            return super().forward(x1) * length[:, None, None]

    def loss(outputs: Any, batch: Any) -> Any:
        seen.append(batch)
        return (outputs - batch["num_targets"]).square().mean()

    for given in (data, str(tmp_path / "rows.npz")):
        plan = surefit.check(data=given, model=Net(2, 2), loss_fn=loss)
        assert plan.ok, plan.findings
        assert plan.as_dict()["columns"] == {name: name for name in data}
    assert {tuple(batch) for batch in seen} == {tuple(data)}
    assert all(isinstance(value, torch.Tensor) for batch in seen for value in batch.values())
    options = {"data": data, "model": Net(2, 2), "loss_fn": loss, "max_steps": 1}
    run = surefit.train(**options, output=tmp_path / "run")
    rows = {name: values[:6] for name, values in data.items()}
    found = [row["prediction"] for row in surefit.predict(run, rows)]
    columns = {name: torch.from_numpy(values) for name, values in rows.items()}
    with torch.no_grad():
        made = run.model(columns["x1"], columns["length"], columns["x2"])
    np.testing.assert_allclose(found, made, rtol=1e-4, atol=1e-5)
    assert surefit.evaluate(run, rows)["loss"] > 0


def test_columns_keep_their_order_where_an_argument_has_another_name() -> None:
    seen = []

    def loss(outputs: Any, batch: Any) -> Any:
        seen.append(tuple(batch))
        return (outputs - batch["y"]).square().mean()

    class Net(nn.Linear):
        def forward(self, codes: Any) -> Any:
            assert codes.dtype == torch.float32
            return super().forward(codes.sum(1, keepdim=True))

    rows = [{"y": [0.5], "x": [1.0] * (1 + n % 3)} for n in range(30)]
    plan = surefit.check(data=rows, model=Net(1, 1), loss_fn=loss)
    assert plan.ok, plan.findings
    assert set(seen) == {("y", "x", "x_mask")}


class Recurrent(nn.Module):
    """Returns outputs per row and step, and a state whose rows are on its second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(2, 2, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        made, (state, _) = self.cell(x)
        return {"made": made, "state": state, "scores": made.transpose(1, 2)}


RAGGED = [{"x": np.ones((2 + n % 3, 2)).tolist()} for n in range(30)]


def of_made(outputs: Any, batch: Any) -> Any:
    return (outputs["made"] - batch["x"]).square().mean()


def test_predictions_are_of_their_row_alone(tmp_path: Path) -> None:
    options = {"data": RAGGED, "model": Recurrent(), "loss_fn": of_made}
    run = surefit.train(**options, max_steps=1, output=tmp_path / "run")
    for some in (RAGGED[:1], RAGGED[:2], RAGGED[:3], RAGGED):
        for row, found in zip(some, surefit.predict(run, some), strict=True):
            with torch.no_grad():
                made = run.model(torch.tensor([row["x"]]))
            np.testing.assert_allclose(found["prediction"]["made"], made["made"][0], rtol=1e-4)
            np.testing.assert_allclose(found["prediction"]["scores"], made["scores"][0], rtol=1e-4)
            assert found["prediction"]["state"] is None
            assert "output state has shape [2, " in found["left_out"]


def test_an_output_as_wide_as_padded_rows_is_not_cut(tmp_path: Path) -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.head(x.sum(1))

    options = {"data": RAGGED, "model": Wide(), "loss_fn": lambda outputs, batch: outputs.mean()}
    run = surefit.train(**options, max_steps=1, output=tmp_path / "run")
    assert {len(row["prediction"]) for row in surefit.predict(run, RAGGED)} == {4}


def test_texts_beside_the_columns_that_forward_names_are_not_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"name": f"word n{n}", "x": row.tolist()} for n, row in enumerate(X)]
    plan = surefit.check(data=rows, model=AutoEncoder(), loss_fn=squared())
    assert plan.ok, plan.findings
    assert plan.as_dict()["task"] == "custom"
    assert plan.as_dict()["columns"] == {"name": None, "x": "x"}
    assert "columns not used: name" in capsys.readouterr().err


RETURNED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda loss: None, "a NoneType"),
    "a dict of texts": (lambda loss: {"loss": "low"}, "a str"),
    "three": (lambda loss: (loss, 1, 2), "(Tensor, int, int)"),
    "a list": (lambda loss: [loss, 1], "a list"),
    "a text": (lambda loss: (loss, "rows"), "(Tensor, str)"),
}


@pytest.mark.parametrize("name", RETURNED)
def test_a_loss_of_another_form_is_refused_with_the_forms(name: str) -> None:
    returned, shown = RETURNED[name]

    def loss(outputs: Any, batch: Any) -> Any:
        return returned(outputs.square().mean())

    [found] = errors(data={"x": X}, model=AutoEncoder(), loss_fn=loss)
    assert f"loss_fn returned {shown}; expected a scalar tensor or (sum, count)" in found.message
