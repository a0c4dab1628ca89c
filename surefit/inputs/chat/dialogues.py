"""Dialogues to tokens: those of the whole rendered text, and which of them have a label.

A token has a label if it holds a character of an answer, also if it begins in the prompt.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from surefit.findings import rule
from surefit.inputs.chat.messages import Message
from surefit.inputs.chat.template_rendering import (
    ANSWERS_NOT_FOUND,
    AnswerSpan,
    Template,
    TemplateError,
)
from surefit.inputs.chat.unrendered import UnrenderedParts
from surefit.inputs.text.batch_tokenizing import (
    Tokenized,
    ends_by_size,
    plain_backend,
    token_sizes,
    tokenize,
)
from surefit.inputs.text.tokenizer import adds_bos

TOKENIZED_IN_PARTS = rule(
    "SF291",
    "warning",
    "row tokenized in parts",
    why=(
        "The tokenizer does not report where its tokens are in the text (it is not a fast one), so "
        "prompt and answers are tokenized separately. The tokens differ from those of the text."
    ),
    fix="Use a fast tokenizer (a tokenizer.json), or another template.",
    accept="The rows are tokenized in parts.",
)


Dialogue = tuple[Sequence[Message], Any]
"""Messages, and the tools offered in them."""

Part = tuple[str, Sequence[AnswerSpan]]
"""A part of a text that is tokenized as a whole, and the answers in it."""

PROBE = "a"
"""Stands for the answer when a prompt is tokenized: most answers begin with a letter."""


@dataclass(frozen=True)
class DialogueTokens:
    """A dialogue's tokens, which of them have a label, and where the last answer starts.

    If an answer is to be generated, it starts after all of them.
    """

    ids: list[int]
    labelled: list[bool]
    last_answer: int
    sizes: tuple[int, ...]
    """The number of tokens before the first answer, in it, between it and the next, and so on."""
    whole: bool = True
    """Whether the text contains every answer completely."""
    in_parts: bool = False
    """Whether the tokens differ from those of the whole text."""


@dataclass(frozen=True)
class _PartTokens:
    """The tokens of a part, and the first token of each answer and the one after it."""

    ids: list[int]
    answers: list[tuple[int, int]]
    in_parts: bool = False

    def without(self, start: int, end: int) -> _PartTokens:
        """The part without some tokens before its answers."""
        answers = [(first - end + start, stop - end + start) for first, stop in self.answers]
        return replace(self, ids=self.ids[:start] + self.ids[end:], answers=answers)


class DialogueTokenizer:
    """Turns dialogues into tokens with one template.

    The text is tokenized as a whole. Only where eos is added, because the template writes no end
    token, are the texts before and after it tokenized separately. An answer ends with the
    template's end token, else with eos. A text starts with at most one bos.

    A prompt to generate from gets the tokens that it has before an answer: if it ends in spaces or
    line breaks, it is tokenized with a letter after it, and spaces that belong to the first word of
    the answer are left for the model to generate.
    """

    def __init__(self, template: Template) -> None:
        self.template = template
        self.unrendered = UnrenderedParts(template)
        self._tokenizer = template.tokenizer
        self._eos = self._tokenizer.eos_token_id  # cached, as tokenizers look it up by name
        self._bos = [self._tokenizer.bos_token_id] if adds_bos(self._tokenizer) else []
        self._sizes = token_sizes(self._tokenizer)
        newline, joined, alone = self.plain_ids(["\n", "\na", "a"])
        self._puts_space_first = joined != newline + alone
        self._known_leads: dict[str, list[int]] = {}

    @property
    def chat_template(self) -> str:
        """The template with which plain `apply_chat_template` writes what is written here."""
        source, bos = self.template.source, self._tokenizer.bos_token
        try:
            written = self.template.render([{"role": "user", "content": "a"}])
        except TemplateError:
            return source
        return source if not self._bos or written.startswith(bos) else "{{ bos_token }}" + source

    def plain_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, without special tokens."""
        ids = self._tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return [list(row) for row in ids]

    @property
    def asks_for_ends(self) -> bool:
        """Whether the tokenizer has to report where tokens end, as their sizes are unknown."""
        return self._sizes is None

    def asked(self, parts: Sequence[Part]) -> list[str]:
        """The text to tokenize for each part of one text.

        SentencePiece adds a space before a text, so a part is tokenized after a lead: the special
        token that ends the previous part, else a line break.
        """
        texts = [text for text, _ in parts]
        return [lead + text for lead, text in zip(self._leads(texts), texts, strict=True)]

    def _leads(self, texts: Sequence[str]) -> list[str]:
        if not self._puts_space_first:
            return [""] * len(texts)
        known = self.template.special_tokens
        ends = (next(filter(text.endswith, known), "\n") for text in texts[:-1])
        return ["", *ends]

    def tokenize(
        self,
        messages: Sequence[Message],
        tools: Any = None,
        generation: bool = False,
        limit: int | None = None,
    ) -> DialogueTokens:
        """The tokens of a dialogue; with `limit`, the start of the user's text is truncated.

        If that text is too short, the row is still longer than the limit.
        """
        parts = self.cut(messages, tools, generation)
        made = self._located(self.asked(parts))
        return self.join(parts, made, messages, tools, generation, limit)

    def _located(self, texts: Sequence[str]) -> list[Tokenized]:
        return tokenize(self._tokenizer, texts, special=False, ends=True)

    def cut(self, messages: Sequence[Message], tools: Any, generation: bool) -> list[Part]:
        """The text of a dialogue, split where eos is added."""
        text, turns = self.template.find_answers(
            self.template.prepared(messages), tools, generation
        )
        if turns and not generation:  # nothing after the last answer is read
            text = text[: turns[-1].end]
        return list(_cut(text, turns))

    def join(
        self,
        parts: Sequence[Part],
        made: Sequence[Tokenized],
        messages: Sequence[Message],
        tools: Any,
        generation: bool,
        limit: int | None = None,
    ) -> DialogueTokens:
        """The tokens of a dialogue from those of the `asked` texts of its parts."""
        messages = self.template.prepared(messages)
        located = self._without_leads(parts, made)
        if generation and parts[-1][0][-1:].isspace():
            is_led = len(parts) > 1 and self._puts_space_first
            located[-1] = self._before_answer(parts[-1][0], located[-1], is_led)
        tokens = [self._find_answers(part, own) for part, own in zip(parts, located, strict=True)]
        bos = [] if tokens[0].ids[:1] == self._bos else self._bos
        if limit is not None:
            eos = sum(not turn.ended for _, turns in parts for turn in turns)
            over = sum(len(part.ids) for part in tokens) + len(bos) + eos - limit
            cut = self._content_tokens(parts[0][0], located[0], messages, tools)
            tokens[0] = tokens[0].without(cut[0], min(cut[0] + max(over, 0), cut[1]))
        joined = _join(parts, tokens, bos, self._eos, messages)
        return replace(joined, last_answer=len(joined.ids)) if generation else joined

    def _without_leads(self, parts: Sequence[Part], made: Sequence[Tokenized]) -> list[Tokenized]:
        """The tokens of each part alone, without its lead."""
        found = []
        leads = self._leads([text for text, _ in parts])
        for (text, _), lead, tokens in zip(parts, leads, made, strict=True):
            if lead and lead not in self._known_leads:
                self._known_leads[lead] = self.plain_ids([lead])[0]
            own, ids = tokens, self._known_leads.get(lead, [])
            if lead and tokens.ids[: len(ids)] == ids:
                ends = None if tokens.ends is None else tokens.ends[len(ids) :]
                ends = ends if ends is None else [end - len(lead) for end in ends]
                own = Tokenized(tokens.ids[len(ids) :], ends=ends)
            elif lead:
                own = self._located([text])[0]
            if self._sizes is not None:
                by_size = ends_by_size(text, own.ids, self._sizes)
                own = self._located([text])[0] if by_size is None else replace(own, ends=by_size)
            found.append(own)
        return found

    def _before_answer(self, text: str, tokens: Tokenized, is_led: bool) -> Tokenized:
        """The tokens of a prompt as they are before an answer; only spaces may be left out."""
        backend = plain_backend(self._tokenizer)
        if backend is None or is_led:
            return tokens
        made = backend.encode(text + PROBE, add_special_tokens=False)
        ends = [end for _, end in made.offsets]
        by_end = bisect_right(ends, len(text))
        by_word = made.word_ids.index(made.word_ids[-1])
        for kept in (min(by_word, by_end), by_end):
            covered = ends[kept - 1] if kept else 0
            if not text[covered:].strip():
                return Tokenized(made.ids[:kept], ends=ends[:kept])
        return tokens

    def _find_answers(self, part: Part, tokens: Tokenized) -> _PartTokens:
        """The tokens of a part, and those of each answer in it."""
        text, turns = part
        if tokens.ends is not None:
            answers = [_tokens_between(tokens.ends, turn.start, turn.end) for turn in turns]
            return _PartTokens(tokens.ids, answers)
        places = [0, *(place for turn in turns for place in (turn.start, turn.end)), len(text)]
        pieces: list[Part] = [(text[start:end], ()) for start, end in pairwise(places)]
        ids: list[int] = []
        answers = []
        made = self._without_leads(pieces, self._located(self.asked(pieces)))
        for number, piece in enumerate(made):  # every other one is an answer
            answers += [(len(ids), len(ids) + len(piece.ids))] * (number % 2)
            ids += piece.ids
        return _PartTokens(ids, answers, in_parts=ids != tokens.ids)

    def _content_tokens(
        self, text: str, tokens: Tokenized, messages: Sequence[Message], tools: Any
    ) -> tuple[int, int]:
        """The first token of the user's content, and the token after its last one."""
        user = next(p for p, message in enumerate(messages) if message["role"] == "user")
        before, content = self.template.find_prompt(messages[: user + 1], user, tools)
        if not text.startswith(before + content):
            raise TemplateError(
                ANSWERS_NOT_FOUND, "the prompt to truncate is not found in the text"
            )
        if tokens.ends is None:
            first, behind = self.plain_ids([before, before + content])
            return len(first), max(len(first), len(behind))
        start = bisect_right(tokens.ends, len(before))
        end = bisect_right(tokens.ends, len(before) + len(content))
        if (tokens.ends[start - 1] if start else 0) < len(before):  # it holds the end of `before`
            start += 1
        return start, max(start, end)

    def shorten(
        self, dialogue: Dialogue, tokens: DialogueTokens, limit: int, generation: bool
    ) -> DialogueTokens | None:
        """The dialogue within the limit: without its oldest turns, then the start of the prompt.

        The system message and the last answer are kept; None if these are too long.
        """
        messages, tools = dialogue
        system = [message for message in messages[:1] if message["role"] == "system"]
        users = [place for place, message in enumerate(messages) if message["role"] == "user"]
        for place in users[1:]:
            answers = sum(message["role"] == "assistant" for message in messages[:place])
            if len(tokens.ids) - sum(tokens.sizes[: 2 * answers]) > limit:
                continue  # too long even without the system message
            shorter = self.tokenize([*system, *messages[place:]], tools, generation)
            if len(shorter.ids) <= limit:
                return shorter
        rest = [*system, *messages[users[-1] :]]
        shorter = self.tokenize(rest, tools, generation, limit)
        return shorter if len(shorter.ids) <= limit else None


