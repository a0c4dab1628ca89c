"""Look at a run once, after its first few steps."""

from __future__ import annotations

from collections.abc import Callable

from surefit.run.events import Event, Observer


def after_steps(
    num_steps: int, was_skipped: Callable[[], bool], emit: Observer, look: Callable[[Event], None]
) -> Observer:
    """`emit`, which also calls `look` with the event of the last of `num_steps` steps.

    Steps that were skipped, or had a learning rate of 0, move no weight and do not count.
    """
    counted = 0

    def observe(event: Event) -> None:
        nonlocal counted
        emit(event)
        if counted >= num_steps or event["event"] != "step" or not event["lr"] or was_skipped():
            return
        counted += 1
        if counted == num_steps:
            look(event)

    return observe
