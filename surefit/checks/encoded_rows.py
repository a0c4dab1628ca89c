"""Encoded rows against the model and against what was asked for; each fault is a Finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from surefit.batches.branches import FIRST, LENGTHS, PROMPT, is_branched, sequence_lengths
from surefit.batches.field import IGNORE_INDEX
from surefit.checks.ledger import Ledger
from surefit.data.data_rules import NO_DATA
from surefit.data.open_data import holds_lines
from surefit.data.table import Table
from surefit.findings import NOTE, Finding, note, rule
from surefit.inputs.encoded_row import KNOWN, DropReason, describe_counts, phrase_of
from surefit.inputs.store import Store
from surefit.inputs.tally import LONGER
from surefit.pipeline.pipeline import Pipeline
from surefit.speed.numerics import preserved_state

TOO_MANY_ROWS_LOST = rule(
    "SF204",
    "error",
    "too many rows dropped",
    why="A run on the few rows that are left is rarely intended.",
    fix="Correct the named rows, or raise max_dropped_share.",
    accept="The rows are dropped, and the run trains on the others.",
)

UNSEEN_LABEL = rule(
    "SF206",
    "warning",
    "label never seen in training",
    why="The model has no output for a class that no training row has; such rows are dropped.",
    fix="Add rows of the class to the training data, or correct the label.",
    accept="The validation rows are dropped.",
)

MANY_ROWS_LOST = rule(
    "SF215",
    "warning",
    "many rows dropped or truncated",
    why="10% of the rows or more are dropped, or lose content because they are longer than "
    "max_seq_length, or more than 1% of the tokens are lost so, which is rarely intended.",
    fix="Correct the named rows, or delete them from the data.",
    accept="The rows are dropped or truncated.",
)

TOKEN_OUT_OF_VOCABULARY = rule(
    "SF302",
    "error",
    "token id outside the vocabulary",
    why="The embedding has no row for it: 'index out of range' or a device-side assert.",
    fix="Tokenize with the model's own tokenizer.",
)

ROWS_EXCEED_POSITIONS = rule(
    "SF304",
    "error",
    "rows longer than the model's positions",
    why="The model has no embedding for further positions: it fails with 'index out of range'.",
    fix="Lower max_seq_length, or choose a model with more positions.",
)


NOTHING_LABELLED = rule(
    "SF401",
    "error",
    "no training row is left",
    why="Without labels the loss is 0 or NaN, and the run looks successful.",
    fix="Check the labels, the template and max_seq_length.",
)

NO_VALIDATION_ROWS = rule(
    "SF402",
    "warning",
    "no validation set",
    why="Without validation rows, neither the best step nor overfitting is known.",
    fix="Pass more rows, --eval-data FILE, or a larger share of them: --set eval_share=0.2.",
    accept="The run has no validation set, and model/ holds the last step.",
)


_CHUNK = 1 << 20
MANY = 0.1
LOST_SHARE = 0.01
"""Share of the tokens that truncation may lose before it is a warning."""
"""The share of rows from which a loss is worth a warning."""


def check_rows(
    store: Store, table: Table, vocab_size: int | None, max_positions: int | None
) -> Iterator[Finding]:
    """Ids and token labels within the vocabulary, rows within the model's positions."""
    if vocab_size is not None:
        what = f"the model's vocabulary has {vocab_size:,} tokens"
        for name in ("input_ids", "labels"):
            spec = store.fields.get(name)
            if spec is not None and spec.rank == 1 and spec.numpy_dtype.kind in "iu":
                yield from check_range(store, table, name, vocab_size, what)
    lengths = store.lengths
    if is_branched(store.fields):
        lengths = sequence_lengths(lengths, store.values(PROMPT), store.values(FIRST))
    if LENGTHS in store.fields and len(store):
        each = store.joined(LENGTHS, np.arange(len(store)))
        lengths = np.maximum.reduceat(each, store.offsets(LENGTHS)[:-1])
    if max_positions is not None and len(store) and int(lengths.max()) > max_positions:
        yield _too_long(store, table, lengths, max_positions)


