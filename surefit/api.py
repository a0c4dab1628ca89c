"""The functions of `import surefit`; the command line calls the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from surefit.data.cache import use_cache
from surefit.data.data_rules import NO_DATA
from surefit.data.formats.numpy_files import as_stored
from surefit.data.open_data import open_table
from surefit.data.python.torch_data import as_written
from surefit.data.table import Table
from surefit.errors import UsageError
from surefit.progress import Progress, silent
from surefit.request import Request, make_request
from surefit.run.run_folder import Run, choose_folder

if TYPE_CHECKING:
    from torch import nn

    from surefit.checks.hf_trainer import Checkup
    from surefit.inputs.store import Store
    from surefit.inspection.data_report import DataReport
    from surefit.pipeline.evaluation import Evaluation
    from surefit.pipeline.pipeline import Pipeline
    from surefit.plan.plan import Plan
    from surefit.training.folds import FoldRuns


@overload
def check(*, trainer: Any, quiet: bool = False) -> Checkup: ...
@overload
def check(**options: Any) -> Plan: ...
def check(
    *,
    trainer: Any = None,
    trust_code: str | Sequence[str] = (),
    quiet: bool = False,
    **options: Any,
) -> Plan | Checkup:
    """Plan a run and stop there: `plan.ok`, `plan.findings`, `plan.ledger`.

    Takes the options of `surefit train` with underscores; `data` may be a list of dicts and
    `model` an nn.Module. Or takes a `transformers.Trainer` (or TRL's) alone, and checks that.
    Plan and findings are shown as the command shows them, on stderr or in the notebook; with
    `quiet=True`, nothing is.
    """
    from surefit.cli.display import make_display, show_checkup

    if trainer is None:
        request = make_request(options, trust_code=_names(trust_code))
        with make_display(quiet) as display:
            plan = check_request(request, display.progress)
            display.show_plan(plan)
        return plan
    if options:
        raise UsageError(
            f"trainer was given together with {', '.join(options)}.",
            "Pass the trainer alone: it has its own data, model and settings.",
        )
    from surefit.checks.hf_trainer import check_trainer

    checkup = check_trainer(trainer)
    show_checkup(checkup, make_display(quiet).console)
    return checkup


def check_request(request: Request, progress: Progress = silent) -> Plan:
    """Plan a run; `fit` measured tries its largest batch, `rehearse` also its later phases."""
    from surefit.plan.disk import fit_on_disk
    from surefit.plan.make_plan import make_plan
    from surefit.training.folds import check_folds, wants_folds

    if wants_folds(request):
        return check_folds(request, lambda fold: check_request(fold, progress))
    folder = choose_folder(request.config.output, "run")  # refused as `train` would
    plan = fit_on_disk(make_plan(request, progress), folder)
    rehearsed = request.config.rehearse
    if (request.config.fit == "predicted" and not rehearsed) or not plan.ok:
        return plan
    from surefit.training.measured_step import measure_plan
    from surefit.training.rehearse import rehearse
    from surefit.training.run import refuse_weightless

    refuse_weightless(plan)
    return measure_plan(plan, rehearse if rehearsed else None)


def train(
    *,
    loss_fn: Callable[..., Any] | None = None,
    collate_fn: Callable[..., Any] | None = None,
    optimizer: Any = None,
    callbacks: Sequence[Callable[[Mapping[str, Any]], None]] = (),
    resume: str | Path | None = None,
    trust_code: str | Sequence[str] = (),
    quiet: bool = False,
    **options: Any,
) -> Run | FoldRuns:
    """Plan, then train: `run.path`, `run.metrics`, `run.history`, `run.model`.

    `loss_fn(outputs, batch)` gives a sum and a count, a mean, or a dict with the key `loss` and
    parts that are reported; `optimizer` is an Optimizer or a function of the parameters; each
    callback gets every event. Among the options, `predict_fn(outputs, batch)` returns an item per
    row; `augment` may be a function f(text, rng) -> text, and `scorer` one f(expected, got) -> a
    number or several; `metrics` maps names to functions f(predictions, labels) -> a number, or to
    objects with `update`, `compute` and `reset`.
    `trust_code` names code (`module:object`) that a resumed run or a model folder names and may
    run. With
    `split={"folds": 5}`, the result has the `runs` of the folds and the mean and spread of their
    `metrics`.
    Plan, findings, progress and result are shown as the command shows them, on stderr or in the
    notebook; with `quiet=True`, nothing is.
    """
    from surefit.cli.display import make_display, result_lines, shown_run
    from surefit.training.run import train_request

    passed = {"loss_fn": loss_fn, "collate_fn": collate_fn, "optimizer": optimizer}
    trusted = _names(trust_code)
    request = make_request({**options, **passed, "callbacks": callbacks}, trust_code=trusted)
    result = train_request(request, partial(shown_run, quiet=quiet), resume, set(options), trusted)
    make_display(quiet).show_lines(result_lines(result))
    return result


def load(
    run: Run | str | Path, model: nn.Module | None = None, trust_code: str | Sequence[str] = ()
) -> nn.Module:
    """Return the trained model of a run, or of a folder that `surefit export` wrote, ready for
    evaluation.

    A run's folder is data. Code that it names (`module:object`) runs only if you made the run on
    this machine with that code, or if `trust_code` names it, too.
    """
    return _opened(run, trust_code=trust_code).load(model)[0].eval()


def predict(  # noqa: PLR0913 - the public call
    run: Run | str | Path,
    data: Any,
    model: nn.Module | None = None,
    collate_fn: Callable[..., Any] | None = None,
    trust_code: str | Sequence[str] = (),
    probabilities: str | None = None,
    predict_fn: Callable[..., Any] | None = None,
    generate: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Return predictions for the rows of `data`, one dict per row; `trust_code` as in `load`.

    With `probabilities="all"`, a prediction of classes has the probabilities of all of them.
    `generate` sets how text is generated, such as `{"temperature": 0.7}`, in place of the run's.
    Progress is shown unless `quiet=True`.
    """
    from surefit.cli.display import make_display

    opened = generating(_opened(run, as_written(collate_fn, data), trust_code), generate)
    if predict_fn is not None:
        opened = replace(opened, predict_fn=predict_fn)
    with make_display(quiet) as display:
        return list(iter_predictions(opened, data, model, probabilities, display.progress))


def iter_predictions(
    run: Run,
    data: Any,
    model: nn.Module | None = None,
    probabilities: str | None = None,
    progress: Progress = silent,
) -> Iterator[dict[str, Any]]:
    """Return predictions as they are made."""
    from surefit.targets.own_outputs import needs_loss_fn
    from surefit.training.engine import training_numerics

    config = run.config
    pipeline = run.open_pipeline(model).with_system(config.generate.system)
    if probabilities is not None:
        pipeline = pipeline.with_probabilities(probabilities)
    # left before the first row is given to the caller
    with use_cache(config.cache), as_stored(needs_loss_fn(run.task)):
        is_open = isinstance(data, Table)
        table = data if is_open else open_table(data, config.read, config.on_bad_file, "test")
    with run.in_use(), training_numerics(run, pipeline.module):
        made = pipeline.predict(table, config.micro_batch_rows, config.generate.max_new_tokens)
        progress("predicting", 0, table.num_rows)
        for done, prediction in enumerate(made, start=1):
            yield prediction
            progress("predicting", done, table.num_rows)


def evaluate(  # noqa: PLR0913 - the options of the command
    run: Run | str | Path,
    data: Any = None,
    model: nn.Module | None = None,
    collate_fn: Callable[..., Any] | None = None,
    trust_code: str | Sequence[str] = (),
    loss_fn: Callable[..., Any] | None = None,
    generate: Mapping[str, Any] | None = None,
    suite: Any = None,
    general_text: Any = None,
    base: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Return the task's metrics on `data`, or on the validation rows; `trust_code` as in `load`.

    `generate` is as in `predict`. `suite` is a file or list of prompts with what is right for each:
    the result then has `scores` and `items`, and metrics only if `data` is given. `general_text`
    is a text whose loss and perplexity are measured, too; with `base`, `before` has the same
    figures of the model before training.

    A run of the task `custom` needs its `loss_fn` again; what `train` returned has it. Progress is
    shown unless `quiet=True`.
    """
    from surefit.cli.display import make_display

    opened = generating(_opened(run, as_written(collate_fn, data), trust_code, loss_fn), generate)
    with make_display(quiet) as display:
        asked = Asked(data, suite, general_text, base)
        return evaluate_run(opened, asked, model, display.progress).as_dict()


@dataclass(frozen=True)
class Asked:
    """What a trained model is judged by."""

    data: Any = None
    suite: Any = None
    general_text: Any = None
    base: bool = False
    """Whether the model before training is judged, too."""


@dataclass(frozen=True)
class Judged:
    """What a model reached, and the rows that its metrics were measured on."""

    evaluation: Evaluation
    store: Store | None
    items: tuple[dict[str, Any], ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    before: Judged | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics; with scores and items of a suite, and what was reached before."""
        suite = {"scores": dict(self.scores), "items": [*self.items]} if self.items else {}
        before = {} if self.before is None else {"before": self.before.as_dict()}
        return {**self.evaluation.metrics, **suite, **before}


def evaluate_run(
    run: Run, asked: Asked, model: nn.Module | None = None, progress: Progress = silent
) -> Judged:
    """Return what the trained model reaches; beside a suite, rows are read if they are named."""
    from surefit.training.engine import training_numerics
    from surefit.training.reference import before_training

    store: Store | None = None
    if asked.data is None and asked.suite is not None:
        pipeline = run.open_pipeline(model).with_system(run.config.generate.system)
    else:
        pipeline, store = rows_to_judge(run, asked.data, model, progress)
    with (
        run.in_use(),
        use_cache(run.config.cache),
        training_numerics(run, pipeline.module, exactly=True) as precision,
    ):
        named = {} if store is None or asked.data is not None else _named_sets(run, pipeline, store)
        judged = _judge(run, pipeline, store, asked, progress, named)
        if asked.base:
            with before_training(run, pipeline) as begun:
                before = _judge(run, begun, store, asked, progress, named)
                judged = replace(judged, before=before)
    return replace(judged, evaluation=replace(judged.evaluation, precision=precision))


def _named_sets(run: Run, pipeline: Pipeline, store: Store) -> dict[str, Store]:
    """Return the encoded rows of the run's named validation sets, of which `store` is the first."""
    paths = run.config.eval_data if isinstance(run.config.eval_data, dict) else {}
    others = {name: _encoded(run, pipeline, path) for name, path in [*paths.items()][1:]}
    return {next(iter(paths)): store, **others} if paths else {}


def _judge(
    run: Run,
    pipeline: Pipeline,
    store: Store | None,
    asked: Asked,
    progress: Progress,
    named: Mapping[str, Store],
) -> Judged:
    from surefit.pipeline.evaluation import Evaluation, EvaluationSettings
    from surefit.pipeline.suite import encode_plain, judge_suite

    config, settings = run.config, EvaluationSettings.of(run.config)
    result = Evaluation({})
    if store is not None:
        result = pipeline.evaluate_all(store, named, settings, progress=progress)
    if asked.general_text is not None:
        plain, text = encode_plain(pipeline, open_table(asked.general_text))
        found = plain.evaluate(text, replace(settings, generate_rows=0), progress=progress)
        general = {f"general_{n}": found.metrics[n] for n in ("loss", "perplexity")}
        result = replace(result, metrics={**result.metrics, **general})
    if asked.suite is None:
        return Judged(result, store)
    most = config.generate.max_new_tokens
    answer = partial(pipeline.predict, batch_size=config.micro_batch_rows, max_new_tokens=most)
    items, scores = judge_suite(open_table(asked.suite), answer, run.code.find)
    return Judged(result, store, items, scores)


def _encoded(run: Run, pipeline: Pipeline, data: Any, progress: Progress = silent) -> Store:
    """Return rows as the Pipeline of a run reads them."""
    from surefit.targets.own_outputs import needs_loss_fn

    named, config = pipeline.task.reads.class_files, run.config
    with as_stored(needs_loss_fn(run.task)):
        accepted = pipeline.accept(open_table(data, config.read, config.on_bad_file, "test", named))
        rows = np.arange(accepted.table.num_rows)
        return pipeline.encode(accepted, rows, progress=progress)


def rows_to_judge(
    run: Run, data: Any = None, model: nn.Module | None = None, progress: Progress = silent
) -> tuple[Pipeline, Store]:
    """Return the trained Pipeline, and `data` or the run's validation rows as it reads them."""
    from surefit.targets.own_outputs import needs_loss_fn, require_loss_fn
    from surefit.training.reference import evaluated_with_reference

    run = run.with_own_loss()
    require_loss_fn(run.task, run.loss_fn or run.training_step)
    config, system = run.config, run.generate.get("system")
    if system and data is None:
        raise UsageError(
            "generate.system changes the rows that are evaluated, and those of the run are as they "
            "were trained with.",
            "Pass rows with --data.",
        )
    pipeline = run.open_pipeline(model).with_system(system)
    with run.in_use(), use_cache(config.cache), as_stored(needs_loss_fn(run.task)):
        if data is None:
            store = _validation_rows(run, model, progress)
        else:
            store = _encoded(run, pipeline, data, progress)
        pipeline, store = evaluated_with_reference(run, pipeline, store, progress)
    if len(store) == 0:
        raise NO_DATA.error("No row is left to evaluate on.")
    return pipeline, store


SET_HERE = (
    *("rows", "max_new_tokens", "temperature", "top_p", "top_k", "repetition_penalty"),
    *("stop", "samples", "seed", "system"),
)
"""Settings of generation that may be other than those of the run."""


def generating(run: Run, generate: Mapping[str, Any] | None) -> Run:
    """Return the run with other settings of generation."""
    wrong = next((name for name in generate or {} if name not in SET_HERE), None)
    if wrong is not None:
        raise UsageError(
            f"generate.{wrong} cannot be set for a trained model.",
            f"These can: {', '.join(f'generate.{name}' for name in SET_HERE)}.",
        )
    return replace(run, generate=dict(generate)) if generate else run


def _validation_rows(run: Run, model: nn.Module | None, progress: Progress) -> Store:
    """Return the encoded rows that the run was validated on."""
    from surefit.run.exported_model import ExportedModel
    from surefit.training.resume import validation_rows

    if isinstance(run, ExportedModel):
        raise UsageError(
            f"{run.path} is an exported model, which has no data.", "Pass rows with --data."
        )
    store = validation_rows(run, model, progress)
    if not len(store):
        raise UsageError(f"{run.path} has no validation rows.", "Pass rows with --data.")
    return store


def inspect(data: Any, model: Any = None, quiet: bool = False) -> DataReport:
    """Return columns, types, lengths, empties and duplicates; arrays, and how features will be
    read.

    With a model, also what it expects of feature sequences. Progress is shown unless `quiet=True`.
    """
    from surefit.cli.display import make_display
    from surefit.inspection.data_report import inspect_data
    from surefit.user_code import NamedCode

    source = None
    if model is not None:
        from surefit.models.open_model import open_model  # it imports torch

        source = open_model(model, code=NamedCode())
    with make_display(quiet) as display:
        return inspect_data(data, source, display.progress)


def _names(trust_code: str | Sequence[str]) -> tuple[str, ...]:
    return (trust_code,) if isinstance(trust_code, str) else tuple(trust_code)


def _opened(
    run: Run | str | Path,
    collate_fn: Callable[..., Any] | None = None,
    trust_code: str | Sequence[str] = (),
    loss_fn: Callable[..., Any] | None = None,
) -> Run:
    from surefit.run.exported_model import open_trained

    run = run if isinstance(run, Run) else open_trained(run, _names(trust_code))
    if collate_fn is None and loss_fn is None:
        return run
    return replace(run, collate_fn=collate_fn or run.collate_fn, loss_fn=loss_fn or run.loss_fn)
