"""Views of training rows, drawn from (seed, row, view) and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from surefit.encode.augment import CHANGES
from surefit.encode.augment.words import words_of
from surefit.encode.encoded_row import EncodedRow, RowFaultError, SkipRowError
from surefit.findings import rule

AUGMENT_FUNCTION_FAILED = rule(
    "SF286",
    "error",
    "the augmenting function failed",
    why="A view without a text cannot be trained on, and leaving it out would weigh rows unevenly.",
    fix="Let the function take (text, rng) and return the text, changed or not.",
)


Change = Callable[[str, Collection[str], np.random.Generator], str]
OwnChange = Callable[[str, np.random.Generator], str]

TRIES = 8
"""Draws for a view that is to differ from the row's other views."""
INSTRUCTIONS = ("prompt", "messages")
"""Roles that hold an instruction, which can be worded otherwise; other text is left its words."""
_ASKING = ("user", "human")


@dataclass(frozen=True)
class Views:
    """How a training row becomes `factor` views; the first is the row as it is."""

    factor: int
    seed: int
    roles: tuple[str, ...]
    """Roles whose text may be changed."""
    answers: tuple[str, ...]
    """Roles that are learned: they stay, and so do their words wherever they occur."""
    changes: Mapping[str, Mapping[str, Any]]
    """Names of the changes and their settings."""
    function: OwnChange | None = None

    def state(self) -> dict[str, Any]:
        """What the views depend on besides code, as JSON."""
        changes = {name: dict(settings) for name, settings in self.changes.items()}
        roles = {"roles": self.roles, "answers": self.answers}
        return {"factor": self.factor, "seed": self.seed, "changes": changes, **roles}

    def code(self) -> list[Callable[..., Any]]:
        """The functions that change texts."""
        own = [self.function] if self.function is not None else []
        return [*(CHANGES[name] for name in self.changes), *own]

    def further(
        self,
        row: Mapping[str, Any],
        number: int,
        first: EncodedRow,
        encode: Callable[[Mapping[str, Any]], EncodedRow],
    ) -> Iterator[tuple[int, EncodedRow | SkipRowError, bool]]:
        """Each view of the row but the first, encoded, and whether it equals one before it.

        Views are compared as the model sees them: a change that the tokenizer undoes is none.
        """
        seen = {first.content()}
        for view in range(1, self.factor):
            made = first
            try:
                for drawn in self.draw(row, number, view):
                    made = encode(drawn)
                    if made.content() not in seen:
                        break
            except SkipRowError as skip:
                yield view, skip, False
                continue
            alike = made.content() in seen
            seen.add(made.content())
            yield view, made, alike

    def draw(self, row: Mapping[str, Any], number: int, view: int) -> Iterator[dict[str, Any]]:
        """Rows drawn for one view, `TRIES` of them, of one random generator."""
        rng = np.random.default_rng([self.seed, number, view])
        kept = {word for text in self._answers(row) for word in words_of(text)}
        for _ in range(TRIES):
            changed = dict(row)
            for role in self.roles:
                if role in row:
                    say = partial(self._say_otherwise, role=role, kept=kept, rng=rng)
                    changed[role] = _change_asked(row[role], say)
            yield changed

    def _answers(self, row: Mapping[str, Any]) -> Iterator[str]:
        """The row's answers: those of its roles, and what others than the asker say."""
        yield from (row[role] for role in self.answers if isinstance(row.get(role), str))
        for said in (row[role] for role in self.roles if _is_dialogue(row.get(role))):
            for message in said:
                key = _text_key(message)
                if key is not None and _speaker(message) not in _ASKING:
                    yield message[key]

    def _say_otherwise(
        self, text: str, role: str, kept: Collection[str], rng: np.random.Generator
    ) -> str:
        names = [n for n in self.changes if n != "wording" or role in INSTRUCTIONS]
        if names:
            taken = rng.random(len(names)) < 0.5
            taken[rng.integers(len(names))] = True
            for name in [name for name, is_taken in zip(names, taken, strict=True) if is_taken]:
                change: Any = CHANGES[name]
                text = change(text, kept, rng, **self.changes[name])
        return text if self.function is None else _call_own(self.function, text, rng, role)


def _call_own(function: OwnChange, text: str, rng: np.random.Generator, role: str) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    try:
        changed = function(text, rng)
    except Exception as error:
        message = f"{name} raised {type(error).__name__}: {error}"[:300]
        raise RowFaultError(AUGMENT_FUNCTION_FAILED, message, role) from error
    if not isinstance(changed, str):
        raise RowFaultError(
            AUGMENT_FUNCTION_FAILED, f"{name} returned {changed!r}, not a text", role
        )
    return changed


def _change_asked(value: Any, say: Callable[[str], str]) -> Any:
    """The text, or the last message of the one who asks, said otherwise; all else as it is."""
    if isinstance(value, str):
        return say(value) if value.strip() else value
    if not _is_dialogue(value):
        return value
    asked = [place for place, message in enumerate(value) if _speaker(message) in _ASKING]
    key = _text_key(value[asked[-1]]) if asked else None
    if key is None:
        return value
    last = value[asked[-1]]
    return [*value[: asked[-1]], {**last, key: say(last[key])}, *value[asked[-1] + 1 :]]


def _is_dialogue(value: Any) -> bool:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return listed and all(isinstance(message, Mapping) for message in value)


def _speaker(message: Mapping[str, Any]) -> Any:
    return message.get("role") or message.get("from")


def _text_key(message: Mapping[str, Any]) -> str | None:
    return next((k for k in ("content", "value") if isinstance(message.get(k), str)), None)
