"""A dialogue rendered by a template, and where in the text its answers lie.

A template is Jinja text, rendered in the sandbox of transformers. An answer begins where the
generation prompt ends and ends with the template's end token, both found in the rendered text by
rendering it again with marks around the answers and without them: the two must be equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from surefit.encode.text.messages import Message
from surefit.encode.text.templates import PLAIN, TEMPLATES
from surefit.findings import Rule, rule

TEMPLATE_REFUSES_ROW = rule(
    "SF276",
    "warning",
    "row that the template refuses",
    why="The template raises on it, as it would when the model is used; the row is dropped.",
    fix="Change the named row, or choose another template.",
)

ANSWERS_NOT_FOUND = rule(
    "SF277",
    "warning",
    "row whose answers are not found",
    why="The template changes its answers, so what is to be learned is unknown; it is dropped.",
    fix="Change the named row, or choose another template.",
)


_MARKS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))  # Unicode: never characters of a text
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
# The date of the day would make encoded rows depend on when they were encoded.
DATE = "26 Jul 2024"
_NO_CLOCK = "{% macro strftime_now(format) %}" + DATE + "{% endmacro %}"


class TemplateError(Exception):
    """A dialogue that the template cannot show, or whose answers cannot be found in its text."""

    def __init__(self, rule: Rule, message: str) -> None:
        super().__init__(message)
        self.rule = rule
        self.message = message


@dataclass(frozen=True)
class Turn:
    """An answer in a rendered text: from the end of the generation prompt to its end token.

    `ended` is whether the template writes an end token there, `whole` whether all of the answer is
    in the text.
    """

    start: int
    end: int
    ended: bool = True
    whole: bool = True


@dataclass(frozen=True)
class Frame:
    """What a template writes around the contents of dialogues with the same roles.

    A text that equals the frame filled with a dialogue's contents has its answers where the frame
    has them, so that it need not be rendered again to find them.
    """

    pieces: tuple[str, ...]
    """Before the first content, between contents, after the last one."""
    leads: tuple[int, ...]
    """Characters from each answer's start to its content."""

    def fill(self, contents: Sequence[str]) -> tuple[str, list[int]]:
        """The text, and where each content begins."""
        parts, begins, length = [], [], 0
        for piece, content in zip(self.pieces, contents, strict=False):
            parts += [piece, content]
            begins.append(length + len(piece))
            length += len(piece) + len(content)
        return "".join(parts) + self.pieces[-1], begins


