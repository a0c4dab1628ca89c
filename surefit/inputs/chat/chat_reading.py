"""Dialogues as the input of a row: read, rendered by the template, tokenized, within the limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from surefit.batches.field import IGNORE_INDEX
from surefit.data.column_types import is_dialogue
from surefit.data.table import Table
from surefit.findings import NOTE, Finding, rule
from surefit.inputs.batch_tokenizing import Tokenized
from surefit.inputs.chat.dialogue_rows import divide_row, read_row, turns_of
from surefit.inputs.chat.dialogues import DialogueTokens
from surefit.inputs.chat.messages import CALL_KEPT_AS_TEXT, Dialogue, is_answer, is_prompt
from surefit.inputs.chat.template_fitting import (
    EARLIER_REASONING_NOT_RENDERED,
    MESSAGE_NOT_RENDERED,
    REASONING_NOT_RENDERED,
    DialogueColumns,
    fit_template,
)
from surefit.inputs.chat.template_rendering import TemplateError
from surefit.inputs.encoded_row import (
    DropReason,
    Encoded,
    Encoding,
    LabelTokens,
    RowFaultError,
    TokenSequence,
    drop_row,
    is_overlong,
    refuse_overlong,
)
from surefit.inputs.encoder import Encoder

OVERLONG_ROW_DROPPED = rule(
    "SF279",
    "warning",
    "overlong row dropped",
    why="An answer without its end teaches the model never to stop, so it is not cut.",
    fix="Raise max_seq_length if the model allows it, or shorten the row.",
    accept="The rows are dropped.",
)

CALLS_WRITTEN_AS_TEXT = rule(
    "SF165",
    "warning",
    "tool calls written as text",
    why=(
        "The template writes no tool calls. They are trained on as JSON in the answer, and whoever "
        "uses the model has to read the calls from its text."
    ),
    fix="Use a tokenizer or a template that writes tool calls: --set template=FILE.jinja.",
    accept="The calls are written as JSON.",
)

SYSTEM_MESSAGE_JOINED = rule(
    "SF283",
    "fixed",
    "system message joined to the first prompt",
    why="The template takes no system message.",
    fix="Nothing to do.",
)

LAST_ANSWER_MISSING = rule(
    "SF137",
    "warning",
    "dialogues without their last answer",
    why=(
        "Most dialogues end with a message of the user, as prompts for generation do. Only the "
        "answers before it are learned."
    ),
    fix="Add the last answer to each dialogue, or remove the message that it would answer.",
    accept="The answers before the last message are trained on.",
)

PARTS_OF_ANSWERS = (
    EARLIER_REASONING_NOT_RENDERED,
    REASONING_NOT_RENDERED,
    MESSAGE_NOT_RENDERED,
)
SAMPLED_ROWS = 64


def encode_dialogue(row: Mapping[str, Any], encoder: Encoder, label: LabelTokens) -> Encoding:
    """Return the dialogue as its template writes it, up to its last answer.

    Over the limit, the oldest turns go first, then the beginning of the prompt, and never the end
    of an answer.
    """
    dialogue = read_row(row, encoder)
    coder, predicting = encoder.dialogues, encoder.predicting
    try:
        rendered = coder.render(dialogue.messages, dialogue.tools, predicting)
    except TemplateError as fault:
        raise unsuited(fault) from None

    def finish(made: list[Tokenized]) -> Encoded:
        tokens = coder.finish(rendered, made[0])
        length = len(tokens.ids)
        if is_overlong(length, encoder):
            try:
                tokens = _shorten(dialogue, tokens, encoder)
            except TemplateError as fault:
                raise unsuited(fault) from None
            except RowFaultError as skip:
                if not skip.reason:
                    raise
                lost = _lost(row, dialogue, encoder)
                raise drop_row(skip.reason, skip.rule, skip.message, also=lost) from None
        learned = [s for s, weight in zip(tokens.answers, tokens.weights, strict=True) if weight]
        ids, truncated = np.array(tokens.ids, np.int64), length - len(tokens.ids)
        faults = tuple(_faults(row, dialogue, tokens, encoder))
        start = tokens.last_answer
        return label(TokenSequence(ids, learned, start, truncated=truncated, faults=faults))

    return Encoding(finish, [rendered.text], special=False, ends=coder.asks_for_ends)


def unsuited(fault: TemplateError) -> RowFaultError:
    """Return why a row is dropped that the template cannot render."""
    message = f"the template cannot render it: {fault.message}"
    return drop_row(DropReason.TEMPLATE, fault.rule, message)


def _shorten(dialogue: Dialogue, tokens: DialogueTokens, encoder: Encoder) -> DialogueTokens:
    """Return what is left of a row over the limit, as the user wants it."""
    length, limit = len(tokens.ids), encoder.max_length
    assert limit is not None
    predicting = encoder.predicting
    if not predicting:
        refuse_overlong(length, encoder, dropped=OVERLONG_ROW_DROPPED)
    shorter = encoder.dialogues.shorten(dialogue, tokens, limit, predicting)
    if shorter is not None:
        return shorter
    if predicting:
        kept = tokens.ids[-limit:]
        return DialogueTokens(kept, (), (), len(kept))
    frame = f"({length - tokens.last_answer} tokens and its frame)"
    why = f"{length} tokens, but the limit is {limit}; its last answer does not fit {frame}"
    raise drop_row(DropReason.OVERLONG, OVERLONG_ROW_DROPPED, why)


def _lost(
    row: Mapping[str, Any], dialogue: Dialogue, encoder: Encoder
) -> tuple[RowFaultError, ...]:
    """Return what the template does not write of a row; a row that is dropped counts as well."""
    column = turns_of(row)[0]
    system = "system" if row.get("system") else column
    earlier = "history" if row.get("history") is not None else column
    columns = DialogueColumns(column, system, earlier)
    return encoder.dialogues.unrendered.find(dialogue, columns)


def _faults(
    row: Mapping[str, Any], dialogue: Dialogue, tokens: DialogueTokens, encoder: Encoder
) -> Iterator[RowFaultError]:
    """Yield what the user should know of a row that is used."""
    messages, template = dialogue.messages, encoder.dialogues.template
    column = turns_of(row)[0]
    lost = _lost(row, dialogue, encoder)
    yield from lost
    if not tokens.whole and not any(fault.rule in PARTS_OF_ANSWERS for fault in lost):
        message = "the template leaves a part of an answer out"
        yield RowFaultError(EARLIER_REASONING_NOT_RENDERED, message, column)
    if messages[0]["role"] == "system" and template.joins_system:
        message = "the system message is put before the first user's"
        yield RowFaultError(SYSTEM_MESSAGE_JOINED, message, column)
    if template.calls_as_text and any(message.get("tool_calls") for message in messages):
        message = "the template writes no tool calls; they are written as JSON"
        yield RowFaultError(CALLS_WRITTEN_AS_TEXT, message, column, counted=True)
    if dialogue.has_unread_call:
        message = "a tool call is not JSON with a name and arguments"
        yield RowFaultError(CALL_KEPT_AS_TEXT, message, column, counted=True)
    if dialogue.num_left_out:
        count = dialogue.num_left_out
        what = "1 message is" if count == 1 else f"{count} messages are"
        yield RowFaultError(NOTE, f"{what} left out behind the last answer", column)


def fit_chat(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> tuple[Encoder, list[Finding]]:
    """Yield template: the asked one, else the tokenizer's own, else plain; tried on a few rows."""
    if encoder.tokenizer is None or "input_ids" in encoder.roles:
        return encoder, []
    asked = encoder.settings.template

    def readable() -> Iterator[Dialogue]:
        for row in islice(rows, SAMPLED_ROWS):
            try:
                read = read_row(row, encoder)
            except RowFaultError as fault:
                if not fault.reason:
                    raise
                continue  # it is counted when the row is encoded
            yield read

    state, found = fit_template(asked, encoder.tokenizer, readable())
    return replace(encoder, input=replace(encoder.input, template=state)), found


