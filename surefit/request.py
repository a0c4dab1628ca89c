"""What was asked for: the config, and the Python objects that no config can hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from surefit.config import RunConfig, make_config
from surefit.errors import UsageError
from surefit.tasks.task_spec import TaskSpec
from surefit.user_code import CodeGate, NamedCode


@dataclass(frozen=True)
class PythonObjects:
    """Python objects passed in; None where the config names a file, a model or a function."""

    data: Any = None
    eval_data: Any = None
    model: Any = None
    task: TaskSpec | None = None
    loss_fn: Callable[..., Any] | None = None
    collate_fn: Callable[..., Any] | None = None
    optimizer: Any = None
    callbacks: tuple[Callable[[Mapping[str, Any]], None], ...] = ()
    augment: Callable[..., str] | None = None
    scorer: Callable[[str, str], Any] | None = None

    def names(self) -> dict[str, str]:
        """What was passed in, by argument, and what it is called; the run's plan keeps it."""
        held = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "callbacks"}
        return {name: _name(value) for name, value in held.items() if value is not None}


@dataclass(frozen=True)
class Request:
    """A config and the Python objects beside it."""

    config: RunConfig
    objects: PythonObjects = PythonObjects()
    code: CodeGate = field(default_factory=NamedCode)
    """Decides which code may run, and finds it."""
    choices: Mapping[str, Any] = field(default_factory=dict)
    """What an earlier plan of the same run chose by trying, to be taken as it is."""


def make_request(options: Mapping[str, Any], beside: Path | None = None) -> Request:
    """Options of `check` and `train`, from Python or the command line, as a Request.

    `beside` is the config file's folder, where `module:function` is searched first.
    """
    settings = {key: value for key, value in options.items() if value is not None}
    objects: dict[str, Any] = {}

    def is_setting(name: str) -> bool:
        value = settings[name]
        if name in ("data", "eval_data"):
            return _as_paths(value) is not None
        if name in ("augment", "scorer"):
            return not callable(value)
        return isinstance(value, (str, Path) if name == "model" else str)

    for name in (f.name for f in fields(PythonObjects)):
        takes_settings = name in ("data", "eval_data", "model", "task", "augment", "scorer")
        if name in settings and not (takes_settings and is_setting(name)):
            objects[name] = settings.pop(name)
    for name in ("data", "eval_data"):
        if name in settings:
            settings[name] = _as_paths(settings[name])
    for name in ("model", "tokenizer", "output"):
        if isinstance(settings.get(name), Path):
            settings[name] = str(settings[name])
    task = objects.get("task")
    if task is not None and not isinstance(task, TaskSpec):
        raise UsageError(
            f"task is a {type(task).__name__}; expected a name or a TaskSpec.",
            "Pass task='sft' or task=surefit.TaskSpec(…).",
        )
    return Request(make_config(settings), PythonObjects(**objects), NamedCode(beside))


def _as_paths(data: Any) -> tuple[str, ...] | None:
    if isinstance(data, str | Path):
        return (str(data),)
    if isinstance(data, list | tuple) and data and all(isinstance(d, str | Path) for d in data):
        return tuple(str(item) for item in data)
    return None


def _name(value: Any) -> str:
    """What an object is called: a function's or a task's own name, else its type's.

    >>> _name([1, 2]), _name(len)
    ('list', 'len')
    """
    own = getattr(value, "name", None) if isinstance(value, TaskSpec) else None
    return str(own or getattr(value, "__name__", type(value).__name__))
