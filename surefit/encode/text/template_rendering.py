"""A dialogue rendered by a template, and the positions of its answers in the text.

A template is Jinja text, rendered in the sandbox of transformers. An answer starts after the
generation prompt and ends with the template's end token. To find answers, the dialogue is rendered
with and without markers around them; without the markers, both texts must be equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from surefit.encode.text.answer_openings import (
    Marks,
    Openings,
    learn_openings,
    message_kind,
    starts_after,
    structure_of,
    without_calls,
)
from surefit.encode.text.bounded_rendering import check_template, render_bounded
from surefit.encode.text.messages import Message
from surefit.encode.text.templates import PLAIN, TEMPLATES
from surefit.encode.text.tool_messages import calls_as_text
from surefit.errors import FindingError
from surefit.findings import Rule, rule

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
NOWHERE = None, None
"""The marks of a content that has none."""
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
# With the current date, encoded rows would depend on the day of encoding.
DATE = "26 Jul 2024"
_NO_CLOCK = "{% macro strftime_now(format) %}" + DATE + "{% endmacro %}"


class TemplateError(Exception):
    """A dialogue that the template cannot render, or whose answers are not found in the text."""

    def __init__(self, rule: Rule, message: str) -> None:
        super().__init__(message)
        self.rule = rule
        self.message = message


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
class Frame:
    """The text that a template writes around the contents of dialogues with the same roles.

    If a rendered text equals the frame filled with the contents, the positions of its answers are
    known without rendering it again.
    """

    pieces: tuple[str, ...]
    """The text before the first content, between contents, and after the last one."""
    leads: tuple[int, ...]
    """Characters from each answer's start to its content."""

    def fill(self, contents: Sequence[str]) -> tuple[str, list[int]]:
        """The text, and where each content starts."""
        parts, begins, length = [], [], 0
        for piece, content in zip(self.pieces, contents, strict=False):
            parts += [piece, content]
            begins.append(length + len(piece))
            length += len(piece) + len(content)
        return "".join(parts) + self.pieces[-1], begins


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
    _frames: dict[Any, Frame | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _openings: dict[Any, Openings | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

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
        self, messages: Sequence[Message], tools: Any, generation: bool, spans: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        asked = {"add_generation_prompt": generation, "return_assistant_tokens_mask": spans}
        try:
            return render_bounded(self.source, messages, tools, {**asked, **self._variables})
        except FindingError:
            raise
        except Exception as error:  # templates may raise any exception
            what = str(error).strip() or type(error).__name__
            raise TemplateError(TEMPLATE_REFUSES_ROW, what[:200].rstrip(".")) from error

    def render(
        self, messages: Sequence[Message], tools: Any = None, generation: bool = False
    ) -> str:
        """The text of the dialogue; with `generation`, followed by the generation prompt."""
        return self._render(messages, tools, generation)[0]

    def prepared(self, messages: Sequence[Message]) -> list[Message]:
        """The messages, with what the template does not write merged into their content."""
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
        """The text of the dialogue and its answers, in order."""
        if self._is_plain and not any(message.get("tool_calls") for message in messages):
            return self._find_plain(messages)
        answers = [p for p, message in enumerate(messages) if message["role"] == "assistant"]
        if _GENERATION.search(self.text):
            text, spans = self._render(messages, tools, generation, spans=True)
            if len(spans) != len(answers):
                what = f"its generation blocks contain {len(spans)} of {len(answers)} answers"
                raise TemplateError(ANSWERS_NOT_FOUND, what)
            return text, [self._marked_turn(text, *span) for span in spans]
        key = _frame_key(messages, tools, generation)
        framed = self._find_in_frame(messages, answers, key, generation)
        if framed is not None:
            return framed
        structure = structure_of(messages, tools, generation) if key is None else None
        opened = self._find_by_openings(messages, answers, tools, structure)
        if opened is not None:
            return opened
        plain = [place for place in answers if not messages[place].get("tool_calls")]
        text, messages, marks = self._find(messages, plain, tools, generation)
        starts: list[int] = []
        for number, place in enumerate(answers):
            prompt = self.render(messages[:place], tools, generation=True)
            begin, _ = marks.get(place, NOWHERE)
            found = len(prompt) if text.startswith(prompt) else begin
            if found is None or (starts and found < starts[-1]):
                what = f"answer {number} does not follow the generation prompt"
                raise TemplateError(ANSWERS_NOT_FOUND, what)
            starts.append(found)
        if key is not None and key not in self._frames:
            self._frames[key] = self._frame(text, messages, answers, starts, generation)
        if structure is not None and structure not in self._openings:
            self._openings[structure] = self._learn(text, messages, starts, tools, generation)
        return text, self._turns(text, messages, answers, starts, marks)

    def _find_by_openings(
        self, messages: Sequence[Message], answers: Sequence[int], tools: Any, structure: Any
    ) -> tuple[str, list[AnswerSpan]] | None:
        """What `find_answers` returns, if the openings of this structure are known."""
        openings = self._openings.get(structure)
        if openings is None:
            return None
        text, marks = self._mark(messages, without_calls(messages), tools, structure[0])
        starts = starts_after(text, openings, answers, marks or {})
        if marks is None or starts is None:
            return None
        return text, self._turns(text, messages, answers, starts, marks)

    def _learn(
        self,
        text: str,
        messages: Sequence[Message],
        starts: Sequence[int],
        tools: Any,
        generation: bool,
    ) -> Openings | None:
        answers = [p for p, message in enumerate(messages) if message["role"] == "assistant"]
        _, marks = self._mark(messages, without_calls(messages), tools, generation)
        return learn_openings(text, starts, answers, marks or {})

    def _turns(
        self,
        text: str,
        messages: Sequence[Message],
        answers: Sequence[int],
        starts: Sequence[int],
        marks: Marks,
    ) -> list[AnswerSpan]:
        limits = [*starts[1:], len(text)][: len(starts)]
        return [
            self._turn(text, messages[place], start, marks.get(place, NOWHERE)[1], limit)
            for place, start, limit in zip(answers, starts, limits, strict=True)
        ]

    def _find_in_frame(
        self, messages: Sequence[Message], answers: Sequence[int], key: Any, generation: bool
    ) -> tuple[str, list[AnswerSpan]] | None:
        """What `find_answers` returns, if the frame of these roles is known."""
        frame = self._frames.get(key)
        if frame is None:
            return None
        text = self.render(messages, None, generation)
        for tried in (messages, _trimmed(messages)):
            contents = [message["content"] for message in tried]
            expected, begins = frame.fill(contents)
            if text == expected:
                starts = [begins[p] - lead for p, lead in zip(answers, frame.leads, strict=True)]
                marks = {p: (begins[p], begins[p] + len(contents[p])) for p in answers}
                return text, self._turns(text, tried, answers, starts, marks)
        return None

    def _frame(
        self,
        text: str,
        messages: Sequence[Message],
        answers: Sequence[int],
        starts: Sequence[int],
        generation: bool,
    ) -> Frame | None:
        """The frame of a text with known answers; None if a content is changed or omitted."""
        begin, end = _unused_marks(text)
        marked = _marked(messages, range(len(messages)), begin, end)
        clean, marks = _read_marks(self.render(marked, None, generation), begin, end)
        shown = [(a, b) for a, b in marks if a is not None]
        if clean != text or len(shown) != len(messages):
            return None
        if any(text[a:b] != m["content"] for (a, b), m in zip(shown, messages, strict=True)):
            return None
        outside = [0, *(place for pair in shown for place in pair), len(text)]
        pieces = tuple(text[a:b] for a, b in zip(outside[::2], outside[1::2], strict=True))
        leads = tuple(shown[p][0] - start for p, start in zip(answers, starts, strict=True))
        return Frame(pieces, leads)

    @cached_property
    def _is_plain(self) -> bool:
        return self.text == TEMPLATES[PLAIN] and self.end == self._variables.get("eos_token", "")

    def _find_plain(self, messages: Sequence[Message]) -> tuple[str, list[AnswerSpan]]:
        """The text of the default template `plain`, without rendering."""
        parts: list[str] = []
        turns: list[AnswerSpan] = []
        length = 0
        for message in messages:
            is_answer = message["role"] == "assistant"
            part = message["content"] + ((self.end or "") if is_answer else "\n")
            if is_answer:
                turns.append(AnswerSpan(length, length + len(part)))
            parts.append(part)
            length += len(part)
        return "".join(parts), turns

    def _find(
        self, messages: Sequence[Message], places: Sequence[int], tools: Any, generation: bool
    ) -> tuple[str, Sequence[Message], Marks]:
        """The text, and the start and end of the contents at the given places.

        For templates that trim contents, trimmed contents are tried next.
        """
        for tried in (messages, _trimmed(messages)):
            text, marks = self._mark(tried, places, tools, generation)
            if marks is not None:
                return text, tried, marks
        what = "it changes the answers, so they are not found in its text"
        raise TemplateError(ANSWERS_NOT_FOUND, what)

    def _mark(
        self, messages: Sequence[Message], places: Sequence[int], tools: Any, generation: bool
    ) -> tuple[str, Marks | None]:
        """The text and where the given contents are in it; None if markers change the text."""
        text = self.render(messages, tools, generation)
        begin, end = _unused_marks(text)
        marked = self.render(_marked(messages, places, begin, end), tools, generation)
        clean, marks = _read_marks(marked, begin, end)
        if clean != text or len(marks) != len(places):
            return text, None
        return text, dict(zip(places, marks, strict=True))

    def _turn(
        self, text: str, message: Message, start: int, end: int | None, limit: int
    ) -> AnswerSpan:
        """The answer that starts at `start` and whose content ends at `end`, if that is known."""
        at = -1
        if self.end is not None:
            at = text.find(self.end, start if end is None else end, limit)
        if end is None and at < 0:
            raise TemplateError(ANSWERS_NOT_FOUND, "a tool call has no end token")
        if at >= 0 and (end is None or not text[end:at].strip()):
            whole = end is None or message["content"].strip() in text[start:end]
            return AnswerSpan(start, at + len(self.end or ""), whole=whole)
        assert end is not None
        return AnswerSpan(
            start, end, ended=False, whole=message["content"].strip() in text[start:end]
        )

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
        """The text before the content of a user's message, and that content."""
        for tried in (messages, _trimmed(messages)):
            text = self.render(tried, tools, generation=True)
            begin, end = _unused_marks(text)
            marked = self.render(_marked(tried, [place], begin, end), tools, generation=True)
            clean, marks = _read_marks(marked, begin, end)
            if clean == text and len(marks) == 1 and marks[0][0] is not None:
                return text[: marks[0][0]], text[marks[0][0] : marks[0][1]]
        raise TemplateError(ANSWERS_NOT_FOUND, "it changes the prompt, so it cannot be truncated")


def _calls_in_content(message: Message) -> Message:
    if not message.get("tool_calls"):
        return message
    text = calls_as_text(message["tool_calls"])
    content = f"{message['content']}\n{text}" if message["content"].strip() else text
    return {**{n: v for n, v in message.items() if n != "tool_calls"}, "content": content}


def _frame_key(messages: Sequence[Message], tools: Any, generation: bool) -> Any:
    """Roles and tags of reasoning; None if messages have more than role and content."""
    if tools is not None or any(message.keys() != {"role", "content"} for message in messages):
        return None
    return (generation, *map(message_kind, messages))


def _trimmed(messages: Sequence[Message]) -> list[Message]:
    return [{**message, "content": message["content"].strip()} for message in messages]


def _unused_marks(text: str) -> tuple[str, str]:
    free = [mark for mark in _MARKS if mark not in text]
    if len(free) < 2:
        raise TemplateError(
            ANSWERS_NOT_FOUND, "the text contains every character that could mark its answers"
        )
    return free[0], free[1]


def _marked(
    messages: Sequence[Message], places: Sequence[int], begin: str, end: str
) -> list[Message]:
    marked = [dict(message) for message in messages]
    for place in places:
        message = marked[place]
        message["content"] = f"{begin}{message['content']}{end}"
        if "instruction" in message:
            message["instruction"] = f"{begin}{message['instruction']}"
            message["input"] = f"{message['input']}{end}"
    return marked


def _read_marks(text: str, begin: str, end: str) -> tuple[str, list[tuple[int | None, int]]]:
    """The text without the markers, and the positions of each pair; a start may be missing."""
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


def read_template(state: Mapping[str, Any] | None, tokenizer: Any) -> Template:
    """The Template from the state of an Encoder; `plain` without one."""
    if state is None:
        return Template(end=tokenizer.eos_token, tokenizer=tokenizer)
    known = (state["text"], state["end"], state["joins_system"], tokenizer)
    return Template(*known, calls_as_text=state.get("calls_as_text", False))
