"""How rows are read for the model: tokenizer, settings, what the task learns from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from surefit.checks.class_values import BLANK_LABELS
from surefit.checks.encoded_rows import (
    TOKEN_OUT_OF_VOCABULARY,
    check_ledger,
    check_lookups,
    check_rows,
    explain_loss,
)
from surefit.checks.encoded_tokens import check_causal_labels
from surefit.checks.input_values import check_stores
from surefit.data.python.streams import Stream
from surefit.data.row_arrays import row_shape
from surefit.data.split import Rows
from surefit.data.table import Table
from surefit.data.written_values import find_missing
from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.inputs.chat.template_rendering import read_asked
from surefit.inputs.encode_table import collect_texts
from surefit.inputs.encoded_row import NamingOwnCode, RowFaultError
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import KnownTokens
from surefit.inputs.features.feature_layout import FeatureLayout, planned_axes
from surefit.inputs.features.feature_planning import hints_by_labels, plan_features
from surefit.inputs.features.feature_sequences import feature_statistics
from surefit.inputs.row_input import Planned
from surefit.inputs.store import Store
from surefit.inputs.tally import remark_findings
from surefit.inputs.text.tokenizer import load_again, load_tokenizer, train_tokenizer
from surefit.models.model_source import ModelSource
from surefit.models.transformers_models import room_for
from surefit.pipeline.accept import Accepted
from surefit.plan.draft import Draft, Findings
from surefit.plan.fit_in_memory import BatchBound, check_batch
from surefit.targets.task_spec import Fit, TaskSpec
from surefit.tasks import TASKS, feature_pretraining

PAD_IS_EOS = rule(
    "SF311",
    "fixed",
    "pad token is eos",
    why="The tokenizer has no pad token. Padding goes by length, so eos is still learned.",
    fix="Nothing to do.",
)

LONGEST_DEFAULT = 1024
TINY_VOCABULARY = 2048


def choose_feature_layout(d: Draft) -> tuple[FeatureLayout | None, list[Finding]]:
    """Infer the layout of features; None if there are none."""
    config, table, roles, task, hints = d.config, d.forms.table, d.forms.roles, d.task, d.hints
    head, bound = task.head_for(Encoder(task.name, roles)), None
    if isinstance(config.batch_size, int):  # else it is chosen to fit
        limits = [config.max_seq_length, config.max_tokens]
        limits += [] if d.source.follows_rows else [d.source.max_positions]
        longest = min((limit for limit in limits if limit is not None), default=None)
        bound = BatchBound(
            min(config.batch_size, table.num_rows),
            longest,
            config.max_tokens,
            config.max_memory_gb,
            config.device_memory_gb,
        )
    hints = replace(hints, steps=config.features.steps, width=config.features.width)
    if head is None or head.body != "rows":  # the task reads sequences
        hints = replace(hints, reads_vectors=None)
    if task.reads.step_labels:
        hints = hints_by_labels(table, roles, hints, config.features.labels)
    sized = hints.steps is not None or hints.width is not None
    if _is_pretraining_inferred(d) and hints.required is not None and not sized:
        feature_pretraining.check_inferred(table, roles, None)  # a module that reads vectors
    layout, found = plan_features(table, roles, hints)
    if layout is not None and bound is not None:
        check_batch(bound, *planned_axes(row_shape(table, roles["features"]), layout))
    return layout, found


def check_pretraining(d: Draft) -> list[Finding]:
    """Whether it suits the features that nobody names the task."""
    layout, roles = d.layout, d.forms.roles
    if not _is_pretraining_inferred(d):
        return []
    return feature_pretraining.check_inferred(d.forms.table, roles, layout)


def _is_pretraining_inferred(d: Draft) -> bool:
    """Whether features are to be pre-trained on, though nobody names the task."""
    is_named = d.config.task is not None or d.objects.task is not None
    return d.task.name == feature_pretraining.SPEC.name and not is_named


def begin_encoder(d: Draft) -> tuple[Encoder, list[Finding]]:
    """The Encoder with its tokenizer, if the task reads tokens."""
    encoder = Encoder(d.task.name, d.forms.roles, whole_rows=d.task.reads.whole_rows)
    if not _reads_tokens(d):
        return encoder, []
    tokenizer, found = _choose_tokenizer(d)
    return replace(encoder, tokenizer=tokenizer), found


def _reads_tokens(d: Draft) -> bool:
    return "input_ids" in d.task.fields_for(Encoder(d.task.name, d.forms.roles))


def plan_inputs(d: Draft) -> tuple[Encoder, list[Finding]]:
    """The Encoder with how each input of the task is read, as far as no row is needed for it."""
    encoder, found = d.encoder, list[Finding]()
    for each in d.task.reads.inputs:
        if each.plan is not None and each.role in encoder.roles:
            given = Planned(
                d.data.table,
                d.data.train,
                encoder,
                d.config,
                d.hints,
                d.source.image or {},
                d.source.audio,
            )
            read, notes = each.plan(given)
            encoder, found = replace(encoder, input=read), [*found, *notes]
    return encoder, found


def read_own_fields(d: Draft) -> tuple[Encoder, Findings]:
    """The Encoder with the Fields of a task that reads all columns."""
    if d.task.reads.own_fields is None:
        return d.encoder, ()
    own, found = d.task.reads.own_fields(d.data.table)
    return replace(d.encoder, extras=own), found


def read_missing(d: Draft) -> tuple[Encoder, list[Finding]]:
    """The Encoder with the markers of missing values."""
    roles, task = d.encoder.roles, d.task
    missing, found = find_missing(d.data.table, roles, task.reads.whole_rows, d.config.read)
    return d.encoder.with_settings(**missing), found


def settle_settings(d: Draft) -> tuple[Encoder, Findings]:
    """The Encoder with the longest row that it reads, and with its settings."""
    config, task, source, table = d.config, d.task, d.source, d.data.table
    limits = [config.max_seq_length, config.max_tokens]
    if config.max_seq_length is None and _reads_tokens(d):
        limits += [LONGEST_DEFAULT, source.max_positions]
    longest = min((limit for limit in limits if limit is not None), default=None)
    encoder = d.encoder.with_settings(
        overlong=overlong_policy(config.overlong, task, table),
        on_bad_file=config.on_bad_file,
        kept_where=d.kept_where,
        seed=config.seed,
        loss_on=config.loss_on,
        template=read_asked(config.template),
        label_separator=config.label_separator,
        blank_is_none=BLANK_LABELS.code in config.accept,
        step_labels=config.features.labels,
        max_categories=config.table.max_categories,
        tokens=KnownTokens(source.decoder_start, largest=_largest_id(table, d.encoder.roles)),
    )
    read = replace(encoder.input, layout=d.layout)
    return replace(encoder, max_length=longest, input=read), ()


def _largest_id(table: Table, roles: Mapping[str, str]) -> int | None:
    """The largest token id of labelled rows of ids: an untrained model is made to have it."""
    is_labelled = "input_ids" in roles and bool({"label", "tags"} & {*roles})
    held = row_shape(table, roles["input_ids"]).value_range if is_labelled else None
    return None if held is None else held[1]


def _choose_tokenizer(d: Draft) -> tuple[Any, list[Finding]]:
    """The tokenizer of a name, or one made from the training texts, as it is loaded when saved."""
    data, task, source, roles = d.data, d.task, d.source, d.forms.roles
    name = d.config.tokenizer or source.tokenizer
    reload = partial(load_again, model_type=source.model_type)
    if name is not None:
        trusted = d.request.code.allows_remote(name, d.config.trust_remote_code)
        tokenizer = load_tokenizer(name, trusted)
        if name != source.tokenizer or source.kind == "gguf":  # its files are not these
            tokenizer = reload(tokenizer)
        tokenizer = task.text.adapt_tokenizer(tokenizer, roles, reload)
        if tokenizer.pad_token_id is not None and tokenizer.pad_token == tokenizer.eos_token:
            message = f"The tokenizer has no pad token of its own; {tokenizer.pad_token!r} pads."
            return tokenizer, [PAD_IS_EOS.finding(message)]
        return tokenizer, []
    if "input_ids" in roles:
        return None, []
    if not source.makes_tokenizer:
        raise UsageError(
            f"{source.name} comes without a tokenizer, and this task reads text.",
            "Give one with --tokenizer.",
        )
    texts = collect_texts(data.table, data.train, roles.values())  # type: ignore[arg-type]
    tokenizer = reload(train_tokenizer(texts, TINY_VOCABULARY, task.text.special_tokens))
    return task.text.adapt_tokenizer(tokenizer, roles, reload), []


def _keep_limit(encoder: Encoder, task: TaskSpec) -> None:
    """Let the saved tokenizer truncate where rows are truncated, if they lose their end.

    The prompt of a causal model keeps its end, and its tokenizer the limit of the model.
    """
    head = task.head_for(encoder)
    if encoder.tokenizer is None or encoder.max_length is None or head is None:
        return
    if head.predicts != "next_token":
        encoder.tokenizer.model_max_length = encoder.max_length


def overlong_policy(asked: str | None, task: TaskSpec, table: Table) -> str:
    """What happens to rows over the limit: what was asked for, else the task's default."""
    if isinstance(table.live, Stream):
        if asked == "split":
            raise UsageError(
                "overlong is split, but the rows of a stream are not split into blocks.",
                "Set overlong to truncate, drop or error, or split the texts in the stream.",
            )
        return asked or "truncate"
    if asked == "split" and not task.text.splits_rows:
        able = ", ".join(name for name, other in TASKS.items() if other.text.splits_rows)
        raise UsageError(
            f"overlong is split, but {task.name} cannot split a row into blocks.",
            f"Set overlong to truncate, drop or error; tasks that can split rows: {able}.",
        )
    return asked or ("split" if task.text.splits_rows else "truncate")


