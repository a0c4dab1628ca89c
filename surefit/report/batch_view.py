"""Batches and rows as the model sees them, as JSON; `drawn_rows.py` draws them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.batches.branches import SIDE
from surefit.batches.field import IGNORE_INDEX, Field
from surefit.inspection.row_view import token_cells
from surefit.report.charts import heat_png

if TYPE_CHECKING:
    from surefit.inputs.encoder import Encoder
    from surefit.pipeline.pipeline import Job, Pipeline

Array = npt.NDArray[Any]
Row = dict[str, Any]
NUM_BATCHES, NUM_ROWS, NUM_CELLS = 2, 8, 160
"""Batches that are shown, rows of each, tokens of each row."""
NUM_VALUES = 12
NUM_POINTS = 200
"""Of a drawn recording."""
LONG = 24
"""Values from which a vector is drawn rather than written."""


def view_batches(job: Job) -> list[dict[str, Any]]:
    """Return the first micro-batches of the first epoch, as this process trains on them."""
    batches, pipeline = job.batches, job.pipeline
    source = job.train if job.augment is None else job.augment.in_epoch(0)
    epoch = (
        None if pipeline.live is not None else 0
    )  # live rows: as the sample of planning has them
    shown: list[dict[str, Any]] = []
    for step in range(min(NUM_BATCHES, batches.steps_per_epoch)):
        micro = batches.micro_batches(0, step)
        if not micro or len(shown) == NUM_BATCHES:
            break
        batch = pipeline.batch(source, micro[0], epoch, "cpu")
        title = f"Step {step + 1}, micro-batch 1 of {len(micro)}"
        rows = view_rows(pipeline, job.train, micro[0], batch)
        shown.append({"title": title, **describe_batch(batch, len(micro[0])), "rows": rows})
    return shown


def describe_batch(batch: Mapping[str, Any], num_rows: int) -> dict[str, Any]:
    """Return the size of a batch and the shapes of its columns."""
    columns = {n: v for n, v in batch.items() if hasattr(v, "shape") and "." not in n}
    shapes = {n: f"{list(v.shape)} {v.dtype}".replace("torch.", "") for n, v in columns.items()}
    how = "padding-free" if "row_lengths" in batch else "padded"
    return {"size": num_rows, "layout": how if "input_ids" in batch else "", "shapes": shapes}


def view_rows(
    pipeline: Pipeline,
    store: Any,
    places: Array,
    batch: Mapping[str, Any],
    losses: Array | None = None,
) -> list[Row]:
    """Return the first rows of a batch; `losses` are those of its labelled tokens, in order."""
    pieces = list(_sequences(batch, len(places))) if "input_ids" in batch else []
    shown = []
    for number, place in enumerate(places[:NUM_ROWS].tolist()):
        row: Row = {"row": int(store.source_row[place])}
        if copy := int(store.copy[place]):
            row["copy"] = copy
        mine = [piece for piece in pieces if piece[0] == number]
        if mine:
            row["sequences"] = [_sequence(pipeline, batch, at, losses) for _, at in mine]
        if mine and not is_aligned(pipeline, batch):
            row["sequences"] += _target(pipeline, store.row(place))
        shown.append({**row, **_columns(pipeline, store, place, batch, number)})
    return shown


def _sequences(batch: Mapping[str, Any], num_rows: int) -> Iterator[tuple[int, tuple[int, slice]]]:
    """Yield the row of each sequence, and where it is in `input_ids`."""
    ids = batch["input_ids"]
    if len(ids) == 1 and sum(batch.get("row_lengths", ())) == ids.shape[1]:
        start = 0
        each = len(batch["row_lengths"]) // num_rows
        for number, length in enumerate(batch["row_lengths"]):
            yield number // each, (0, slice(start, start + length))
            start += length
        return
    each = len(ids) // num_rows if SIDE in batch else 1
    for number in range(len(ids)):
        yield number // each, (number, slice(None))


def _sequence(
    pipeline: Pipeline, batch: Mapping[str, Any], at: tuple[int, slice], losses: Array | None
) -> dict[str, Any]:
    """Return a cell for each of the first and last tokens of a sequence: text, id, label, loss,
    kind.
    """
    ids = batch["input_ids"][at].cpu().numpy()
    mask = batch.get("attention_mask")
    kept = np.ones(len(ids), bool)
    if mask is not None and mask.shape == batch["input_ids"].shape:
        kept = mask[at].cpu().numpy() != 0
    half = NUM_CELLS // 2
    places = np.arange(len(ids))
    if not kept.all():  # what is shown of padding is how much there is
        places = places[kept]
    if len(places) > NUM_CELLS:
        places = np.concatenate([places[:half], places[-half:]])
    labels = mine = None
    if is_aligned(pipeline, batch):
        labels = batch["labels"][at].cpu().numpy()
        mine = labels[places]
    known = _losses_by_place(batch, losses)
    loss = known[at] if known is not None else None
    cells: list[list[Any]] = []
    texts = _pieces(ids[places].tolist(), pipeline.encoder.tokenizer)
    for place, token in zip(
        places.tolist(), token_cells(ids[places], mine, pipeline.encoder), strict=True
    ):
        label = None if labels is None or labels[place] == IGNORE_INDEX else int(labels[place])
        kind = ("labelled " if label is not None else "") + ("special" if token["special"] else "")
        named = None if label is None else _name_of(pipeline.encoder, label, token["id"])
        value = None if loss is None or np.isnan(loss[place]) else round(float(loss[place]), 4)
        cells.append([texts[len(cells)], token["id"], named, value, kind.strip()])
    length, limit = int(kept.sum()), pipeline.encoder.max_length
    return {
        "cells": cells,
        "length": length,
        "left": not bool(kept[:1].all()),
        "padding": 0 if "kept_positions" in batch else len(ids) - length,
        "left_out": [half, length - len(places)] if len(places) < length else None,
        "at_limit": limit if limit is not None and length >= limit else None,
    }


def _pieces(ids: list[int], tokenizer: Any) -> list[str]:
    """Return the text of each token behind the one before it: some decode to no space alone."""
    if tokenizer is None:
        return [f"{token} " for token in ids]
    alone = [tokenizer.decode([token]) for token in ids]
    pairs = [tokenizer.decode([*pair]) for pair in pairwise(ids)]
    behind = zip(pairs, pairwise(alone), strict=True)
    further = (both[len(a) :] if both.startswith(a) else b for both, (a, b) in behind)
    return [*alone[:1], *further]


def _target(pipeline: Pipeline, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the labels of a row as a sequence, where they are tokens of another one."""
    labels, encoder = row.get("labels"), pipeline.encoder
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu" or encoder.classes:
        return []
    cells = token_cells(labels[:NUM_CELLS], labels[:NUM_CELLS], encoder)
    kinds = ("labelled special" if token["special"] else "labelled" for token in cells)
    shown = [
        [t["text"], t["id"], t["id"], None, kind] for t, kind in zip(cells, kinds, strict=True)
    ]
    more = [NUM_CELLS, len(labels) - NUM_CELLS] if len(labels) > NUM_CELLS else None
    known = {"length": len(labels), "padding": 0, "left_out": more, "target": True}
    return [{"cells": shown, **known}]


