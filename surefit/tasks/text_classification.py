"""text-classification: one class per text or pair of texts, or several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow.compute as pc

from surefit.batches.field import Field, describe_misalignment
from surefit.config import set_option
from surefit.data.column_meanings import OF_TEXTS
from surefit.data.column_types import is_list
from surefit.data.data_rules import MISALIGNED_COLUMNS, WRONG_TYPE
from surefit.data.label_columns import is_continuous
from surefit.data.roles import get_role
from surefit.data.table import Table
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import (
    Encoded,
    Encoding,
    RowFaultError,
    SkipRowError,
    encoded,
    refuse_overlong,
)
from surefit.encode.encoder import Encoder
from surefit.encode.text.batch_tokenizing import Tokenized
from surefit.encode.text.tokenizer import Reload, separate_pairs
from surefit.findings import Finding, note
from surefit.tasks.causal_text import read_ids
from surefit.tasks.class_task import class_head, class_targets, class_task
from surefit.tasks.classes import fit_classes, label_field

TOKENS = Field(("time",), "int64", 0)
SEGMENTS = Field(("time",), "int64", 0, "input_ids")
ALONGSIDE = {"mask": "attention_mask", "token_type_ids": "token_type_ids"}
"""Roles of columns that rows of token ids may have, and their names in a batch."""


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """Tokens of the text with the tokenizer's own special tokens, and the class."""
    return encode_text(row, encoder, class_targets(row, encoder))


def encode_text(row: Mapping[str, Any], encoder: Encoder, targets: Mapping[str, Any]) -> Encoding:
    """Tokens of the row's text or pair of texts, with what else was read from the row."""
    if "input_ids" in encoder.roles:
        return encode_ids(row, encoder, targets)
    texts = []
    for role in ("text", "text_pair"):
        if role not in encoder.roles:
            continue
        text = row[role]
        if text is not None and not isinstance(text, str):
            raise RowFaultError(WRONG_TYPE, f"{text!r} is not text", encoder.roles[role])
        if text is None or not text.strip():
            raise SkipRowError(DropReason.EMPTY)
        texts.append(text)
    tokenizer = encoder.tokenizer
    if len(texts) == 2 and not tokenizer.num_special_tokens_to_add(pair=True):
        texts = [f"{texts[0]}{tokenizer.eos_token or ' '}{texts[1]}"]
    names = text_fields(encoder)

    def finish(tokens: list[Tokenized]) -> Encoded:
        read = {"input_ids": tokens[0].ids, "token_type_ids": tokens[0].type_ids}
        length = len(tokens[0].ids)
        if encoder.max_length is not None and length > encoder.max_length:
            refuse_overlong(length, encoder)
            read = tokenizer(*texts, truncation=True, max_length=encoder.max_length)
        columns = {name: read[name] for name in names}
        return Encoded({**columns, **targets}, truncated=length - len(read["input_ids"]))

    return Encoding(finish, [texts[0] if len(texts) == 1 else (texts[0], texts[1])])


def encode_ids(row: Mapping[str, Any], encoder: Encoder, targets: Mapping[str, Any]) -> Encoding:
    """Token ids of the data as they are, with the attention mask and the segments it has."""
    ids, _ = read_ids({"input_ids": row["input_ids"]})
    if not len(ids):
        raise SkipRowError(DropReason.EMPTY)
    limit = len(ids) if encoder.max_length is None else min(len(ids), encoder.max_length)
    if limit < len(ids):
        refuse_overlong(len(ids), encoder)
    read = {"input_ids": ids}
    for role, name in ALONGSIDE.items():
        if role in encoder.roles:
            given = row.get(role)
            read[name] = np.ones_like(ids) if given is None and role == "mask" else given
            if given is not None and len(given) != len(ids):
                column, other = encoder.roles[role], encoder.roles["input_ids"]
                message = describe_misalignment(column, len(given), other, len(ids))
                raise RowFaultError(MISALIGNED_COLUMNS, message, role)
    if "mask" in encoder.roles and not np.any(read["attention_mask"]):
        raise SkipRowError(DropReason.MASKED)
    cut = {name: None if values is None else values[:limit] for name, values in read.items()}
    return encoded({**cut, **targets}, truncated=len(ids) - limit)


def adapt_to_pairs(tokenizer: Any, roles: Mapping[str, str], reload: Reload) -> Any:
    """A tokenizer that marks where the second text of a pair begins."""
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


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether the label is a class rather than an amount, and no label of each token."""
    return not is_continuous(table, roles["label"]) and labels_rows(table, roles)


def labels_rows(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether rows have labels, and not their tokens: lists as long as those of token ids."""
    if "input_ids" not in roles or not is_list(table.column_type(roles["label"])):
        return True
    lengths = [pc.list_value_length(table.arrow[roles[r]]) for r in ("input_ids", "label")]
    return not pc.all(pc.equal(*lengths)).as_py()


def misread(table: Table, roles: Mapping[str, str], chosen: Mapping[str, str]) -> Iterator[Finding]:
    """The texts of a pair whose names do not say that they are one."""
    pair = roles.get("text_pair")
    if pair is None or "text_pair" in chosen or pair.lower() in get_role("text_pair").names:
        return
    yield note(
        f"Columns {roles['text']!r} and {pair!r} are read as a pair of texts.",
        fix=f"To read {roles['text']!r} alone: {set_option('ignore', pair)}.",
        file=table.sources[0].file,
        column=pair,
    )


SPEC = class_task(
    name="text-classification",
    summary="one class per text, pair of texts or row of token ids; several where the label is a "
    "list or red|blue",
    needs=(("text", "label"), ("input_ids", "label")),
    optional=("text_pair", *ALONGSIDE),
    augments=("text", "text_pair"),
    takes=takes,
    meanings=OF_TEXTS,
    misread=misread,
    fields={"input_ids": TOKENS, "labels": Field((), "int64")},
    fields_of=lambda encoder: {**text_fields(encoder), "labels": label_field(encoder)},
    adapt_tokenizer=adapt_to_pairs,
    encode=encode,
    fit=fit_classes,
    class_files=True,
    head=class_head(auto_class="AutoModelForSequenceClassification"),
)
