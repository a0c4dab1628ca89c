"""One row as the model sees it: its text, what of it is learned or cut, or shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from surefit.batches.field import IGNORED
from surefit.data.table import Table
from surefit.encode.casting import cast_columns
from surefit.encode.encoded_row import Encoded, RowFaultError, Skip
from surefit.encode.encoder import Encoder
from surefit.encode.text.batch_tokenizing import finished
from surefit.plan.plan import Parts
from surefit.tasks.task_spec import TaskSpec


def show_row(table: Table, row: int, task: TaskSpec, parts: Parts) -> dict[str, Any]:
    """The encoded columns of a row of the data, by name; why it is not used if it is dropped."""
    encoder = parts.encoder
    encoded = _encode(table, row, task, encoder)
    shown: dict[str, Any] = {"row": row, "side": _side(row, parts)}
    if isinstance(encoded, Skip):
        why = encoded.remark.message if encoded.remark is not None else None
        return {**shown, "dropped": encoded.reason, **({"why": why} if why else {})}
    columns = cast_columns(encoded.columns, task.fields_for(replace(encoder, extras={})))
    targets = task.count_targets(columns)
    if targets == 0:
        return {**shown, "dropped": "nothing_to_learn"}
    shown |= {"targets": targets, "truncated": encoded.truncated}
    for name, value in columns.items():
        if value.ndim == 0:
            shown[name] = value.item()
        elif value.ndim == 1:
            shown[name] = value.tolist()
        else:
            shown[name] = f"{value.dtype} array {list(value.shape)}"
    if "input_ids" in columns and encoder.tokenizer is not None:
        apart = "decoder_input_ids" in columns  # then the labels are another sequence
        labels = columns.get("labels")
        tokens = _tokens(columns["input_ids"], None if apart else labels, encoder)
        if encoded.truncated:
            tokens = _with_truncated(tokens, table, row, task, encoder)
        shown["text"] = encoder.tokenizer.decode(columns["input_ids"])
        shown["parts"] = list(_parts(tokens, encoder))
        shown["tokens"] = tokens
        if apart and labels is not None:
            shown["target_tokens"] = _tokens(labels, labels, encoder)
    if "labels" in columns and columns["labels"].ndim == 0 and "classes" in encoder.fitted:
        shown["class"] = encoder.classes[int(columns["labels"])]
    return shown


def _encode(table: Table, row: int, task: TaskSpec, encoder: Encoder) -> Encoded | Skip:
    try:
        encoded = finished(task.encode(encoder.read(table.row(row)), encoder), encoder.tokenizer)
    except RowFaultError as fault:
        where = table.where(row)
        raise fault.rule.error(f"row {row}: {fault.message}", where, fix=fault.fix) from None
    return encoded if isinstance(encoded, Encoded | Skip) else Encoded(encoded)


def _side(row: int, parts: Parts) -> str | None:
    if (parts.train.source_row == row).any():
        return "training"
    return "evaluation" if (parts.evaluation.source_row == row).any() else None


def _tokens(ids: Any, labels: Any, encoder: Encoder) -> list[dict[str, Any]]:
    learned = labels != IGNORED if labels is not None and labels.ndim == 1 else None
    special = set(encoder.tokenizer.all_special_ids) | {*encoder.tokenizer.added_tokens_decoder}
    return [
        {
            "id": token,
            "text": encoder.tokenizer.decode([token]),
            "learned": bool(learned[place]) if learned is not None else None,
            "special": token in special,
            "kind": "learned" if learned is not None and learned[place] else "prompt",
        }
        for place, token in enumerate(ids.tolist())
    ]


def _parts(tokens: list[dict[str, Any]], encoder: Encoder) -> Iterator[dict[str, str]]:
    """Neighbouring tokens of one kind as text; a character may be made of several tokens."""
    for kind, group in groupby(tokens, _full_kind):
        ids = [token["id"] for token in group]
        yield {"kind": kind, "text": encoder.tokenizer.decode(ids)}


def _full_kind(token: Mapping[str, Any]) -> str:
    if token["kind"] == "truncated" or not token["special"]:
        return str(token["kind"])
    return "learned special" if token["learned"] else "special"


def _with_truncated(
    tokens: list[dict[str, Any]], table: Table, row: int, task: TaskSpec, encoder: Encoder
) -> list[dict[str, Any]]:
    """The tokens with those that the limit cut off, where they were."""
    whole = _encode(table, row, task, replace(encoder, max_length=None))
    if isinstance(whole, Skip):
        return tokens
    ids = np.asarray(whole.columns["input_ids"])
    kept = np.array([token["id"] for token in tokens])
    behind = _equal_from_start(ids[::-1], kept[::-1])
    before = min(_equal_from_start(ids, kept), len(kept) - behind)
    lost = _tokens(ids[before : len(ids) - len(kept) + before], None, encoder)
    cut = [{**token, "learned": False, "kind": "truncated"} for token in lost]
    return [*tokens[:before], *cut, *tokens[before:]]


def _equal_from_start(one: Any, other: Any) -> int:
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length
