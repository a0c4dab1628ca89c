"""Encoded rows against the model and against what was asked for; each fault is a Finding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.order import Batches
from surefit.data.store import Store
from surefit.data.table import Table
from surefit.errors import UsageError
from surefit.findings import Finding, finding
from surefit.preflight.ledger import Ledger

if TYPE_CHECKING:
    from torch import Tensor, nn

_CHUNK = 1 << 20
MANY = 0.1
"""The share of rows from which a loss is worth a warning."""


def check_rows(
    store: Store, table: Table, vocab_size: int | None, max_positions: int | None
) -> Iterator[Finding]:
    """Ids and token labels within the vocabulary, rows within the model's positions."""
    if vocab_size is not None:
        for name, unused in (("input_ids", None), ("labels", -100)):
            if name in store.fields and store.fields[name].rank == 1:
                yield from _check_range(store, table, name, vocab_size, unused)
    if max_positions is not None and len(store) and int(store.lengths.max()) > max_positions:
        row = int(np.argmax(store.lengths > max_positions))
        where = table.where(int(store.source_row[row]))
        yield finding(
            "SF304",
            f"row {where['row']}: {store.lengths[row]} tokens, but the model has "
            f"{max_positions} positions.",
            where,
        )


def _check_range(
    store: Store, table: Table, name: str, size: int, unused: int | None
) -> Iterator[Finding]:
    """The first row with an id outside 0 … size-1, reading the values in chunks."""
    values = store.values(name)
    for start in range(0, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK]
        wrong = (chunk < 0) | (chunk >= size)
        if unused is not None:
            wrong &= chunk != unused
        if wrong.any():
            place = start + int(np.argmax(wrong))
            row = int(np.searchsorted(store.offsets(name), place, side="right")) - 1
            where = table.where(int(store.source_row[row]))
            position = place - int(store.offsets(name)[row])
            yield finding(
                "SF302",
                f"row {where['row']}: {name}[{position}] is {values[place]}, but the model's "
                f"vocabulary has {size} tokens (0 to {size - 1}).",
                where,
                column=name,
            )
            return


def check_ledger(
    ledger: Ledger, sides: tuple[tuple[Store, Table], ...], max_dropped_share: float
) -> Iterator[Finding]:
    """Rows lost: a note for a few, a refusal for too many."""
    lost = ledger.rows - ledger.used_rows
    reasons = ", ".join(f"{count} {reason}" for reason, count in ledger.dropped_rows.items())
    example = _first_dropped(sides)
    if ledger.train_rows == 0:
        code = "SF401" if lost else "SF101"
        message = f"No training row is left of {ledger.rows} ({reasons or 'none were given'})."
        yield finding(code, f"{message} {_examples(sides)}".rstrip(), example)
        return
    if lost > max_dropped_share * ledger.rows:
        share = f"{lost / ledger.rows:.0%}"
        message = (
            f"{lost} of {ledger.rows} rows ({share}) would be dropped ({reasons}); "
            f"max_dropped_share is {max_dropped_share:.0%}. {_examples(sides)}"
        )
        yield finding(
            "SF204",
            message,
            example,
        )
    elif lost:
        code = "SF215" if lost >= MANY * ledger.rows else "SF203"
        yield finding(code, f"{lost} of {ledger.rows} rows are dropped: {reasons}.", example)
    if ledger.truncated_rows:
        code = "SF216" if ledger.truncated_rows >= MANY * ledger.used_rows else "SF211"
        message = f"{ledger.truncated_rows} of {ledger.used_rows} rows are cut to the limit."
        yield finding(code, message)
    if ledger.eval_rows == 0:
        yield finding("SF402", "No row is held out for evaluation.")
    unseen = sides[1][0].notes["dropped"].get("unknown_label", 0)
    if unseen:
        store, table = sides[1]
        where = table.where(store.notes["dropped_examples"]["unknown_label"][0])
        message = f"{unseen} evaluation rows have a label that no training row has."
        yield finding(
            "SF206",
            message,
            where,
        )


def _first_dropped(sides: tuple[tuple[Store, Table], ...]) -> dict[str, Any]:
    dropped = [
        (table, row)
        for store, table in sides
        for rows in store.notes["dropped_examples"].values()
        for row in rows
    ]
    if not dropped:
        return {}
    table = dropped[0][0]
    return dict(table.where(min(row for each, row in dropped if each.key == table.key)))


def _examples(sides: tuple[tuple[Store, Table], ...]) -> str:
    """The first rows that are dropped for each reason, by number."""
    hit: dict[str, list[int]] = {}
    for store, table in sides:
        for reason, rows in store.notes["dropped_examples"].items():
            hit.setdefault(reason, []).extend(int(table.where(row)["row"]) for row in rows)
    shown = (
        f"{'rows' if len(rows) > 1 else 'row'} {', '.join(map(str, sorted(rows)[:3]))} ({reason})"
        for reason, rows in sorted(hit.items())
    )
    return f"For example {'; '.join(shown)}." if hit else ""


def check_trainable(module: nn.Module) -> Iterator[Finding]:
    """A model needs something that can learn."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        count = sum(parameter.numel() for parameter in module.parameters())
        yield finding("SF314", f"None of the model's {count:,} parameters takes a gradient.")


def check_registered(module: nn.Module) -> Iterator[Finding]:
    """Layers and weights that a module uses without having them as its own are never trained."""
    from torch import Tensor, nn

    own = {id(part) for part in (*module.modules(), *module.parameters())}
    stray = []
    for name, part in module.named_modules():
        for attribute, value in vars(part).items():
            held = value.values() if isinstance(value, dict) else value
            items = held if isinstance(value, list | tuple | dict) else [value]
            if not attribute.startswith("_") and any(
                id(item) not in own
                and (isinstance(item, nn.Module) or (isinstance(item, Tensor) and _learns(item)))
                for item in items
            ):
                stray.append(f"{name}.{attribute}".lstrip("."))
    if stray:
        shown = ", ".join(repr(name) for name in stray[:3])
        yield finding("SF219", f"Not part of {type(module).__name__}: what is held in {shown}.")


def _learns(tensor: Tensor) -> bool:
    return tensor.requires_grad and tensor.is_leaf


def check_optimizer(module: nn.Module, optimizer: Any) -> None:
    """Refuse an optimizer that was made from other parameters than the model's."""
    groups = getattr(optimizer, "param_groups", None)
    own = {id(parameter) for parameter in module.parameters()}
    if groups is not None and not any(id(p) in own for group in groups for p in group["params"]):
        raise UsageError(
            "The optimizer holds none of the model's parameters.",
            "Make it from the parameters of the model that is trained.",
        )


def check_batch_norm(module: nn.Module, batches: Batches, epochs: int) -> Iterator[Finding]:
    """A layer that needs statistics over the batch cannot train on a micro-batch of one row."""
    from torch.nn.modules.batchnorm import _BatchNorm

    layer = next((n for n, part in module.named_modules() if isinstance(part, _BatchNorm)), None)
    if layer is None:
        return
    for epoch in range(epochs):
        if (np.diff(batches.epoch(epoch).micro_starts) == 1).any():
            yield finding(
                "SF313",
                f"Epoch {epoch + 1} has a micro-batch of one row, and layer {layer!r} needs two "
                f"or more ({len(batches.lengths)} rows, batch size {batches.batch_size}).",
                fix="Choose a batch size that leaves no single row over.",
            )
            return