def _cut(text: str, turns: Sequence[AnswerSpan]) -> Iterator[Part]:
    """The parts of the text: each ends with an answer that gets eos, the last with the text."""
    start, answers = 0, []
    for turn in turns:
        moved = replace(turn, start=turn.start - start, end=turn.end - start) if start else turn
        answers.append(moved)
        if not turn.ended:
            yield text[start : turn.end], answers
            start, answers = turn.end, []
    if start < len(text) or answers or not turns:
        yield text[start:], answers


def _tokens_between(ends: Any, start: int, end: int) -> tuple[int, int]:
    """The first token that holds a character from `start` on, and the one after the last.

    A token that begins before `start` counts.

    >>> _tokens_between([2, 4, 5, 6], 3, 5)
    (1, 3)
    """
    first, stop = bisect_right(ends, start), bisect_right(ends, end)
    if stop < len(ends) and stop and ends[stop - 1] < end:  # an end token with spaces after it
        stop += 1
    return first, stop


def _join(
    parts: Sequence[Part],
    tokens: Sequence[_PartTokens],
    bos: list[int],
    eos: int,
    messages: Sequence[Message],
) -> DialogueTokens:
    answers = (message for message in messages if message["role"] == "assistant")
    ids, labelled = list(bos), [False] * len(bos)
    sizes: list[int] = []
    last = None
    for (_, turns), part in zip(parts, tokens, strict=True):
        begin, place = len(ids), -len(bos) if not sizes else 0
        ids += part.ids
        labelled += [False] * len(part.ids)
        for turn, (first, stop) in zip(turns, part.answers, strict=True):
            if not turn.ended:
                ids.append(eos)
                labelled.append(False)
                stop += 1
            if next(answers).get("weight") != 0:
                labelled[begin + first : begin + stop] = [True] * (stop - first)
            sizes += [first - place, stop - first]
            place, last = stop, begin + first
    whole = all(turn.whole for _, turns in parts for turn in turns)
    in_parts = any(part.in_parts for part in tokens)
    last = len(ids) if last is None else last
    return DialogueTokens(ids, labelled, last, tuple(sizes), whole, in_parts)
