"""Texts, pairs of texts and rows of token ids as the input of a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surefit.batches.branches import LENGTHS
from surefit.batches.field import IGNORE_INDEX, Field, describe_misalignment
from surefit.config import set_option
from surefit.data.column_types import (
    array_rank,
    is_array,
    is_list,
    is_number,
    is_text_list,
    list_axes,
)
from surefit.data.data_rules import MISALIGNED_COLUMNS, WRONG_SHAPE, WRONG_TYPE
from surefit.data.roles import get_role
from surefit.data.row_arrays import row_shape
from surefit.data.table import Table
from surefit.findings import Finding, note
from surefit.inputs.batch_tokenizing import Tokenized, tokenize
from surefit.inputs.encoded_row import (
    DropReason,
    Encoded,
    Encoding,
    LabelTokens,
    RowFaultError,
    TokenSequence,
    drop_row,
    encoded,
    is_overlong,
    refuse_overlong,
)
from surefit.inputs.encoder import Encoder
from surefit.inputs.model_hints import Hints
from surefit.inputs.row_input import ReadBy, RowInput
from surefit.inputs.tokenizer import Reload, separate_pairs

TOKENS = Field(("time",), "int64", 0)
SEGMENTS = Field(("time",), "int64", 0, "input_ids")
ALONGSIDE = {"mask": "attention_mask", "token_type_ids": "token_type_ids"}
"""Roles of columns that rows of token ids may have, and their names in a batch."""


def read_text(row: Mapping[str, Any], role: str, encoder: Encoder) -> str | None:
    """Return the text in a role, None where there is none; a RowFaultError if it is not text.

    A number is its digits: readers of tables make numbers of answers such as 42.
    """
    value = row.get(role)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return repr(value)
    if value is not None and not isinstance(value, str):
        column = encoder.roles[role]
        leave_out = f"Write it as one text, or leave it out: {set_option('ignore', column)}."
        fix = leave_out if role == "input" else ""  # a prompt needs no context, but an answer
        raise RowFaultError(WRONG_TYPE, f"{str(value)[:100]!r} is not text", column, fix)
    return value


def encode_text(
    row: Mapping[str, Any],
    encoder: Encoder,
    targets: Mapping[str, Any],
    per_token: Callable[[Any], Mapping[str, Any]] | None = None,
) -> Encoding:
    """Return tokens of the row's text or pair of texts, with what else was read from the row.

    `per_token` makes further columns of the tokens.
    """
    if "input_ids" in encoder.roles:
        return encode_ids(row, encoder, targets)
    texts = []
    for role in ("text", "text_pair"):
        if role not in encoder.roles:
            continue
        text = row[role]
        if text is not None and not isinstance(text, str):  # a number may be a measurement
            raise RowFaultError(WRONG_TYPE, f"{text!r} is not text", encoder.roles[role])
        if text is None or not text.strip():
            raise drop_row(DropReason.EMPTY)
        texts.append(text)
    tokenizer = encoder.tokenizer
    if len(texts) == 2 and not tokenizer.num_special_tokens_to_add(pair=True):
        texts = [f"{texts[0]}{tokenizer.eos_token or ' '}{texts[1]}"]
    asked = texts[0] if len(texts) == 1 else (texts[0], texts[1])
    names = text_fields(encoder)

    def finish(tokens: list[Tokenized]) -> Encoded:
        made, length = tokens[0], len(tokens[0].ids)
        if is_overlong(length, encoder):
            refuse_overlong(length, encoder)
            (made,) = tokenize(tokenizer, [asked], special=True, limit=encoder.max_length)
        read = {"input_ids": made.ids, "token_type_ids": made.type_ids}
        columns = {name: read[name] for name in names}
        columns |= per_token(made.ids) if per_token is not None else {}
        return Encoded({**columns, **targets}, truncated=length - len(made.ids))

    return Encoding(finish, [asked])


def encode_several(
    row: Mapping[str, Any], roles: Sequence[str], encoder: Encoder, targets: Mapping[str, Any]
) -> Encoding:
    """Return the tokens of several texts, each a sequence of its own, one behind the other."""
    texts = [read_text(row, role, encoder) or "" for role in roles]
    if not all(text.strip() for text in texts):
        raise drop_row(DropReason.EMPTY)

    def finish(tokens: list[Tokenized]) -> Encoded:
        whole = [len(each.ids) for each in tokens]
        if is_overlong(max(whole), encoder):
            refuse_overlong(max(whole), encoder)
            tokens = tokenize(encoder.tokenizer, texts, special=True, limit=encoder.max_length)
        lengths = [len(each.ids) for each in tokens]
        ids = np.concatenate([np.asarray(each.ids, np.int64) for each in tokens])
        columns = {"input_ids": ids, LENGTHS: lengths, **targets}
        return Encoded(columns, truncated=sum(whole) - sum(lengths))

    return Encoding(finish, texts)


def read_ids(row: Mapping[str, Any], predicting: bool = False) -> tuple[Any, Any]:
    """Ids and labels of a pre-tokenized row; without a labels column every token has a label.

    Positions that an attention mask of the data's own calls padding are left out.
    """
    ids = np.asarray([] if row["input_ids"] is None else row["input_ids"])
    if ids.size == 0:
        return ids, ids
    given = row.get("labels")
    labels = ids if given is None else np.asarray(given)
    if predicting:  # all of it is prompt
        labels = np.full_like(ids, IGNORE_INDEX)
    for name, values in (("input_ids", ids), ("labels", labels)):
        if values.ndim != 1:
            raise RowFaultError(
                WRONG_SHAPE,
                f"column {name!r} has {_describe_axes(values.ndim)}; expected one list of ids",
                name,
                fix=f"Store one list of ids in each row, such as {name}: [5, 17, 2].",
            )
    mask = row.get("mask")
    for name, values in (("labels", labels), ("attention_mask", ids if mask is None else mask)):
        if len(values) != len(ids):
            raise RowFaultError(
                MISALIGNED_COLUMNS,
                describe_misalignment(name, len(values), "input_ids", len(ids)),
                name,
            )
    if mask is None:
        return ids, labels
    kept = np.asarray(mask) != 0
    if not kept.any():
        raise drop_row(DropReason.MASKED)
    return ids[kept], labels[kept]


def encode_running_text(row: Mapping[str, Any], encoder: Encoder, label: LabelTokens) -> Encoding:
    """Return the text with bos, if the tokenizer adds it, and eos; over the limit, it becomes
    blocks.

    Blocks are consecutive, and none spans two rows. With `overlong: truncate`, a row loses its end
    instead.
    """
    if "input_ids" in row:
        ids, labels = read_ids(row, encoder.predicting)
        return Encoding(lambda tokens: _blocks(TokenSequence(ids, labels=labels), encoder, label))
    text = read_text(row, "text", encoder)
    if not (text or "").strip():
        raise drop_row(DropReason.EMPTY)
    end = [encoder.eos_id] if encoder.eos_id is not None and not encoder.predicting else []

    def finish(tokens: list[Tokenized]) -> Encoded | list[Encoded]:
        read = tokens[0].ids
        first = [] if read[:1] == encoder.first_ids else encoder.first_ids
        ids = np.array([*first, *read, *([] if read[-1:] == end else end)], np.int64)
        return _blocks(TokenSequence(ids, labels=ids), encoder, label)

    return Encoding(finish, [text or ""], special=False)


def _blocks(whole: TokenSequence, encoder: Encoder, label: LabelTokens) -> Encoded | list[Encoded]:
    length, limit = len(whole.ids), encoder.max_length
    if not length:
        raise drop_row(DropReason.EMPTY)
    if not is_overlong(length, encoder):
        return label(whole)
    assert limit is not None
    if encoder.predicting:  # what is nearest to the continuation is kept
        return label(_cut(whole, length - limit, length))
    refuse_overlong(length, encoder)
    if encoder.settings.overlong == "split":
        return [label(_cut(whole, a, b)) for a, b in block_bounds(length, limit)]
    return label(replace(_cut(whole, 0, limit), truncated=length - limit))


def _cut(whole: TokenSequence, start: int, end: int) -> TokenSequence:
    labels = whole.labels if whole.labels is None else whole.labels[start:end]
    return replace(whole, ids=whole.ids[start:end], labels=labels)


def block_bounds(length: int, limit: int) -> list[tuple[int, int]]:
    """Start and end of each block. All blocks but the last have `limit` tokens.

    If one token were left for the last block, it would have nothing to predict it from. The first
    block then has one token less, and the last block two.

    >>> block_bounds(8, 4), block_bounds(10, 4), block_bounds(9, 4)
    ([(0, 4), (4, 8)], [(0, 4), (4, 8), (8, 10)], [(0, 3), (3, 7), (7, 9)])
    """
    moved = int(length % limit == 1)
    starts = [0, *range(limit - moved, length, limit)]
    return list(zip(starts, [*starts[1:], length], strict=True))


def encode_given_answers(row: Mapping[str, Any], encoder: Encoder, label: LabelTokens) -> Encoding:
    """Prompts and answers as token ids, with `labels` where some are masked.

    Over the limit, a row loses its beginning.
    """
    ids, labels = read_ids(row, encoder.predicting)
    if len(ids) == 0:
        raise drop_row(DropReason.EMPTY)
    length = len(ids)
    if is_overlong(length, encoder):
        refuse_overlong(length, encoder)
        ids, labels = ids[-encoder.max_length :], labels[-encoder.max_length :]  # type: ignore[operator]
    learned = np.flatnonzero(labels != IGNORE_INDEX)
    prompt_length = int(learned[0]) if len(learned) else len(ids)
    read = TokenSequence(ids, None, prompt_length, labels, truncated=length - len(ids))
    return Encoding(lambda tokens: label(read))


def _describe_axes(num_axes: int) -> str:
    return f"lists nested {num_axes} deep in each row" if num_axes else "one number in each row"


def encode_ids(
    row: Mapping[str, Any],
    encoder: Encoder,
    targets: Mapping[str, Any],
    per_token: Mapping[str, Any] | None = None,
) -> Encoding:
    """Token ids of the data as they are, with the attention mask and the segments it has.

    Columns `per_token` have a value for each of the ids and are cut with them.
    """
    ids, _ = read_ids({"input_ids": row["input_ids"]})
    if not len(ids):
        raise drop_row(DropReason.EMPTY)
    limit = len(ids) if encoder.max_length is None else min(len(ids), encoder.max_length)
    if limit < len(ids):
        refuse_overlong(len(ids), encoder)
    read = {"input_ids": ids, **(per_token or {})}
    for role, name in ALONGSIDE.items():
        if role in encoder.roles:
            given = row.get(role)
            read[name] = np.ones_like(ids) if given is None and role == "mask" else given
            if given is not None and len(given) != len(ids):
                column, other = encoder.roles[role], encoder.roles["input_ids"]
                message = describe_misalignment(column, len(given), other, len(ids))
                raise RowFaultError(MISALIGNED_COLUMNS, message, role)
    if "mask" in encoder.roles and not np.any(read["attention_mask"]):
        raise drop_row(DropReason.MASKED)
    cut = {name: None if values is None else values[:limit] for name, values in read.items()}
    return encoded({**cut, **targets}, truncated=len(ids) - limit)


def adapt_to_pairs(tokenizer: Any, roles: Mapping[str, str], reload: Reload) -> Any:
    """Return a tokenizer that marks where the second text of a pair begins."""
    return separate_pairs(tokenizer, reload) if "text_pair" in roles else tokenizer


def text_fields(encoder: Encoder) -> dict[str, Field]:
    """Token ids, and token type ids of a pair of texts if the tokenizer uses them.

    Rows of token ids bring what they have.
    """
    if "input_ids" in encoder.roles:
        given = [name for role, name in ALONGSIDE.items() if role in encoder.roles]
        return {"input_ids": TOKENS, **dict.fromkeys(given, SEGMENTS)}
    names = getattr(encoder.tokenizer, "model_input_names", ())
    if "text_pair" in encoder.roles and "token_type_ids" in names:
        return {"input_ids": TOKENS, "token_type_ids": SEGMENTS}
    return {"input_ids": TOKENS}


def labels_tokens(table: Table, ids: str, labels: str) -> bool:
    """Return whether a column has a list for each row, as long as its token ids in most rows.

    Texts are then tags, and no tokens to learn.
    """
    if not all(is_list(table.column_type(name)) for name in (ids, labels)):
        return not is_text_list(table.column_type(labels))
    lengths = [pc.list_value_length(table.arrow[name]) for name in (ids, labels)]
    share = pc.mean(pc.cast(pc.equal(*lengths), "float64")).as_py()
    return share is None or share > 0.5


def labels_rows(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether rows have labels, and not their tokens: lists as long as those of token ids."""
    if "input_ids" not in roles or not is_list(table.column_type(roles["label"])):
        return True
    lengths = [pc.list_value_length(table.arrow[roles[r]]) for r in ("input_ids", "label")]
    return not pc.all(pc.equal(*lengths)).as_py()


