"""A dialogue rendered by a template, and the positions of its answers in the text.

A template is Jinja text, rendered in the sandbox of transformers. An answer starts after the
generation prompt and ends with the template's end token. Answers are found by the template's
generation blocks, if it has them. Else the dialogue is rendered with and without markers around its
contents; without the markers, both texts must be equal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from surefit.errors import FindingError, UsageError
from surefit.findings import rule
from surefit.inputs.chat.bounded_rendering import Rendered, check_template, render_bounded
from surefit.inputs.chat.messages import Message, calls_as_text
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.encoder_state import TemplateState
from surefit.inputs.templates import CHAT, PLAIN, TEMPLATES

TEMPLATE_REFUSES_ROW = rule(
    "SF276",
    "warning",
    "row refused by the template",
    why="The template raises an error on the row, as it would at inference. It is dropped.",
    fix="Change the named row, or choose another template.",
    accept="The rows are dropped.",
)

ANSWERS_NOT_FOUND = rule(
    "SF277",
    "warning",
    "answers of a row not found",
    why="The template changes the answers, so the labelled tokens are unknown. It is dropped.",
    fix="Change the named row, or choose another template.",
    accept="The rows are dropped.",
)

_MARKS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))  # Unicode noncharacters
Marks = Mapping[int, tuple[int | None, int]]
"""Start and end of contents in a text, by the place of their message."""
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
# With the current date, encoded rows would depend on the day of encoding.
DATE = "26 Jul 2024"
_NO_CLOCK = "{% macro strftime_now(format) %}" + DATE + "{% endmacro %}"


class TemplateError(RowFaultError):
    """A dialogue that the template cannot render, or whose answers are not found in the text."""


@dataclass(frozen=True)
class AnswerSpan:
    """An answer in a rendered text: from the end of the generation prompt to its end token.

    `ended` is whether the template writes an end token there, `whole` whether the text contains
    all of the answer.
    """

    start: int
    end: int
    ended: bool = True
    whole: bool = True


@dataclass(frozen=True)
class Template:
    """A template, the token that ends its answers, and what it does not write by itself.

    `joins_system`: system messages are merged into the first prompt; `calls_as_text`: tool calls
    are written as JSON in the content.
    """

    text: str = TEMPLATES[PLAIN]
    end: str | None = None
    joins_system: bool = False
    tokenizer: Any = field(default=None, repr=False)
    calls_as_text: bool = False

    @cached_property
    def end_ids(self) -> list[int]:
        """The tokens that end a generated answer: eos, and the template's end token."""
        found = [self.tokenizer.eos_token_id]
        if self.end is not None:
            found.append(self.tokenizer.convert_tokens_to_ids(self.end))
        return list(dict.fromkeys(token for token in found if token is not None))

    @cached_property
    def special_tokens(self) -> list[str]:
        """The special and added tokens of the tokenizer, longest first."""
        known = {*self.tokenizer.get_added_vocab(), *self.tokenizer.all_special_tokens}
        return sorted((str(token) for token in known), key=len, reverse=True)

    @cached_property
    def _variables(self) -> dict[str, str]:
        known = self.tokenizer.special_tokens_map
        return {name: str(value) for name, value in known.items() if isinstance(value, str)}

    @property
    def asks_for_the_date(self) -> bool:
        """Whether the template shows the current date; it gets `DATE` instead."""
        return "strftime_now" in self.text

    @cached_property
    def source(self) -> str:
        """The text that is rendered."""
        check_template(self.text)
        return _NO_CLOCK + self.text if self.asks_for_the_date else self.text

    def _render(
        self,
        dialogues: Sequence[Sequence[Message]],
        tools: Any,
        generation: bool,
        spans: bool = False,
    ) -> list[Rendered]:
        asked = {"add_generation_prompt": generation, "return_assistant_tokens_mask": spans}
        try:
            return render_bounded(self.source, dialogues, tools, {**asked, **self._variables})
        except FindingError:
            raise
        except Exception as error:  # templates may raise any exception
            what = str(error).strip() or type(error).__name__
            raise TemplateError(TEMPLATE_REFUSES_ROW, what[:200].rstrip(".")) from error

    def render(
        self, messages: Sequence[Message], tools: Any = None, generation: bool = False
    ) -> str:
        """Return the text of the dialogue; with `generation`, followed by the generation prompt."""
        return self._render([messages], tools, generation)[0][0]

    def prepared(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages, with what the template does not write merged into their content."""
        if self.calls_as_text:
            messages = [_calls_in_content(message) for message in messages]
        first = messages[0]
        if not self.joins_system or first["role"] != "system" or len(messages) < 2:
            return list(messages)
        joined = {"role": "user", "content": f"{first['content']}\n\n{messages[1]['content']}"}
        return [joined, *messages[2:]]

    def find_answers(
        self, messages: Sequence[Message], tools: Any = None, generation: bool = False
    ) -> tuple[str, list[AnswerSpan]]:
        """Return the text of the dialogue and its answers, in order."""
        answers = [p for p, message in enumerate(messages) if message["role"] == "assistant"]
        if _GENERATION.search(self.text):
            ((text, spans),) = self._render([messages], tools, generation, spans=True)
            if len(spans) != len(answers):
                what = f"its generation blocks contain {len(spans)} of {len(answers)} answers"
                raise TemplateError(ANSWERS_NOT_FOUND, what)
            return text, [self._marked_turn(text, *span) for span in spans]
        if self.text == TEMPLATES[PLAIN] and not any(m.get("tool_calls") for m in messages):
            return self._join_plain(messages)
        # A template may move the system message, as Mistral's does. Contents beside calls may be
        # empty, which templates ask about.
        marked = [
            place
            for place, message in enumerate(messages)
            if message["role"] != "system" and not message.get("tool_calls")
        ]
        places = (marked, [place for place in marked if place in answers])
        what = "it changes the answers, so they are not found in its text"
        text, messages, marks = self._find(messages, places, tools, generation, what)
        starts: list[int] = []
        for place in answers:
            start = self._start(text, messages, place, marks, tools)
            if start is None or (starts and start < starts[-1]):
                what = f"answer {len(starts)} does not follow the generation prompt"
                raise TemplateError(ANSWERS_NOT_FOUND, what)
            starts.append(start)
        limits = [*starts[1:], len(text)]
        return text, [
            self._turn(text, messages[place], start, marks.get(place, (None, None))[1], limit)
            for place, start, limit in zip(answers, starts, limits, strict=False)
        ]

    def _join_plain(self, messages: Sequence[Message]) -> tuple[str, list[AnswerSpan]]:
        """Return what the template `plain` writes, in a tenth of the time of rendering it."""
        parts: list[str] = []
        spans: list[AnswerSpan] = []
        length, eos = 0, self._variables.get("eos_token", "")
        for message in messages:
            is_answer, content = message["role"] == "assistant", str(message["content"])
            parts += [content, eos if is_answer else "\n"]
            end = length + len(content)
            if is_answer and eos and eos == self.end:
                spans.append(AnswerSpan(length, end + len(eos)))
            elif is_answer:
                spans.append(AnswerSpan(length, end, ended=False))
            length = end + len(parts[-1])
        return "".join(parts), spans

    def _start(
        self, text: str, messages: Sequence[Message], place: int, marks: Marks, tools: Any
    ) -> int | None:
        """Return where an answer starts: after the generation prompt, else with its content."""
        begin = marks[place][0] if place in marks else None
        if begin is not None and place - 1 in marks:
            before = marks[place - 1][1]
            opening = self._openings.get(text[before:begin])
            if opening is not None:
                return before + opening
        prompt = self.render(messages[:place], tools, generation=True)
        return len(prompt) if text.startswith(prompt) else begin

    @cached_property
    def _openings(self) -> dict[str, int]:
        """What is written between a prompt and its answer, and how much of it is the prompt's.

        Found with two turns, as some templates write the last one otherwise.
        """
        turns = [("user", "Hi"), ("assistant", "Yes"), ("user", "So"), ("assistant", "No")]
        messages = [{"role": role, "content": content} for role, content in turns]
        found: dict[str, int] = {}
        try:
            text, marks = self._mark(messages, range(4), None, False)
            if marks is None:
                return found
            for place in (1, 3):
                end, (begin, _) = marks[place - 1][1], marks[place]
                prompt = self.render(messages[:place], generation=True)
                if begin is not None and text.startswith(prompt) and end <= len(prompt) <= begin:
                    found[text[end:begin]] = len(prompt) - end
        except TemplateError:
            return {}
        return found

    def _find(
        self,
        messages: Sequence[Message],
        tried_places: Sequence[Sequence[int]],
        tools: Any,
        generation: bool,
        fault: str,
    ) -> tuple[str, Sequence[Message], Marks]:
        """Return the text, and where the contents are in it of the first places that can be marked.

        For templates that trim contents, trimmed contents are tried next.
        """
        for trims in (False, True):
            tried = messages
            if trims:
                tried = [{**each, "content": each["content"].strip()} for each in messages]
            for places in tried_places:
                text, marks = self._mark(tried, places, tools, generation)
                if marks is not None:
                    return text, tried, marks
        raise TemplateError(ANSWERS_NOT_FOUND, fault)

    def _mark(
        self, messages: Sequence[Message], places: Sequence[int], tools: Any, generation: bool
    ) -> tuple[str, Marks | None]:
        """Return the text, and where the given contents are in it; None if markers change it."""
        if not places:
            return self.render(messages, tools, generation), {}
        written = self.text + json.dumps(list(messages), ensure_ascii=False, default=str)
        free = [mark for mark in _MARKS if mark not in written]
        if len(free) < 2:
            what = "the text contains every character that could mark its answers"
            raise TemplateError(ANSWERS_NOT_FOUND, what)
        begin, end = free[:2]
        marked = list(messages)
        for place in places:
            marked[place] = _marked(messages[place], begin, end)
        (text, _), (marked_text, _) = self._render([messages, marked], tools, generation)
        clean, found = _read_marks(marked_text, begin, end)
        if clean != text or len(found) != len(places):
            return text, None
        return text, dict(zip(places, found, strict=True))

    def _turn(
        self, text: str, message: Message, start: int, end: int | None, limit: int
    ) -> AnswerSpan:
        """The answer that starts at `start` and whose content ends at `end`, if that is known."""
        token, whole = self.end or "", end is None or message["content"].strip() in text[start:end]
        at = text.find(token, start if end is None else end, limit) if token else -1
        if at >= 0 and (end is None or not text[end:at].strip()):
            return AnswerSpan(start, at + len(token), whole=whole)
        if end is None:
            raise TemplateError(ANSWERS_NOT_FOUND, "a tool call has no end token")
        return AnswerSpan(start, end, ended=False, whole=whole)

    def _marked_turn(self, text: str, start: int, end: int) -> AnswerSpan:
        """An answer inside a generation block, with its end token in the block or after it."""
        kept = text[start:end].rstrip()
        if self.end is None:
            return AnswerSpan(start, start + len(kept), ended=False)
        if kept.endswith(self.end):
            return AnswerSpan(start, start + len(kept))
        at = text.find(self.end, end)
        ended = at >= 0 and not text[end:at].strip()
        return AnswerSpan(start, at + len(self.end) if ended else end, ended=ended)

    def find_prompt(
        self, messages: Sequence[Message], place: int, tools: Any = None
    ) -> tuple[str, str]:
        """Return the text before the content of a user's message, and that content."""
        fault = "it changes the prompt, so it cannot be truncated"
        text, _, marks = self._find(messages, [[place]], tools, True, fault)
        begin, end = marks[place]
        if begin is None:
            raise TemplateError(ANSWERS_NOT_FOUND, fault)
        return text[:begin], text[begin:end]


def _calls_in_content(message: Message) -> Message:
    if not message.get("tool_calls"):
        return message
    text = calls_as_text(message["tool_calls"])
    content = f"{message['content']}\n{text}" if message["content"].strip() else text
    return {**{n: v for n, v in message.items() if n != "tool_calls"}, "content": content}


def _marked(message: Message, begin: str, end: str) -> Message:
    marked = {**message, "content": f"{begin}{message['content']}{end}"}
    if "instruction" in message:
        own = {"instruction": begin + message["instruction"], "input": message["input"] + end}
        marked |= own
    return marked


def _read_marks(text: str, begin: str, end: str) -> tuple[str, list[tuple[int | None, int]]]:
    """Return the text without markers, and where the pairs are; a template may drop a start.

    >>> _read_marks("a<b>c>", "<", ">")
    ('abc', [(1, 2), (None, 3)])
    """
    parts: list[str] = []
    pairs: list[tuple[int | None, int]] = []
    opened, length = None, 0
    for part in re.split(f"([{begin}{end}])", text):
        if part == begin:
            opened = length
        elif part == end:
            pairs.append((opened, length))
            opened = None
        else:
            parts.append(part)
            length += len(part)
    return "".join(parts), pairs


def read_template(state: TemplateState | None, tokenizer: Any) -> Template:
    """Return the Template from the state of an Encoder; `plain` without one."""
    if state is None:
        return Template(end=tokenizer.eos_token, tokenizer=tokenizer)
    known = (state.text, state.end, state.joins_system, tokenizer)
    return Template(*known, calls_as_text=state.calls_as_text)


def choose_template(asked: str | None, tokenizer: Any) -> tuple[str, str]:
    """Name and text of the template; `asked` is a name or Jinja text.

    The default is the tokenizer's own template, else `plain`.
    """
    own = getattr(tokenizer, "chat_template", None)
    if asked is None:
        asked = CHAT if own else PLAIN
    if asked != CHAT:
        return (asked, TEMPLATES[asked]) if asked in TEMPLATES else ("custom", asked)
    if not own:
        raise UsageError(
            "template is 'chat', but the tokenizer has no chat template.",
            f"Choose one of {', '.join(TEMPLATES)}, or pass Jinja text.",
        )
    return CHAT, own if isinstance(own, str) else tokenizer.get_chat_template()
