"""The template of a run: chosen and tried on a few rows; and what it does not write of a dialogue.

Each part of a dialogue (tools, calls, messages, reasoning, other fields) gets a mark of its own,
and it is rendered once: a part whose mark is missing in the text is lost. Templates decide by roles
and keys, so one dialogue per structure is rendered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from surefit.findings import NOTE, Finding, Rule, note, rule
from surefit.inputs.chat.bounded_rendering import UNUSABLE_TEMPLATE
from surefit.inputs.chat.messages import Dialogue, Message, has_name
from surefit.inputs.chat.template_rendering import (
    ANSWERS_NOT_FOUND,
    DATE,
    TEMPLATE_REFUSES_ROW,
    AnswerSpan,
    Template,
    TemplateError,
    choose_template,
)
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.encoder_state import TemplateState

TOOLS_NOT_RENDERED = rule(
    "SF157",
    "error",
    "template leaves the tool definitions out",
    why="The model learns to call tools that its prompt does not mention.",
    fix=(
        "Use a tokenizer or a template that writes tools (--set template=FILE.jinja), or train "
        "without the definitions: --set ignore=tools."
    ),
    accept="The rows are trained on without the tool definitions.",
)

MESSAGE_NOT_RENDERED = rule(
    "SF159",
    "error",
    "template leaves messages or tool calls out",
    why="The answers follow what the model does not see, or lack the calls it is to learn.",
    fix="Use a template that writes all messages and calls: --set template=FILE.jinja.",
    accept="The rows are trained on without these parts.",
)

REASONING_NOT_RENDERED = rule(
    "SF161",
    "error",
    "template leaves the reasoning of an answer out",
    why="The model learns to answer at once, without the reasoning that the data has.",
    fix="Use a template that writes it, or put it into the content: <think>…</think> answer.",
    accept="The answers are trained on without their reasoning.",
)

EARLIER_REASONING_NOT_RENDERED = rule(
    "SF280",
    "warning",
    "template leaves a part of an answer out",
    why="Some templates render only the last answer in full. The rendered part has labels.",
    fix="Make one row per answer whose reasoning should have labels.",
    accept="The rendered parts are trained on.",
)

EMPTY_REASONING = rule(
    "SF162",
    "warning",
    "template adds empty reasoning to answers",
    why="The empty block has labels, so the model learns to skip its reasoning.",
    fix=(
        "Use a template that writes no empty block, or add the reasoning to the data. If the model "
        "is to answer without reasoning: --set accept=SF162."
    ),
    accept="The empty blocks are trained on.",
)

MEDIA_NOT_RENDERED = rule(
    "SF164",
    "warning",
    "images or sound of messages are not used",
    why="Only text is trained on: the answers refer to what the model does not get.",
    fix="Remove rows that cannot be answered from their text.",
    accept="The rows are trained on as text.",
)

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking", "thought")
MEDIA_FIELDS = ("image", "images", "audio", "audios", "video", "videos", "files", "attachments")
READ_FIELDS = ("role", "content", "tool_calls", "weight", "instruction", "input")
_THOUGHT = re.compile(r"([<\[])(think|thinking|reasoning|thought)([>\]])(.*?)\1/\2\3", re.S | re.I)
_EMPTY_BLOCK = re.compile(r"([<\[]\|?)(\w+)(\|?[>\]])\s*[<\[]\|?/\2\|?[>\]]")


def _lost(rule: Rule, what: str, column: str) -> RowFaultError:
    """Return what to say if a part of a dialogue is lost."""
    return RowFaultError(rule, f"the template does not write {what}", column, counted=True)


@dataclass(frozen=True)
class DialogueColumns:
    """The columns of the parts of a dialogue, which may all be one."""

    messages: str
    """The last prompt and its answer."""
    system: str
    earlier: str
    """The messages before the last prompt."""
    tools: str = "tools"

    def of(self, messages: Sequence[Message], place: int) -> str:
        """Return the column of a message."""
        prompts = [p for p, message in enumerate(messages) if message["role"] == "user"]
        if messages[place]["role"] == "system":
            return self.system
        return self.earlier if prompts and place < prompts[-1] else self.messages


class UnrenderedParts:
    """Finds what a template loses, once per structure of dialogues."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self._known: dict[Any, tuple[RowFaultError, ...]] = {}

    def find(self, dialogue: Dialogue, columns: DialogueColumns) -> tuple[RowFaultError, ...]:
        """Return what is lost of a dialogue."""
        messages, tools = dialogue.messages, dialogue.tools
        key = (columns, *map(_structure, messages), tools is not None and len(tools) > 0)
        if key not in self._known:
            self._known[key] = tuple(self._probe(messages, tools, columns))
        return self._known[key]

    def _probe(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, columns: DialogueColumns
    ) -> Iterator[RowFaultError]:
        marks = _Marks(columns.tools)
        prepared = self._template.prepared(messages)
        marked_tools = [marks.tool(tool) for tool in tools] if tools else None
        last = max((p for p, m in enumerate(prepared) if m["role"] == "assistant"), default=-1)
        marked = [
            marks.message(message, columns.of(prepared, place), place == last)
            for place, message in enumerate(prepared)
        ]
        try:
            text = self._template.render(marked, marked_tools).casefold()
            plain, turns = self._template.find_answers(prepared, tools)
        except TemplateError:
            return  # the marks do not suit it: nothing can be said
        lost: dict[Any, RowFaultError] = {}  # the first of each rule and column
        for mark, part in marks.parts.items():
            if mark not in text:
                lost.setdefault((part.rule.code, part.column), part)
        yield from lost.values()
        yield from self._unmarked(prepared, tools, columns.messages)
        yield from _empty_reasoning(prepared, plain, turns, columns.messages)

    def _unmarked(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, column: str
    ) -> Iterator[RowFaultError]:
        """Fields that are not text: the dialogue is rendered without them."""
        names = {
            name: None
            for message in messages
            for name, value in message.items()
            if name not in READ_FIELDS and not isinstance(value, str)
        }
        for name in names:
            without = [{n: v for n, v in message.items() if n != name} for message in messages]
            try:
                is_lost = self._template.render(messages, tools) == self._template.render(
                    without, tools
                )
            except TemplateError:
                continue  # it is read
            if is_lost:
                yield _field(name, column)


