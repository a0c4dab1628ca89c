"""Experiments on the real model with a few real rows: what training would show too late."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from surefit.batches.collate import starts_in_time
from surefit.batches.field import Field, well_known_fields
from surefit.checks.probes import run_probes
from surefit.checks.probes.first_batch import find_unreached, probe
from surefit.checks.probes.probe_batch import Subject
from surefit.checks.probes.save_reload import check_reload
from surefit.encode.store import Store
from surefit.findings import Finding, rule
from surefit.models.gradient_checkpointing import is_checkpointing
from surefit.models.save_model import load_model, save_model
from surefit.pipeline.pipeline import Pipeline
from surefit.plan.build_model import Built

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


def probe_model(built: Built, train: Store, longer: bool) -> list[Finding]:
    """The longest and the shortest training row go through the model together."""
    pipeline = built.pipeline
    batch, num_targets = _probe_batch(pipeline, train)
    head = pipeline.task.head_for(pipeline.encoder)
    outputs = None
    if head is not None and head.size is not None and head.body != "steps":
        outputs = head.size(pipeline.encoder)
    found = probe(pipeline.module, pipeline.call, batch, pipeline.loss, num_targets, outputs)
    subject = Subject(
        pipeline.module,
        batch,
        forward=pipeline.outputs,
        loss=pipeline.loss,
        fields={**well_known_fields(), **pipeline.fields},
        causal=head is not None and head.predicts == "next_token",
    )
    found += run_probes(subject, longer)
    return [*found, *_reload(built, subject)] if longer else found


def _reload(built: Built, subject: Subject) -> list[Finding]:
    pipeline = built.pipeline

    def save(folder: Path) -> None:
        save_model(pipeline.module, pipeline.encoder, built.source, folder)

    def load(folder: Path) -> Any:
        return load_model(folder, pipeline.task, copy.deepcopy(pipeline.module))[0]

    return check_reload(subject, save, load, pipeline.call)


def freeze_unreached(built: Built, train: Store) -> tuple[Built, list[Finding]]:
    """Freeze the adapters that the loss does not depend on, such as those of an unused pooler."""
    adaptation, pipeline = built.adaptation, built.pipeline
    if adaptation is None:
        return built, []
    module = pipeline.module
    batch, _ = _probe_batch(pipeline, train)
    for name in adaptation.trained:
        module.get_parameter(name).requires_grad_(True)  # an earlier plan may have frozen it
    lost = find_unreached(module, pipeline.call, batch, pipeline.loss, adaptation.trained)
    if not lost:
        return built, []
    if all(name in lost for name in adaptation.trained if ".lora_" in name):
        raise LOSS_REACHES_NO_ADAPTER.error(
            f"None of the adapters on {len(adaptation.targets)} layers takes part in the loss."
        )
    for name in lost:
        module.get_parameter(name).requires_grad_(False)
    shown = ", ".join(lost[:3]) + (" …" if len(lost) > 3 else "")
    message = f"{len(lost)} adapter weights are left as they are: {shown}"
    trained = replace(adaptation, trained=adaptation.trained - frozenset(lost))
    return replace(built, adaptation=trained), [ADAPTERS_FROZEN.finding(message)]


def _probe_batch(pipeline: Pipeline, train: Store) -> tuple[Any, int]:
    """A batch of the longest and the shortest row, and its number of targets.

    Where the vocabulary is large or activations are thrown away in training, only the end of long
    rows is taken: a probe has all of them at once, and must not hold more memory than training.
    """
    longest, shortest = int(train.lengths.argmax()), int(train.lengths.argmin())
    if longest == shortest:  # all of one length; two rows are needed to see each other
        shortest = len(train) - 1
    rows = np.unique([longest, shortest])
    fields = pipeline.fields
    by_token = "labels" in fields and starts_in_time(fields["labels"])
    limit = max(PROBE_TOKENS, PROBE_LOGITS // (pipeline.vocab_size or 1))
    if is_checkpointing(pipeline.module):  # which it does in training only
        limit = PROBE_TOKENS
    if pipeline.collate_fn is not None or not by_token or train.lengths[rows].max() <= limit:
        return pipeline.batch(train, rows), int(train.num_targets[rows].sum())
    cut: list[Mapping[str, Any]]
    cut = [_ends(row, fields, limit) for row in train.rows(rows)]
    num_targets = sum(pipeline.task.count_targets(row) for row in cut)
    if pipeline.prepare is not None:
        cut = [pipeline.prepare(row, 0, number, 0) for number, row in enumerate(cut)]
    return pipeline.collate(cut) | {"num_targets": num_targets}, num_targets


def _ends(row: Mapping[str, Any], fields: Mapping[str, Field], limit: int) -> dict[str, Any]:
    """The last steps of each sequence of a row, which is where answers are."""
    return {n: v[-limit:] if starts_in_time(fields[n]) else v for n, v in row.items()}
