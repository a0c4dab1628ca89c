"""A text to its cause: which message of which cause is in it, and where."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from surefit.explainer.cause import Cause, Context, Evidence, Explanation, Message, Value
from surefit.explainer.causes import CAUSES
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
    context: Context
    line: str


class Search:
    """The search of one text for the messages of all causes."""

    def __init__(self, log: Log, shapes: Shapes) -> None:
        self.log = log
        self.shapes = shapes
        self._conditions: dict[tuple[str, frozenset[tuple[str, Value]]], bool] = {}

    def best_match(self) -> Match | None:
        """Return the best match: tracebacks, then named errors, then any line, then warnings."""
        possible = [
            (cause, message)
            for cause in CAUSES.values()
            for message in cause.messages
            if message.is_anchored or message.regex.search(self.log.joined) is not None
        ]
        errors = [candidate for candidate in possible if not candidate[0].is_warning]
        warnings = [candidate for candidate in possible if candidate[0].is_warning]
        found = self._first(self.log.root_messages(), [*errors, *warnings])
        if found is not None or not self.log.only_process_reports:
            return found
        return (
            self._first(self.log.named_errors(), errors)
            or self._first(self.log.passages(), errors)
            or self._first(self.log.passages(), warnings)
        )

    def _first(self, texts: Iterable[str], candidates: Sequence[Candidate]) -> Match | None:
        """Return the first candidate that is in one of the texts and whose condition holds."""
        for text in texts if candidates else ():
            for cause, message in candidates:
                found = message.regex.search(text)
                if found is None or (message.needs_library and not self.log.may_be_training):
                    continue
                context = Context(_values(found), self.log.text, self.shapes)
                if self._holds(cause, context):
                    return Match(cause, context, _excerpt(text, found.start()))
        return None

    def _holds(self, cause: Cause, context: Context) -> bool:
        """Return whether the condition of a cause holds, decided once for equal values."""
        if cause.only_if is None:
            return True
        key = (cause.code, frozenset(context.values.items()))
        if key not in self._conditions:
            self._conditions[key] = cause.only_if(context)
        return self._conditions[key]


def explain_text(text: str, shapes: Shapes | None = None) -> Explanation:
    """Return the cause of the failure that a text reports, or that it is unknown."""
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
    """Return the named values of a message: whole numbers, else text, cut short."""
    values: dict[str, Value] = {}
    for name, text in found.groupdict().items():
        if text is not None:
            cut = text if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + "…"
            number = read_whole(text)
            values[name] = cut if number is None else number
    return values


def _excerpt(message: str, start: int) -> str:
    """Return the part of a long message around what was found."""
    if len(message) <= MAX_EVIDENCE_CHARS:
        return message
    begin = max(0, min(start - 60, len(message) - MAX_EVIDENCE_CHARS))
    return ("…" if begin else "") + message[begin : begin + MAX_EVIDENCE_CHARS] + "…"