@dataclass(frozen=True)
class Template:
    """A template, the token that ends its answers, and whether it takes a system message."""

    text: str = TEMPLATES[PLAIN]
    end: str | None = None
    joins_system: bool = False
    tokenizer: Any = field(default=None, repr=False)
    _frames: dict[Any, Frame | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def end_ids(self) -> list[int]:
        """The tokens at which a generated answer ends: the tokenizer's eos and the template's."""
        found = [self.tokenizer.eos_token_id]
        if self.end is not None:
            found.append(self.tokenizer.convert_tokens_to_ids(self.end))
        return list(dict.fromkeys(token for token in found if token is not None))

    @cached_property
    def special_tokens(self) -> list[str]:
        """The tokens that the tokenizer finds in a text before anything else, longest first."""
        known = {*self.tokenizer.get_added_vocab(), *self.tokenizer.all_special_tokens}
        return sorted((str(token) for token in known), key=len, reverse=True)

    @cached_property
    def _variables(self) -> dict[str, str]:
        known = self.tokenizer.special_tokens_map
        return {name: str(value) for name, value in known.items() if isinstance(value, str)}

    @property
    def asks_for_the_date(self) -> bool:
        """Whether it would show the day on which it is rendered; it shows `DATE` instead."""
        return "strftime_now" in self.text

    @cached_property
    def _source(self) -> str:
        return _NO_CLOCK + self.text if self.asks_for_the_date else self.text

    def _render(
        self, messages: Sequence[Message], tools: Any, generation: bool, spans: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            rendered, found = render_jinja_template(
                [list(messages)],
                tools=tools,
                chat_template=self._source,
                add_generation_prompt=generation,
                return_assistant_tokens_mask=spans,
                **self._variables,
            )
        except Exception as error:  # the template is code of others, and may raise anything
            what = str(error).strip() or type(error).__name__
            raise TemplateError(TEMPLATE_REFUSES_ROW, what[:200].rstrip(".")) from error
        return rendered[0], list(found[0]) if found else []

    def render(
        self, messages: Sequence[Message], tools: Any = None, generation: bool = False
    ) -> str:
        """The text of the dialogue, with the generation prompt at its end if asked for."""
        return self._render(messages, tools, generation)[0]

    def prepared(self, messages: Sequence[Message]) -> list[Message]:
        """The messages as the template takes them: a system message may join the first user's."""
        first = messages[0]
        if not self.joins_system or first["role"] != "system" or len(messages) < 2:
            return list(messages)
        joined = {"role": "user", "content": f"{first['content']}\n\n{messages[1]['content']}"}
        return [joined, *messages[2:]]

    def locate(
        self, messages: Sequence[Message], tools: Any = None, generation: bool = False
    ) -> tuple[str, list[Turn]]:
        """The text of the dialogue and its answers, in order."""
        if self._is_plain and not any(message.get("tool_calls") for message in messages):
            return self._locate_plain(messages)
        answers = [p for p, message in enumerate(messages) if message["role"] == "assistant"]
        if _GENERATION.search(self.text):
            text, spans = self._render(messages, tools, generation, spans=True)
            if len(spans) != len(answers):
                what = f"its generation marks hold {len(spans)} of {len(answers)} answers"
                raise TemplateError(ANSWERS_NOT_FOUND, what)
            return text, [self._marked_turn(text, *span) for span in spans]
        key = _frame_key(messages, tools, generation)
        framed = self._locate_framed(messages, answers, key, generation)
        if framed is not None:
            return framed
        text, messages, marks = self._find(messages, answers, tools, generation)
        starts: list[int] = []
        for number, place in enumerate(answers):
            prompt = self.render(messages[:place], tools, generation=True)
            begin, _ = marks[number]
            found = len(prompt) if text.startswith(prompt) else begin
            if found is None or (starts and found < starts[-1]):
                what = f"answer {number} does not follow the generation prompt"
                raise TemplateError(ANSWERS_NOT_FOUND, what)
            starts.append(found)
        if key is not None and key not in self._frames:
            self._frames[key] = self._frame(text, messages, answers, starts, generation)
        ends = [end for _, end in marks]
        return text, self._turns(text, [messages[p] for p in answers], starts, ends)

    def _turns(
        self, text: str, answers: Sequence[Message], starts: list[int], ends: Sequence[int | None]
    ) -> list[Turn]:
        limits = [*starts[1:], len(text)][: len(starts)]
        return [
            self._turn(text, message, start, end, limit)
            for message, start, end, limit in zip(answers, starts, ends, limits, strict=True)
        ]

    def _locate_framed(
        self, messages: Sequence[Message], answers: Sequence[int], key: Any, generation: bool
    ) -> tuple[str, list[Turn]] | None:
        """What `locate` finds, where a dialogue with the same roles has shown the frame."""
        frame = self._frames.get(key)
        if frame is None:
            return None
        text = self.render(messages, None, generation)
        for tried in (messages, _trimmed(messages)):
            contents = [message["content"] for message in tried]
            expected, begins = frame.fill(contents)
            if text == expected:
                starts = [begins[p] - lead for p, lead in zip(answers, frame.leads, strict=True)]
                ends = [begins[p] + len(contents[p]) for p in answers]
                return text, self._turns(text, [tried[p] for p in answers], starts, ends)
        return None

    def _frame(
        self,
        text: str,
        messages: Sequence[Message],
        answers: Sequence[int],
        starts: Sequence[int],
        generation: bool,
    ) -> Frame | None:
        """The frame of a text with known answers; None if a content is changed or not shown."""
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

    def _locate_plain(self, messages: Sequence[Message]) -> tuple[str, list[Turn]]:
        """What the template `plain` writes, without the detour of finding it: it is the default."""
        parts: list[str] = []
        turns: list[Turn] = []
        length = 0
        for message in messages:
            told = message["role"] == "assistant"
            part = message["content"] + ((self.end or "") if told else "\n")
            if told:
                turns.append(Turn(length, length + len(part)))
            parts.append(part)
            length += len(part)
        return "".join(parts), turns

    def _find(
        self, messages: Sequence[Message], answers: Sequence[int], tools: Any, generation: bool
    ) -> tuple[str, Sequence[Message], list[tuple[int | None, int | None]]]:
        """The text, and where each answer's content begins and ends in it.

        A template that trims contents shows trimmed ones alike, so these are tried next.
        """
        plain = [place for place in answers if not messages[place].get("tool_calls")]
        for tried in (messages, _trimmed(messages)):
            text = self.render(tried, tools, generation)
            begin, end = _unused_marks(text)
            marked = self.render(_marked(tried, plain, begin, end), tools, generation)
            clean, marks = _read_marks(marked, begin, end)
            if clean == text and len(marks) == len(plain):
                given = dict(zip(plain, marks, strict=True))
                return text, tried, [given.get(place, (None, None)) for place in answers]
        what = "it changes the answers, so that they cannot be found in its text"
        raise TemplateError(ANSWERS_NOT_FOUND, what)

    def _turn(self, text: str, message: Message, start: int, end: int | None, limit: int) -> Turn:
        """The answer that begins at `start` and whose content ends at `end`, if that is known."""
        at = -1
        if self.end is not None:
            at = text.find(self.end, start if end is None else end, limit)
        if end is None and at < 0:
            raise TemplateError(ANSWERS_NOT_FOUND, "a tool call has no end")
        if at >= 0 and (end is None or not text[end:at].strip()):
            whole = end is None or message["content"].strip() in text[start:end]
            return Turn(start, at + len(self.end or ""), whole=whole)
        assert end is not None
        return Turn(start, end, ended=False, whole=message["content"].strip() in text[start:end])

    def _marked_turn(self, text: str, start: int, end: int) -> Turn:
        """An answer that the template itself marks, with its end token inside or behind."""
        kept = text[start:end].rstrip()
        if self.end is None:
            return Turn(start, start + len(kept), ended=False)
        if kept.endswith(self.end):
            return Turn(start, start + len(kept))
        at = text.find(self.end, end)
        ended = at >= 0 and not text[end:at].strip()
        return Turn(start, at + len(self.end) if ended else end, ended=ended)

    def find_prompt(
        self, messages: Sequence[Message], place: int, tools: Any = None
    ) -> tuple[str, str]:
        """What the text has before the content of a user's message, and that content."""
        for tried in (messages, _trimmed(messages)):
            text = self.render(tried, tools, generation=True)
            begin, end = _unused_marks(text)
            marked = self.render(_marked(tried, [place], begin, end), tools, generation=True)
            clean, marks = _read_marks(marked, begin, end)
            if clean == text and len(marks) == 1 and marks[0][0] is not None:
                return text[: marks[0][0]], text[marks[0][0] : marks[0][1]]
        raise TemplateError(ANSWERS_NOT_FOUND, "it changes the prompt, so that it cannot be cut")


def _frame_key(messages: Sequence[Message], tools: Any, generation: bool) -> Any:
    """What decides a frame: the roles, of messages that are nothing but role and content."""
    if tools is not None or any(message.keys() != {"role", "content"} for message in messages):
        return None
    return (generation, *(message["role"] for message in messages))


def _trimmed(messages: Sequence[Message]) -> list[Message]:
    return [{**message, "content": message["content"].strip()} for message in messages]


def _unused_marks(text: str) -> tuple[str, str]:
    free = [mark for mark in _MARKS if mark not in text]
    if len(free) < 2:
        raise TemplateError(
            ANSWERS_NOT_FOUND, "the text holds every character that could mark its answers"
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
    """The text without the marks, and the places of each pair; the first of a pair may be gone."""
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
    """The Template that was fitted, as an Encoder keeps it; `plain` where nothing was."""
    if state is None:
        return Template(end=tokenizer.eos_token, tokenizer=tokenizer)
    return Template(state["text"], state["end"], state["joins_system"], tokenizer)
