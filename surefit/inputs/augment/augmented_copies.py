"""Augmented copies of training rows: a pure function of (seed, row, copy)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from surefit.data.row_parts import HeldOut
from surefit.errors import describe_error
from surefit.findings import rule
from surefit.inputs.augment.text_changes import CHANGES, words_of
from surefit.inputs.chat.messages import is_prompt
from surefit.inputs.encoded_row import DropReason, EncodedRow, RowFaultError, drop_row

AUGMENT_FUNCTION_FAILED = rule(
    "SF286",
    "error",
    "augmentation function failed",
    why=(
        "A row without its text, image or series cannot be trained on. Without it, the other rows "
        "would have a larger weight."
    ),
    fix="Write the function so that it takes (value, rng) and returns the value, changed or not: a "
    "text, or an array of the same shape. Draw random numbers from rng only.",
)


OwnChange = Callable[[str, np.random.Generator], str]

TRIES = 8
"""How often a copy is drawn until it differs from the row's other copies."""
INSTRUCTIONS = ("prompt", "messages")
"""Roles that hold an instruction, which may be reworded; the wording of other text is kept."""
EncodeRead = Callable[[Mapping[str, Any]], tuple[EncodedRow, ...]]
"""Encodes a row by role."""


@dataclass(frozen=True)
class AugmentedCopies:
    """How a training row becomes `factor` copies; copy 0 is the row itself."""

    factor: int
    seed: int
    roles: tuple[str, ...]
    """Roles whose text may be changed."""
    answers: tuple[str, ...]
    """Roles with labels: their text is kept, and so are its words wherever they occur."""
    changes: Mapping[str, Mapping[str, Any]]
    """Names of the changes and their settings."""
    function: OwnChange | None = None
    held_out: HeldOut | None = None
    """Inputs of validation rows; a copy that has one is discarded."""

    def state(self) -> dict[str, Any]:
        """Everything besides code that the copies depend on, as JSON."""
        changes = {name: dict(settings) for name, settings in self.changes.items()}
        held_out = self.held_out.key if self.held_out is not None else None
        roles = {"roles": self.roles, "answers": self.answers, "held_out": held_out}
        return {"factor": self.factor, "seed": self.seed, "changes": changes, **roles}

    def code(self) -> list[Callable[..., Any]]:
        """Return the functions that change texts."""
        own = [self.function] if self.function is not None else []
        return [*(CHANGES[name] for name in self.changes), *own]

    def encode(
        self,
        row: Mapping[str, Any],
        number: int,
        first: tuple[EncodedRow, ...],
        encode_row: EncodeRead,
        window: int | None = None,
    ) -> Iterator[tuple[int, tuple[EncodedRow, ...] | RowFaultError, bool]]:
        """Copies 1 and up of the row, encoded, and whether each equals an earlier one.

        Copies are compared as tokens: a change that the tokenizer removes does not count. Rows of a
        stream have numbers of their own in each `window`.
        """
        seen = {_content(first)}
        for copy in range(1, self.factor):
            made = first
            try:
                for drawn in self.draw(row, number, copy, window):
                    made = encode_row(drawn)
                    if _content(made) not in seen:
                        break
                if self.held_out is not None and self.held_out.has_input_of(drawn):
                    raise drop_row(DropReason.HELD_OUT)
            except RowFaultError as skip:
                if not skip.reason:
                    raise
                yield copy, skip, False
                continue
            is_equal = _content(made) in seen
            seen.add(_content(made))
            yield copy, made, is_equal

    def encode_anew(
        self,
        row: Mapping[str, Any],
        place: tuple[int, int, int],
        first: tuple[EncodedRow, ...],
        encode_row: EncodeRead,
    ) -> tuple[EncodedRow, ...]:
        """Return one copy of a row that is read anew in each epoch; `place` is its number, copy and
        epoch.

        It is the row itself where no change of it can be used.
        """
        for drawn in self.draw(row, *place):
            if self.held_out is not None and self.held_out.has_input_of(drawn):
                continue
            try:
                made = encode_row(drawn)
            except RowFaultError as fault:
                if not fault.reason:
                    raise
                continue
            if _content(made) != _content(first):
                return made
        return first

    def draw(
        self, row: Mapping[str, Any], number: int, copy: int, epoch: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Candidates for one copy, `TRIES` of them, from one random generator."""
        rng = np.random.default_rng([self.seed, number, copy, *([] if epoch is None else [epoch])])
        kept = {word for text in self._answers(row) for word in words_of(text)}
        for _ in range(TRIES):
            changed = dict(row)
            for role in self.roles:
                if role in row:
                    change = partial(self._change, role=role, kept=kept, rng=rng)
                    changed[role] = _change_question(row[role], change)
            yield changed

    def _answers(self, row: Mapping[str, Any]) -> Iterator[str]:
        """Yield the row's answers: those of its roles, and the messages that are not the user's."""
        yield from (row[role] for role in self.answers if isinstance(row.get(role), str))
        for dialogue in (row[role] for role in self.roles if _is_dialogue(row.get(role))):
            for message in dialogue:
                key = _text_key(message)
                if key is not None and not is_prompt(message):
                    yield message[key]

    def _change(self, text: str, role: str, kept: Collection[str], rng: np.random.Generator) -> str:
        names = [n for n in self.changes if n != "wording" or role in INSTRUCTIONS]
        if names:
            taken = rng.random(len(names)) < 0.5
            taken[rng.integers(len(names))] = True
            for name in [name for name, is_taken in zip(names, taken, strict=True) if is_taken]:
                change: Any = CHANGES[name]
                text = change(text, kept, rng, **self.changes[name])
        return text if self.function is None else _call_own(self.function, text, rng, role)


def _content(blocks: tuple[EncodedRow, ...]) -> bytes:
    return b"\0\0".join(block.content() for block in blocks)


def _call_own(function: OwnChange, text: str, rng: np.random.Generator, role: str) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    try:
        changed = function(text, rng)
    except Exception as error:
        message = f"{name} raised {describe_error(error)}"[:300]
        raise RowFaultError(AUGMENT_FUNCTION_FAILED, message, role) from error
    if not isinstance(changed, str):
        raise RowFaultError(
            AUGMENT_FUNCTION_FAILED, f"{name} returned {changed!r}; expected text", role
        )
    return changed


def _change_question(value: Any, change: Callable[[str], str]) -> Any:
    """Return the text, or the user's last message, after the change; everything else unchanged."""
    if isinstance(value, str):
        return change(value) if value.strip() else value
    if not _is_dialogue(value):
        return value
    asked = [place for place, message in enumerate(value) if is_prompt(message)]
    key = _text_key(value[asked[-1]]) if asked else None
    if key is None:
        return value
    last = value[asked[-1]]
    return [*value[: asked[-1]], {**last, key: change(last[key])}, *value[asked[-1] + 1 :]]


def _is_dialogue(value: Any) -> bool:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return listed and all(isinstance(message, Mapping) for message in value)


def _text_key(message: Mapping[str, Any]) -> str | None:
    return next((k for k in ("content", "value") if isinstance(message.get(k), str)), None)
