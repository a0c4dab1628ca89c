"""What a module of the user's own learns: its `loss_fn`; predictions are its outputs per row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import SimpleNamespace
from typing import Any

from surefit.errors import UsageError
from surefit.inputs.encoder import Encoder
from surefit.inputs.own_columns import mask_of, varying_axes
from surefit.targets.own_loss import own_columns
from surefit.targets.task_spec import Batch, TaskSpec


def loss(outputs: Any, batch: Batch) -> tuple[Any, int]:
    """Raise: the loss is the user's `loss_fn`."""
    raise AssertionError("refused by `require_loss_fn` before")


def needs_loss_fn(task: TaskSpec | None) -> bool:
    """Return whether a task has no loss but the user's `loss_fn`."""
    return task is not None and task.loss is loss


def require_loss_fn(task: TaskSpec | None, loss_fn: Any) -> None:
    """Refuse to train or evaluate where nobody says what the loss is."""
    if needs_loss_fn(task) and loss_fn is None:
        raise UsageError(
            "The task custom has no loss but your own loss_fn, and none is given.",
            "Pass it from Python: surefit.train(…, loss_fn=f), surefit.evaluate(run, data, "
            "loss_fn=f); or name it: --set loss.function=MODULE:FUNCTION. f(outputs, batch) "
            "returns a mean over rows, or (sum, count).",
        )


def decode(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """Return what `forward` returned for each row, as lists; None for parts that are not per row.

    `outputs.again` are a batch of another number of rows and what `forward` returned for it: an
    axis is that of the rows, or of their padded values, if its size follows in both.
    """
    raw = getattr(outputs, "raw", outputs)
    other, again = getattr(outputs, "again", (batch, raw))
    known = [len(next(iter(columns.values()))) for columns in (batch, other)]
    count, others = getattr(outputs, "counts", known)
    axes = [
        _Padded(batch[name].shape[place], other[name].shape[place], _lengths(batch[mask], number))
        for name, spec in encoder.extras.items()
        for mask in (mask_of(name), "attention_mask")
        for number, place in enumerate((axis + 1 for axis in varying_axes(spec)), 1)
        if mask in batch and name in batch and number < batch[mask].ndim
    ]
    rows = _Rows(count, others, axes)
    parts = rows.divide(raw, again)
    if parts is None:
        size = getattr(raw, "shape", None)
        named = f" of shape {list(size)}" if size is not None else ""
        shown = "; ".join(rows.left_out) or f"forward returned a {type(raw).__name__}{named}"
        raise UsageError(
            "There is nothing to predict for each row, since what forward returns is not per row: "
            f"{shown}.",
            "Return a tensor whose first axis is the rows, or a list with an item per row from a "
            "predict_fn(outputs, batch).",
        )
    left_out = {"left_out": "; ".join(rows.left_out)} if rows.left_out else {}
    return [{"prediction": part, **left_out} for part in parts]


def _lengths(mask: Any, axis: int) -> list[int]:
    """Return the length of each row along an axis of its mask."""
    others = [place for place in range(1, mask.ndim) if place != axis]
    return (mask.amax(others) if others else mask).sum(1).tolist()  # type: ignore[no-any-return]


def decode_by(
    predict_fn: Callable[..., Any], outputs: Any, batch: Batch, encoder: Encoder
) -> list[dict[str, Any]]:
    """Return what a user's `predict_fn(outputs, batch)` returned for each row: an item of a list
    with one per row, or tensors that are divided by rows as those of `forward` are."""
    other, again = outputs.again
    made = [
        predict_fn(raw, own_columns(columns))
        for raw, columns in ((outputs.raw, batch), (again, other))
    ]
    if all(isinstance(each, list) for each in made) and (*map(len, made),) == outputs.counts:
        return [{"prediction": _plain(item)} for item in made[0]]
    parts = SimpleNamespace(raw=made[0], again=(other, made[1]), counts=outputs.counts)
    return decode(parts, batch, encoder)


def _plain(value: Any) -> Any:
    """Return a prediction with its tensors as lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class _Padded:
    """The size of a padded axis in two batches, and the lengths of the rows of the first."""

    size: int
    other: int
    lengths: list[int]


@dataclass
class _Rows:
    """Divides outputs by rows; `again` is the same output for another number of rows."""

    count: int
    other: int
    padded: list[_Padded]
    left_out: list[str] = field(default_factory=list)

    def divide(self, output: Any, again: Any, name: str = "") -> list[Any] | None:
        """Return the output for each row; None if it is not per row."""
        import torch

        if isinstance(output, torch.Tensor) and isinstance(again, torch.Tensor):
            sizes = [(each.shape[0] if each.ndim else None) for each in (output, again)]
            if sizes == [self.count, self.other]:
                return [self._cut(row, output, again, n).tolist() for n, row in enumerate(output)]
            self.left_out.append(
                f"output{name and ' '}{name} has shape {list(output.shape)} for {self.count} rows "
                f"and {list(again.shape)} for {self.other}, so its first axis is not the rows"
            )
            return None
        keys, values, others = _parts(output), _values(output), _values(again)
        if keys is None or len(values) != len(others):
            return None
        names = [f"{name}.{key}" if name else str(key) for key in keys]
        made = [self.divide(*each) for each in zip(values, others, names, strict=True)]
        if all(part is None for part in made):
            return None
        rows = [[part and part[row] for part in made] for row in range(self.count)]
        is_listed = isinstance(output, tuple | list)
        return rows if is_listed else [dict(zip(map(str, keys), row, strict=True)) for row in rows]

    def _cut(self, row: Any, output: Any, again: Any, number: int) -> Any:
        """Return a row without the padding along each axis that is as long as padded rows."""
        for axis, sizes in enumerate(zip(output.shape[1:], again.shape[1:], strict=False)):
            fitting = {p.lengths[number] for p in self.padded if sizes == (p.size, p.other)}
            if len(fitting) == 1:
                row = row.narrow(axis, 0, fitting.pop())
        return row


def _parts(output: Any) -> list[Any] | None:
    """Return the keys of an output of several parts; None if it is something else."""
    if is_dataclass(output) and not isinstance(output, type):
        return [each.name for each in fields(output)]
    if isinstance(output, Mapping):
        return [*output]
    return [*range(len(output))] if isinstance(output, tuple | list) else None


def _values(output: Any) -> list[Any]:
    keys = _parts(output) or []
    is_plain = isinstance(output, Mapping | tuple | list)
    return [output[key] if is_plain else getattr(output, key) for key in keys]
