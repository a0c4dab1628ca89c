"""A dialogue rendered by a template, and the positions of its answers in the text.

A template is Jinja text, rendered in the sandbox of transformers. An answer starts after the
generation prompt and ends with the template's end token. Answers are found by the template's
generation blocks, if it has them. Else the dialogue is rendered with and without markers around its
contents; without the markers, both texts must be equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from surefit.errors import FindingError, UsageError
from surefit.findings import rule
from surefit.inputs.chat.bounded_rendering import check_template, render_bounded
from surefit.inputs.chat.messages import Message, calls_as_text
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.encoder_state import TemplateState

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

CHAT = "chat"
PLAIN = "plain"
TEMPLATES = {
    PLAIN: "{% for message in messages %}{{ message.content }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}"
    "{{ eos_token if message.role == 'assistant' else '\\n' }}{% endfor %}",
    "chatml": "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "alpaca": "{% for message in messages %}{% if message.role == 'assistant' %}"
    "{{ '### Response:\\n' + message.content }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}"
    "{{ eos_token + '\\n\\n' }}"
    "{% elif message.role == 'user' %}"
    "{{ '### Instruction:\\n' + (message.instruction or message.content) + '\\n\\n' }}"
    "{% if message.input %}{{ '### Input:\\n' + message.input + '\\n\\n' }}{% endif %}"
    "{% else %}{{ message.content + '\\n\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}",
}
"""The templates with a name; `chat` is the tokenizer's own."""

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
        answers = [p for p, message in enumerate(messages) if message["role"] == "assistant"]
        if _GENERATION.search(self.text):
            text, spans = self._render(messages, tools, generation, spans=True)
            if len(spans) != len(answers):
                what = f"its generation blocks contain {len(spans)} of {len(answers)} answers"
                raise TemplateError(ANSWERS_NOT_FOUND, what)
            return text, [self._marked_turn(text, *span) for span in spans]
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

    def _start(
        self, text: str, messages: Sequence[Message], place: int, marks: Marks, tools: Any
    ) -> int | None:
        """Where an answer starts: after the generation prompt, else with its content."""
        begin = marks[place][0] if place in marks else None
        if place and place - 1 in marks and self._generation_prompt:
            at = text.find(self._generation_prompt, marks[place - 1][1], begin)
            if at >= 0:
                return at + len(self._generation_prompt)
        prompt = self.render(messages[:place], tools, generation=True)
        return len(prompt) if text.startswith(prompt) else begin

    @cached_property
    def _generation_prompt(self) -> str:
        """What the template writes before an answer, if it is the same before each."""
        asked = [{"role": "user", "content": "Hi"}]
        try:
            before, whole = self.render(asked), self.render(asked, generation=True)
        except TemplateError:
            return ""
        added = whole[len(before) :] if whole.startswith(before) else ""
        return added if added.strip() else ""

    def _find(
        self,
        messages: Sequence[Message],
        tried_places: Sequence[Sequence[int]],
        tools: Any,
        generation: bool,
        fault: str,
    ) -> tuple[str, Sequence[Message], Marks]:
        """The text, and where the contents are in it of the first places that can be marked.

        For templates that trim contents, trimmed contents are tried next.
        """
        trimmed = [{**message, "content": message["content"].strip()} for message in messages]
        for tried in (messages, trimmed):
            text = self.render(tried, tools, generation)
            for places in tried_places:
                marks = self._mark(tried, places, tools, generation, text)
                if marks is not None:
                    return text, tried, marks
        raise TemplateError(ANSWERS_NOT_FOUND, fault)

    def _mark(
        self,
        messages: Sequence[Message],
        places: Sequence[int],
        tools: Any,
        generation: bool,
        text: str,
    ) -> Marks | None:
        """Where the given contents are in the text; None if markers change it."""
        if not places:
            return {}
        free = [mark for mark in _MARKS if mark not in text]
        if len(free) < 2:
            what = "the text contains every character that could mark its answers"
            raise TemplateError(ANSWERS_NOT_FOUND, what)
        begin, end = free[:2]
        marked = list(messages)
        for place in places:
            marked[place] = _marked(messages[place], begin, end)
        clean, found = _read_marks(self.render(marked, tools, generation), begin, end)
        if clean != text or len(found) != len(places):
            return None
        return dict(zip(places, found, strict=True))

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
        """The text before the content of a user's message, and that content."""
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
    """The text without markers, and where the pairs are; a template may drop a start.

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
    """The Template from the state of an Encoder; `plain` without one."""
    if state is None:
        return Template(end=tokenizer.eos_token, tokenizer=tokenizer)
    known = (state.text, state.end, state.joins_system, tokenizer)
    return Template(*known, calls_as_text=state.calls_as_text)


def is_file_name(asked: str) -> bool:
    """Whether the value of `template` is a file name."""
    return asked not in (CHAT, *TEMPLATES) and "{{" not in asked and "{%" not in asked


def read_asked(asked: str | None) -> str | None:
    """The value of `template` in the config: a known name, or Jinja text, read from a file."""
    if asked is None or not is_file_name(asked):
        return asked
    if not Path(asked).is_file():
        raise UsageError(
            f"template is {asked!r}, which is neither a file, nor Jinja text, nor one of "
            f"{', '.join((CHAT, *TEMPLATES))}.",
            "Use one of these names, a file, or Jinja text in quotes.",
        )
    try:
        return Path(asked).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{asked} is not UTF-8 text.", "Save it as UTF-8.") from None


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
