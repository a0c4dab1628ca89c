"""Dialogues to tokens: those of the whole rendered text, and which of them are answers.

A token belongs to an answer if it holds a character of it, also if it begins in the prompt.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from surefit.inputs.batch_tokenizing import (
    Tokenized,
    ends_by_size,
    plain_backend,
    token_sizes,
    tokenize,
)
from surefit.inputs.chat.messages import Dialogue, Message
from surefit.inputs.chat.template_fitting import UnrenderedParts
from surefit.inputs.chat.template_rendering import (
    ANSWERS_NOT_FOUND,
    AnswerSpan,
    Template,
    TemplateError,
)
from surefit.inputs.tokenizer import adds_bos

PROBE = "a"
"""Stands for the answer when a prompt is tokenized: most answers begin with a letter."""


@dataclass(frozen=True)
class Rendered:
    """A dialogue as the text to tokenize, with eos behind answers that the template does not end.

    If an answer is to be generated, it follows the text.
    """

    text: str
    answers: tuple[AnswerSpan, ...]
    messages: Sequence[Message]
    tools: Any
    generation: bool


@dataclass(frozen=True)
class DialogueTokens:
    """A dialogue's tokens, and which of them are answers."""

    ids: list[int]
    answers: tuple[tuple[int, int], ...]
    """The first token of each answer and the one after its last, which is its end token."""
    weights: tuple[bool, ...]
    """Whether each answer is learned; one with the weight 0 is only read."""
    last_answer: int
    """Where the last answer starts; if one is to be generated, after all tokens."""
    whole: bool = True
    """Whether the text contains every answer completely."""


