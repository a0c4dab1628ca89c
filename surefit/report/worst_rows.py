"""What a model makes of validation rows, one by one: losses, predictions, and the worst of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import IGNORE_INDEX, PER_ROW
from surefit.errors import describe_error
from surefit.models.auxiliary_loss import without_router_logits
from surefit.models.transformers_models import quiet_transformers
from surefit.pipeline.evaluation import as_metric, judged_outputs
from surefit.pipeline.own_step import OwnStep
from surefit.progress import Progress, silent
from surefit.report.batch_view import is_aligned, view_rows
from surefit.run.events import without_nan
from surefit.speed.compiling import not_compiled

if TYPE_CHECKING:
    from surefit.inputs.store import Store
    from surefit.pipeline.pipeline import Job, Pipeline

Array = npt.NDArray[Any]
NUM_WORST = 12
LEAST_ROWS, MOST_ROWS, TRAINED_SHARE = 8, 512, 8
"""Rows that are judged for the report: one for so many that were trained on."""


def judge_rows(job: Job) -> dict[str, Any]:
    """Return what the trained model makes of some validation rows, the worst as they look.

    Without validation rows, of training rows. Where that cannot be computed row by row, why.
    """
    pipeline, store = job.pipeline, job.validation if len(job.validation) else job.train
    why = refuse_by_row(pipeline)
    if why:
        return {"why": why}
    trained = job.num_steps * job.batches.effective_rows // TRAINED_SHARE
    count = min(len(store), max(LEAST_ROWS, min(MOST_ROWS, trained)))
    places = np.unique(np.linspace(0, len(store) - 1, count).astype(int))
    try:
        rows = list(row_by_row(pipeline, store, places))
        known = [row for row in rows if row["loss"] is not None]
        worst = sorted(known, key=lambda row: -row["loss"])[:NUM_WORST]
        shown = [{**row, **_look(pipeline, store, row["place"])} for row in worst]
    except Exception as error:  # of the user's own code, which takes batches but no single rows
        return {"why": f"The model cannot be called row by row: {describe_error(error)}"[:400]}
    of = "validation" if store is job.validation else "training"
    return {"of": of, "total": len(store), "rows": rows, "worst": shown}


def refuse_by_row(pipeline: Pipeline) -> str:
    """Return why rows have no loss of their own; empty where they have."""
    head = pipeline.task.head_for(pipeline.encoder)
    if isinstance(pipeline.loss, OwnStep):
        return "A training_step has no loss per row."
    if head is not None and head.lists_of_images:
        return "A detector returns one loss for all images."
    return ""


def row_by_row(
    pipeline: Pipeline, store: Store, places: Array, progress: Progress = silent
) -> Iterator[dict[str, Any]]:
    """Yield the loss, the metrics, the prediction and the target of each row of a Store."""
    with judging(pipeline):
        for done, place in enumerate(places.tolist()):
            progress("judging rows", done, len(places))
            yield without_nan(_judge(pipeline, store, place))
    progress("judging rows", len(places), len(places))


@contextmanager
def judging(pipeline: Pipeline) -> Iterator[None]:
    """Call the module in evaluation mode, without gradients; the mode is put back."""
    import torch

    training = pipeline.module.training
    pipeline.module.eval()
    try:
        with (
            torch.no_grad(),
            quiet_transformers(),
            without_router_logits(pipeline.module),
            not_compiled(pipeline.module),
        ):
            yield
    finally:
        pipeline.module.train(training)


def _judge(pipeline: Pipeline, store: Store, place: int) -> dict[str, Any]:
    task, encoder = pipeline.task, pipeline.encoder
    batch = pipeline.batch(store, np.array([place]))
    batch = {**batch, PER_ROW: float(store.num_targets[place])}
    outputs, scored = judged_outputs(pipeline, batch)
    total, count = pipeline.loss(outputs, batch)[:2]
    loss = float(total) / float(count) if float(count) else None
    found: dict[str, Any] = {"row": int(store.source_row[place]), "place": place, "loss": loss}
    if scored is None:
        return found
    found["metrics"] = {}
    for name, metric in task.metrics.items():
        one = as_metric(metric, encoder)
        if one.is_number:
            found["metrics"][name] = one.figure({**one.sums(scored, batch)})
    values = task.figures.predicted_values
    if values is not None:
        made, labels = (value.detach().cpu() for value in values(scored, batch, encoder))
        if labels.ndim == 1 and len(labels) == 1:
            is_class = made.ndim == 2
            found["target"] = _named(encoder, labels[0].item(), is_class)
            best = made[0].argmax().item() if is_class else made[0].item()
            found["predicted"] = _named(encoder, best, is_class)
            if is_class:
                found["probability"] = float(made[0].max())
    if task.decode is not None and "predicted" not in found and not task.reads.own_fields:
        (decoded,) = task.decode(scored, batch, encoder)
        kept = {k: v for k, v in decoded.items() if k in ("prediction", "entities", "probability")}
        found |= {k: v for k, v in kept.items() if not isinstance(v, np.ndarray)}
    return found


def _named(encoder: Any, value: Any, is_class: bool) -> Any:
    return str(encoder.classes[int(value)]) if is_class and encoder.classes else value


def _look(pipeline: Pipeline, store: Store, place: int) -> dict[str, Any]:
    """Return a row as the model sees it, with the loss of each labelled token."""
    places = np.array([place])
    with judging(pipeline):
        batch = pipeline.batch(store, places)
        (row,) = view_rows(pipeline, store, places, batch, token_losses(pipeline, batch))
    return {k: v for k, v in row.items() if k != "row"}


def token_losses(pipeline: Pipeline, batch: Mapping[str, Any]) -> Array | None:
    """Return the loss of each labelled token of a batch, in order; None where tokens have none."""
    import torch

    if "input_ids" not in batch or not is_aligned(pipeline, batch):
        return None
    call, head = pipeline.call.predicting, pipeline.call.head
    if head is not None and "labelled_positions" in batch:
        made = replace(call, head=replace(head, by_token=True))(pipeline.module, batch)
        return np.asarray(-made.log_probs.float().cpu().numpy())
    spec = pipeline.task.head_for(pipeline.encoder)
    logits, labels = call(pipeline.module, batch).logits, batch["labels"]
    if logits is None or logits.ndim != 3 or logits.shape[:2] != labels.shape:
        return None
    if spec is not None and spec.predicts == "next_token":
        if "row_lengths" in batch:  # without a head, batches are padded
            return None
        logits, labels = logits[:, :-1], labels[:, 1:]
    at = labels != IGNORE_INDEX
    losses = torch.nn.functional.cross_entropy(logits[at].float(), labels[at], reduction="none")
    return np.asarray(losses.cpu().numpy())
