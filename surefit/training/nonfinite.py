"""A loss or gradient that is not finite: found before the optimizer steps, with the step's rows."""

from __future__ import annotations

import math
from typing import Any

from surefit.errors import RunFailedError

MAX_SKIPPED_IN_A_ROW = 10
LEAST_SCALE = 2.0**-10
"""Of the loss in fp16, which starts at 2¹⁶: gradients that overflow even so are not finite."""
SHOWN_ROWS = 12


class NonFiniteError(RunFailedError):
    """A step whose loss or gradient is NaN or infinite; the weights are those before the step."""


def find_nonfinite(loss: float, norm: Any) -> str:
    """What of a step is not finite; empty where all is."""
    if not math.isfinite(loss):
        return f"The loss became {loss}"
    value = 0.0 if norm is None else float(norm)
    if not math.isfinite(value):
        return f"The gradient norm became {value} (with a loss of {loss:.6g})"
    return ""


def stop_at(fault: str, step: int, saved: bool) -> NonFiniteError:
    """The error that ends the run, with the policy and the command that finds the row."""
    kept = f" Step {step - 1} is saved." if saved else ""
    return NonFiniteError(
        f"{fault} at step {step}. The weights were not changed.{kept}",
        "Find the row that caused it with `surefit explain RUN`. If the rows are sound: lower "
        "--lr, keep clip above 0, or use precision=fp32. To train on without such steps, start "
        "again with --set on_nonfinite=skip.",
    )


def too_many_skipped(fault: str, step: int) -> NonFiniteError:
    """The error where skipping does not help."""
    return NonFiniteError(
        f"{fault} at step {step}, as in the {MAX_SKIPPED_IN_A_ROW - 1} steps before it, which were "
        "skipped (on_nonfinite: skip).",
        "Find the cause with `surefit explain RUN`; lower --lr, or use precision=fp32.",
    )


def show_rows(rows: list[int]) -> str:
    """Row numbers for a message.

    >>> show_rows([3, 17])
    '3, 17'
    """
    more = f" and {len(rows) - SHOWN_ROWS} more" if len(rows) > SHOWN_ROWS else ""
    return ", ".join(map(str, rows[:SHOWN_ROWS])) + more