def misread(table: Table, roles: Mapping[str, str], chosen: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the texts of a pair whose names do not say that they are one."""
    pair = roles.get("text_pair")
    if pair is None or "text_pair" in chosen or pair.lower() in get_role("text_pair").names:
        return
    yield note(
        f"Columns {roles['text']!r} and {pair!r} are read as a pair of texts.",
        fix=f"To read {roles['text']!r} alone: {set_option('ignore', pair)}.",
        file=table.sources[0].file,
        column=pair,
    )


def read_as_ids(table: Table, arrays: Sequence[str], hints: Hints) -> str | None:
    """Return the first list of integers that a module reads as integers only: ids to embed."""
    named = [name for name in hints.arguments if name in table.columns] or list(arrays[:1])
    kinds = {name: table.column_type(name) for name in named}
    read = {name: kind for name, kind in kinds.items() if is_array(kind) or is_number(kind)}
    whole = {name for name, kind in read.items() if pa.types.is_integer(list_axes(kind)[1])}
    ids = next((name for name in read if name in arrays and name in whole), None)
    if ids is None or hints.runs_on is None or array_rank(read[ids]) != 1:
        return None
    shapes = {name: [axis.usual for axis in row_shape(table, name).axes] for name in read}
    if "attention_mask" in hints.arguments:
        shapes, whole = {**shapes, "attention_mask": shapes[ids]}, {*whole, "attention_mask"}
    as_integers = hints.runs_on(shapes, whole)
    return ids if as_integers and not hints.runs_on(shapes, whole - {ids}) else None


TEXT = RowInput("text", encode_text, text_fields, ReadBy("AutoModelForSequenceClassification"))
IDS = replace(TEXT, role="input_ids", takes=labels_rows, read_by=read_as_ids)