def _too_long(store: Store, table: Table, lengths: Any, max_positions: int) -> Finding:
    """Return how many rows exceed the positions of the model, and which."""
    long = np.flatnonzero(lengths > max_positions)
    places = [table.where(int(store.source_row[row])) for row in long[:3]]
    shown = ", ".join(
        f"row {where['row']} has {lengths[row]:,} tokens"
        for row, where in zip(long[:3], places, strict=True)
    )
    verb = "is" if len(long) == 1 else "are"
    return ROWS_EXCEED_POSITIONS.finding(
        f"{len(long):,} of {len(store):,} rows {verb} longer than the {max_positions:,} positions "
        f"of the model: {shown}.",
        places[0],
        fix=f"Cut the rows at --max-seq-length {max_positions}, or choose a model with more "
        "positions.",
    )


def check_range(
    store: Store, table: Table, name: str, size: int, what: str, fix: str = ""
) -> Iterator[Finding]:
    """Rows with an id outside 0 … size-1, reading the values in chunks; `what` has that size."""
    values, is_scalar = store.values(name), not store.fields[name].rank
    offsets = np.arange(len(store) + 1) if is_scalar else store.offsets(name)
    first, num_ids, blocks = -1, 0, 0
    last_block = -1
    for start in range(0, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK]
        wrong = (chunk < 0) | (chunk >= size)
        if name == "labels":
            wrong &= chunk != IGNORE_INDEX
        places = start + np.flatnonzero(wrong)
        if len(places):
            first = first if first >= 0 else int(places[0])
            hit = np.unique(np.searchsorted(offsets, places, side="right") - 1)
            num_ids, blocks = num_ids + len(places), blocks + len(hit) - (hit[0] == last_block)
            last_block = int(hit[-1])
    if first < 0:
        return
    row = int(np.searchsorted(offsets, first, side="right")) - 1
    where = table.where(int(store.source_row[row]))
    position = first - int(offsets[_first_block(store, row)])
    place = name if is_scalar else f"{name}[{position}]"
    message = f"row {where['row']}: {place} is {values[first]}, but {what} (0 to {size - 1})."
    if num_ids > 1:
        message += f" {num_ids:,} ids in {blocks:,} of {len(store):,} rows are outside it."
    yield TOKEN_OUT_OF_VOCABULARY.finding(message, where, fix=fix, column=name)


def _first_block(store: Store, block: int) -> int:
    """Return the first block of the row that the block belongs to."""
    same = (store.source_row[: block + 1] == store.source_row[block]) & (
        store.copy[: block + 1] == store.copy[block]
    )
    return int(np.argmax(same))


