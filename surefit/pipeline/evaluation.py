"""Metrics over a Store: sums in constant memory, the same whatever the batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.field import PER_ROW
from surefit.batches.loading import prefetch
from surefit.config import RunConfig
from surefit.inputs.encoder import Encoder
from surefit.inputs.store import Store
from surefit.models.auxiliary_loss import without_router_logits
from surefit.models.call import has_module_loss
from surefit.models.sharding import (
    gathered,
    is_sharded,
    reshard,
)
from surefit.models.transformers_models import quiet_transformers
from surefit.pipeline.row_groups import group_store, row_chunks
from surefit.progress import Progress
from surefit.speed.compiling import not_compiled
from surefit.targets.generation import Sample, num_new_tokens, own_config
from surefit.targets.own_loss import OwnLoss
from surefit.targets.task_spec import Metric, SumAndCount, TaskSpec

if TYPE_CHECKING:
    from surefit.pipeline.pipeline import Pipeline

SHOWN_SAMPLES = 6


@dataclass(frozen=True)
class Evaluation:
    """The task's metrics, and a few generated answers where the task generates."""

    metrics: dict[str, Any]
    samples: list[dict[str, Any]] = field(default_factory=list)
    precision: str | None = None
    """Precision of the evaluation of a finished run: fp32, bf16 or fp16."""


@dataclass(frozen=True)
class EvaluationSettings:
    """How many rows are evaluated at once, and for how many text is generated."""

    batch_size: int
    max_tokens: int | None = None
    generate_rows: int = 0
    max_new_tokens: int | None = None
    """Tokens that an answer may have; None: as those of the training data have."""
    max_batches: int | None = None
    """Only so many batches per process, those with the longest rows first; None for all."""

    @classmethod
    def of(cls, config: RunConfig) -> EvaluationSettings:
        """Return how a run evaluates, in training and afterwards."""
        generate = config.generate
        return cls(
            config.micro_batch_rows, config.max_tokens, generate.rows, generate.max_new_tokens
        )


@dataclass(frozen=True)
class Group:
    """The processes that share an evaluation."""

    index: int = 0
    size: int = 1
    reduce: Callable[[Any], Any] = lambda tensor: tensor
    """Adds a tensor up over all processes."""
    gather: Callable[[list[Any]], list[Any]] = lambda items: items
    """The items of all processes."""


ALONE = Group()


def evaluate(
    pipeline: Pipeline,
    store: Store,
    settings: EvaluationSettings,
    group: Group,
    progress: Progress,
) -> Evaluation:
    """Evaluate in evaluation mode, without gradients; the mode is put back."""
    import torch

    module = pipeline.module
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            metrics = _measure(pipeline, store, settings, group, progress)
            samples = _generate(pipeline, store, settings, group, progress)
    finally:
        module.train(training)
        reshard(module)
    scores = _text_scores(pipeline.task, samples)
    return Evaluation({**metrics, **scores}, [s.as_dict() for s in samples[:SHOWN_SAMPLES]])


