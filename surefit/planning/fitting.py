"""The model's side of a plan: the module, what its forward is given, its loss, its probe."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from surefit.batches.field import SEQUENCES, Field
from surefit.batches.loading import load_batch
from surefit.config import RunConfig
from surefit.data.encode import Progress
from surefit.data.encoder import Encoder
from surefit.data.roles import extra_fields
from surefit.data.store import Store
from surefit.data.table import Table, describe_type
from surefit.findings import Finding, fail, finding
from surefit.models.call import Call, from_loss_fn, match_arguments, with_own_loss
from surefit.models.checkpointing import enable_checkpointing
from surefit.models.source import ModelSource
from surefit.plan import Given
from surefit.preflight.probe import probe
from surefit.tasks.spec import Loss, TaskSpec

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Fitted:
    """The model as it will be trained, and how it is called."""

    source: ModelSource
    module: nn.Module
    call: Call
    loss: Loss
    encoder: Encoder
    fields: Mapping[str, Field]

    @property
    def vocab_size(self) -> int | None:
        """Rows of the embedding that token ids are looked up in; None where there is none."""
        embeddings = getattr(self.module, "get_input_embeddings", None)
        if "input_ids" not in self.fields or embeddings is None:
            return None
        weight = getattr(embeddings(), "weight", None)
        return int(weight.shape[0]) if weight is not None else None


def build_model(
    source: ModelSource,
    task: TaskSpec,
    encoder: Encoder,
    table: Table,
    config: RunConfig,
    given: Given,
    progress: Progress,
    found: list[Finding],
) -> Fitted:
    """Build the model for the data, and match the columns with what its forward names."""
    import torch

    progress("building the model", 0, 1)
    torch.manual_seed(config.seed)
    built = source.build(task.head, encoder)
    progress("building the model", 1, 1)
    found += built.findings
    if config.checkpointing:
        enable_checkpointing(built.module)
    columns = list(task.fields_for(encoder))
    if any(name in columns for name in SEQUENCES) and "attention_mask" not in columns:
        columns.append("attention_mask")
    extras = extra_fields(table, {*columns, *encoder.roles.values()})
    if given.collate_fn is None:
        call, notes = match_arguments(built.module, [*columns, *extras])
        found += notes
    else:  # what forward is given is known when the first batch was made
        call = Call({name: name for name in inspect.signature(built.module.forward).parameters})
    used = {name: extras[name] for name in extras if name in call.arguments.values()}
    encoder = replace(encoder, extras=used)
    found += _casts(table, encoder)
    loss = with_own_loss(task.loss) if given.loss_fn is None else from_loss_fn(given.loss_fn)
    return Fitted(source, built.module, call, loss, encoder, task.fields_for(encoder))


def _casts(table: Table, encoder: Encoder) -> list[Finding]:
    column = encoder.roles.get("features")
    if column is None:
        return []
    shown = describe_type(table.column_type(column))
    if shown.startswith("float "):
        return []
    message = f"column {column!r} is {shown}; it is read as float32."
    return [finding("SF209", message, column=column)]


def match_collated(fitted: Fitted, train: Store, given: Given, found: list[Finding]) -> Fitted:
    """What forward is given of a batch that the user's own collate_fn makes, if there is one."""
    collate_fn = given.collate_fn
    if collate_fn is None:
        return fitted
    name = getattr(collate_fn, "__name__", type(collate_fn).__name__)
    try:
        batch = load_batch(train, np.arange(min(2, len(train))), fitted.fields, collate_fn)
    except Exception as error:
        columns = ", ".join(train.row(0))
        raise fail(
            "SF120",
            f"collate_fn ({name}) raised {type(error).__name__}: {error}"[:300],
            fix=f"Let it take a list of dicts of tensors ({columns}) and return a dict.",
        ) from error
    call, notes = match_arguments(fitted.module, list(batch))
    found += [*notes, finding("SF123", f"{name} makes the batches; it gives {', '.join(batch)}.")]
    return replace(fitted, call=call)


def probe_model(
    fitted: Fitted, task: TaskSpec, train: Store, seed: int, given: Given
) -> list[Finding]:
    """The longest and the shortest training row go through the model together."""
    rows = np.unique([int(train.lengths.argmax()), int(train.lengths.argmin())])
    prepare = task.preparer(fitted.encoder, seed)
    batch = load_batch(train, rows, fitted.fields, given.collate_fn, prepare=prepare)
    head = task.head
    outputs = None
    if head is not None and head.size is not None and head.body != "steps":
        outputs = head.size(fitted.encoder)
    num_targets = int(train.num_targets[rows].sum())
    return probe(fitted.module, fitted.call, batch, fitted.loss, num_targets, outputs)
