"""Rows of preference data: two answers to one prompt, or one answer that is called good or bad.

The prompt may be a column of its own, a dialogue, or the beginning that both answers have in
common. The two sides are dialogues; their tokens have a common beginning, which is stored once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from surefit.batches.branches import FIRST, PROMPT
from surefit.batches.field import IGNORE_INDEX
from surefit.data.column_values import is_good
from surefit.data.data_rules import MISSING_COLUMN, WRONG_TYPE
from surefit.data.stored_messages import as_messages
from surefit.findings import Finding
from surefit.inputs.batch_tokenizing import Tokenized
from surefit.inputs.chat.chat_reading import OVERLONG_ROW_DROPPED, fit_chat, unsuited
from surefit.inputs.chat.dialogue_rows import read_row, split_answer
from surefit.inputs.chat.dialogues import DialogueTokens
from surefit.inputs.chat.messages import EMPTY_PROMPT_OR_ANSWER, Dialogue
from surefit.inputs.chat.template_rendering import TemplateError
from surefit.inputs.encoded_row import (
    DropReason,
    Encoded,
    Encoding,
    RowFaultError,
    drop_row,
    is_overlong,
    refuse_overlong,
)
from surefit.inputs.encoder import Encoder

CHOSEN, REJECTED = "chosen", "rejected"
GOOD = "good"
"""The column of a single answer: 1 if it is good."""
_SPEAKER = re.compile(r"(?:^|\n\n)(Human|Assistant): ?")


@dataclass(frozen=True)
class Side:
    """A prompt with one of its answers."""

    dialogue: Dialogue
    num_context: int
    """Messages of the prompt; the answers behind them are scored."""


def encode_pair(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """Return a row as its prompt, its chosen and its rejected answer."""
    sides = read_pair(row, encoder)
    return _encode(sides, encoder, lambda made: _join(made[0], made[1]))


def encode_judged(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """Return a prompt with an answer that is good or bad; a pair is two such rows."""
    if CHOSEN in row:
        return _encode(
            read_pair(row, encoder),
            encoder,
            lambda made: [_alone(side, good) for side, good in zip(made, (1, 0), strict=True)],
        )
    good = is_good(row["label"])
    if good is None:
        column = encoder.column_of("label")
        raise RowFaultError(WRONG_TYPE, f"{row['label']!r} is neither good nor bad", column)
    dialogue = read_row({n: v for n, v in row.items() if n != "label"}, encoder)
    side = Side(dialogue, len(dialogue.messages) - 1)
    return _encode([side], encoder, lambda made: _alone(made[0], int(good)))


def encode_scored(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """Return one answer with its prompt, to predict its reward."""
    chosen, known = row.get(CHOSEN), {"prompt", "messages", REJECTED} & {*row}
    is_plain = isinstance(chosen, str) and read_transcript(chosen) is None
    if is_plain and not any(row[name] for name in known):
        message = f"the row has no {REJECTED} answer, by which the prompt in the text is found"
        fix = "Add it, as the training rows have it; or train with a column of prompts."
        raise RowFaultError(MISSING_COLUMN, message, CHOSEN, fix)
    given = {REJECTED: chosen, **{name: row[name] for name in known if row[name]}}
    side = read_pair({**row, **given}, encoder.with_settings(predicting=False))[0]
    return _encode([side], encoder, lambda made: Encoded({"input_ids": made[0].ids}))


def read_prompt(row: Mapping[str, Any], encoder: Encoder) -> Mapping[str, Any]:
    """Return a row with its prompt, to predict for: what both answers begin with has no column."""
    if CHOSEN not in row or row.get("prompt") is not None or row.get("messages") is not None:
        return row
    side = read_pair(row, encoder.with_settings(predicting=False, system=None))[0]
    return {"messages": side.dialogue.messages[: side.num_context], "tools": side.dialogue.tools}


def fit_pairs(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> tuple[Encoder, list[Finding]]:
    """Return the Encoder with the template, tried on a few chosen answers."""

    def better() -> Iterator[dict[str, Any]]:
        for row in rows:
            one: dict[str, Any] = {name: value for name, value in row.items() if name != "label"}
            if CHOSEN in row:
                try:
                    one = {"messages": read_pair(row, encoder)[0].dialogue.messages}
                except RowFaultError:  # which is reported when the row is encoded
                    continue
            yield one

    return fit_chat(better(), encoder)


@dataclass(frozen=True)
class _Tokens:
    """The tokens of a side, and which of them are scored."""

    ids: Any
    scored: Sequence[tuple[int, int]]
    truncated: int
    learns_eos: bool

    @property
    def labels(self) -> Any:
        """The scored tokens, and −100 elsewhere."""
        labels = np.full_like(self.ids, IGNORE_INDEX)
        for start, stop in self.scored:
            labels[start:stop] = self.ids[start:stop]
        return labels

    @property
    def first_scored(self) -> int:
        """The place of the first scored token."""
        return self.scored[0][0] if self.scored else len(self.ids)


def read_pair(row: Mapping[str, Any], encoder: Encoder) -> list[Side]:
    """Return the chosen and the rejected side of a row; answers behind their prompt are scored."""
    rest = {n: v for n, v in row.items() if n not in (CHOSEN, REJECTED)}
    answers = [as_messages(row.get(name)) for name in (CHOSEN, REJECTED)]
    if "prompt" not in rest and rest.get("messages") is None:
        answers = _with_prompts(answers)
    dialogues = []
    for name, answer in zip((CHOSEN, REJECTED), answers, strict=True):
        if answer is None or len(answer) == 0 or (isinstance(answer, str) and not answer.strip()):
            what = f"the {name} answer is missing or empty"
            raise drop_row(DropReason.EMPTY, EMPTY_PROMPT_OR_ANSWER, what, name)
        given = {**rest, **answer} if isinstance(answer, _Split) else {**rest, "answer": answer}
        dialogues.append(read_row(given, encoder))
    context = _num_common(*(dialogue.messages for dialogue in dialogues))
    return [Side(dialogue, context) for dialogue in dialogues]


class _Split(dict[str, Any]):
    """A prompt and an answer that were one text."""


def _with_prompts(answers: Sequence[Any]) -> list[Any]:
    """Return answers that contain their prompt as dialogues, or as prompt and answer.

    HH-RLHF's transcripts are dialogues. Of other texts, the prompt is what they have in common.
    """
    texts = [text if isinstance(text, str) else None for text in answers]
    turns = [None if text is None else read_transcript(text) for text in texts]
    if all(turns):
        return list(turns)
    if None in texts:
        return list(answers)
    made: list[Any] = []
    for text, other in (texts, texts[::-1]):
        prompt, answer = split_answer(text, other)
        made.append(_Split(prompt=prompt, answer=answer))
    return made


def read_transcript(text: str) -> list[dict[str, str]] | None:
    r"""Return the messages of a transcript such as HH-RLHF has; None if it is no transcript.

    >>> read_transcript("\n\nHuman: Hi\n\nAssistant: Hello")
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello'}]
    """
    _, *parts = _SPEAKER.split(text.strip())
    names = {"Human": "user", "Assistant": "assistant"}
    turns = [
        {"role": names[name], "content": said.strip()}
        for name, said in zip(parts[::2], parts[1::2], strict=True)
    ]
    is_dialogue = len(turns) > 1 and turns[0]["role"] == "user"
    return turns if is_dialogue and text.strip().startswith("Human:") else None


def _num_common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how many messages both dialogues begin with; their last ones are never counted."""
    most = min(len(one), len(other)) - 1
    pairs = zip(one[:most], other[:most], strict=True)
    same = [
        all(mine.get(key) == its.get(key) for key in ("role", "content", "tool_calls"))
        for mine, its in pairs
    ]
    return same.index(False) if False in same else most