def _measure(
    pipeline: Pipeline,
    store: Store,
    settings: EvaluationSettings,
    group: Group,
    progress: Progress,
) -> dict[str, Any]:
    metrics = {"loss": as_metric(pipeline.loss)}
    metrics |= {n: as_metric(m, pipeline.encoder) for n, m in pipeline.task.metrics.items()}
    totals: dict[str, dict[str, dict[str, Any]]] = {}  # by source and metric
    some_rows = settings.max_batches is not None  # which a metric of all rows may refuse
    asked = {} if some_rows else pipeline.task.figures.own_metrics
    own = {name: each.start(group.size) for name, each in asked.items()}
    together = "padded" if pipeline.layout.padding_free else pipeline.row_groups.forward
    groups = group_store(store, together)
    sources, of_row = [*store.sources] if not some_rows else [], None
    if sources:  # each batch has rows of one source
        starts = [rows.start for rows in store.sources.values()]
        of_row = np.searchsorted(starts, np.arange(len(store)), "right") - 1
        groups = of_row if groups is None else groups + of_row * (int(groups.max()) + 1)
    chunks = row_chunks(store.lengths, settings.batch_size, settings.max_tokens, groups)
    mine, passes = _share(chunks, group, settings.max_batches, is_sharded(pipeline.module))
    per_row = float(store.num_targets.sum()) / max(len(store), 1)
    read = lambda rows: (  # noqa: E731
        "" if of_row is None else sources[of_row[rows[0]]],
        pipeline.batch(store, rows),
    )
    for done, (source, batch) in enumerate(prefetch(passes, read)):
        progress("evaluating", min(done, len(mine)), len(mine))
        weight = 1 if done < len(mine) else 0
        batch = {**batch, PER_ROW: per_row}
        outputs, scored = judged_outputs(pipeline, batch)
        for name, metric in metrics.items():
            if name == "loss" or scored is not None:
                sums = metric.sums(outputs if name == "loss" else scored, batch)
                _add(totals.setdefault(name, {}).setdefault(source, {}), sums, weight)
        if own and weight and scored is not None:
            assert pipeline.task.figures.predicted_values is not None
            values = pipeline.task.figures.predicted_values(scored, batch, pipeline.encoder)
            for each in own.values():
                each.add(*values)
    progress("evaluating", len(mine), len(mine))
    found: dict[str, Any] = {}
    of_sources: dict[str, Any] = {}
    for name, by_source in totals.items():
        total: dict[str, Any] = {}
        for source in sources or [""]:
            others = next(iter(by_source.values()))  # where only other processes have its rows
            sums = by_source.get(source) or {key: value * 0 for key, value in others.items()}
            reduced = {key: group.reduce(value) for key, value in sums.items()}
            _add(total, reduced, 1)
            figures = _figures(name, metrics[name], reduced) if source and reduced else {}
            of_sources |= {f"{source}_{each}": value for each, value in figures.items()}
        found |= _figures(name, metrics[name], total) if total else {}
    figures = {name: each.figure(group.gather) for name, each in own.items()}
    known = {name: value for name, value in figures.items() if value is not None}
    return {**found, **known, **of_sources}


