"""The model's side of a plan: the module, what its forward is given, and its loss."""

from __future__ import annotations

import gc
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from surefit.batches.field import OWN
from surefit.batches.loading import load_batch
from surefit.checks.machine import check_weights
from surefit.data.data_rules import USER_DATA_CODE_FAILED
from surefit.data.roles import extra_fields
from surefit.data.table import Table
from surefit.errors import describe_error
from surefit.findings import Finding, note
from surefit.inputs.model_hints import Hints
from surefit.inputs.own_columns import only_input
from surefit.inputs.store import Store
from surefit.memory.limit import find_limit
from surefit.models.call import Call, Names, match_arguments
from surefit.models.lora import Adaptation, adapt, is_adapted
from surefit.models.model_source import NO_LIMITS, Build, ModelSource, WeightLimits
from surefit.models.module_outputs import Key
from surefit.models.named_modules import as_modules
from surefit.models.open_model import open_model
from surefit.models.optimizer import freeze_parameters
from surefit.models.transformers_models import enable_checkpointing
from surefit.pipeline.open_pipeline import build_pipeline, with_own_step
from surefit.pipeline.pipeline import Pipeline, batch_columns, expect_scores, known_names
from surefit.plan.choose_form import read_further, refuse_raw
from surefit.plan.draft import Draft, Findings
from surefit.plan.proof import describe_built
from surefit.plan.settle_step import parts_of_step
from surefit.processes import num_processes
from surefit.speed.numerics import align_weights
from surefit.targets.own_loss import own_columns

if TYPE_CHECKING:
    from torch import nn


WHOLE_SHARE = 0.5
"""Share of a process's memory up to which it loads a model whole before the model is sharded."""


@dataclass(frozen=True)
class Built:
    """The Pipeline with its model, where the model comes from, and its adapters."""

    pipeline: Pipeline
    source: ModelSource
    table: Table
    """The rows that the model is trained on."""
    adaptation: Adaptation | None = None

    @property
    def default_lr(self) -> float:
        """The peak learning rate if the user gives none."""
        if self.adaptation is not None:
            return 2e-4
        untrained = self.source.untrained or self.source.kind == "object"
        return 1e-3 if untrained else 2e-5


def _weight_limits(d: Draft) -> WeightLimits:
    """What one process loads: all that host memory holds, half of it where it does not train."""
    config, request = d.config, d.request
    host = find_limit(config.max_memory_gb, host=True).bytes
    shards = config.parallel == "fsdp" and (request.processes or num_processes()) > 1
    sharded = int(WHOLE_SHARE * min(d.limit.bytes, host)) if shards else None
    if config.device_memory_gb is not None:  # planned for another device
        return WeightLimits(sharded, int(WHOLE_SHARE * host))
    # Onto a device of this machine, weights may be read in fewer bytes.
    return WeightLimits(sharded, None if d.limit.on_device else host)


def open_source(d: Draft) -> tuple[ModelSource, Findings]:
    """Return where the model comes from; nothing is built."""
    model = d.objects.model if d.objects.model is not None else d.config.model
    source = open_model(
        model if d.objects.training_step is None else as_modules(model),
        from_scratch=d.config.from_scratch,
        trust_remote_code=d.config.trust_remote_code,
        quantize=d.config.lora.quantize,
        adapter=d.config.adapter,
        limits=NO_LIMITS if d.request.one_row else _weight_limits(d),
        code=d.request.code,
    )
    gc.freeze()  # what imports made stays; a collection that visits it takes 0.3 s
    return source, ()


def read_hints(d: Draft) -> tuple[tuple[ModelSource, Hints], Findings]:
    """Return what the model expects of its inputs."""
    hints = d.source.hints()
    return (replace(d.source, image=d.source.image or dict(hints.image or {})), hints), ()


def build_module(
    d: Draft,
) -> tuple[tuple[tuple[nn.Module, Adaptation | None], tuple[Finding, ...]], tuple[Finding, ...]]:
    """Build the model for the data; without weights if no stage that is to run reads them."""
    outline = d.source.outline
    if outline is not None and d.proof.is_whole and d.request.shows_only:
        module, found = _build(d, outline)
        freeze_parameters(module[0], d.config.freeze, module[1] is not None)
        if describe_built(module[0], found) == d.proof.built:
            return (module, found), found
    module, found = _build(d, d.source.build)
    return (module, found), found


