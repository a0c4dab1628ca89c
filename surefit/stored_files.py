"""Files that surefit or a library wrote earlier, and that may be damaged or come from strangers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surefit.errors import UsageError, describe_error

WRONG_CONTENT = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading a file raises if it does not hold what was written."""


@contextmanager
def reading(place: str | Path) -> Iterator[None]:
    """Report content that cannot be understood as damage of `place`, not as an internal error."""
    try:
        yield
    except WRONG_CONTENT as error:
        raise UsageError(
            f"{place} is damaged, or was not written by this version of surefit "
            f"({describe_error(error)[:200]}).",
            "Restore it from a copy. `surefit verify RUN` names the damaged files of a run.",
        ) from error