def _structure(message: Message) -> Any:
    """Return what a template may decide by: role, keys that have a value, calls, reasoning."""
    content = message["content"]
    names = tuple(name for name, value in message.items() if value not in (None, "", [], {}))
    thought = "</" in content and bool(_THOUGHT.search(content))
    return message["role"], names, len(message.get("tool_calls") or ()), thought


def _field(name: str, column: str, is_last_answer: bool = True) -> RowFaultError:
    if name in REASONING_FIELDS:
        return _lost(_reasoning_rule(is_last_answer), f"the reasoning ({name})", column)
    kind = MEDIA_NOT_RENDERED if name in MEDIA_FIELDS else NOTE
    return _lost(kind, f"the field {name!r} of messages", f"{column}.{name}")


def _reasoning_rule(is_last_answer: bool) -> Rule:
    return REASONING_NOT_RENDERED if is_last_answer else EARLIER_REASONING_NOT_RENDERED


class _Marks:
    """Puts a mark into each part of a dialogue, and knows which mark is in which part."""

    def __init__(self, tools: str) -> None:
        self.parts: dict[str, RowFaultError] = {}
        self._tools = tools

    def _mark(self, part: RowFaultError) -> str:
        mark = f"zq{len(self.parts):04d}qz"
        self.parts[mark] = part
        return mark

    def _inside(self, text: str, part: RowFaultError) -> str:
        """Return the text with a mark in its middle: templates look at the start and the end."""
        middle = len(text) // 2
        return text[:middle] + self._mark(part) + text[middle:] if text.strip() else text

    def tool(self, tool: Mapping[str, Any]) -> Any:
        """Return a tool with marks in its name, its description and its parameters."""
        if not has_name(tool):
            return tool
        marked = self._name(tool, _lost(TOOLS_NOT_RENDERED, "the tool definitions", self._tools))
        parameters: Any = marked.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        if isinstance(properties, Mapping) and properties:
            shown = _lost(TOOLS_NOT_RENDERED, "the parameters of tools", self._tools)
            added = {self._mark(shown): {"type": "string", "description": "x"}}
            marked["parameters"] = {**parameters, "properties": {**properties, **added}}
        return {**tool, "function": marked} if "function" in tool else marked

    def _name(self, named: Mapping[str, Any], part: RowFaultError) -> dict[str, Any]:
        """Return the function of a tool or a call, with a mark in its name."""
        inner = named.get("function", named)
        return {**inner, "name": self._inside(inner["name"], part)}

    def message(self, message: Message, column: str, is_last_answer: bool) -> Message:
        """Return a message with marks in its content and every other text."""
        marked = {**message, **self._content(message, column, is_last_answer)}
        for name, value in message.items():
            if name not in READ_FIELDS and isinstance(value, str):
                marked[name] = self._inside(value, _field(name, column, is_last_answer))
        if message.get("tool_calls"):
            marked["tool_calls"] = [self._call(call, column) for call in message["tool_calls"]]
        return marked

    def _content(self, message: Message, column: str, is_last_answer: bool) -> dict[str, str]:
        role, content = message["role"], message["content"]
        part = _lost(MESSAGE_NOT_RENDERED, f"{role} messages", column)
        if "instruction" in message:
            own = {name: self._inside(message[name], part) for name in ("instruction", "input")}
            return {**own, "content": f"{own['instruction']}\n{own['input']}"}
        thought = _THOUGHT.search(content) if role == "assistant" and "</" in content else None
        if thought is None:
            return {"content": self._inside(content, part)}
        inner = _lost(_reasoning_rule(is_last_answer), "the reasoning of answers", column)
        a, b, end = thought.start(4), thought.end(4), thought.end()
        before = content[:a] + self._inside(content[a:b], inner) + content[b:end]
        return {"content": before + self._inside(content[end:], part)}

    def _call(self, call: Any, column: str) -> Any:
        if not has_name(call):
            return call
        marked = self._name(call, _lost(MESSAGE_NOT_RENDERED, "tool calls", column))
        if isinstance(marked.get("arguments"), Mapping) and marked["arguments"]:
            shown = _lost(MESSAGE_NOT_RENDERED, "the arguments of tool calls", column)
            marked["arguments"] = {**marked["arguments"], self._mark(shown): "x"}
        return {**call, "function": marked} if "function" in call else marked


