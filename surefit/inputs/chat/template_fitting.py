"""The template of a run: chosen, tried on a few rows, and what is found about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

from surefit.findings import Finding, note, rule
from surefit.inputs.chat.bounded_rendering import UNUSABLE_TEMPLATE
from surefit.inputs.chat.messages import Dialogue, Message
from surefit.inputs.chat.template_rendering import (
    ANSWERS_NOT_FOUND,
    DATE,
    TEMPLATE_REFUSES_ROW,
    Template,
    TemplateError,
    choose_template,
)
from surefit.inputs.encoder_state import TemplateState

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
    found = [note(message)]
    if end is None:
        if tokenizer.eos_token_id is None:
            message = f"The template {name!r} writes no end token, and the tokenizer has no eos."
            raise TEMPLATE_CANNOT_BE_MASKED.error(message)
        message = f"The template {name!r} ends answers without a special token; eos is added."
        found.append(EOS_ADDED.finding(message))
    _test_template(template, name, dialogues)
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
    for dialogue in islice(dialogues, _SAMPLE):
        try:
            template.find_answers(template.prepared(dialogue.messages), dialogue.tools)
            return
        except TemplateError as fault:
            faults.append(fault)
    if faults:
        raise TEMPLATE_CANNOT_BE_MASKED.error(
            f"The template {name!r} fails on every row: {faults[0].message}."
        )
