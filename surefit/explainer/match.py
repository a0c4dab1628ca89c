"""A text to its cause: which message of which cause is in it, and where."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from surefit.explainer.cause import Cause, Context, Message, Value
from surefit.explainer.cause_registry import CAUSES
from surefit.explainer.explanation import Evidence, Explanation
from surefit.explainer.log_reading import Log, read_log
from surefit.explainer.numbers_in_text import read_whole

MAX_EVIDENCE_CHARS = 400
MAX_VALUE_CHARS = 200

Shapes = Mapping[str, tuple[int, ...]]
Candidate = tuple[Cause, Message]


@dataclass(frozen=True)
class Match:
    """A message of a cause that was found in a text."""

    cause: Cause
    message: Message
    context: Context
    line: str


def explain_text(text: str, shapes: Shapes | None = None) -> Explanation:
    """The cause of the failure that a text reports, or that it is unknown."""
    log = read_log(text)
    match = find_match(log, shapes or {})
    if match is None:
        last = next(log.root_messages(), "") or next(log.named_errors(), "")
        return Explanation(False, Evidence(_excerpt(last, 0)), shapes=shapes or {})
    cause = match.cause
    return Explanation(
        known=True,
        evidence=Evidence(match.line, match.context.values),
        code=cause.code,
        title=cause.title,
        cause=cause.why,
        derived=tuple(cause.derive(match.context)) if cause.derive else (),
        fix=cause.fix,
        surefit=cause.in_surefit or None,
        does_not_help=cause.does_not_help,
        shapes=shapes or {},
    )


def find_match(log: Log, shapes: Shapes) -> Match | None:
    """The best match: tracebacks first, then named errors, then any line, then warnings."""
    possible = candidates(log)
    errors = [(cause, message) for cause, message in possible if not cause.is_warning]
    warnings = [(cause, message) for cause, message in possible if cause.is_warning]
    found = _first(log.root_messages(), [*errors, *warnings], log, shapes)
    if found is not None or not log.only_process_reports:
        return found
    return (
        _first(log.named_errors(), errors, log, shapes)
        or _first(_passages(log, errors), errors, log, shapes)
        or _first(_passages(log, warnings), warnings, log, shapes)
    )


def candidates(log: Log) -> list[Candidate]:
    """The messages whose phrases the text has; only these are searched for."""
    return [
        (cause, message)
        for cause in CAUSES.values()
        for message in cause.messages
        if log.has_phrase(message.phrases, message.ignores_case)
    ]


def matches_in(
    text: str, possible: Iterable[Candidate], log: Log, shapes: Shapes
) -> Iterator[Match]:
    """Every candidate that is found in one message or line and whose conditions hold."""
    for cause, message in possible:
        found = message.regex.search(text)
        if found is None or (message.needs_library and not log.may_be_training):
            continue
        context = Context(_values(found), log.text, shapes)
        if cause.only_if is None or cause.only_if(context):
            yield Match(cause, message, context, _excerpt(text, found.start()))


def _first(
    texts: Iterable[str], possible: Sequence[Candidate], log: Log, shapes: Shapes
) -> Match | None:
    if not possible:
        return None
    matches = (match for text in texts for match in matches_in(text, possible, log, shapes))
    return next(matches, None)


def _passages(log: Log, possible: Iterable[Candidate]) -> Iterator[str]:
    numbers: set[int] = set()
    for _, message in possible:
        numbers |= log.lines_with(message.phrases, message.ignores_case)
    return log.passages(numbers)


def _values(found: re.Match[str]) -> dict[str, Value]:
    named = {name: value for name, value in found.groupdict().items() if value is not None}
    return {name: _value(text) for name, text in named.items()}


def _value(text: str) -> Value:
    number = read_whole(text)
    if number is not None:
        return number
    return text if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + "…"


def _excerpt(message: str, start: int) -> str:
    """The part of a long message around what was found."""
    if len(message) <= MAX_EVIDENCE_CHARS:
        return message
    begin = max(0, min(start - 60, len(message) - MAX_EVIDENCE_CHARS))
    return ("…" if begin else "") + message[begin : begin + MAX_EVIDENCE_CHARS] + "…"
