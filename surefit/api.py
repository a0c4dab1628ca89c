"""The functions of `import surefit`; the command line calls the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from surefit.batches.batch_layout import PADDED, Layout
from surefit.batches.field import SEQUENCES
from surefit.batches.loading import load_batch
from surefit.checks.hf_trainer import Checkup, check_trainer
from surefit.config import ROLES, SHORT_KEYS, RunConfig, known_keys, make_config
from surefit.data.cache import use_cache
from surefit.data.data_rules import MISSING_COLUMN, NO_DATA
from surefit.data.open_data import open_table
from surefit.encode.encode_table import encode_rows
from surefit.encode.features.feature_layout import relaid
from surefit.encode.images.image_files import with_files
from surefit.encode.store import Store
from surefit.encode.text.templates import is_file_name
from surefit.errors import FindingError, UsageError
from surefit.findings import rule
from surefit.inspection.data_report import inspect_data
from surefit.inspection.table_report import DataReport
from surefit.kernels.choose_head import from_choice
from surefit.memory.predict_peak import Fit
from surefit.models.call import match_arguments, with_own_loss
from surefit.pipeline.evaluation import Evaluation, Evaluator
from surefit.pipeline.prediction import predict_table
from surefit.plan.plan import Given, Plan
from surefit.plan.stages import make_plan
from surefit.processes import is_main, num_processes
from surefit.progress import Progress, silent
from surefit.run import Run, choose_folder, create_run, open_run
from surefit.tasks.task_spec import TaskSpec
from surefit.training.events import Observer

if TYPE_CHECKING:
    from torch import nn

DATA_CHANGED = rule(
    "SF403",
    "error",
    "the data changed since the run began",
    why="A resumed run must see the rows it was begun with, or it is another run.",
    fix="Put the old data back, or start a new run.",
)


@overload
def check(*, trainer: Any) -> Checkup: ...
@overload
def check(**options: Any) -> Plan: ...
def check(*, trainer: Any = None, **options: Any) -> Plan | Checkup:
    """Plan a run and stop there: `plan.ok`, `plan.findings`, `plan.ledger`.

    Takes the options of `surefit train` with underscores; `data` may be a list of dicts and
    `model` an nn.Module. Or takes a `transformers.Trainer` (or TRL's) alone, and checks that.
    """
    if trainer is not None:
        if options:
            raise UsageError(
                f"trainer was given together with {', '.join(options)}.",
                "Pass the trainer alone: it has its own data, model and settings.",
            )
        return check_trainer(trainer)
    return check_config(*split_options(options))


def check_config(config: RunConfig, given: Given, progress: Progress = silent) -> Plan:
    """Plan a run; with `fit` measured, also send its largest batch through the model."""
    plan = make_plan(config, given, progress)
    if config.fit == "predicted" or not plan.ok:
        return plan
    from surefit.training.start import measure_plan

    _refuse_weightless(plan)
    with use_cache(config.cache):
        return measure_plan(plan)


def _refuse_weightless(plan: Plan) -> None:
    if plan.parts is not None and plan.parts.source.weightless:
        raise UsageError(
            f"{plan.parts.source.name} holds no weights, so there is nothing to train.",
            "Put the weights into the folder, or start from fresh ones with --from-scratch.",
        )


def train(
    *,
    loss_fn: Callable[..., Any] | None = None,
    collate_fn: Callable[..., Any] | None = None,
    optimizer: Any = None,
    callbacks: Sequence[Callable[[Mapping[str, Any]], None]] = (),
    resume: str | Path | None = None,
    **options: Any,
) -> Run:
    """Plan, then train: `run.path`, `run.metrics`, `run.history`, `run.model`.

    `loss_fn(outputs, batch)` gives a sum and a count, or a mean; `optimizer` is an Optimizer or
    a function of the parameters; each callback gets every event. Among the options, `augment` may
    be a function f(text, rng) -> text, and `scorer` one f(expected, got) -> a number or several.
    """
    if callable(callbacks):
        callbacks = (callbacks,)
    if optimizer is not None and not callable(optimizer) and not hasattr(optimizer, "step"):
        raise UsageError(
            f"optimizer is a {type(optimizer).__name__}; expected an Optimizer or a function.",
            "Pass optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1).",
        )
    hooks = {"loss_fn": loss_fn, "collate_fn": collate_fn, "optimizer": optimizer}
    if resume is not None:
        return resume_run(resume, options, hooks, tuple(callbacks))
    config, given = split_options({**options, **hooks, "callbacks": tuple(callbacks)})
    return train_config(config, given)


def train_config(
    config: RunConfig,
    given: Given,
    observers: Sequence[Observer] = (),
    progress: Progress = silent,
    on_plan: Callable[[Plan, Path], None] | None = None,
    on_fit: Callable[[Fit], None] = lambda fit: None,
) -> Run:
    """Plan and train a new run; nothing is written where the plan has errors."""
    from surefit.training.start import run_plan

    if config.scan is not None:
        raise UsageError(
            f"scan={config.scan} is for check; training reads every row.", "Leave scan out."
        )
    folder = choose_folder(config.output, "run")
    plan = make_plan(config, given, progress)
    if on_plan is not None:
        on_plan(plan, folder)
    _refuse_errors(plan)
    _refuse_weightless(plan)
    assert plan.task is not None
    stored = {**plan.as_dict(), "num_processes": num_processes()}
    resolved = resolve(plan, folder)
    run = create_run(folder, resolved, stored, plan.task) if is_main() else Run(folder, plan.task)
    try:
        with use_cache(config.cache):
            return _finish(run_plan(plan, run, observers, progress, on_fit))
    except FindingError:  # the largest batch did not go through: there is no run
        if is_main():
            run.discard()
        raise


def resolve(plan: Plan, folder: Path) -> RunConfig:
    """The config with what was left out filled in, as the run's folder keeps it."""
    assert plan.parts is not None
    assert plan.task is not None
    config = plan.config
    known: dict[str, Any] = {
        "lr": plan.parts.lr,
        "task": config.task or plan.task.name,
        "columns": {role: column for role, column in plan.roles.items() if role in ROLES},
        "output": str(folder.resolve()),
        **_absolute(config),
    }
    return config.model_copy(update=known)


def _absolute(config: RunConfig) -> dict[str, Any]:
    """Local paths in full, so that the run can be used from any folder."""

    def full(name: str) -> str:
        return str(Path(name).resolve()) if Path(name).exists() else name

    synonyms = config.augment.synonyms
    synonyms = full(synonyms) if isinstance(synonyms, str) else synonyms
    template = config.template
    return {
        "data": tuple(full(path) for path in config.data),
        "eval_data": tuple(full(path) for path in config.eval_data),
        "cache": str(Path(config.cache).absolute()) if config.cache else None,
        "model": full(config.model) if config.model else config.model,
        "tokenizer": full(config.tokenizer) if config.tokenizer else None,
        "augment": config.augment.model_copy(update={"synonyms": synonyms}),
        "template": full(template) if template and is_file_name(template) else template,
    }


def resume_run(
    path: str | Path,
    options: Mapping[str, Any],
    hooks: Mapping[str, Any] | None = None,
    callbacks: tuple[Any, ...] = (),
    observers: Sequence[Observer] = (),
    progress: Progress = silent,
    on_plan: Callable[[Plan, Path], None] | None = None,
    beside: Path | None = None,
    on_fit: Callable[[Fit], None] = lambda fit: None,
) -> Run:
    """Go on exactly where a run stopped; options may repeat what it was begun with."""
    from surefit.training.start import run_plan

    run = open_run(path)
    objects = {**options, **(hooks or {}), "callbacks": callbacks}
    config, given = split_options(objects, beside)
    _refuse_contradictions(run, config, set(options))
    if run.finished:
        return run
    stored = run.plan
    given = replace(given, beside=given.beside or run.code_folder, choices=stored.get("choices"))
    plan = make_plan(run.config, given, progress)
    if plan.ok and plan.data_key != stored["data_key"]:
        changed = DATA_CHANGED.finding(f"The rows of {run.path} are not those it was begun with.")
        plan = replace(plan, findings=(*plan.findings, changed))
    if on_plan is not None:
        on_plan(plan, run.path)
    _refuse_errors(plan)
    if num_processes() != stored["num_processes"]:
        raise UsageError(
            f"{run.path} was begun with {stored['num_processes']} processes, not "
            f"{num_processes()}.",
            "Launch it with the same number.",
        )
    with use_cache(run.config.cache):
        return _finish(run_plan(plan, run, observers, progress, on_fit))


def _finish(run: Run) -> Run:
    if is_main():
        from surefit.report.page import write_report

        write_report(run)
    return run


def _refuse_errors(plan: Plan) -> None:
    errors = [found for found in plan.findings if found.severity == "error"]
    if errors:
        raise FindingError(*errors)


def _refuse_contradictions(run: Run, config: RunConfig, options: set[str]) -> None:
    config = config.model_copy(update=_absolute(config))
    settled = {"batch_size", "grad_accum"} if config.batch_size == "auto" else set()
    for name in sorted(_given_keys(options) - {"output"} - settled):
        asked, stored = attrgetter(name)(config), attrgetter(name)(run.config)
        if asked != stored and not _is_object(name, stored):
            raise UsageError(
                f"--resume contradicts {name}: the run has {stored!r}, you gave {asked!r}.",
                "Leave the option out; a resumed run keeps what it was begun with.",
            )
    if config.output is not None and Path(config.output).resolve() != run.path.resolve():
        raise UsageError(
            f"--resume goes on in {run.path}, not in {config.output}.", "Leave --output out."
        )


def _given_keys(options: set[str]) -> set[str]:
    """The keys of a config that options set, sections as the single keys in them."""
    named = {SHORT_KEYS.get(key, key) for key in options}
    return {key for key in known_keys() if key in named or key.split(".")[0] in named}


def _is_object(name: str, stored: Any) -> bool:
    return name in ("data", "eval_data", "model", "task") and str(stored).find("python:") >= 0


def split_options(
    options: Mapping[str, Any], beside: Path | None = None
) -> tuple[RunConfig, Given]:
    """Settings that a config can hold, and objects that it cannot."""
    settings = {key: value for key, value in options.items() if value is not None}
    objects: dict[str, Any] = {}
    for name in ("loss_fn", "collate_fn", "optimizer", "callbacks"):
        if name in settings:
            objects[name] = settings.pop(name)
    for name, key in (("augment", "augment.function"), ("scorer", "generate.scorer")):
        if callable(settings.get(name)):
            objects[name] = settings.pop(name)
            settings[key] = f"python:{getattr(objects[name], '__name__', name)}"
    for name in ("data", "eval_data"):
        if name in settings:
            paths = _as_paths(settings[name])
            if paths is None:
                objects[name] = settings[name]
                paths = (f"python:{type(settings[name]).__name__}",)
            settings[name] = paths
    for name, kinds in (("model", (str, Path)), ("task", (str,))):
        if name in settings and not isinstance(settings[name], kinds):
            objects[name] = settings[name]
            settings[name] = (
                f"python:{getattr(settings[name], 'name', type(settings[name]).__name__)}"
            )
    for name in ("model", "tokenizer", "output"):
        if isinstance(settings.get(name), Path):
            settings[name] = str(settings[name])
    if isinstance(objects.get("task"), TaskSpec) or "task" not in objects:
        return make_config(settings), Given(**objects, beside=beside)
    raise UsageError(
        f"task is a {type(objects['task']).__name__}; expected a name or a TaskSpec.",
        "Pass task='sft' or task=surefit.TaskSpec(…).",
    )


def _as_paths(data: Any) -> tuple[str, ...] | None:
    if isinstance(data, str | Path):
        return (str(data),)
    if isinstance(data, list | tuple) and data and all(isinstance(d, str | Path) for d in data):
        return tuple(str(item) for item in data)
    return None


def load(run: Run | str | Path, model: nn.Module | None = None) -> nn.Module:
    """The trained model of a run, ready for evaluation."""
    return _opened(run).load(model)[0].eval()


def predict(
    run: Run | str | Path,
    data: Any,
    model: nn.Module | None = None,
    collate_fn: Callable[..., Any] | None = None,
) -> list[dict[str, Any]]:
    """Predictions for the rows of `data`, one dict per row."""
    return list(iter_predictions(_opened(run, collate_fn), data, model))


def iter_predictions(
    run: Run, data: Any, model: nn.Module | None = None
) -> Iterator[dict[str, Any]]:
    """Predictions as they are made."""
    module, encoder = run.load(model)
    config = run.config
    with use_cache(config.cache):  # left before the first row is given to the caller
        table = open_table(data, config.read, config.on_bad_file)
    yield from predict_table(
        module,
        encoder,
        run.task,
        table,
        config.micro_batch_rows,
        config.generate.max_new_tokens,
        run.collate_fn,
    )


def evaluate(
    run: Run | str | Path,
    data: Any = None,
    model: nn.Module | None = None,
    collate_fn: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """The task's metrics on `data`, or on the rows the run held out."""
    return evaluate_run(_opened(run, collate_fn), data, model)[0].metrics


def evaluate_run(
    run: Run, data: Any = None, model: nn.Module | None = None, progress: Progress = silent
) -> tuple[Evaluation, Store]:
    """Metrics, and the encoded rows they were measured on."""
    with use_cache(run.config.cache):
        return _evaluate(run, data, model, progress)


def _evaluate(
    run: Run, data: Any, model: nn.Module | None, progress: Progress
) -> tuple[Evaluation, Store]:
    module, encoder = run.load(model)
    task, config = run.task, run.config
    if data is None:
        store = _held_out(run, model, progress)
    else:
        table = with_files(open_table(data, config.read, config.on_bad_file), encoder.roles)
        for role in (*encoder.roles,):
            if encoder.roles[role] not in table.columns and role != "mask":
                raise MISSING_COLUMN.error(
                    f"{table.sources[0].file} has no column {encoder.roles[role]!r} ({role}); it "
                    f"has {', '.join(table.columns)}.",
                    column=encoder.roles[role],
                )
        encoder, _ = relaid(encoder, table)
        store = encode_rows(
            table,
            np.arange(table.num_rows),
            encode=task.encode,
            fields=task.fields_for(encoder),
            count_targets=task.count_targets,
            encoder=encoder,
            progress=progress,
            stage="encoding rows",
        )
    if len(store) == 0:
        raise NO_DATA.error("No row is left to evaluate on.")
    fields = task.fields_for(encoder)
    masks = ["attention_mask"] if any(name in fields for name in SEQUENCES) else []
    columns = [*fields, *masks]
    if run.collate_fn is not None:
        columns = list(load_batch(store, np.arange(1), fields, run.collate_fn))
    call, _ = match_arguments(module, columns)
    layout = PADDED
    choice = run.plan.get("choices", {}).get("head")
    if choice is not None and task.head is not None:  # as in training, without trying again
        call = replace(call, head=from_choice(module, choice))
        layout = Layout(learns=task.head.learns if call.head is not None else None)
    prepare = task.preparer(encoder, config.seed)
    evaluator = Evaluator(
        task,
        call,
        with_own_loss(task.loss),
        encoder,
        lambda store, rows: load_batch(
            store, rows, fields, run.collate_fn, prepare=prepare, layout=layout
        ),
        config.micro_batch_rows,
        config.max_tokens,
        config.generate.rows,
        config.generate.max_new_tokens,
        progress=progress,
    )
    return evaluator(module, store), store


def _held_out(run: Run, model: nn.Module | None, progress: Progress) -> Store:
    if any("python:" in path for path in run.config.data):
        raise UsageError(
            f"{run.path} was trained on rows given from Python, which it does not hold.",
            "Pass the rows to evaluate on.",
        )
    module = model
    if module is None and run.config.model.startswith("python:"):
        module = run._module
    given = Given(
        model=module,
        task=run._task,
        collate_fn=run.collate_fn,
        beside=run.code_folder,
        choices=run.plan.get("choices"),
    )
    # held-out rows have no further views, the scorer comes with the run, and it is in float32
    config = run.config
    generate = config.generate.model_copy(update={"scorer": None})
    stopping = type(config.early_stopping)()
    plain = {
        "augmentation_factor": 1,
        "generate": generate,
        "early_stopping": stopping,
        "precision": "fp32",
    }
    plan = make_plan(config.model_copy(update=plain), given, progress)
    _refuse_errors(plan)
    assert plan.parts is not None
    if plan.parts.evaluation.key != run.plan["eval_key"]:
        raise DATA_CHANGED.error(f"The rows of {run.path} are not those it was trained on.")
    if not len(plan.parts.evaluation):
        raise UsageError(f"{run.path} held out no rows.", "Give rows to evaluate on.")
    return plan.parts.evaluation


def inspect(data: Any, model: Any = None) -> DataReport:
    """Columns, types, lengths, empties and duplicates; arrays, and how features will be read.

    With a model, also what it expects of feature sequences.
    """
    return inspect_data(data, RunConfig(), model)


def _opened(run: Run | str | Path, collate_fn: Callable[..., Any] | None = None) -> Run:
    run = run if isinstance(run, Run) else open_run(run)
    return run if collate_fn is None else Run(run.path, run._task, run._module, collate_fn)
