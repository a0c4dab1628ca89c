"""A text to its cause: which message of which cause is in it, and where."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from surefit.explainer.cause import Cause, Context, Message, Value
from surefit.explainer.cause_registry import CAUSES
from surefit.explainer.explanation import Evidence, Explanation
from surefit.explainer.log_reading import Log, read_log
from surefit.explainer.message_values import read_whole

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


class Search:
    """The search of one text for the messages of all causes."""

    def __init__(self, log: Log, shapes: Shapes) -> None:
        self.log = log
        self.shapes = shapes
        self._conditions: dict[tuple[str, frozenset[tuple[str, Value]]], bool] = {}
        self.candidates = [
            (cause, message)
            for cause in CAUSES.values()
            for message in cause.messages
            if self._is_possible(cause, message)
        ]

    def best_match(self) -> Match | None:
        """The best match: tracebacks first, then named errors, then any line, then warnings."""
        errors = [candidate for candidate in self.candidates if not candidate[0].is_warning]
        warnings = [candidate for candidate in self.candidates if candidate[0].is_warning]
        found = self._first(self.log.root_messages(), [*errors, *warnings])
        if found is not None or not self.log.only_process_reports:
            return found
        return (
            self._first(self.log.named_errors(), errors)
            or self._first(self._passages(errors), errors)
            or self._first(self._passages(warnings), warnings)
        )

    def matches_in(self, text: str, candidates: Iterable[Candidate]) -> Iterator[Match]:
        """Every candidate that is found in one message or line and whose conditions hold."""
        for cause, message in candidates:
            found = message.regex.search(text)
            if found is None or (message.needs_library and not self.log.may_be_training):
                continue
            context = Context(_values(found), self.log.text, self.shapes)
            if self._holds(cause, context):
                yield Match(cause, message, context, _excerpt(text, found.start()))

    def _is_possible(self, cause: Cause, message: Message) -> bool:
        """Whether the whole text may have a message, so that its lines are worth searching."""
        if not self.log.has_phrase(message.phrases, message.ignores_case):
            return False
        if not message.is_anchored and message.regex.search(self.log.joined) is None:
            return False
        has_values = bool(message.regex.groupindex)
        return has_values or self._holds(cause, Context({}, self.log.text, self.shapes))

    def _holds(self, cause: Cause, context: Context) -> bool:
        """Whether the condition of a cause holds, decided once for equal values."""
        if cause.only_if is None:
            return True
        key = (cause.code, frozenset(context.values.items()))
        if key not in self._conditions:
            self._conditions[key] = cause.only_if(context)
        return self._conditions[key]

    def _first(self, texts: Iterable[str], candidates: Sequence[Candidate]) -> Match | None:
        if not candidates:
            return None
        matches = (match for text in texts for match in self.matches_in(text, candidates))
        return next(matches, None)

    def _passages(self, candidates: Iterable[Candidate]) -> Iterator[str]:
        numbers: set[int] = set()
        for _, message in candidates:
            numbers |= self.log.lines_with(message.phrases, message.ignores_case)
        return self.log.passages(numbers)


def explain_text(text: str, shapes: Shapes | None = None) -> Explanation:
    """The cause of the failure that a text reports, or that it is unknown."""
    log = read_log(text)
    match = Search(log, shapes or {}).best_match()
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
