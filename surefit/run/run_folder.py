"""A Run: the folder a training leaves behind. Written, opened and loaded here."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from surefit import __version__
from surefit.config import RunConfig, config_yaml, make_config, read_yaml
from surefit.core import digests, files
from surefit.core.files import refuse_links, refuse_special_inside
from surefit.core.foreign import content_of, parse_json, read_json
from surefit.core.locks import WRITTEN
from surefit.errors import UsageError, to_resume
from surefit.inputs.encoder import Encoder
from surefit.run.choose_checkpoint import NAME, latest_state
from surefit.run.events import metrics_of, read_events, summarise_epochs, without_nan
from surefit.targets.metrics.own_metric import with_metrics, with_scorer
from surefit.targets.own_outputs import needs_loss_fn
from surefit.targets.task_spec import TaskSpec
from surefit.tasks.choose_task import find_task
from surefit.user_code import RunCode

if TYPE_CHECKING:
    from torch import nn

    from surefit.inputs.store import Store
    from surefit.pipeline.open_pipeline import Choices
    from surefit.pipeline.pipeline import Pipeline

RUN_FORMAT = 2
"""Written to plan.json; runs of another format are refused."""
BEGINNING = ("config.yaml", "plan.json", digests.FILE)
PLAN_TYPES: dict[str, type[Any]] = {
    **dict.fromkeys(("task", "data_key", "eval_key", "run_id", "version"), str),
    **dict.fromkeys(("steps", "num_processes"), int),
    **dict.fromkeys(
        ("model", "ledger", "baselines", "choices", "objects", "config", "stores"), dict
    ),
    **dict.fromkeys(("findings", "spans"), list),
}
"""What other parts of surefit rely on in a stored plan."""
UNUSABLE = (
    "Restore it from a copy. If surefit wrote it as it is, please report this with the output of "
    "--debug."
)
EXAMPLES = "examples.json"
"""Rows and batches that the report shows, with the predictions for them."""
OWN_NAMES = (*BEGINNING, "events.jsonl", "checkpoints", "model", "report.html", "folds.json")
"""What a folder with a run, or with the runs of folds, has in it."""


@dataclass(eq=False, repr=False)
class Run:
    """A run's folder, with its metrics, its history and its model."""

    path: Path
    task_object: TaskSpec | None = None
    module_object: Any = None
    collate_fn: Callable[..., Any] | None = None
    trust_code: frozenset[str] = frozenset()
    local: RunConfig = field(default_factory=RunConfig)
    """The config of this command, which decides what the folder of a run may not."""
    loss_fn: Callable[..., Any] | None = None
    predict_fn: Callable[..., Any] | None = None
    training_step: Callable[..., Any] | None = None
    generate: Mapping[str, Any] = field(default_factory=dict)
    """Settings of generation that this command sets, in place of the run's."""
    validation: Store | None = None
    """The validation rows, if this process trained on Python objects."""
    rows_object: Any = None
    """The object that has the validation rows."""

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @cached_property
    def config(self) -> RunConfig:
        """Return the resolved config; what belongs to the machine is that of this command."""
        settings, own = self._settings, self.generate
        if own:
            stored = dict(settings.get("generate") or {})
            if own.get("temperature") == 0:  # what only sampling has goes with it
                stored |= {"top_p": None, "top_k": None, "samples": 1}
            settings = {**settings, "generate": {**stored, **own}}
        return make_config(settings).with_local(self.local)

    @cached_property
    def objects(self) -> dict[str, str]:
        """Return the Python objects the run was begun with and does not hold: argument and name."""
        return dict(self.plan.get("objects", {}))

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return read_yaml(self.path / "config.yaml")

    @property
    def plan(self) -> dict[str, Any]:
        """Return the plan as it was stored."""
        path = self.path / "plan.json"
        loaded = read_json(
            path,
            dict[str, Any],
            "Restore it from a copy of the run; without its plan a run cannot be opened.",
        )
        plan = check_plan(without_nan(loaded), path)
        if plan.get("run_format") != RUN_FORMAT:
            other = f"surefit {plan.get('version')}"
            raise UsageError(
                f"{self.path} is a run of {other}, which surefit {__version__} does not open.",
                f"Open it with {other}, or train again.",
            )
        return plan

    @property
    def choices(self) -> Choices:
        """Return what was chosen by trying when the run began."""
        from surefit.pipeline.open_pipeline import Choices

        stored = json.dumps(self.plan.get("choices", {}))
        return parse_json(stored, Choices, f"{self.path}: choices of the plan")

    @property
    def task(self) -> TaskSpec:
        """Return the task that was trained."""
        if self.task_object is not None:
            return self.task_object
        if "task" in self.objects:
            raise UsageError(
                f"{self.path} was trained with a TaskSpec passed from Python, which it does not "
                f"hold ({self.objects['task']}).",
                "Name the task as module:SPEC when training, or use the Run that train returned.",
            )
        name = self.config.task or ""
        found = find_task(name if ":" in name else self.plan["task"], self.code)
        assert isinstance(found, TaskSpec)
        scorer, chosen = self.config.generate.scorer, self.config.metrics
        if scorer is not None:
            found = with_scorer(found, self.code.find(scorer))
        own = {
            name: self.code.find(each.function) for name, each in chosen.items() if each.function
        }
        return with_metrics(found, chosen, own)

    def with_own_loss(self) -> Run:
        """Return the run with the `loss_fn` that its config names, if its task has no other."""
        name = self.config.loss.function
        if self.loss_fn is not None or name is None or not needs_loss_fn(self.task):
            return self
        return replace(self, loss_fn=self.code.find(name))

    @property
    def history(self) -> list[dict[str, Any]]:
        """Return all events so far."""
        return read_events(self.events_path)

    @property
    def examples(self) -> dict[str, Any]:
        """Return the rows and batches that the report shows, with what is predicted for them."""
        path = self.path / EXAMPLES
        return read_json(path, dict[str, Any]) if path.is_file() else {}

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """Return each epoch so far: `epoch`, `train_loss`, `eval_loss`, `seconds`.

        The training loss is the mean over the epoch's steps, the evaluation loss that of its last
        evaluation (None without one), the time that of its steps.
        """
        with content_of(self.events_path):
            return summarise_epochs(self.history)

    @property
    def metrics(self) -> dict[str, Any]:
        """Return the metrics of the evaluation whose weights `model/` has; empty without one."""
        with content_of(self.events_path):
            return metrics_of(self.history, self.best_step)

    @property
    def best_step(self) -> int | None:
        """Return the step whose weights `model/` has, where an evaluation chose it."""
        state = latest_state(self.checkpoints)
        return None if state is None else state.best_step

    @property
    def saved_step(self) -> int:
        """Return the step of the latest checkpoint; 0 without one."""
        state = latest_state(self.checkpoints)
        return 0 if state is None else state.step

    def spans(self, num_steps: int) -> list[tuple[int, int]]:
        """Return pairs: after which step a total number of steps applies, at last `num_steps`."""
        with content_of(self.path / "plan.json"):
            stored = [(int(after), int(total)) for after, total in self.plan.get("spans", [])]
        return stored or [(0, num_steps)]

    @property
    def code(self) -> RunCode:
        """Return the gate of the code that the folder names."""
        return RunCode(self.path, self.plan.get("run_id"), self.trust_code)

    @property
    def finished(self) -> bool:
        """Return whether training came to its end; an extended run has a model before that."""
        if not self.has_model:
            return False
        state = latest_state(self.checkpoints)
        if state is None or state.step >= self.plan["steps"]:
            return True
        return state.stopped_early and state.step > self.spans(self.plan["steps"])[-1][0]

    @property
    def has_model(self) -> bool:
        """Return whether there is a trained model to use."""
        return self.model_path.is_dir()

    @property
    def events_path(self) -> Path:
        """Return the file of events."""
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Return the folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def report_path(self) -> Path:
        """Return the HTML report."""
        return self.path / "report.html"

    @property
    def model_path(self) -> Path:
        """Return the folder of the trained model and its Encoder."""
        return self.path / "model"

    @property
    def model(self) -> nn.Module:
        """Return the trained model."""
        return self.load()[0]

    def predictions(self, data: Any = None) -> Any:
        """Return predictions beside the columns of their rows: a DataFrame where pandas is
        installed, else a pyarrow Table. By default for the validation rows."""
        from surefit.results import predictions

        return predictions(self, data)

    def worst(self, count: int = 20, data: Any = None) -> Any:
        """Return the validation rows with the highest loss, the highest first, as `predictions`
        returns rows; or those of `data`."""
        from surefit.results import worst

        return worst(self, count, data)

    def plot(self) -> Any:
        """Return the curves of the run so far, which notebooks show."""
        from surefit.results import plot

        return plot(self)

    def confusion(self) -> Any:
        """Return how often each class was predicted for each true class, as `predictions` returns
        rows; in a DataFrame, the true classes are the index."""
        from surefit.results import confusion

        return confusion(self)

    def _repr_html_(self) -> str:
        """Return the report of the run, as notebooks show it."""
        from surefit.report.page import as_frame, render

        return as_frame(render(self))

    def discard(self) -> None:
        """Take back the folder of a run that could not begin; what was trained is kept."""
        if self.history or self.has_model:
            return
        for name in (*BEGINNING, "events.jsonl", "report.html", EXAMPLES):
            files.remove_file(self.path / name)
        for folder in (self.checkpoints, self.path):
            if not any(folder.iterdir()):
                folder.rmdir()

    def in_use(self) -> AbstractContextManager[None]:
        """Report what the model and the Encoder of the folder cannot be used for, as damage."""
        return content_of(self.model_path, UNUSABLE)

    def open_pipeline(self, model: nn.Module | None = None) -> Pipeline:
        """Return the Pipeline of the trained model, to evaluate and predict as training did."""
        from surefit.pipeline.open_pipeline import (
            apply_choices,
            open_pipeline,
            with_generation,
            with_own_step,
        )

        self._refuse_unfinished()
        module = self._named(model if model is not None else self.module_object)
        with content_of(self.model_path):
            opened = open_pipeline(
                self.model_path,
                self.task,
                {**self.plan, "epochs": self.config.epochs, "seed": self.config.seed},
                self.code,
                module,
                self.collate_fn,
                self.loss_fn,
            )
            if self.training_step is not None:
                opened = with_own_step(opened, self.training_step, {})
            opened = apply_choices(replace(opened, predict_fn=self.predict_fn), self.choices)
        return with_generation(opened, self.config.generate) if self.generate else opened

    def _named(self, module: Any) -> Any:
        """Return the modules by name of a run with a training_step; another module as it is."""
        if "training_step" not in self.objects or module is None:
            return module
        from surefit.models.named_modules import as_modules

        return as_modules(module)

    def load(self, model: nn.Module | None = None) -> tuple[nn.Module, Encoder]:
        """Return the trained model and the Encoder that reads rows for it."""
        from surefit.models.save_model import load_model

        self._refuse_unfinished()
        module = self._named(model if model is not None else self.module_object)
        with content_of(self.model_path):
            return load_model(self.model_path, self.task, self.code, module)

    def _refuse_unfinished(self) -> None:
        if not self.has_model:
            raise UsageError(
                f"{self.path} has no trained model yet.",
                f"Finish it with: {to_resume(self.path)}",
            )