def divide_answer(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what comes before the last answer, and the rest.

    >>> divide_answer({"prompt": "Hi", "answer": "Hello"})
    (['Hi', None], 'Hello')
    """
    if "input_ids" in row:
        ids, labels = row["input_ids"], row.get("labels")
        if labels is None:
            return [ids], None
        try:
            learned = np.flatnonzero(np.asarray(labels) != IGNORE_INDEX)
            start = int(learned[0]) if len(learned) else len(ids)
            return [ids[:start]], [ids[start:], labels[start:]]
        except (TypeError, ValueError):  # not a label per token, which encoding reports
            return [ids], [labels]
    return divide_row(row)


def misread_dialogues(
    table: Table, roles: Mapping[str, str], chosen: Mapping[str, str]
) -> Iterator[Finding]:
    """Dialogues whose last answer is missing, if most are such."""
    column = roles.get("messages")
    if column is None or "answer" in roles or not is_dialogue(table.column_type(column)):
        return
    dialogues = [turns for turns in table.profile(column).first if any(map(is_answer, turns))]
    open_ended = [turns for turns in dialogues if is_prompt(turns[-1])]
    if len(open_ended) <= 0.5 * len(dialogues):
        return
    message = (
        f"{len(open_ended)} of the first {len(dialogues)} dialogues with an answer end with a "
        "message of the user."
    )
    yield LAST_ANSWER_MISSING.finding(message, file=table.sources[0].file, column=column)
