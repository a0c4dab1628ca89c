"""RunConfig to Plan, stage by stage along the way of the data. `check` stops here."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.field import SEQUENCES, Field
from surefit.batches.loading import load_batch
from surefit.batches.order import Batches
from surefit.config import RunConfig
from surefit.data.cache import fingerprint
from surefit.data.encode import Progress, RowFaultError, collect_texts, encode_rows, silent
from surefit.data.encoder import Encoder
from surefit.data.images import with_files
from surefit.data.open import open_table
from surefit.data.roles import extra_fields
from surefit.data.split import NO_CONTENT, Rows, Split, hash_rows, split_rows
from surefit.data.store import Store
from surefit.data.table import Table, describe_type
from surefit.data.tokenizer import load_tokenizer, train_tokenizer
from surefit.errors import FindingError, UsageError
from surefit.findings import Finding, fail, finding, has_errors
from surefit.models.call import Call, from_loss_fn, match_arguments, with_own_loss
from surefit.models.open import open_model
from surefit.models.sizes import room_for
from surefit.models.source import ModelSource
from surefit.plan import Given, Parts, Plan
from surefit.preflight.checks import (
    check_batch_norm,
    check_ledger,
    check_optimizer,
    check_rows,
    check_trainable,
)
from surefit.preflight.ledger import Ledger, make_ledger
from surefit.preflight.machine import check_machine
from surefit.preflight.probe import probe
from surefit.processes import main_first, num_processes
from surefit.tasks.choose import choose_task
from surefit.tasks.find import find_task
from surefit.tasks.spec import Fit, Loss, TaskSpec

if TYPE_CHECKING:
    from torch import nn

LONGEST_DEFAULT = 1024
TINY_VOCABULARY = 2048


def make_plan(config: RunConfig, given: Given | None = None, progress: Progress = silent) -> Plan:
    """Open the data, choose task and columns, fit, encode, build the model, check it all."""
    check_machine(config.precision, config.trackers)
    draft = _Draft(config, given or Given(), progress)
    try:
        with main_first():
            return draft.finish()
    except FindingError as error:
        return replace(draft.plan(), findings=(*draft.findings, *error.findings))


class _Draft:
    """A plan in the making; each method is one stage of the way of the data."""

    def __init__(self, config: RunConfig, given: Given, progress: Progress) -> None:
        self.config = config
        self.given = given
        self.progress = progress
        self.findings: list[Finding] = []
        self.task: TaskSpec | None = given.task
        self.roles: dict[str, str] = {}
        self.ledger: Ledger | None = None
        self.data_key = ""

    def plan(self, parts: Parts | None = None) -> Plan:
        return Plan(
            self.config,
            self.task,
            tuple(self.findings),
            self.roles,
            self.ledger,
            parts,
            self.given,
            self.data_key,
        )

    def finish(self) -> Plan:
        config, given = self.config, self.given
        wanted: TaskSpec | tuple[TaskSpec, ...] | None = given.task
        if wanted is None and config.task is not None:
            wanted = find_task(config.task, given.beside)
        if given.data is None and not config.data:
            raise UsageError("No data was given.", "Pass --data with a file or folder.")
        data = given.data if given.data is not None else list(config.data)
        table = open_table(data, config.read).without(config.ignore)
        self.findings += table.findings
        source = open_model(
            given.model if given.model is not None else config.model,
            from_scratch=config.from_scratch,
            trust_remote_code=config.trust_remote_code,
            beside=given.beside,
        )
        self.task, self.roles = choose_task(table, wanted, config.columns, source.auto_classes)
        check_metric(config.early_stopping.metric, self.task)
        split, eval_table = self._split(table)
        eval_table = with_files(eval_table, self.roles)
        table = with_files(table, self.roles)
        encoder = self._encoder(table, split, source)
        module, call, encoder, fields = self._model(source, encoder, table)
        train = self._encode("encoding training rows", table, split.train, encoder, fields)
        evaluation = self._encode(
            "encoding evaluation rows", eval_table, split.evaluation, encoder, fields
        )
        self.ledger = make_ledger(train, evaluation)
        sides = ((train, table), (evaluation, eval_table))
        self.findings += check_ledger(self.ledger, sides, config.max_dropped_share)
        vocab_size = _vocab_size(module) if "input_ids" in fields else None
        for store, opened in sides:
            positions = self._positions(source, encoder)
            self.findings += check_rows(store, opened, vocab_size, positions)
        self.data_key = fingerprint(train.key, evaluation.key)
        if has_errors(self.findings):
            return self.plan()
        return self._with_batches(source, module, call, encoder, fields, train, evaluation)

    def _split(self, table: Table) -> tuple[Split, Table]:
        config = self.config
        columns = list(table.columns) if self._task.whole_rows else list(self.roles.values())
        hashes = hash_rows(table, columns)
        has_eval = self.given.eval_data is not None or config.eval_data
        if not has_eval:
            split = split_rows(hashes, config.eval_share, config.seed)
            if split.num_duplicates:
                message = f"{split.num_duplicates} of {table.num_rows} rows repeat another row."
                self.findings.append(finding("SF214", message))
            return split, table
        given = self.given.eval_data
        data = given if given is not None else list(config.eval_data)
        eval_table = open_table(data, config.read)
        self.findings += eval_table.findings
        missing = next((c for c in columns if c not in eval_table.columns), None)
        if missing is not None:
            file = eval_table.sources[0].file
            raise fail(
                "SF202",
                f"{file} has no column {missing!r}; it has {', '.join(eval_table.columns)}.",
                file=file,
                column=missing,
            )
        eval_hashes = hash_rows(eval_table, columns)
        shared = np.isin(eval_hashes, hashes) & (eval_hashes != NO_CONTENT)
        if shared.any():
            where = eval_table.where(int(np.argmax(shared)))
            message = (
                f"{int(shared.sum())} of {eval_table.num_rows} evaluation rows are also training "
                f"rows, row {where['row']} first."
            )
            self.findings.append(
                finding(
                    "SF210",
                    message,
                    where,
                )
            )
        rows = np.arange(table.num_rows), np.arange(eval_table.num_rows)
        return Split(rows[0], rows[1], 0), eval_table

    def _encoder(self, table: Table, split: Split, source: ModelSource) -> Encoder:
        config, task = self.config, self._task
        encoder = Encoder(
            task.name,
            self.roles,
            tokenizer=self._tokenizer(table, split, source) if self._reads_tokens else None,
            whole_rows=task.whole_rows,
            max_length=self._max_length(source),
            settings={
                "overlong": config.overlong,
                "loss_on": config.loss_on,
                "decoder_start": source.decoder_start,
                "features.steps": config.features.steps,
                "features.width": config.features.width,
                "seed": config.seed,
                "image.size": config.image.size,
                "image.model": source.image,
                "on_bad_file": config.on_bad_file,
            },
        )
        if task.fit is None:
            return encoder
        fitted = dict(self._fit(task.fit, table, split.train, encoder))
        self.findings += fitted.pop("findings", ())
        encoder = replace(encoder, fitted=fitted)
        return replace(encoder, max_length=self._length_for_model(source, encoder))

    def _length_for_model(self, source: ModelSource, encoder: Encoder) -> int | None:
        """The limit of rows of features, once it is known how long they are."""
        head, asked = self._task.head, self.config.max_seq_length
        if head is None or head.body is None or (asked is not None and source.kind != "tiny"):
            return encoder.max_length
        limits = (encoder.max_length, self._positions(source, encoder))
        return min((limit for limit in limits if limit is not None), default=None)

    def _positions(self, source: ModelSource, encoder: Encoder) -> int | None:
        """How long rows may be for the model; a small body for features is made to fit them."""
        head = self._task.head
        made_to_fit = source.kind == "tiny" and head is not None and head.body is not None
        return room_for(encoder.fitted["longest"]) if made_to_fit else source.max_positions

    def _fit(self, fit: Fit, table: Table, rows: Rows, encoder: Encoder) -> Mapping[str, Any]:
        """What the task learns from the training rows; a row it cannot read is named."""
        at = 0

        def read() -> Iterator[dict[str, Any]]:
            nonlocal at
            for number, row in zip(rows.tolist(), table.rows(rows), strict=True):  # type: ignore[arg-type]
                at = number
                yield encoder.read(row)

        try:
            return fit(read(), encoder)
        except RowFaultError as fault:
            where = table.where(at)
            raise fail(
                fault.code,
                f"row {where['row']}: {fault.message}",
                where,
                fix=fault.fix,
                column=encoder.column_of(fault.column) if fault.column else None,
            ) from None

    @property
    def _task(self) -> TaskSpec:
        assert self.task is not None
        return self.task

    @property
    def _reads_tokens(self) -> bool:
        """Whether the task's rows become token ids."""
        return "input_ids" in self._task.fields_for(Encoder(self._task.name, self.roles))

    def _tokenizer(self, table: Table, split: Split, source: ModelSource) -> Any:
        config = self.config
        name = config.tokenizer or source.tokenizer
        if name is not None:
            tokenizer = load_tokenizer(name, config.trust_remote_code)
            if tokenizer.pad_token_id is not None and tokenizer.pad_token == tokenizer.eos_token:
                message = (
                    f"The tokenizer has no pad token of its own; {tokenizer.pad_token!r} pads."
                )
                self.findings.append(finding("SF311", message))
            return tokenizer
        if "input_ids" in self.roles:
            return None
        if not source.makes_tokenizer:
            raise UsageError(
                f"{source.name} comes without a tokenizer, and this task reads text.",
                "Give one with --tokenizer.",
            )
        texts = collect_texts(table, split.train, self.roles.values())  # type: ignore[arg-type]
        return train_tokenizer(texts, TINY_VOCABULARY, self._task.special_tokens)

    def _max_length(self, source: ModelSource) -> int | None:
        config = self.config
        limits = [config.max_seq_length, config.max_tokens]
        if config.max_seq_length is None and self._reads_tokens:
            limits += [LONGEST_DEFAULT, source.max_positions]
        known = [limit for limit in limits if limit is not None]
        return min(known) if known else None

    def _model(
        self, source: ModelSource, encoder: Encoder, table: Table
    ) -> tuple[nn.Module, Call, Encoder, dict[str, Field]]:
        import torch

        self.progress("building the model", 0, 1)
        torch.manual_seed(self.config.seed)
        built = source.build(self._task.head, encoder)
        self.progress("building the model", 1, 1)
        self.findings += built.findings
        columns = list(self._task.fields_for(encoder))
        if any(name in columns for name in SEQUENCES) and "attention_mask" not in columns:
            columns.append("attention_mask")
        extras = extra_fields(table, {*columns, *self.roles.values()})
        if self.given.collate_fn is None:
            call, found = match_arguments(built.module, [*columns, *extras])
            self.findings += found
        else:  # what forward is given is known when the first batch was made
            call = Call({name: name for name in inspect.signature(built.module.forward).parameters})
        used = {name: extras[name] for name in extras if name in call.arguments.values()}
        encoder = replace(encoder, extras=used)
        self._note_casts(table)
        return built.module, call, encoder, self._task.fields_for(encoder)

    def _note_casts(self, table: Table) -> None:
        column = self.roles.get("features")
        if column is None:
            return
        kind = table.column_type(column)
        shown = describe_type(kind)
        if not shown.startswith("float "):
            message = f"column {column!r} is {shown}; it is read as float32."
            self.findings.append(finding("SF209", message, column=column))

    def _encode(
        self, stage: str, table: Table, rows: Any, encoder: Encoder, fields: Mapping[str, Field]
    ) -> Store:
        return encode_rows(
            table,
            rows,
            encode=self._task.encode,
            fields=fields,
            count_targets=self._task.count_targets,
            encoder=encoder,
            progress=self.progress,
            stage=stage,
        )

    def _with_batches(
        self,
        source: ModelSource,
        module: nn.Module,
        call: Call,
        encoder: Encoder,
        fields: Mapping[str, Field],
        train: Store,
        evaluation: Store,
    ) -> Plan:
        config = self.config
        batches = Batches(
            train.lengths,
            config.seed,
            config.batch_size,
            config.grad_accum,
            num_processes(),
            config.max_tokens,
        )
        if self.given.collate_fn is not None:
            call = self._match_collated(module, train, fields)
        self.findings += check_batch_norm(module, batches, config.epochs)
        self.findings += check_trainable(module)
        check_optimizer(module, self.given.optimizer)
        if has_errors(self.findings):
            return self.plan()
        loss = self._loss()
        self.findings += self._probe(module, call, train, fields, encoder, loss)
        num_steps = sum(batches.num_steps(epoch) for epoch in range(config.epochs))
        if config.max_steps is not None:
            num_steps = min(num_steps, config.max_steps)
        lr = config.lr or (1e-3 if source.untrained or source.kind == "object" else 2e-5)
        return self.plan(
            Parts(
                source,
                module,
                call,
                loss,
                encoder,
                train,
                evaluation,
                batches,
                fields,
                num_steps,
                lr,
            )
        )

    def _match_collated(self, module: nn.Module, train: Store, fields: Mapping[str, Field]) -> Call:
        """What forward is given of a batch that the user's own collate_fn makes."""
        collate_fn = self.given.collate_fn
        name = getattr(collate_fn, "__name__", type(collate_fn).__name__)
        try:
            batch = load_batch(train, np.arange(min(2, len(train))), fields, collate_fn)
        except Exception as error:
            columns = ", ".join(train.row(0))
            raise fail(
                "SF120",
                f"collate_fn ({name}) raised {type(error).__name__}: {error}"[:300],
                fix=f"Let it take a list of dicts of tensors ({columns}) and return a dict.",
            ) from error
        call, found = match_arguments(module, list(batch))
        message = f"{name} makes the batches; it gives {', '.join(batch)}."
        self.findings += [*found, finding("SF123", message)]
        return call

    def _loss(self) -> Loss:
        if self.given.loss_fn is not None:
            return from_loss_fn(self.given.loss_fn)
        return with_own_loss(self._task.loss)

    def _probe(
        self,
        module: nn.Module,
        call: Call,
        train: Store,
        fields: Mapping[str, Field],
        encoder: Encoder,
        loss: Loss,
    ) -> list[Finding]:
        """The longest and the shortest training row go through the model together."""
        rows = np.unique([int(train.lengths.argmax()), int(train.lengths.argmin())])
        prepare = self._task.preparer(encoder, self.config.seed)
        batch = load_batch(train, rows, fields, self.given.collate_fn, prepare=prepare)
        head = self._task.head
        outputs = None
        if head is not None and head.size is not None and head.body != "steps":
            outputs = head.size(encoder)
        return probe(module, call, batch, loss, int(train.num_targets[rows].sum()), outputs)


def check_metric(metric: str | None, task: TaskSpec) -> None:
    """Refuse a metric to watch that the task does not have, or that is no single number."""
    if metric is not None and metric not in task.watchable_metrics:
        raise UsageError(
            f"early_stopping.metric is {metric!r}, which {task.name} cannot watch.",
            f"Choose one of: {', '.join(task.watchable_metrics)}.",
        )


def _vocab_size(module: nn.Module) -> int | None:
    embeddings = getattr(module, "get_input_embeddings", None)
    if embeddings is None:
        return None
    weight = getattr(embeddings(), "weight", None)
    return int(weight.shape[0]) if weight is not None else None
