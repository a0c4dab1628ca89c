"""The model's side of a plan: the module, what its forward is given, its loss, its probe."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.batch_layout import PADDED, Layout
from surefit.batches.collate import starts_in_time
from surefit.batches.field import SEQUENCES, Field, well_known_fields
from surefit.batches.loading import load_batch, to_batch
from surefit.checks.probes import run_probes
from surefit.checks.probes.first_batch import find_unreached, probe
from surefit.checks.probes.probe_batch import Subject
from surefit.checks.probes.save_reload import check_reload
from surefit.config import RunConfig
from surefit.data.data_rules import DTYPE_CONVERTED, USER_DATA_CODE_FAILED
from surefit.data.roles import extra_fields
from surefit.data.table import Table, describe_type
from surefit.encode.encoder import Encoder
from surefit.encode.features.feature_layout import read_layout
from surefit.encode.store import Store
from surefit.findings import Finding, rule
from surefit.models.call import Call, from_loss_fn, match_arguments, with_module_loss
from surefit.models.gradient_checkpointing import enable_checkpointing, is_checkpointing
from surefit.models.lora import Adaptation, adapt, is_adapted
from surefit.models.model_source import ModelSource
from surefit.models.save_model import load_model, save_model
from surefit.plan.plan import Given
from surefit.progress import Progress
from surefit.tasks.task_spec import Loss, TaskSpec

if TYPE_CHECKING:
    from torch import nn

OWN_COLLATE_FN = rule(
    "SF123",
    "info",
    "batches by your own collate_fn",
    why=(
        "It is called on the rows of each batch, in training, evaluation and prediction; what it "
        "does at random is not reproduced."
    ),
    fix="Pass it again when the run is resumed, evaluated or predicted with from another process.",
)

ADAPTERS_FROZEN = rule(
    "SF322",
    "info",
    "adapters out of the loss's reach",
    why=(
        "Some layers take no part in this task, such as a pooler nobody reads; adapters on them get"
        " no gradient."
    ),
    fix="Nothing to do.",
)

LOSS_REACHES_NO_ADAPTER = rule(
    "SF328",
    "error",
    "the loss reaches no adapter",
    why="The adapters would get no gradient: the run would train nothing, or the head alone.",
    fix="Train the whole model (leave lora.r out), or name other layers in lora.targets.",
)


PROBE_LOGITS, PROBE_TOKENS = 8_000_000, 16
"""Logits of one row in a probe, about at most; tokens of it, at least."""


@dataclass(frozen=True)
class Fitted:
    """The model as it will be trained, and how it is called."""

    source: ModelSource
    module: nn.Module
    call: Call
    loss: Loss
    encoder: Encoder
    fields: Mapping[str, Field]
    adaptation: Adaptation | None = None
    layout: Layout = PADDED

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
    head = task.head_for(encoder)
    built = source.build(head, encoder)
    found += built.findings
    adaptation = None
    if config.lora.r or is_adapted(built.module):
        torch.manual_seed(config.seed)
        adaptation, notes = adapt(
            built,
            config.lora,
            head.size(encoder) if head is not None and head.size else None,
            head.auto_class if head is not None else None,
        )
        found += notes
    if config.checkpointing:
        enable_checkpointing(built.module)
    progress("building the model", 1, 1)
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
    loss = with_module_loss(task.loss) if given.loss_fn is None else from_loss_fn(given.loss_fn)
    return Fitted(source, built.module, call, loss, encoder, task.fields_for(encoder), adaptation)


def _casts(table: Table, encoder: Encoder) -> list[Finding]:
    column = encoder.roles.get("features")
    if column is None or read_layout(encoder.settings.get("features.layout")).places:
        return []
    shown = describe_type(table.column_type(column))
    if shown.startswith("float "):
        return []
    message = f"column {column!r} is {shown}; it is read as float32."
    return [DTYPE_CONVERTED.finding(message, column=column)]


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
        raise USER_DATA_CODE_FAILED.error(
            f"collate_fn ({name}) raised {type(error).__name__}: {error}"[:300],
            fix=f"Let it take a list of dicts of tensors ({columns}) and return a dict.",
        ) from error
    call, notes = match_arguments(fitted.module, list(batch))
    found += [
        *notes,
        OWN_COLLATE_FN.finding(f"{name} makes the batches; it gives {', '.join(batch)}."),
    ]
    return replace(fitted, call=call)


def probe_model(
    fitted: Fitted, task: TaskSpec, train: Store, seed: int, given: Given, longer: bool
) -> list[Finding]:
    """The longest and the shortest training row go through the model together."""
    batch, num_targets = _probe_batch(fitted, task, train, seed, given)
    head = task.head_for(fitted.encoder)
    outputs = None
    if head is not None and head.size is not None and head.body != "steps":
        outputs = head.size(fitted.encoder)
    found = probe(fitted.module, fitted.call, batch, fitted.loss, num_targets, outputs)
    subject = Subject(
        fitted.module,
        batch,
        forward=lambda batch: fitted.call(fitted.module, batch),
        loss=fitted.loss,
        fields={**well_known_fields(), **fitted.fields},
        causal=head is not None and head.predicts == "next_token",
    )
    found += run_probes(subject, longer)
    return [*found, *_reload(fitted, task, subject)] if longer else found


def _reload(fitted: Fitted, task: TaskSpec, subject: Subject) -> list[Finding]:
    return check_reload(
        subject,
        lambda folder: save_model(fitted.module, fitted.encoder, fitted.source, folder),
        lambda folder: load_model(folder, task, copy.deepcopy(fitted.module))[0],
        fitted.call,
    )


def settle_trained(
    fitted: Fitted, task: TaskSpec, train: Store, seed: int, given: Given, found: list[Finding]
) -> Fitted:
    """Freeze the adapters that the loss does not depend on, such as those of an unused pooler."""
    adaptation = fitted.adaptation
    if adaptation is None:
        return fitted
    batch, _ = _probe_batch(fitted, task, train, seed, given)
    for name in adaptation.trained:
        fitted.module.get_parameter(name).requires_grad_(True)  # an earlier plan may have frozen it
    lost = find_unreached(fitted.module, fitted.call, batch, fitted.loss, adaptation.trained)
    if not lost:
        return fitted
    if all(name in lost for name in adaptation.trained if ".lora_" in name):
        raise LOSS_REACHES_NO_ADAPTER.error(
            f"None of the adapters on {len(adaptation.targets)} layers takes part in the loss.",
        )
    for name in lost:
        fitted.module.get_parameter(name).requires_grad_(False)
    shown = ", ".join(lost[:3]) + (" …" if len(lost) > 3 else "")
    found.append(
        ADAPTERS_FROZEN.finding(f"{len(lost)} adapter weights are left as they are: {shown}")
    )
    return replace(
        fitted, adaptation=replace(adaptation, trained=adaptation.trained - frozenset(lost))
    )


def _probe_batch(
    fitted: Fitted, task: TaskSpec, train: Store, seed: int, given: Given
) -> tuple[Any, int]:
    """A batch of the longest and the shortest row, and its number of targets.

    Where the vocabulary is large or activations are thrown away in training, only the end of long
    rows is taken: a probe has all of them at once, and must not hold more memory than training.
    """
    longest, shortest = int(train.lengths.argmax()), int(train.lengths.argmin())
    if longest == shortest:  # all of one length; two rows are needed to see each other
        shortest = len(train) - 1
    rows = np.unique([longest, shortest])
    prepare = task.preparer(fitted.encoder, seed)
    by_token = "labels" in fitted.fields and starts_in_time(fitted.fields["labels"])
    limit = max(PROBE_TOKENS, PROBE_LOGITS // (fitted.vocab_size or 1))
    if is_checkpointing(fitted.module):  # which it does in training only
        limit = PROBE_TOKENS
    if given.collate_fn is not None or not by_token or train.lengths[rows].max() <= limit:
        batch = load_batch(train, rows, fitted.fields, given.collate_fn, prepare=prepare)
        return batch, int(train.num_targets[rows].sum())
    cut: list[Mapping[str, Any]]
    cut = [_ends(row, fitted.fields, limit) for row in train.rows(rows)]
    num_targets = sum(task.count_targets(row) for row in cut)
    if prepare is not None:
        cut = [prepare(row, 0, number, 0) for number, row in enumerate(cut)]
    return to_batch(cut, fitted.fields) | {"num_targets": num_targets}, num_targets


def _ends(row: Mapping[str, Any], fields: Mapping[str, Field], limit: int) -> dict[str, Any]:
    """The last steps of each sequence of a row, which is where answers are."""
    return {n: v[-limit:] if starts_in_time(fields[n]) else v for n, v in row.items()}