def is_aligned(pipeline: Pipeline, batch: Mapping[str, Any]) -> bool:
    """Return whether a batch has a label for each of its tokens."""
    spec, labels = pipeline.fields.get("labels"), batch.get("labels")
    if spec is None or labels is None or spec.aligned_with != "input_ids":
        return False
    return bool(labels.shape == batch["input_ids"].shape)


def _name_of(encoder: Encoder, label: int, token: int) -> Any:
    """Return a label for people: a class by its name, another token than the one it is under."""
    if encoder.classes:
        return str(encoder.classes[label]) if 0 <= label < len(encoder.classes) else label
    if label == token or encoder.tokenizer is None:
        return label
    return f"{label} {encoder.tokenizer.decode([label])!r}"


def _losses_by_place(batch: Mapping[str, Any], losses: Array | None) -> Array | None:
    """Return the loss of each labelled token at its place in `labels`; NaN elsewhere."""
    if losses is None:
        return None
    labels = batch["labels"].cpu().numpy()
    at = labels != IGNORE_INDEX
    if len(losses) != at.sum():  # the first token of a row is not predicted
        starts = np.cumsum((0, *batch.get("row_lengths", ()))[:-1]) if len(labels) == 1 else [0]
        at[:, starts] = False
    for start, (prompt, _) in zip(starts_of(batch), batch.get("row_branches", ()), strict=False):
        at[:, start : start + prompt] = False
    found = np.full(labels.shape, np.nan)
    if at.sum() == len(losses):
        found[at] = losses
    return found