def _empty_reasoning(
    messages: Sequence[Message], text: str, turns: Sequence[AnswerSpan], column: str
) -> Iterator[RowFaultError]:
    """Yield whether an empty block of reasoning is labelled that the answer does not have."""
    answers = [message for message in messages if message["role"] == "assistant"]
    for message, turn in zip(answers, turns, strict=False):
        block = _EMPTY_BLOCK.search(text[turn.start : turn.end])
        own = " ".join(str(value) for value in message.values())
        if block and not _EMPTY_BLOCK.search(own) and message.get("weight") != 0:
            shown = f"the template adds {block.group()!r} to answers without reasoning"
            yield RowFaultError(EMPTY_REASONING, shown, column, counted=True)
            return


TEMPLATE_CANNOT_BE_MASKED = rule(
    "SF275",
    "error",
    "answers not found in the template",
    why="For completion-only loss, the exact position of every answer must be known.",
    fix="Let the template write answers unchanged, or mark them with {% generation %}.",
)

EOS_ADDED = rule(
    "SF282",
    "fixed",
    "eos added after answers",
    why="Without a labelled end token, the model never learns to stop.",
    fix="Nothing to do, or use a template that writes the tokenizer's eos token.",
)

_SAMPLE = 8
_QUESTION: Message = {"role": "user", "content": "Hi"}
_ANSWER: Message = {"role": "assistant", "content": "Hello"}
_OMITTED = "find_tool"
_SYSTEM: Message = {"role": "system", "content": _OMITTED}
_FUNCTION = {"name": _OMITTED, "arguments": {"place": "x"}}
_CALLS = [{"type": "function", "id": "call00000", "function": _FUNCTION}]
_CALL: Message = {"role": "assistant", "content": "", "tool_calls": _CALLS}