class StoredPlan(dict[str, Any]):
    """The plan as it was stored; a key that it lacks is a fault of its file."""

    def __init__(self, loaded: dict[str, Any], path: Path) -> None:
        super().__init__(loaded)
        self.path = path

    def __missing__(self, key: str) -> NoReturn:
        raise UsageError(f"{self.path} has no {key!r}.", "Restore the file from a copy of the run.")


def check_plan(loaded: Any, path: Path) -> dict[str, Any]:
    """Return the plan that was read from a file, if it has the types that surefit relies on."""
    if not isinstance(loaded, dict) or not {"model", "steps", "task"} <= loaded.keys():
        raise UsageError(f"{path} is not the plan of a run.", "Restore it from a copy.")
    for key, kind in PLAN_TYPES.items():
        if not isinstance(loaded.get(key, kind()), kind):
            found = type(loaded[key]).__name__
            message = f"{path}: {key} is a {found}; expected a {kind.__name__}."
            raise UsageError(message, "Restore the file from a copy of the run.")
    return StoredPlan(loaded, path)


def open_run(path: str | Path, trust_code: Iterable[str] = ()) -> Run:
    """Open a run; `trust_code` has the `module:object` names that this command allows."""
    folder = Path(path)
    if is_unbegun(folder):
        raise UsageError(
            f"{folder} was stopped before training began, and holds nothing that was trained.",
            f"Start it again with the same command and --output {folder}.",
        )
    if not is_run(folder):
        held = "is not the folder of a run" if os.path.isdir(folder) else "does not exist"
        if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
            held = "may not be read by this user (permission denied)"
        raise UsageError(f"{folder} {held}.", "Give the folder that `surefit train` named.")
    refuse_special_inside(folder)
    refuse_links(folder / each for each in WRITTEN)
    for name in ("checkpoints", "model", "failures"):
        refuse_links((folder / name).rglob("*"))
    return Run(folder, trust_code=frozenset(trust_code))


