"""What was asked for: the config, and the Python objects that no config can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.batches.field import Field
from surefit.config import RunConfig, as_sources, make_config
from surefit.data.python.torch_data import as_written
from surefit.data.remote_url import clean_url, is_url
from surefit.errors import UsageError
from surefit.targets.task_spec import TaskSpec
from surefit.user_code import CodeGate, NamedCode, find_files

if TYPE_CHECKING:
    from surefit.pipeline.open_pipeline import Choices


@dataclass(frozen=True)
class PythonObjects:
    """Python objects passed in; None where the config names a file, a model or a function."""

    data: Any = None
    eval_data: Any = None
    model: Any = None
    task: TaskSpec | None = None
    loss_fn: Callable[..., Any] | None = None
    predict_fn: Callable[..., Any] | None = None
    training_step: Callable[..., Any] | None = None
    collate_fn: Callable[..., Any] | None = None
    optimizer: Any = None
    callbacks: tuple[Callable[[Mapping[str, Any]], None], ...] = ()
    augment: Callable[..., str] | None = None
    scorer: Callable[[str, str], Any] | None = None
    metrics: Mapping[str, Any] | None = None

    def names(self) -> dict[str, str]:
        """Return what was passed in, by argument, and its name; the run's plan keeps it."""
        held = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "callbacks"}
        return {name: _name(value) for name, value in held.items() if value is not None}


@dataclass(frozen=True)
class Request:
    """A config and the Python objects beside it."""

    config: RunConfig
    objects: PythonObjects = PythonObjects()
    code: CodeGate = field(default_factory=NamedCode)
    """Decides which code may run, and finds it."""
    choices: Choices | None = None
    """What an earlier plan of the same run chose by trying, to be taken as it is."""
    processes: int | None = None
    """Processes that a run is planned for, if not those that plan it."""
    device: str | None = None
    """The kind of device that a run is planned for, as `memory/limit.py` names it."""
    encodes_only: bool = False
    """Whether to stop when the rows are encoded and checked."""
    shows_only: bool = False
    """Whether the plan is only shown, so that weights which no stage reads need not be loaded."""
    one_row: bool = False
    """Whether to find out how one row is read, and nothing else of the data and the model."""


def make_request(
    options: Mapping[str, Any], beside: Path | None = None, trust_code: Iterable[str] = ()
) -> Request:
    """Return the options of `check` and `train`, from Python or the command line, as a Request.

    `beside` is the config file's folder, where `module:function` is searched first. `trust_code`
    is code that a model folder names and that may run.
    """
    settings = _name_metrics({key: value for key, value in options.items() if value is not None})
    objects: dict[str, Any] = {}

    def is_setting(name: str) -> bool:
        value = settings[name]
        if name == "eval_data" and is_named_sets(value):
            return all(isinstance(path, str | Path) for path in value.values())
        if name == "data":
            return as_sources(value) is not None
        if name == "eval_data":
            return _as_paths(value) is not None
        if name in ("augment", "scorer"):
            return not callable(value)
        return isinstance(value, (str, Path) if name == "model" else str)

    for name in (f.name for f in fields(PythonObjects) if f.name != "metrics"):
        takes_settings = name in {*RunConfig.model_fields, "augment", "scorer"}
        if name in settings and not (takes_settings and is_setting(name)):
            objects[name] = settings.pop(name)
    sets = settings.get("eval_data")
    if isinstance(sets, dict):
        settings["eval_data"] = {str(name): str(path) for name, path in sets.items()}
    for name in ("data", "eval_data"):
        if name in settings and not isinstance(settings[name], dict):
            given = as_sources(settings[name]) if name == "data" else _as_paths(settings[name])
            settings[name] = tuple(map(_without_secrets, given or ()))  # for plan and messages
    for name in ("model", "tokenizer", "output"):
        if isinstance(settings.get(name), Path):
            settings[name] = str(settings[name])
    if isinstance(settings.get("fields"), Mapping):
        settings["fields"] = {
            name: asdict(spec) if isinstance(spec, Field) else spec
            for name, spec in settings["fields"].items()
        }
    if "collate_fn" in objects and "data" in objects:
        objects["collate_fn"] = as_written(objects["collate_fn"], objects["data"])
    if OWN_METRICS in settings:
        objects["metrics"] = settings.pop(OWN_METRICS)
    if "callbacks" in objects:
        given = objects["callbacks"]
        objects["callbacks"] = tuple(given) if isinstance(given, list | tuple | set) else (given,)
    for name, value in objects.items():
        _check_object(name, value)
    config, folders = find_files(make_config(settings), beside)
    code = NamedCode(beside, frozenset(trust_code), folders)
    return Request(config, PythonObjects(**objects), code)


def plan_for(request: Request, processes: int | None, device: str | None) -> Request:
    """Return the request for another number of processes, or a kind of device not present here."""
    from surefit.memory.limit import find_device

    config = request.config
    elsewhere = device is not None or (processes or 1) > 1
    if elsewhere and (config.fit == "measured" or config.rehearse):
        raise UsageError(
            "A run for other processes or another device cannot be measured here.",
            "Leave out fit=measured and rehearse=true, or --processes and --device.",
        )
    if device is not None:
        known = find_device(device)
        if config.device_memory_gb is None:
            config = config.model_copy(update={"device_memory_gb": known.memory_gb})
    return replace(request, config=config, processes=processes, device=device)