def starts_of(batch: Mapping[str, Any]) -> list[int]:
    """Return where the rows of a padding-free batch start."""
    return [*np.cumsum((0, *batch.get("row_lengths", ())))[:-1].tolist()]


def _columns(
    pipeline: Pipeline, store: Any, place: int, batch: Mapping[str, Any], number: int
) -> Row:
    """Return a row's image, recording, matrix and values, of the columns that are no tokens."""
    given = pipeline.task.reads.input_of(pipeline.encoder.roles)
    changes = given.changes if given is not None else None
    form = changes({}, pipeline.encoder, pipeline.fields) if changes is not None else None
    known: dict[str, Any] = store.row(place)
    shown: Row = {}
    values: dict[str, Any] = {}
    for name, spec in pipeline.fields.items():
        value: Any = batch.get(name)
        fits = hasattr(value, "shape") and value.ndim == spec.rank + 1 and number < len(value)
        array = value[number].detach().float().cpu().numpy() if fits else known.get(name)
        if array is None or (name in ("input_ids", "attention_mask")):
            continue
        if form is not None and name == form.column:
            drawn = form.picture({**known, name: np.asarray(array)})
            shown |= {"png": drawn["png"]} if "png" in drawn else _drawn(np.asarray(array), spec)
        elif spec.rank and spec.aligned_with == "input_ids":
            continue
        else:
            shown |= _drawn(np.asarray(array), spec) if not shown else {}
            values |= _written(name, np.asarray(array), pipeline)
    return {**shown, **({"values": dict([*values.items()][:NUM_VALUES])} if values else {})}


def _drawn(array: Array, spec: Field) -> Row:
    """Return numbers as a heat map or as a line; nothing for few of them."""
    if spec.numpy_dtype.kind != "f":
        return {}
    if array.ndim == 3 and len(array) == 1:
        array = array[0]
    if array.ndim == 2 and min(array.shape) > 1:
        return {"heat": heat_png(array)}
    if array.ndim in (1, 2) and array.size > LONG:
        flat = np.nan_to_num(array.reshape(-1))
        parts = np.array_split(flat, min(NUM_POINTS // 2, len(flat)))
        return {"line": [round(float(v), 5) for p in parts for v in (p.min(), p.max())]}
    return {}


def _written(name: str, array: Array, pipeline: Pipeline) -> dict[str, Any]:
    """Return a value of a column, or its shape; a class by its name."""
    classes = pipeline.encoder.classes
    if name == "labels" and array.ndim == 0 and classes and 0 <= int(array) < len(classes):
        return {"label": str(classes[int(array)])}
    if array.size > LONG or array.ndim > 1:
        return {name: f"{list(array.shape)} {array.dtype}"}
    flat = np.nan_to_num(array.astype(float)).reshape(-1).tolist()
    return {name: ", ".join(f"{value:.5g}" for value in flat)}


def lengths_and_targets(job: Job) -> dict[str, Any]:
    """Return how long training rows are, how many targets they have, and which classes."""
    store, classes = job.train, job.pipeline.encoder.classes
    made: dict[str, Any] = {}
    for name, values in (("lengths", store.lengths), ("targets", store.num_targets)):
        known = np.asarray(values)
        if len(known) and known.min() < known.max():
            bins = min(30, int(known.max() - known.min()) + 1)
            counts, edges = np.histogram(known, bins=bins)
            made[name] = {"counts": counts.tolist(), "edges": edges.round(3).tolist()}
    spec = job.pipeline.fields.get("labels")
    if classes and spec is not None and not spec.rank and spec.numpy_dtype.kind in "iu":
        counts = np.bincount(np.asarray(store.values("labels")).clip(0), minlength=len(classes))
        most = [n for n in counts.argsort()[::-1][:40].tolist() if n < len(classes)]
        made["classes"] = {str(classes[n]): int(counts[n]) for n in most}
    return made
