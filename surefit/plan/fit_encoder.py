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
from surefit.checks.row_checks import check_row_contents
from surefit.core.foreign import library_reads
from surefit.data.python.streams import Stream
from surefit.data.row_arrays import row_shape
from surefit.data.split import Rows
from surefit.data.table import Table
from surefit.data.written_values import find_missing
from surefit.errors import UsageError
from surefit.findings import Finding, note, rule
from surefit.inputs.encode_table import collect_texts
from surefit.inputs.encoded_row import NamingOwnCode, RowFaultError
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import KnownTokens, LabelReading
from surefit.inputs.row_input import Planned
from surefit.inputs.store import Store
from surefit.inputs.tally import remark_findings
from surefit.inputs.templates import read_asked
from surefit.inputs.tokenizer import load_again, load_tokenizer, train_tokenizer
from surefit.models.model_source import ModelSource
from surefit.models.transformers_models import room_for
from surefit.pipeline.accept import Accepted
from surefit.plan.draft import Draft, Findings
from surefit.plan.fit_in_memory import BatchBound, check_batch
from surefit.targets.embeddings import settle_embedding
from surefit.targets.pairs import settle_preference
from surefit.targets.task_spec import Fit, TaskSpec
from surefit.tasks import TASKS

PAD_IS_EOS = rule(
    "SF311",
    "fixed",
    "pad token is eos",
    why="The tokenizer has no pad token. Padding goes by length, so eos is still learned.",
    fix="Nothing to do.",
)

LONGEST_DEFAULT = 1024
TINY_VOCABULARY = 2048


def begin_encoder(d: Draft) -> tuple[Encoder, list[Finding]]:
    """Return the Encoder with its tokenizer, if the task reads tokens."""
    encoder = Encoder(d.task.name, d.forms.roles, whole_rows=d.task.reads.whole_rows)
    tokenizer, found = _choose_tokenizer(d) if _reads_tokens(d) else (None, [])
    if d.config.add_tokens:
        tokenizer, notes = _add_tokens(d, tokenizer)
        found = [*found, *notes]
    return replace(encoder, tokenizer=tokenizer), found


def _add_tokens(d: Draft, tokenizer: Any) -> tuple[Any, list[Finding]]:
    """Return the tokenizer with the tokens that the user adds, as it is loaded when saved."""
    from transformers import AddedToken

    if tokenizer is None:
        raise UsageError(
            f"add_tokens needs a tokenizer, and the rows of {d.task.name} are read without one.",
            "Leave add_tokens out.",
        )
    asked = d.config.add_tokens
    new = [text for text in asked if text not in tokenizer.get_vocab()]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in asked])
    known = f"; {', '.join(t for t in asked if t not in new)} were known" if new != [*asked] else ""
    tokenizer = load_again(tokenizer, d.source.model_type)
    return tokenizer, [note(f"The tokenizer has {len(new)} new tokens (add_tokens){known}.")]


def _reads_tokens(d: Draft) -> bool:
    return "input_ids" in d.task.fields_for(Encoder(d.task.name, d.forms.roles))


def plan_inputs(d: Draft) -> tuple[Encoder, list[Finding]]:
    """Return Encoder with how each input of the task is read, as far as no row is needed for it."""
    encoder, found, reads = d.encoder, list[Finding](), d.task.reads
    head = d.task.head_for(encoder)
    given = Planned(
        d.data.table,
        d.data.train,
        encoder,
        d.config,
        d.hints,
        d.source.image or {},
        d.source.audio,
        by_row=head is not None and head.body == "rows",
        step_labels=reads.step_labels,
    )
    is_named = d.config.task is not None or d.objects.task is not None
    if reads.inferred is not None and not is_named:
        found += reads.inferred(given)
    for each in reads.inputs:
        if each.plan is not None and each.role in encoder.roles:
            read, notes = each.plan(replace(given, encoder=encoder))
            encoder, found = replace(encoder, input=read), [*found, *notes]
    return encoder, found


def check_one_batch(d: Draft) -> None:
    """Refuse a batch of sequences that does not fit in memory, before any row is encoded."""
    config, table = d.config, d.data.table
    given = d.task.reads.input_of(d.encoder.roles)
    axes = None if given is None else given.axes(table, d.encoder)
    if axes is None or not isinstance(config.batch_size, int):  # else it is chosen to fit
        return
    limits = [config.max_seq_length, config.max_tokens]
    limits += [] if d.source.follows_rows else [d.source.max_positions]
    longest = min((limit for limit in limits if limit is not None), default=None)
    bound = BatchBound(min(config.batch_size, table.num_rows), longest, config.max_tokens)
    check_batch(bound, d.limit, *axes)