def is_named_sets(data: Any) -> bool:
    """Return whether validation data is several sets by name, not columns by name."""

    def is_set(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return len(value) > 0 and isinstance(value[0], Mapping | tuple)
        is_rows = hasattr(value, "__getitem__") or hasattr(value, "__iter__")
        return is_rows and not hasattr(value, "dtype")

    return type(data) is dict and len(data) > 0 and all(map(is_set, data.values()))


def named_eval_data(request: Request) -> dict[str, Any]:
    """Return the validation sets by name, the one that decides which step is best first."""
    passed, config = request.objects.eval_data, request.config
    given: Any = config.eval_data if passed is None else passed
    if not is_named_sets(given):
        return {}
    sets = {str(name): data for name, data in given.items()}
    decides = set_of(config.early_stopping.metric, sets)
    return {decides: sets[decides], **sets}


def set_of(metric: str | None, names: Iterable[str]) -> str:
    """Return the validation set whose metric is named, such as NAME_loss; else the first.

    >>> set_of("far_loss", ["near", "far"]), set_of("loss", ["near", "far"])
    ('far', 'near')
    """
    first, *others = names
    return next((each for each in others if (metric or "").startswith(f"{each}_")), first)


def metric_of(metric: str | None, names: Iterable[str]) -> str | None:
    """Return the metric without the name of its validation set.

    >>> metric_of("far_loss", ["near", "far"]), metric_of("loss", [])
    ('loss', 'loss')
    """
    names = list(names)
    return metric.removeprefix(f"{set_of(metric, names)}_") if metric and names else metric


OWN_METRICS = "own metrics"


def _name_metrics(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with metrics that are Python objects apart from those with a name.

    An object may be alone, or `{"function": f, "better": "lower"}`.
    """
    metrics = settings.get("metrics")
    if callable(metrics):
        metrics = {getattr(metrics, "__name__", type(metrics).__name__): metrics}
    if not isinstance(metrics, Mapping):
        return settings
    named, passed = {}, {}
    for name, given in metrics.items():
        choice = dict(given) if isinstance(given, Mapping) else {"function": given}
        if choice.get("function") is not None and not isinstance(choice["function"], str):
            passed[name] = choice.pop("function")
        named[name] = choice
    apart = {OWN_METRICS: passed} if passed else {}
    return {**settings, "metrics": named, **apart}


EXPECTED: dict[str, tuple[str, str]] = {
    "task": ("a name or a TaskSpec", "Pass task='sft' or task=surefit.TaskSpec(…)."),
    "loss_fn": ("a function", "Pass loss_fn=f from Python, f(outputs, batch) -> (sum, count)."),
    "predict_fn": ("a function", "Pass predict_fn=f, f(outputs, batch) -> an item per row."),
    "training_step": (
        "a generator function",
        "Pass training_step=f, f(modules, batch, step), which yields (name, loss).",
    ),
    "collate_fn": ("a function", "Pass collate_fn=f from Python, f(rows) -> a dict of tensors."),
    "optimizer": (
        "an Optimizer or a function",
        "Pass optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1) from Python.",
    ),
    "callbacks": (
        "functions",
        "Pass callbacks=[f] from Python; f(event) gets each event as a dict.",
    ),
}
"""What Python objects of a kind must be, and how they are passed."""


def _check_object(name: str, value: Any) -> None:
    """Refuse an object that could not be used; `data` and `model` are looked at when opened."""
    if name not in EXPECTED:
        return
    unfit = [each for each in (value if name == "callbacks" else [value]) if not _fits(name, each)]
    if unfit:
        shown = f" ({unfit[0]!r})" if isinstance(unfit[0], str) else ""
        held = "holds" if name == "callbacks" else "is"
        expected, fix = EXPECTED[name]
        message = f"{name} {held} a {type(unfit[0]).__name__}{shown}; expected {expected}."
        raise UsageError(message, fix)


def _fits(name: str, value: Any) -> bool:
    if name == "task":
        return isinstance(value, TaskSpec)
    if name == "optimizer" and hasattr(value, "param_groups") and hasattr(value, "step"):
        return True
    if name == "optimizer" and isinstance(value, Mapping):  # of a training_step, by name
        return True
    return callable(value)


def _without_secrets(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {**data, "path": _without_secrets(data.get("path", ""))}
    return clean_url(data) if isinstance(data, str) and is_url(data) else data


def _as_paths(data: Any) -> tuple[str, ...] | None:
    if isinstance(data, str | Path):
        return (str(data),)
    if isinstance(data, list | tuple) and data and all(isinstance(d, str | Path) for d in data):
        return tuple(str(item) for item in data)
    return None


def _name(value: Any) -> str:
    """Return what an object is called: a function's or a task's own name, else its type's.

    >>> _name([1, 2]), _name(len)
    ('list', 'len')
    """
    own = getattr(value, "name", None) if isinstance(value, TaskSpec) else None
    return str(own or getattr(value, "__name__", type(value).__name__))