def fit_encoder(d: Draft) -> tuple[Encoder, list[Finding]]:
    """The Encoder with what the task learns from the training rows."""
    encoder, task, source, found = d.encoder, d.task, d.source, list[Finding]()
    if task.fit is not None:
        encoder, found = _fit(task.fit, d.data.table, d.data.train, encoder)
        head, is_asked = task.head_for(encoder), d.config.max_seq_length is not None
        if head is not None and head.body is not None and (not is_asked or source.kind == "tiny"):
            limits = (encoder.max_length, num_positions(task, source, encoder))
            longest = min((limit for limit in limits if limit is not None), default=None)
            encoder = replace(encoder, max_length=longest)
    _keep_limit(encoder, task)
    return encoder, found


def num_positions(task: TaskSpec, source: ModelSource, encoder: Encoder) -> int | None:
    """How long rows may be for the model; an untrained body for features is made to fit them."""
    head = task.head_for(encoder)
    if not source.follows_rows or head is None or head.body is None:
        return source.max_positions
    longest, positions = feature_statistics(encoder).longest, source.max_positions
    if source.kind == "tiny":
        return room_for(longest)
    return None if positions is None else max(positions, longest)


def _fit(fit: Fit, table: Table, rows: Rows, encoder: Encoder) -> tuple[Encoder, list[Finding]]:
    """What the task learns from the training rows; a row it cannot read is named."""
    at = 0

    def read() -> Iterator[dict[str, Any]]:
        nonlocal at
        for number, row in zip(rows.tolist(), table.rows(rows), strict=True):  # type: ignore[arg-type]
            at = number
            yield encoder.read(row)

    try:
        with NamingOwnCode(fit):
            made = fit(read(), encoder)
        return made if isinstance(made, tuple) else (replace(encoder, own=made), [])
    except RowFaultError as fault:
        where = table.where(at if fault.place is None else int(rows[fault.place]))
        raise fault.rule.error(
            f"row {where['row']}: {fault.message}",
            where,
            fix=fault.fix,
            column=encoder.column_of(fault.column) if fault.column else None,
        ) from None