def _encode(sides: Sequence[Side], encoder: Encoder, join: Any) -> Encoding:
    """Render the sides, and join them once they are tokenized."""
    coder = encoder.dialogues
    try:
        rendered = [
            coder.render(side.dialogue.messages, side.dialogue.tools, False) for side in sides
        ]
    except TemplateError as fault:
        raise unsuited(fault) from None

    def finish(made: list[Tokenized]) -> Any:
        whole = [coder.finish(text, tokens) for text, tokens in zip(rendered, made, strict=True)]
        try:
            kept = _shorten(sides, whole, encoder)
        except TemplateError as fault:
            raise unsuited(fault) from None
        parts = zip(sides, whole, kept, strict=True)
        return join([_scored(side, len(all_.ids), some, encoder) for side, all_, some in parts])

    texts = [text.text for text in rendered]
    return Encoding(finish, texts, special=False, ends=coder.asks_for_ends)


def _shorten(
    sides: Sequence[Side], whole: Sequence[DialogueTokens], encoder: Encoder
) -> Sequence[DialogueTokens]:
    """Return the sides within the limit; both lose the same part of their prompt, and no answer."""
    longest = max(len(tokens.ids) for tokens in whole)
    if not is_overlong(longest, encoder):
        return whole
    limit = encoder.max_length
    assert limit is not None
    refuse_overlong(longest, encoder, dropped=OVERLONG_ROW_DROPPED)
    kept = []
    for side, tokens in zip(sides, whole, strict=True):
        room = limit - (longest - len(tokens.ids))  # so that both lose as many tokens
        shorter = (
            encoder.dialogues.shorten(side.dialogue, tokens, room, False) if room > 0 else None
        )
        if shorter is None:
            why = f"{longest} tokens, but the limit is {limit}; its answers do not fit"
            raise drop_row(DropReason.OVERLONG, OVERLONG_ROW_DROPPED, why)
        kept.append(shorter)
    return kept


def _scored(side: Side, length: int, tokens: DialogueTokens, encoder: Encoder) -> _Tokens:
    messages = side.dialogue.messages[side.num_context :]
    count = sum(message["role"] == "assistant" for message in messages)
    pairs = [*zip(tokens.answers, tokens.weights, strict=True)][-count:]
    scored = [span for span, weight in pairs if weight]
    ids = np.array(tokens.ids, np.int64)
    learns_eos = bool(scored) and int(ids[scored[-1][1] - 1]) in encoder.end_ids
    return _Tokens(ids, scored, length - len(ids), learns_eos)


def _join(one: _Tokens, other: _Tokens) -> Encoded:
    """Return both sides as one row: the tokens they begin with, and what follows on each side."""
    least = min(len(one.ids), len(other.ids))
    differs = np.flatnonzero(one.ids[:least] != other.ids[:least])
    common = int(differs[0]) if len(differs) else least
    common = min(common, one.first_scored, other.first_scored)
    columns = {
        "input_ids": np.concatenate([one.ids, other.ids[common:]]),
        "labels": np.concatenate([one.labels, other.labels[common:]]),
        PROMPT: common,
        FIRST: len(one.ids) - common,
    }
    truncated = max(one.truncated, other.truncated)
    return Encoded(columns, truncated, one.learns_eos)


def _alone(side: _Tokens, good: int) -> Encoded:
    """Return a prompt with one answer; the place of a second one is empty."""
    columns = {
        "input_ids": side.ids,
        "labels": side.labels,
        PROMPT: side.first_scored,
        FIRST: len(side.ids) - side.first_scored,
        GOOD: good,
    }
    return Encoded(columns, side.truncated, side.learns_eos)
