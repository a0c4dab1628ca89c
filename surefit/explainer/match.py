"""A text or exception against the registry of causes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from surefit.explainer.cause import Cause, Context, Form, Value
from surefit.explainer.cause_registry import CAUSES
from surefit.explainer.explanation import Evidence, Explanation
from surefit.explainer.log_reading import Log, read_log

LIBRARIES = re.compile(
    r"\b(?:torch|transformers|peft|accelerate|datasets|tokenizers|safetensors|trl|lightning|"
    r"pytorch_lightning|deepspeed|diffusers|huggingface_hub|sentence_transformers|surefit)\b"
)
FRAME = re.compile(r'^\s*(?:\[?\w*\]?:?\s*)File "', re.M)
LONGEST_LINE = 400

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Match:
    """A form of a cause, found in a message."""

    cause: Cause
    form: Form
    context: Context
    line: str


def explain_text(text: str, shapes: Shapes | None = None) -> Explanation:
    """The cause of the failure that a text tells of, or that it is not known."""
    log = read_log(text)
    found = find(log, text, shapes or {})
    if found is None:
        last = next(log.roots(), "") or next(log.named_errors(), "")
        return Explanation(False, Evidence(_shortened(last, 0)), shapes=shapes or {})
    cause = found.cause
    return Explanation(
        known=True,
        evidence=Evidence(found.line, found.context.values),
        code=cause.code,
        title=cause.title,
        cause=cause.why,
        derived=tuple(cause.derive(found.context)) if cause.derive else (),
        fix=cause.fix,
        surefit=cause.surefit or None,
        does_not_help=cause.not_help,
        shapes=shapes or {},
    )


def find(log: Log, text: str, shapes: Shapes) -> Match | None:
    """The best match: root messages of tracebacks first, then what the rest of the text says."""
    errors = [cause for cause in CAUSES.values() if not cause.notice]
    notices = [cause for cause in CAUSES.values() if cause.notice]
    found = _first(log.roots(), [*errors, *notices], text, shapes)
    if found is not None or not log.only_wrappers:
        return found
    return (
        _first(log.named_errors(), errors, text, shapes)
        or _first(log.passages(), errors, text, shapes)
        or _first(log.passages(), notices, text, shapes)
    )


def _first(
    messages: Iterable[str], causes: Sequence[Cause], text: str, shapes: Shapes
) -> Match | None:
    matches = (found for message in messages for found in matching(message, causes, text, shapes))
    return next(matches, None)


def matching(message: str, causes: Iterable[Cause], text: str, shapes: Shapes) -> Iterator[Match]:
    """Every form found in a message whose conditions hold."""
    for cause in causes:
        for form in cause.forms:
            found = form.regex.search(message)
            if found is None or (form.libraries_only and not _is_training(text)):
                continue
            context = Context(_values(found), text, shapes)
            if cause.only_if is None or cause.only_if(context):
                yield Match(cause, form, context, _shortened(message, found.start()))


def _is_training(text: str) -> bool:
    """Whether a traceback names a library of training; a single line is taken as it is."""
    return FRAME.search(text) is None or LIBRARIES.search(text) is not None


def _values(found: re.Match[str]) -> dict[str, Value]:
    named = {name: value for name, value in found.groupdict().items() if value is not None}
    return {name: _value(text) for name, text in named.items()}


def _value(text: str) -> Value:
    return int(text) if text.isdecimal() else text


def _shortened(message: str, start: int) -> str:
    """The part of a long message around what was found."""
    if len(message) <= LONGEST_LINE:
        return message
    begin = max(0, min(start - 60, len(message) - LONGEST_LINE))
    return ("…" if begin else "") + message[begin : begin + LONGEST_LINE] + "…"