def _build(
    d: Draft, build: Build
) -> tuple[tuple[nn.Module, Adaptation | None], tuple[Finding, ...]]:
    """Build the model, with adapters and gradient checkpointing where asked for."""
    import torch

    config, source, encoder = d.config, d.source, d.encoder
    head = d.task.head_for(encoder)
    torch.manual_seed(config.seed)
    built = build(head, encoder)
    found, adaptation = [*built.findings], None
    if config.lora.r or is_adapted(built.module):
        torch.manual_seed(config.seed)
        tokens = {*built.added_tokens, *encoder.settings.tokens.added}
        built = replace(built, added_tokens=sorted(tokens))
        adaptation, notes = adapt(
            built,
            config.lora,
            head.size(encoder) if head is not None and head.size else None,
            head.auto_class if head is not None else None,
        )
        found += notes
    if adaptation is None or source.base_name is None:
        align_weights(built.module)  # frozen weights of a named base are read from the same file
    if config.checkpointing:
        enable_checkpointing(built.module)
    return (built.module, adaptation), tuple(found)


def prepare_weights(d: Draft) -> None:
    """Refuse weights that cannot be trained, and freeze those that the user names."""
    module, adaptation = d.module
    check_weights(module)
    freeze_parameters(module, d.config.freeze, adaptation is not None)


def make_pipeline(d: Draft) -> tuple[Built, list[Finding]]:
    """Match the columns of the data with what the module's forward names."""
    (module, adaptation), task, encoder, table = d.module, d.task, d.encoder, d.data.table
    loss_fn, collate_fn = d.loss_fn, d.objects.collate_fn
    pad = getattr(getattr(module, "config", None), "pad_token_id", None)
    if encoder.tokenizer is None and isinstance(pad, int):
        encoder = encoder.with_settings(tokens=replace(encoder.settings.tokens, pad=pad))
    columns = batch_columns(task.fields_for(encoder))
    if task.reads.own_fields is not None:  # an argument of another name reads the first one
        first = only_input(table, d.hints)
        columns.sort(key=lambda name: name != first)
    found: list[Finding] = []
    extras = extra_fields(table, {*columns, *encoder.roles.values()})
    if collate_fn is None:
        names = expect_scores(known_names(encoder, columns, table.columns), task, encoder)
        call, found = match_arguments(module, [*columns, *extras], names)
    else:  # what forward is given is known when the first batch was made
        call = Call({name: name for name in inspect.signature(module.forward).parameters})
    used = {
        name: extras[name]
        for name in extras
        if name in call.arguments.values()
        or (loss_fn is not None and not table.arrow[name].null_count)  # it may read them
    }
    refuse_raw(table, encoder.roles, [name for name in used if name in call.arguments.values()])
    encoder = replace(encoder, extras={**encoder.extras, **used})
    if collate_fn is None:
        encoder = read_further(encoder, call.arguments.values())
    seed = d.config.seed
    pipeline = build_pipeline(task, encoder, module, call, loss_fn, collate_fn, seed)
    pipeline = replace(pipeline, predict_fn=d.objects.predict_fn)
    if d.objects.training_step is not None:
        parts = parts_of_step(d.config, d.objects.optimizer, module)
        pipeline = with_own_step(pipeline, d.objects.training_step, parts)
    return Built(pipeline, d.source, table, adaptation), found


def ask_output(pipeline: Pipeline, asked: Key | None) -> Pipeline:
    """Return the Pipeline that uses the output which the user names, as its Encoder keeps it."""
    if asked is None:
        return pipeline
    encoder = pipeline.encoder.with_settings(outputs=asked)
    reads = replace(pipeline.call.reads, asked=asked)
    return replace(pipeline, encoder=encoder, call=replace(pipeline.call, reads=reads))


def match_collated(pipeline: Pipeline, train: Store) -> tuple[Pipeline, list[Finding]]:
    """What forward is given of a batch that the user's own collate_fn makes, if there is one."""
    collate_fn = pipeline.collate_fn
    if collate_fn is None:
        return pipeline, []
    name = getattr(collate_fn, "__name__", type(collate_fn).__name__)
    try:
        batch = load_batch(train, np.arange(min(2, len(train))), pipeline.fields, collate_fn)
    except Exception as error:
        columns = ", ".join(train.row(0))
        raise USER_DATA_CODE_FAILED.error(
            f"collate_fn ({name}) raised {describe_error(error)}"[:300],
            fix=f"Let it take a list of dicts of tensors ({columns}) and return a dict or a tuple.",
        ) from error
    names = [name for name in batch if not name.startswith(OWN)]
    inputs: list[str] = []
    if isinstance(own_columns(batch), tuple):
        parameters = inspect.signature(pipeline.module.forward).parameters.values()
        inputs = names[
            : sum(p.default is p.empty and p.kind < p.VAR_POSITIONAL for p in parameters)
        ]
    known = expect_scores(Names(inputs=inputs), pipeline.task, pipeline.encoder)
    call, notes = match_arguments(pipeline.module, names, known)
    shown = (
        f"a tuple of {len(names)}" if isinstance(own_columns(batch), tuple) else ", ".join(names)
    )
    made = note(f"{name} makes the batches; it gives {shown}.")
    return replace(pipeline, call=call), [*notes, made]
