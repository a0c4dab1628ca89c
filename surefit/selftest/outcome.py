"""What a check of the selftest gives: figures, a failure, or the reason why it does not apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["passed", "failed", "skipped"]
Figures = dict[str, Any]
"""What a check measured, by name; plain values that go into the JSON."""


class CheckFailedError(Exception):
    """What a check found to be wrong."""

    def __init__(self, message: str, figures: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.figures = dict(figures or {})


class NotApplicableError(Exception):
    """Why a check cannot be done on this machine."""


@dataclass(frozen=True)
class Outcome:
    """The result of one check."""

    name: str
    status: Status
    message: str = ""
    """What is wrong, or why it was skipped."""
    figures: Figures = field(default_factory=dict)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The outcome as JSON has it."""
        return {
            "name": self.name,
            "status": self.status,
            "message": self.message,
            "figures": self.figures,
            "seconds": round(self.seconds, 1),
        }


def require(condition: bool, message: str, figures: Mapping[str, Any]) -> None:
    """Fail the check with this message unless the condition holds."""
    if not condition:
        raise CheckFailedError(message, figures)
