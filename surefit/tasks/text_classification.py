"""text-classification: one class per text or pair of texts, or several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from surefit.batches.field import Field
from surefit.config import set_option
from surefit.data.column_meanings import OF_TEXTS
from surefit.data.data_rules import WRONG_TYPE
from surefit.data.label_columns import is_continuous
from surefit.data.roles import get_role
from surefit.data.table import Table
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import (
    Encoded,
    Encoding,
    RowFaultError,
    SkipRowError,
    refuse_overlong,
)
from surefit.encode.encoder import Encoder
from surefit.encode.text.batch_tokenizing import Tokenized
from surefit.encode.text.saved_tokenizer import Reload, separate_pairs
from surefit.findings import Finding, rule
from surefit.tasks.baselines import class_baselines
from surefit.tasks.classes import (
    CONFUSION,
    MACRO_F1,
    accuracy,
    class_id,
    class_loss,
    class_scores,
    class_settings,
    decode_classes,
    fit_classes,
    label_field,
    probabilities,
)
from surefit.tasks.task_spec import Head, TaskSpec

READ_AS_PAIR = rule(
    "SF144",
    "info",
    "two texts read as a pair",
    why="The data has two columns of text beside the label, and the model gets both.",
    fix="To read one of them alone, name the other: --set ignore=<column>.",
)

TOKENS = Field(("time",), "int64", 0)
SEGMENTS = Field(("time",), "int64", 0, "input_ids")


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """Tokens of the text with the tokenizer's own special tokens, and the class."""
    if "label" not in row:
        return encode_text(row, encoder, {})
    return encode_text(row, encoder, {"labels": class_id(row, encoder)})


def encode_text(row: Mapping[str, Any], encoder: Encoder, targets: Mapping[str, Any]) -> Encoding:
    """Tokens of the row's text or pair of texts, with what else was read from the row."""
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


def adapt_to_pairs(tokenizer: Any, roles: Mapping[str, str], reload: Reload) -> Any:
    """A tokenizer that marks where the second text of a pair begins."""
    return separate_pairs(tokenizer, reload) if "text_pair" in roles else tokenizer


def text_fields(encoder: Encoder) -> dict[str, Field]:
    """Token ids, and token type ids of a pair of texts if the tokenizer uses them."""
    names = getattr(encoder.tokenizer, "model_input_names", ())
    if "text_pair" in encoder.roles and "token_type_ids" in names:
        return {"input_ids": TOKENS, "token_type_ids": SEGMENTS}
    return {"input_ids": TOKENS}


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether the label is a class rather than an amount."""
    return not is_continuous(table, roles["label"])


def misread(table: Table, roles: Mapping[str, str], chosen: Mapping[str, str]) -> Iterator[Finding]:
    """The texts of a pair whose names do not say that they are one."""
    pair = roles.get("text_pair")
    if pair is None or "text_pair" in chosen or pair.lower() in get_role("text_pair").names:
        return
    yield READ_AS_PAIR.finding(
        f"Columns {roles['text']!r} and {pair!r} are read as a pair of texts.",
        fix=f"To read {roles['text']!r} alone: {set_option('ignore', pair)}.",
        file=table.sources[0].file,
        column=pair,
    )


SPEC = TaskSpec(
    name="text-classification",
    summary="one class per text or pair of texts; several where the label is a list or red|blue",
    needs=(("text", "label"),),
    optional=("text_pair",),
    augments=("text", "text_pair"),
    takes=takes,
    meanings=OF_TEXTS,
    misread=misread,
    fields={"input_ids": TOKENS, "labels": Field((), "int64")},
    fields_of=lambda encoder: {**text_fields(encoder), "labels": label_field(encoder)},
    adapt_tokenizer=adapt_to_pairs,
    encode=encode,
    fit=fit_classes,
    baselines=class_baselines,
    loss=class_loss,
    class_scores=class_scores,
    predicted_values=probabilities,
    metrics={"accuracy": accuracy, "macro_f1": MACRO_F1, "confusion": CONFUSION},
    best="accuracy",
    class_files=True,
    decode=decode_classes,
    head=Head(
        auto_class="AutoModelForSequenceClassification",
        size=lambda encoder: len(encoder.classes),
        config=class_settings,
    ),
)