def encode_split(d: Draft) -> tuple[tuple[Store, Store], Sequence[Finding]]:
    """Training rows with their copies, and validation rows as they are, as columns on disk."""
    data, pipeline, progress = d.data, d.pipeline, d.progress
    training = Accepted(data.table, pipeline.encoder)
    copies = d.copies and replace(d.copies, held_out=data.held_out)
    train = pipeline.encode(training, data.train, copies, progress, "encoding training rows")
    accepted = training
    if data.validation_table.key != data.table.key:
        accepted = pipeline.accept(data.validation_table)
    validation = pipeline.encode(
        accepted, data.validation, progress=progress, stage="encoding validation rows"
    )
    return (train, validation), accepted.findings


def check_encoded(d: Draft) -> Iterator[Finding]:
    """Every row accounted for, and the encoded ones held against the model."""
    data, pipeline, ledger = d.data, d.pipeline, d.plan.ledger
    assert ledger is not None
    both = ((d.train, data.table), (d.validation, data.validation_table))
    sides = [
        (store, table, rows)
        for (store, table), rows in zip(both, (data.train, data.validation), strict=True)
    ]
    noted = [(table, store.notes, len(rows)) for store, table, rows in sides]
    remarks = remark_findings(noted, pipeline.encoder)
    yield from explain_loss(remarks, check_ledger(ledger, both, d.config.max_dropped_share))
    positions = num_positions(pipeline.task, d.source, pipeline.encoder)
    ids_known = True
    for store, table in both:
        for found in check_rows(store, table, pipeline.vocab_size, positions):
            ids_known &= found.code != TOKEN_OUT_OF_VOCABULARY.code
            yield found
    yield from check_lookups(pipeline, both)
    yield from check_stores(both, d.train.fields, pipeline.encoder)
    head = pipeline.task.head_for(pipeline.encoder)
    if head is not None and head.predicts == "next_token" and ids_known:
        trained = None if d.source.untrained else pipeline.module
        yield from check_causal_labels(sides, pipeline.encoder, trained)