def read_own_fields(d: Draft) -> tuple[Encoder, Findings]:
    """Return the Encoder with the Fields of a task that reads all columns."""
    asked = {name: field.asked() for name, field in d.config.fields.items()}
    if d.task.reads.own_fields is None:
        if asked:
            raise UsageError(
                f"fields is set for {', '.join(asked)}; the task {d.task.name} makes its batches "
                "by its own Fields.",
                "Leave fields out, or use the task custom: pass a loss_fn and no task.",
            )
        return d.encoder, ()
    own, found = d.task.reads.own_fields(d.data.table, asked)
    if d.objects.collate_fn is not None:  # which gets the rows as they are, and pads them itself
        own, found = {name: replace(field, masked=False) for name, field in own.items()}, []
    return replace(d.encoder, extras=own), found


def read_missing(d: Draft) -> tuple[Encoder, list[Finding]]:
    """Return the Encoder with the markers of missing values."""
    roles, task = d.encoder.roles, d.task
    missing, found = find_missing(d.data.table, roles, task.reads.whole_rows, d.config.read)
    return d.encoder.with_settings(**missing), found


def settle_settings(d: Draft) -> tuple[Encoder, Findings]:
    """Return the Encoder with the longest row that it reads, and with its settings."""
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
        labels=LabelReading(
            config.label_separator,
            config.label_order,
            BLANK_LABELS.code in config.accept,
            config.features.labels,
        ),
        box_format=config.box_format,
        max_categories=config.table.max_categories,
        windows=d.windows,
        preference=settle_preference(config.preference, task, d.encoder.roles, table.live),
        embedding=settle_embedding(
            config.embedding, task, d.encoder.roles, source.name, config.batch_size
        ),
        tokens=KnownTokens(
            source.decoder_start,
            largest=_largest_id(table, d.encoder.roles),
            added=tuple(d.encoder.tokenizer.convert_tokens_to_ids([*config.add_tokens]))
            if config.add_tokens
            else (),
        ),
    )
    return replace(encoder, max_length=longest), ()


def _largest_id(table: Table, roles: Mapping[str, str]) -> int | None:
    """Return largest token id of labelled rows of ids: an untrained model is made to have it."""
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
        fix = "Download it again, or pass another one with --tokenizer."
        with library_reads(f"The tokenizer of {name} cannot be used", fix):
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
    """Return what happens to rows over the limit: what was asked for, else the task's default."""
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
    """Return the Encoder with what the task learns from the training rows."""
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
    longest, positions = encoder.input.statistics.longest, source.max_positions
    if source.kind == "tiny":
        return room_for(longest)
    return None if positions is None else max(positions, longest)


def _fit(fit: Fit, table: Table, rows: Rows, encoder: Encoder) -> tuple[Encoder, list[Finding]]:
    """Yield what the task learns from the training rows; a row it cannot read is named."""
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
    """Yield every row accounted for, and the encoded ones held against the model."""
    data, pipeline, ledger = d.data, d.pipeline, d.plan.ledger
    assert ledger is not None
    both = ((d.train, data.table), (d.validation, data.validation_table))
    sides = [
        (store, table, rows)
        for (store, table), rows in zip(both, (data.train, data.validation), strict=True)
    ]
    noted = [(table, store.notes, len(rows)) for store, table, rows in sides]
    remarks, dropping = remark_findings(noted, pipeline.encoder)
    lost = check_ledger(ledger, both, d.config.max_dropped_share)
    yield from explain_loss(remarks, dropping, lost)
    positions = num_positions(pipeline.task, d.source, pipeline.encoder)
    ids_known = True
    for store, table in both:
        for found in check_rows(store, table, pipeline.vocab_size, positions):
            ids_known &= found.code != TOKEN_OUT_OF_VOCABULARY.code
            yield found
    yield from check_lookups(pipeline, both)
    given = pipeline.task.reads.input_of(pipeline.encoder.roles)
    apart = d.config.split.draws_apart
    yield from check_row_contents(both, data.train, pipeline.encoder, given, apart)
    if pipeline.task.reads.check_rows is not None:
        yield from pipeline.task.reads.check_rows(d.train, data.table, pipeline.encoder)
    head = pipeline.task.head_for(pipeline.encoder)
    if head is not None and head.predicts == "next_token" and ids_known:
        trained = None if d.source.untrained else pipeline.module
        yield from check_causal_labels(sides, pipeline.encoder, trained)