class DialogueTokenizer:
    """Turns dialogues into tokens with one template.

    The text is tokenized as a whole. An answer ends with the template's end token, else with eos.
    A text starts with at most one bos.

    A prompt to generate from gets the tokens that it has before an answer: if it ends in spaces or
    line breaks, it is tokenized with a letter after it, and spaces that belong to the first word of
    the answer are left for the model to generate.
    """

    def __init__(self, template: Template) -> None:
        self.template = template
        self.unrendered = UnrenderedParts(template)
        self._tokenizer = template.tokenizer
        self._bos = [self._tokenizer.bos_token_id] if adds_bos(self._tokenizer) else []
        self._sizes = token_sizes(self._tokenizer)

    @property
    def chat_template(self) -> str:
        """The template with which plain `apply_chat_template` writes what is written here."""
        source, bos = self.template.source, self._tokenizer.bos_token
        try:
            written = self.template.render([{"role": "user", "content": "a"}])
        except TemplateError:
            return source
        return source if not self._bos or written.startswith(bos) else "{{ bos_token }}" + source

    @property
    def asks_for_ends(self) -> bool:
        """Whether the tokenizer has to report where tokens end, as their sizes are unknown."""
        return self._sizes is None

    def render(self, messages: Sequence[Message], tools: Any, generation: bool) -> Rendered:
        """Return the text of a dialogue up to its last answer, and its answers."""
        messages = self.template.prepared(messages)
        text, spans = self.template.find_answers(messages, tools, generation)
        if spans and not generation:  # nothing after the last answer is read
            text = text[: spans[-1].end]
        eos, answers, added = self._tokenizer.eos_token, [], 0
        for span in spans:
            start, end = span.start + added, span.end + added
            if not span.ended:
                text = text[:end] + eos + text[end:]
                added += len(eos)
                end += len(eos)
            answers.append(replace(span, start=start, end=end))
        return Rendered(text, tuple(answers), messages, tools, generation)

    def tokenize(
        self,
        messages: Sequence[Message],
        tools: Any = None,
        generation: bool = False,
        limit: int | None = None,
    ) -> DialogueTokens:
        """Return the tokens of a dialogue; see `finish`."""
        rendered = self.render(messages, tools, generation)
        (made,) = tokenize(self._tokenizer, [rendered.text], special=False, ends=True)
        return self.finish(rendered, made, limit)

    def finish(
        self, rendered: Rendered, made: Tokenized, limit: int | None = None
    ) -> DialogueTokens:
        """Return the tokens of a dialogue from those of its text.

        With `limit`, the start of the user's text is truncated. If that text is too short, the row
        is still longer than the limit.
        """
        text, tokens = rendered.text, self._located(rendered.text, made)
        if rendered.generation and text[-1:].isspace():
            tokens = self._before_answer(text, tokens)
        num_until = self._counter(text, tokens)
        spans = [self._answer_tokens(tokens, span, num_until) for span in rendered.answers]
        bos = [] if tokens.ids[:1] == self._bos else self._bos
        ids = [*bos, *tokens.ids]
        first, stop, moved = 0, 0, len(bos)
        if limit is not None and len(ids) > limit:
            first, stop = self._user_tokens(rendered, tokens, num_until)
            stop = min(stop, first + len(ids) - limit)
            ids = [*ids[: len(bos) + first], *ids[len(bos) + stop :]]
            moved -= stop - first
        answers = tuple((start + moved, end + moved) for start, end in spans)
        learned = (m.get("weight") != 0 for m in rendered.messages if m["role"] == "assistant")
        last = answers[-1][0] if answers and not rendered.generation else len(ids)
        whole = all(span.whole for span in rendered.answers)
        return DialogueTokens(ids, answers, tuple(learned), last, whole)

    def _located(self, text: str, made: Tokenized) -> Tokenized:
        if self._sizes is None:
            return made
        ends = ends_by_size(text, made.ids, self._sizes)
        if ends is None:
            return tokenize(self._tokenizer, [text], special=False, ends=True)[0]
        return replace(made, ends=ends)

    def _counter(self, text: str, tokens: Tokenized) -> Callable[[int], int]:
        """Return a function that counts the tokens of the text up to a character.

        If the tokenizer does not report where tokens end (it is not a fast one), the text is
        tokenized with another letter there, and the tokens that both have in common count.
        """
        if tokens.ends is not None:
            ends = tokens.ends
            return lambda place: bisect_right(ends, place)

        def num_until(place: int) -> int:
            other = "" if place == len(text) else PROBE if text[place] != PROBE else PROBE.upper()
            (made,) = tokenize(self._tokenizer, [text[:place] + other], special=False)
            pairs = zip(made.ids, tokens.ids, strict=False)
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

        return num_until

    def _answer_tokens(
        self, tokens: Tokenized, span: AnswerSpan, num_until: Callable[[int], int]
    ) -> tuple[int, int]:
        first, stop = num_until(span.start), num_until(span.end)
        ends = tokens.ends
        if ends is not None and 0 < stop < len(ends) and ends[stop - 1] < span.end:
            stop += 1  # an end token with spaces after it
        return first, stop

    def _before_answer(self, text: str, tokens: Tokenized) -> Tokenized:
        """Return tokens of a prompt as they are before an answer; only spaces may be left out."""
        backend = plain_backend(self._tokenizer)
        if backend is None:
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

    def _user_tokens(
        self, rendered: Rendered, tokens: Tokenized, num_until: Callable[[int], int]
    ) -> tuple[int, int]:
        """Return the first token of the first user's content, and the token after its last one."""
        messages = rendered.messages
        user = next(p for p, message in enumerate(messages) if message["role"] == "user")
        before, content = self.template.find_prompt(messages[: user + 1], user, rendered.tools)
        if not rendered.text.startswith(before + content):
            raise TemplateError(
                ANSWERS_NOT_FOUND, "the prompt to truncate is not found in the text"
            )
        start, end = num_until(len(before)), num_until(len(before) + len(content))
        if tokens.ends is not None and (tokens.ends[start - 1] if start else 0) < len(before):
            start += 1  # it holds the end of `before`
        return start, max(start, end)

    def shorten(
        self, dialogue: Dialogue, tokens: DialogueTokens, limit: int, generation: bool
    ) -> DialogueTokens | None:
        """Return the dialogue within the limit: without its oldest turns, then the start of the
        prompt.

        The system message and the last answer are kept; None if these are too long.
        """
        messages, tools = dialogue.messages, dialogue.tools
        system = [message for message in messages[:1] if message["role"] == "system"]
        users = [place for place, message in enumerate(messages) if message["role"] == "user"]
        for place in users[1:]:
            answers = sum(message["role"] == "assistant" for message in messages[:place])
            if len(tokens.ids) - tokens.answers[answers - 1][1] > limit:
                continue  # too long even without the system message
            shorter = self.tokenize([*system, *messages[place:]], tools, generation)
            if len(shorter.ids) <= limit:
                return shorter
        rest = [*system, *messages[users[-1] :]]
        shorter = self.tokenize(rest, tools, generation, limit)
        return shorter if len(shorter.ids) <= limit else None
