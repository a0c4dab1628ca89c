"""The task a name stands for: one of ours, or the user's own as `module:object`."""

from __future__ import annotations

from surefit.errors import UsageError
from surefit.tasks import get_task
from surefit.tasks.task_spec import TaskSpec
from surefit.user_code import CodeGate


def find_task(name: str, code: CodeGate) -> TaskSpec | tuple[TaskSpec, ...]:
    """The task called `name`; `module:object` is found through the gate."""
    if ":" not in name:
        return get_task(name)
    found = code.find(name)
    if not isinstance(found, TaskSpec):
        raise UsageError(
            f"{name} is a {type(found).__name__}; expected a surefit.TaskSpec.",
            "Let the name stand for a TaskSpec object.",
        )
    return found