def check_ledger(
    ledger: Ledger, sides: tuple[tuple[Store, Table], ...], max_dropped_share: float
) -> Iterator[Finding]:
    """Yield rows lost: a note for a few, a refusal for too many.

    Rows whose cause has a warning of its own are not reported again, unless they are too many.
    """
    aside = {DropReason.TEST_PART.value, DropReason.IN_GAP.value}  # the split reports these
    dropped = {name: count for name, count in ledger.dropped_rows.items() if name not in aside}
    lost = sum(dropped.values())
    num_rows = ledger.used_rows + lost
    on_purpose = ledger.dropped_rows.get(DropReason.BAD_ANSWER, 0)
    if all(holds_lines(table) for _, table in sides):  # empty lines part the paragraphs of a text
        on_purpose += ledger.dropped_rows.get(DropReason.EMPTY, 0)
    share_lost = (lost - on_purpose) / max(num_rows, 1)
    unseen = sides[1][0].notes["dropped"].get(DropReason.UNKNOWN_LABEL, 0)  # SF206 reports them
    reasons = describe_counts(dropped)
    example = _first_dropped(sides)
    fix = " ".join(KNOWN[reason].fix for reason in dropped if reason in KNOWN)
    if ledger.train_rows == 0:
        broken = NOTHING_LABELLED if lost else NO_DATA
        why = f": {reasons}" if reasons else ""
        message = f"No training row is left of {num_rows}{why}."
        yield broken.finding(f"{message} {_examples(sides)}".rstrip(), example, fix=fix)
        return
    if share_lost > max_dropped_share:
        message = (
            f"{lost} of {num_rows} rows ({lost / num_rows:.0%}) would be dropped: {reasons}; "
            f"max_dropped_share is {max_dropped_share:.0%}. {_examples(sides)}"
        )
        more = f"{fix} Or raise max_dropped_share.".lstrip()
        yield TOO_MANY_ROWS_LOST.finding(message, example, fix=more)
    elif lost > unseen + _num_explained(sides):
        broken = MANY_ROWS_LOST if share_lost >= MANY else NOTE
        verb = "is" if lost == 1 else "are"
        message = f"{lost:,} of {num_rows:,} rows {verb} dropped: {reasons}."
        yield broken.finding(f"{message} {_examples(sides)}", example, fix=fix)
    yield from _check_long_rows(ledger, [store.notes["counts"] for store, _ in sides])
    if ledger.eval_rows == 0:
        yield NO_VALIDATION_ROWS.finding("There is no validation set.")
    if unseen:
        store, table = sides[1]
        rows = store.notes["dropped_examples"][DropReason.UNKNOWN_LABEL][:3]
        places = [table.where(row) for row in rows]
        numbers = ", ".join(str(where["row"]) for where in places)
        what = "1 row is" if unseen == 1 else f"{unseen:,} rows are"
        message = f"Validation set: {what} dropped {DropReason.UNKNOWN_LABEL.phrase}: "
        message += f"row{'s' * (len(places) > 1)} {numbers}{', for example' * (unseen > 3)}."
        yield UNSEEN_LABEL.finding(message, places[0])


def _num_explained(sides: tuple[tuple[Store, Table], ...]) -> int:
    """Return how many dropped rows have a warning that names their cause."""
    remarks = (remark for store, _ in sides for remark in store.notes["remarks"])
    return sum(count for *_, reason, count in remarks if reason)


def explain_loss(
    remarks: Sequence[Finding], dropping: Collection[str], lost: Iterable[Finding]
) -> list[Finding]:
    """Return all findings about rows; where too few rows are left, why each was dropped is part of
    that.

    `remarks` are about single rows, `dropping` their codes for which rows are dropped; `lost` is
    about the ledger.
    """
    lost = list(lost)
    refused = {NOTHING_LABELLED.code, TOO_MANY_ROWS_LOST.code} & {f.code for f in lost}
    causes = [f for f in remarks if f.code in dropping] if refused else []
    why = "".join(f" {cause.message.rstrip('.')}." for cause in causes)
    told = [replace(f, message=f.message + why) if f.code in refused else f for f in lost]
    return [*(f for f in remarks if f not in causes), *told]


def find_length(counts: Sequence[Mapping[str, int]], most_lost: float) -> int | None:
    """Return the length at which truncated rows lose at most so many tokens; None if unknown.

    >>> find_length([{"rows up to 10": 2, "rows up to 10 tokens": 18, "rows up to 12": 1,
    ...               "rows up to 12 tokens": 11}], 1)
    10
    """
    held: Counter[str] = sum((Counter(side) for side in counts), Counter())
    edges = sorted(int(n[len(LONGER) :]) for n in held if n.startswith(LONGER) and n[-1].isdigit())
    for place, edge in enumerate(edges):
        names = [f"{LONGER}{longer}" for longer in edges[place + 1 :]]
        if sum(held[f"{name} tokens"] - held[name] * edge for name in names) <= most_lost:
            return edge
    return None