def is_run(folder: Path) -> bool:
    """Return whether a folder has what every run has."""
    return all(os.path.isfile(folder / name) for name in ("config.yaml", "plan.json"))


def is_unbegun(folder: Path) -> bool:
    """Return whether a start was killed there before it wrote its plan.

    Its folder for checkpoints, which is made first, and the digests, which are written before the
    files they are of, tell it from a folder with a user's files.
    """
    has = {name for name in OWN_NAMES if os.path.exists(folder / name)}
    begun = {"config.yaml", "plan.json"}
    if (
        not (folder / "checkpoints").is_dir()
        or has >= begun
        or not has <= {"checkpoints", *BEGINNING}
    ):
        return False
    saved = any(NAME.match(path.name) for path in (folder / "checkpoints").iterdir())
    is_other = len(has) > 1 and digests.find_damage(folder, sorted(begun & has))
    return not saved and not is_other


def choose_folder(output: str | None, name: str) -> Path:
    """Return the folder of a new run; refuses one that holds a run or cannot be written."""
    folder = Path(output) if output else _new_name(Path("runs"), name)
    refuse_links(folder / each for each in WRITTEN)
    taken = next((own for own in OWN_NAMES if os.path.exists(folder / own)), None)
    if taken is not None and not is_unbegun(folder):
        raise UsageError(
            f"{folder} already holds a run ({taken}).",
            f"Choose another --output, or resume that run: {to_resume(folder)}",
        )
    check_writable(folder)
    return folder


