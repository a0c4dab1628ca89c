"""causal-lm: predict every token of a text from the tokens before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from surefit.batches.field import IGNORE_INDEX, Field
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import Encoded, Encoding, SkipRowError, refuse_overlong
from surefit.encode.encoder import Encoder
from surefit.encode.text.batch_tokenizing import Tokenized
from surefit.tasks.causal_text import (
    answer,
    can_generate,
    count_targets,
    ends_with_eos,
    generation_settings,
    is_overlong,
    read_ids,
    read_text,
)
from surefit.tasks.metrics.token_metrics import next_token, token_loss, token_metrics
from surefit.tasks.task_spec import Generate, Head, TaskSpec


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """The text with bos, if the tokenizer adds it, and eos; a row over the limit loses its end."""
    predicting = bool(encoder.settings.get("predicting"))
    if "input_ids" in row:
        read = read_ids(row, predicting)
        return Encoding(lambda tokens: _within_limit(*read, encoder))
    text = read_text(row, "text", encoder)
    if not (text or "").strip():
        raise SkipRowError(DropReason.EMPTY)
    end = [encoder.eos_id] if encoder.eos_id is not None and not predicting else []

    def finish(tokens: list[Tokenized]) -> Encoded:
        ids = np.array([*encoder.first_ids, *tokens[0].ids, *end], np.int64)
        return _within_limit(ids, ids, encoder)

    return Encoding(finish, [text or ""], special=False)


def _within_limit(ids: Any, labels: Any, encoder: Encoder) -> Encoded:
    if len(ids) == 0:
        raise SkipRowError(DropReason.EMPTY)
    if encoder.settings.get("predicting"):  # what is nearest to the continuation is kept
        kept = ids[-encoder.max_length :] if encoder.max_length else ids
        return Encoded({"input_ids": kept, "labels": [IGNORE_INDEX] * len(kept)})
    overlong = is_overlong(len(ids), encoder)
    if overlong:
        refuse_overlong(len(ids), encoder)
        ids, labels = ids[: encoder.max_length], labels[: encoder.max_length]
    columns = {"input_ids": ids, "labels": labels}
    return Encoded(columns, truncated=overlong, learns_eos=ends_with_eos(labels, encoder))


SPEC = TaskSpec(
    name="causal-lm",
    summary="the next token of plain text: a text column, or input_ids",
    needs=(("input_ids",), ("text",)),
    optional=("labels", "mask"),
    targets=("labels",),
    last_resort=True,
    fields={
        "input_ids": Field(("time",), "int64", 0),
        "labels": Field(("time",), "int64", IGNORE_INDEX, "input_ids"),
    },
    encode=encode,
    count_targets=count_targets,
    loss=token_loss(next_token),
    metrics=token_metrics(next_token),
    generate=Generate(answer, possible=can_generate, settings=generation_settings),
    head=Head(auto_class="AutoModelForCausalLM", predicts="next_token"),
)
