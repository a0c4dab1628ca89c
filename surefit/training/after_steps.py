"""Look at a run once, after its first few steps."""

from __future__ import annotations

from collections.abc import Callable

from surefit.run.events import Event, Observer


def after_steps(
    num_steps: int, moves_nothing: Callable[[], bool], emit: Observer, look: Callable[[Event], None]
) -> Observer:
    """`emit`, which also calls `look` with the event of the last of `num_steps` steps.

    Steps that move nothing, because they were skipped or all rates were 0, do not count.
    """
    counted = 0

    def observe(event: Event) -> None:
        nonlocal counted
        emit(event)
        if counted >= num_steps or event["event"] != "step":
            return
        if event.get("skipped") or moves_nothing():
            return
        counted += 1
        if counted == num_steps:
            look(event)

    return observe