def check_writable(folder: Path) -> None:
    """Refuse, before any work, a folder that could not be made."""
    place = folder  # os.path says no where Path raises: inside a folder that may not be read
    while not os.path.exists(place) and place != place.parent:
        place = place.parent
    if not os.path.isdir(place) or not os.access(place, os.W_OK | os.X_OK):
        what = "is not a folder" if not os.path.isdir(place) else "may not be written to"
        raise UsageError(f"Cannot write to {folder}: {place} {what}.", "Choose another --output.")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".surefit-", suffix=".tmp", dir=place))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return  # found with the figures when the disk is planned
        raise UsageError(
            f"Cannot write to {folder}: {error.strerror}.", "Choose another --output."
        ) from None


def _new_name(parent: Path, name: str) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    tries = (f"{name}-{stamp}" + (f"-{n}" if n else "") for n in range(1000))
    return next(parent / each for each in tries if not (parent / each).exists())


def create_run(folder: Path, config: RunConfig, plan: dict[str, Any], task: TaskSpec) -> Run:
    """Make the folder of a new run with its config and plan."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints").mkdir(exist_ok=True)
        write_beginning(folder, config, plan)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise UsageError(
            f"Cannot write to {folder}: {error.strerror}.",
            "Free some space, or choose another --output." if full else "Choose another --output.",
        ) from None
    return Run(folder, task)


def write_beginning(folder: Path, config: RunConfig, plan: Mapping[str, Any]) -> None:
    """Write config and plan with their digests; the plan, which makes a folder a run, comes last.

    A process that is killed in between leaves a start to be repeated or, of a run that is resumed,
    a config.yaml whose difference from the plan is applied again.
    """
    contents = {
        "config.yaml": files.encode_text(config_yaml(config)),
        "plan.json": files.encode_json(
            {**plan, "run_format": RUN_FORMAT, "config": config.model_dump(mode="json")}
        ),
    }
    files.write_json(folder / digests.FILE, digests.describe_contents(contents))
    files.write_bytes(folder / "config.yaml", contents["config.yaml"])
    files.write_bytes(folder / "plan.json", contents["plan.json"])