def judged_outputs(pipeline: Pipeline, batch: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what the loss is computed from, and what metrics are: the outputs of the call that
    prediction makes, or None where they have no scores. A module's own loss takes a call apart.
    """
    targets = pipeline.call.targets
    reads_all = pipeline.task.reads.own_fields is not None  # its metrics get what forward returned
    if not targets.own_loss:
        outputs = pipeline.predicted(batch)
        return outputs, outputs if reads_all or not has_module_loss(outputs) else None
    scored = pipeline.predicted(batch) if targets.scored else None
    return pipeline.outputs(batch), scored  # last: a module may keep the targets it was given


def _share(
    chunks: Sequence[Any], group: Group, max_batches: int | None, sharded: bool
) -> tuple[Sequence[Any], Iterator[Any]]:
    """Return this process's batches; and those it computes, of which further ones do not count.

    A process without rows still takes part in the sums. A sharded model is gathered in each pass,
    so that all processes need the same number of passes.

    >>> mine, passes = _share([1, 2, 3], Group(1, 2), None, sharded=True)
    >>> mine, [*passes]
    ([2], [2, 3])
    """
    mine = chunks[group.index :: group.size][:max_batches]
    most = len(chunks[:: group.size][:max_batches]) if sharded else 1
    further = (chunks[-1] for _ in range(most - len(mine)) if len(chunks))
    return mine, chain(mine, further)


def _figures(name: str, metric: Metric, sums: Mapping[str, Any]) -> dict[str, Any]:
    """Return a metric's figure, and those beside it."""
    beside = metric.beside(sums) if metric.beside is not None else {}
    return {name: metric.figure(sums), **{f"{name}_{end}": value for end, value in beside.items()}}


def _generate(
    pipeline: Pipeline,
    store: Store,
    settings: EvaluationSettings,
    group: Group,
    progress: Progress,
) -> list[Sample]:
    generate, wanted = pipeline.task.generate, min(settings.generate_rows, len(store))
    if generate is None or not generate.names or wanted == 0:
        return []
    if not generate.possible(pipeline.module, pipeline.encoder):
        return []
    made: list[tuple[int, Sample]] = []
    groups = group_store(store, pipeline.row_groups.generation, prompts=True)
    groups = groups[:wanted] if groups is not None else None
    lengths = store.lengths[:wanted]
    chunks = row_chunks(lengths, settings.batch_size, settings.max_tokens, groups)
    module, encoder = pipeline.module, pipeline.encoder
    new_tokens = num_new_tokens(encoder, settings.max_new_tokens)
    mine, passes = _share(chunks, group, settings.max_batches, is_sharded(module))
    # transformers runs a sharded model until all processes have their last token.
    with not_compiled(module), gathered(module, everything=own_config(module) is None):
        for done, rows in enumerate(passes if is_sharded(module) else mine):
            progress("generating", min(done, len(mine)), len(mine))
            with quiet_transformers(), without_router_logits(module):
                samples = generate.answer(module, store.rows(rows), encoder, new_tokens)
            made += zip(rows.tolist(), samples, strict=True) if done < len(mine) else ()
    progress("generating", len(mine), len(mine))
    return [sample for _, sample in sorted(group.gather(made), key=lambda pair: pair[0])]


def as_metric(metric: SumAndCount | Metric, encoder: Encoder | None = None) -> Metric:
    """Return a Metric of a function for a sum and a count; one that reads names gets them."""
    if isinstance(metric, OwnLoss):
        return _of_terms(metric)
    if isinstance(metric, Metric) and metric.uses_encoder:
        beside = metric.beside and partial(metric.beside, encoder=encoder)
        return replace(metric, sums=partial(metric.sums, encoder=encoder), beside=beside)
    if isinstance(metric, Metric):
        return metric

    def sums(outputs: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
        total, count = metric(outputs, batch)
        return {"sum": total, "count": count}

    return Metric(sums, _mean)


def _of_terms(own: OwnLoss) -> Metric:
    """Return the metric of a user's function, with the means of its parts beside it."""

    def sums(outputs: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
        terms = own.terms(outputs, batch)
        found = {"sum": terms.total, "count": terms.count}
        for name, (total, count) in terms.parts.items():
            found |= {f"{name}.sum": total, f"{name}.count": count}
        return found

    def means_of_parts(sums: Mapping[str, Any]) -> dict[str, float]:
        return {
            name.removesuffix(".sum"): _mean(
                {"sum": total, "count": sums[f"{name.removesuffix('.sum')}.count"]}
            )
            for name, total in sums.items()
            if name.endswith(".sum")
        }

    return Metric(sums, _mean, beside=means_of_parts)


def _mean(sums: Mapping[str, Any]) -> float:
    """Return the mean per target; unknown, and never 0, where there is no target."""
    count = float(sums["count"])
    return float(sums["sum"]) / count if count else math.nan


def _add(totals: dict[str, Any], sums: Mapping[str, Any], weight: int) -> None:
    import torch

    for name, value in sums.items():
        number = torch.as_tensor(value).detach().to("cpu") * weight
        number = number.double() if number.is_floating_point() else number.long()
        totals[name] = totals[name] + number if name in totals else number


def _text_scores(task: TaskSpec, samples: Sequence[Sample]) -> dict[str, float]:
    if task.generate is None or not samples:
        return {}
    answers = [answer for sample in samples for answer in sample.answers]
    scores = [task.generate.scores(answer) for answer in answers]
    means = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
    return {**means, **task.generate.together(answers)}
