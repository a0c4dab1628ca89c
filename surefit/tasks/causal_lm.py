"""causal-lm: predict every token of a text from the tokens before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from surefit.batches.field import IGNORE_INDEX, Field
from surefit.config import set_option
from surefit.data.column_values import is_metadata, words_of
from surefit.data.roles import get_role
from surefit.data.table import Table
from surefit.data.unread_columns import SUBJECTS
from surefit.findings import Finding, rule
from surefit.inputs.encoded_row import DropReason, Encoded, Encoding, SkipRowError, refuse_overlong
from surefit.inputs.encoder import Encoder
from surefit.inputs.text.batch_tokenizing import Tokenized
from surefit.inputs.text.text_reading import read_ids, read_text
from surefit.inputs.text.tokenizer import add_nothing_behind
from surefit.targets.metrics.token_metrics import learned_tokens, next_token
from surefit.targets.task_spec import Generate, Head, Reads, TaskSpec, TextUse
from surefit.tasks.causal_text import (
    answer,
    can_generate,
    count_targets,
    ends_with_eos,
    generation_settings,
    is_overlong,
)

PROMPTS_WITHOUT_ANSWERS = rule(
    "SF133",
    "error",
    "prompts without answers",
    why="A model trained on prompts alone learns to write prompts, not to answer them.",
    fix="Add a column with the answers, or train on the prompts as text: --set accept=SF133.",
    accept="The prompts are trained on as plain text.",
)


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """The text with bos, if the tokenizer adds it, and eos; over the limit, it becomes blocks.

    Blocks are consecutive, and none spans two rows. With `overlong: truncate`, a row loses its end
    instead.
    """
    predicting = encoder.predicting
    if "input_ids" in row:
        read = read_ids(row, predicting)
        return Encoding(lambda tokens: _within_limit(*read, encoder))
    text = read_text(row, "text", encoder)
    if not (text or "").strip():
        raise SkipRowError(DropReason.EMPTY)
    end = [encoder.eos_id] if encoder.eos_id is not None and not predicting else []

    def finish(tokens: list[Tokenized]) -> Encoded | list[Encoded]:
        read = tokens[0].ids
        first = [] if read[:1] == encoder.first_ids else encoder.first_ids
        ids = np.array([*first, *read, *([] if read[-1:] == end else end)], np.int64)
        return _within_limit(ids, ids, encoder)

    return Encoding(finish, [text or ""], special=False)


def _within_limit(ids: Any, labels: Any, encoder: Encoder) -> Encoded | list[Encoded]:
    if len(ids) == 0:
        raise SkipRowError(DropReason.EMPTY)
    if encoder.predicting:  # what is nearest to the continuation is kept
        kept = ids[-encoder.max_length :] if encoder.max_length else ids
        return Encoded({"input_ids": kept, "labels": [IGNORE_INDEX] * len(kept)})
    if not is_overlong(len(ids), encoder):
        return _block(ids, labels, encoder)
    assert encoder.max_length is not None
    refuse_overlong(len(ids), encoder)
    if encoder.settings.overlong == "split":
        bounds = block_bounds(len(ids), encoder.max_length)
        return [_block(ids[a:b], labels[a:b], encoder) for a, b in bounds]
    limit = encoder.max_length
    return _block(ids[:limit], labels[:limit], encoder, truncated=len(ids) - limit)


def _block(ids: Any, labels: Any, encoder: Encoder, truncated: int = 0) -> Encoded:
    columns = {"input_ids": ids, "labels": labels}
    return Encoded(columns, truncated, learns_eos=ends_with_eos(labels, encoder))


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


def misread(table: Table, roles: Mapping[str, str], chosen: Mapping[str, str]) -> Iterator[Finding]:
    """Prompts that would be trained on as text, because the data has no answers."""
    column = roles.get("text")
    if column is None or "text" in chosen or column.lower() not in get_role("prompt").names:
        return
    others = [name for name in table.columns if name != column and not is_metadata(name)]
    known = f"is known to have the answers (besides it: {', '.join(others)})"
    message = (
        f"Column {column!r} has {table.num_rows} prompts, and no column "
        f"{known if others else 'has answers'}."
    )
    texts = [n for n in others if table.profile(n).is_prose and SUBJECTS.isdisjoint(words_of(n))]
    named = ""
    if texts:
        named = f", or name their column: --task sft {set_option('columns.answer', texts[0])}"
    yield PROMPTS_WITHOUT_ANSWERS.finding(
        message,
        fix=f"Add a column 'answer' with the answers{named}. To train on the prompts as text: "
        "--set accept=SF133.",
        file=table.sources[0].file,
        column=column,
    )


SPEC = TaskSpec(
    name="causal-lm",
    summary="the next token of plain text: a text column, or input_ids",
    needs=(("input_ids",), ("text",)),
    optional=("labels", "mask"),
    targets=("labels",),
    reads=Reads(misread=misread, last_resort=True, exact_targets=False),
    text=TextUse(
        adapt_tokenizer=lambda tokenizer, roles, reload: add_nothing_behind(tokenizer, reload),
        splits_rows=True,
    ),
    fields={
        "input_ids": Field(("time",), "int64", 0),
        "labels": Field(("time",), "int64", IGNORE_INDEX, "input_ids"),
    },
    encode=encode,
    count_targets=count_targets,
    **learned_tokens(next_token),
    generate=Generate(answer, possible=can_generate, settings=generation_settings),
    head=Head(auto_class="AutoModelForCausalLM", predicts="next_token"),
)