def _check_long_rows(ledger: Ledger, counts: Sequence[Mapping[str, int]]) -> Iterator[Finding]:
    """Rows over the limit: how many tokens are lost if they are truncated, how they are split."""
    longer = f"of {ledger.used_rows} rows %s longer than the maximum sequence length and %s"
    if ledger.truncated_rows:
        are = "is" if ledger.truncated_rows == 1 else "are"
        lost = ledger.truncated_tokens
        total = lost + sum(side.get("tokens", 0) for side in counts)
        is_many = ledger.truncated_rows >= MANY * ledger.used_rows or lost > LOST_SHARE * total
        broken = MANY_ROWS_LOST if is_many else NOTE
        wanted = find_length(counts, LOST_SHARE * total)
        keeps = "" if wanted is None else f" A max_seq_length of {wanted:,} keeps 99% of them."
        yield broken.finding(
            f"{ledger.truncated_rows} {longer % (are, are)} truncated: {lost:,} of {total:,} "
            f"{ledger.unit} ({lost / total:.1%}) are lost.{keeps}",
            fix="Raise max_seq_length (or max_tokens, which bounds it) if the model allows it.",
        )
    if ledger.split_rows:
        are = "is" if ledger.split_rows == 1 else "are"
        blocks = sum(side.get("split_blocks", 0) for side in counts)
        unlabelled = ledger.dropped_blocks
        without = f" {unlabelled:,} more have no labelled token and are dropped." * (unlabelled > 0)
        yield note(
            f"{ledger.split_rows} {longer % (are, are)} split into {blocks:,} blocks.{without}"
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
    """Return the first rows that are dropped for each reason, by number."""
    hit: dict[str, list[int]] = {}
    for store, table in sides:
        for reason, rows in store.notes["dropped_examples"].items():
            hit.setdefault(reason, []).extend(int(table.where(row)["row"]) for row in rows)
    shown = (
        f"row{'s' * (len(rows) > 1)} {', '.join(map(str, sorted(rows)[:3]))} ({phrase_of(reason)})"
        for reason, rows in sorted(hit.items())
    )
    return f"For example, {', '.join(shown)}." if hit else ""


FIX = "Give the layer num_embeddings above the largest id, or correct the row."


def find_lookups(pipeline: Pipeline, store: Store) -> dict[str, tuple[str, int]]:
    """Return columns that go into an nn.Embedding as they are: its name and its number of rows.

    A module does not declare it, so it is called once, with zeros for integers.
    """
    import torch
    from torch import nn

    fields = pipeline.fields.items()
    whole = [n for n, spec in fields if spec.numpy_dtype.kind in "iu" and spec.rank < 2]
    read = [name for name in pipeline.call.arguments.values() if name in whole]
    layers = {n: m for n, m in pipeline.module.named_modules() if isinstance(m, nn.Embedding)}
    if not read or not layers or pipeline.collate_fn is not None:
        return {}
    batch = pipeline.batch(store, [0])
    batch |= {name: torch.zeros_like(batch[name]) for name in read if name != "attention_mask"}
    at = {batch[name].untyped_storage().data_ptr(): name for name in read}
    found: dict[str, tuple[str, int]] = {}

    def watch(layer: Any, given: tuple[Any, ...]) -> None:
        column = at.get(given[0].untyped_storage().data_ptr()) if given else None
        if column is not None and column not in found:
            name = next(name for name, other in layers.items() if other is layer)
            found[column] = (name, layer.num_embeddings)

    hooks = [layer.register_forward_pre_hook(watch) for layer in layers.values()]
    try:
        with preserved_state(pipeline.module), torch.no_grad():
            pipeline.outputs(batch)
    except Exception:  # user code may raise anything; the probe of the first batch reports it
        return found
    finally:
        for hook in hooks:
            hook.remove()
    return found


def check_lookups(pipeline: Pipeline, sides: Sequence[tuple[Store, Table]]) -> Iterator[Finding]:
    """Ids that the embedding of a custom module has no row for."""
    filled = [side for side in sides if len(side[0])]
    if not filled or pipeline.vocab_size is not None:
        return
    for column, (layer, size) in find_lookups(pipeline, filled[0][0]).items():
        what = f"the layer {layer!r} has {size:,} embeddings"
        for store, table in filled:
            yield from check_range(store, table, column, size, what, FIX)