def fit_template(
    asked: str | None, tokenizer: Any, dialogues: Iterable[Dialogue]
) -> tuple[TemplateState, list[Finding]]:
    """Return the template as an Encoder keeps it, tested on a few rows, and findings about it."""
    name, text = choose_template(asked, tokenizer)
    tried = [*islice(dialogues, _SAMPLE)]
    template = Template(text, tokenizer=tokenizer)
    try:
        end = _find_end(template)
        template = replace(
            template,
            end=end,
            joins_system=_omits(template, [_SYSTEM, _QUESTION, _ANSWER], refused=True),
            calls_as_text=_omits(template, [_QUESTION, _CALL], refused=False),
        )
    except TemplateError as fault:
        broken = (
            UNUSABLE_TEMPLATE if fault.rule == TEMPLATE_REFUSES_ROW else TEMPLATE_CANNOT_BE_MASKED
        )
        raise broken.error(f"The template {name!r} cannot be used: {fault.message}.") from None
    date = f"; the current date is always {DATE}" if template.asks_for_the_date else ""
    ending = repr(end or tokenizer.eos_token)
    message = f"The template is {name!r}; answers end with {ending}{date}."
    if asked is None and name == "plain" and any(len(each.messages) > 2 for each in tried):
        message += (
            " It does not write who says what, and dialogues have several messages; to have that "
            "written: --set template=chatml."
        )
    found = [note(message)]
    if end is None:
        if tokenizer.eos_token_id is None:
            message = f"The template {name!r} writes no end token, and the tokenizer has no eos."
            raise TEMPLATE_CANNOT_BE_MASKED.error(message)
        message = f"The template {name!r} ends answers without a special token; eos is added."
        found.append(EOS_ADDED.finding(message))
    _test_template(template, name, tried)
    return TemplateState(name, text, end, template.joins_system, template.calls_as_text), found


def _find_end(template: Template) -> str | None:
    """Return the special token that the template writes after an answer, if there is one."""
    text, turns = template.find_answers([_QUESTION, _ANSWER])
    if len(turns) != 1 or _ANSWER["content"] not in text:
        raise TemplateError(ANSWERS_NOT_FOUND, "its text does not contain the answer")
    inside, behind = text[: turns[0].end], text[turns[0].end :].lstrip()
    for token in template.special_tokens:
        if behind.startswith(token) or inside.endswith(token):
            ids = template.tokenizer(token, add_special_tokens=False)["input_ids"]
            return token if len(ids) == 1 else None
    return None


def _omits(template: Template, messages: list[Message], refused: bool) -> bool:
    """Return whether the template does not write a part of the messages; `refused` if it raises."""
    try:
        return _OMITTED not in template.render(messages)
    except TemplateError:
        return refused


def _test_template(template: Template, name: str, dialogues: Iterable[Dialogue]) -> None:
    """Render a few rows; refuse a template that fails on each of them."""
    faults = []
    for dialogue in dialogues:
        try:
            template.find_answers(template.prepared(dialogue.messages), dialogue.tools)
            return
        except TemplateError as fault:
            faults.append(fault)
    if faults:
        raise TEMPLATE_CANNOT_BE_MASKED.error(
            f"The template {name!r} fails on every row: {faults[0].message}."
        )
