"""The Pipeline: everything between rows and batches, losses and predictions.

`pipeline/open_pipeline.py:build_pipeline` builds it, for a plan and for the folder of a run, and
every command uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.collate import PADDED, Layout, is_masked
from surefit.batches.field import Field, lead_column
from surefit.batches.loading import Prepare, load_batch, to_batch
from surefit.batches.order import Batches
from surefit.data.python.live_rows import kept_randomness
from surefit.data.python.torch_data import is_unnamed
from surefit.data.roles import get_role
from surefit.data.table import Table
from surefit.errors import UsageError
from surefit.inputs.augment.array_augment import MIXED_FIELDS
from surefit.inputs.encode_table import encode_rows
from surefit.inputs.encoded_row import EncodedRow
from surefit.inputs.encoder import Encoder
from surefit.inputs.row_encoder import RowEncoder
from surefit.inputs.store import Store
from surefit.models.call import Call, Names, with_module_loss
from surefit.models.embedding_noise import COLUMN, row_noise
from surefit.models.lora import lower_frozen
from surefit.models.module_outputs import OutputReader, SingleLogit
from surefit.models.optimizer import OptimizerSettings
from surefit.models.sharding import meta_copy
from surefit.pipeline.accept import Accepted, accept
from surefit.pipeline.evaluation import ALONE, Evaluation, EvaluationSettings, Group, evaluate
from surefit.pipeline.live_batch import ReadAnew, StreamWindows, live_batch
from surefit.pipeline.prediction import predict
from surefit.pipeline.row_groups import ANY_LENGTHS, RowGroups
from surefit.progress import Progress, silent
from surefit.speed.sparse_head import find_input_embedding
from surefit.speed.varlen_attention import Varlen
from surefit.targets.class_loss import loss_divisor
from surefit.targets.classes import is_multi_label
from surefit.targets.own_loss import OwnLoss
from surefit.targets.task_spec import Batch, Loss, TaskSpec

if TYPE_CHECKING:
    import torch
    from torch import nn

    from surefit.inputs.augment.array_augment import ArrayAugment, EpochRows
    from surefit.inputs.augment.augmented_copies import AugmentedCopies


@dataclass(frozen=True)
class Pipeline:
    """What turns rows into batches, losses and predictions.

    `call` gives a batch to the module's forward, `loss` gives a sum over targets and their count,
    `layout` is padded or padding-free. Without a user's `collate_fn`, the Fields decide how a batch
    is collated.
    """

    task: TaskSpec
    encoder: Encoder
    module: nn.Module
    call: Call
    loss: Loss
    fields: Mapping[str, Field]
    layout: Layout = PADDED
    collate_fn: Callable[..., Any] | None = None
    seed: int = 0
    row_groups: RowGroups = ANY_LENGTHS
    live: ReadAnew | StreamWindows | None = None
    """How training rows are read in each epoch, where no Store has them."""
    predict_fn: Callable[..., Any] | None = None
    """The user's own `predict_fn(outputs, batch)`, in place of the task's."""

    def accept(self, table: Table) -> Accepted:
        """Check a table's columns, resolve its files, and read its features as the model does."""
        return accept(table, self.task, self.encoder)

    def encode_row(self, row: Mapping[str, Any]) -> tuple[EncodedRow, ...]:
        """Return one row of an accepted table; raises why it is dropped or cannot be encoded."""
        return self.row_encoder(row)

    def encode(
        self,
        accepted: Accepted,
        rows: Any,
        copies: AugmentedCopies | None = None,
        progress: Progress = silent,
        stage: str = "encoding rows",
    ) -> Store:
        """Return rows of an accepted table as columns on disk."""
        encoder = replace(self, encoder=accepted.encoder).row_encoder
        store = encode_rows(accepted.table, rows, encoder, copies, progress, stage)
        link = self.task.reads.link
        return store if link is None else link(store, accepted.encoder)

    def batch(
        self,
        source: Store | EpochRows,
        rows: Any,
        epoch: int | None = None,
        device: Any = None,
    ) -> dict[str, Any]:
        """Return rows of a Store as one batch of tensors, on the module's device by default.

        In an epoch of training, rows of a live Dataset are read anew; else they are as stored.
        """
        device = self.device if device is None else device
        if epoch is not None and self.live is not None:
            return live_batch(self, source, rows, epoch, device)
        prepare, epoch = self.prepare, epoch or 0
        with self._keyed_randomness(epoch, rows):
            return load_batch(
                source,
                rows,
                {**MIXED_FIELDS, **self.fields},
                self.collate_fn,
                device,
                prepare and (lambda row, number, copy: prepare(row, epoch, number, copy)),
                self.layout,
            )

    def _keyed_randomness(self, epoch: int, rows: Any) -> AbstractContextManager[None]:
        """Let what a user's `collate_fn` draws depend on seed, epoch and rows, in any process."""
        if self.collate_fn is None:
            return nullcontext()
        drawn = np.random.SeedSequence([self.encoder.settings.seed, epoch, *map(int, rows)])
        return kept_randomness(int(drawn.generate_state(1)[0]))

    def collate(self, rows: Sequence[Mapping[str, Any]], layout: Layout = PADDED) -> dict[str, Any]:
        """Return encoded rows as one batch of tensors on the module's device."""
        return to_batch(rows, self.fields, self.collate_fn, self.device, layout)

    def divisor(self, store: Store, rows: Any) -> float:
        """Return what divides the loss of these rows."""
        counted = int(store.num_targets[rows].sum())
        return self.divisor_of(counted, lambda: store.joined("labels", rows))

    def divisor_of(self, num_targets: int, labels: Callable[[], Any]) -> float:
        """Return what divides a loss: its targets, or the weights of the classes in its labels."""
        options = self.encoder.settings.loss
        return num_targets if options.class_weights is None else loss_divisor(options, labels())

    @property
    def counts_in_loss(self) -> bool:
        """Return whether only the loss knows its count, as a user's `loss_fn`: a sum of weights."""
        return isinstance(self.loss, OwnLoss)

    @property
    def counts_when_read(self) -> bool:
        """Return whether the divisor of a step's loss is known only once its rows are read anew."""
        labels = self.fields.get("labels")
        per_row = labels is None or not labels.rank or labels.numpy_dtype.kind == "f"
        weights = self.encoder.settings.loss.class_weights
        return self.live is not None and not (per_row and weights is None)

    def outputs(self, batch: Batch) -> Any:
        """Return what the module makes of a batch in training."""
        return self.call(self.module, batch)

    @property
    def by_sequence(self) -> Pipeline:
        """The same, with a loss that has no term for two sequences together."""
        loss = self.loss if self.task.figures.loss_by is None else with_module_loss(self.task.loss)
        return replace(self, loss=loss)

    def predicted(self, batch: Batch) -> Any:
        """Return what the module makes of a batch without its targets, for metrics."""
        return self.call.predicting(self.module, batch)

    def evaluate(
        self,
        store: Store,
        settings: EvaluationSettings,
        group: Group = ALONE,
        progress: Progress = silent,
    ) -> Evaluation:
        """Return the task's metrics over the rows of a Store."""
        return evaluate(self, store, settings, group, progress)

    def evaluate_all(
        self,
        store: Store,
        named: Mapping[str, Store],
        settings: EvaluationSettings,
        group: Group = ALONE,
        progress: Progress = silent,
    ) -> Evaluation:
        """Return the metrics of a validation set; those of named sets follow with their names."""
        result = self.evaluate(store, settings, group, progress)
        metrics = dict(result.metrics)
        for name, other in named.items():
            known = other is store
            each = result if known else self.evaluate(other, settings, group, progress)
            metrics |= {f"{name}_{metric}": value for metric, value in each.metrics.items()}
        return replace(result, metrics=metrics)

    def predict(
        self, table: Table, batch_size: int = 16, max_new_tokens: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Return one prediction per row, in the order of the rows."""
        return predict(self.for_prediction, table, batch_size, max_new_tokens)

    @property
    def row_encoder(self) -> RowEncoder:
        """Return the encoder of single rows."""
        targets = not self.encoder.predicting
        count = self.task.count_targets
        return RowEncoder(self.task.encode, self.encoder, self.fields, count, targets)

    @cached_property
    def prepare(self) -> Prepare | None:
        """Return what is drawn anew for a row in each epoch; None where the task draws nothing."""
        return self.task.preparer(self.encoder, self.seed)

    @cached_property
    def on_meta(self) -> tuple[nn.Module, Call]:
        """Return a copy of the module on the meta device, and its Call; one serves all traces."""
        return meta_copy(self.module, self.call)

    @property
    def for_prediction(self) -> Pipeline:
        """Return the same for rows without targets, without what only training reads or adds."""
        encoder = self.task.for_prediction(self.encoder)
        if self.collate_fn is None:  # else only that knows which columns it reads
            encoder = only_read(encoder, self.call)
        call = replace(
            self.call.predicting, head=None, on_batch=None, auxiliary=None, varlen=Varlen()
        )
        return replace(self, encoder=encoder, call=call)

    def with_system(self, text: str | None) -> Pipeline:
        """Return the same, with a system prompt for the dialogues that it reads."""
        return replace(self, encoder=self.encoder.with_settings(system=text)) if text else self

    def with_probabilities(self, which: str) -> Pipeline:
        """Return the same, predicting the probabilities of all classes."""
        if which != "all":
            raise UsageError(f"probabilities is {which!r}.", "Write all, or leave it out.")
        if self.task.figures.class_scores is None:
            raise UsageError(
                f"{self.task.name} predicts no classes, so it has no probabilities of them.",
                "Leave probabilities out.",
            )
        return replace(self, encoder=self.encoder.with_settings(all_probabilities=True))

    @property
    def device(self) -> Any:
        """Return the device of the parameters; batches for a module on meta stay on the CPU."""
        parameter = next(self.module.parameters(), None)
        return "cpu" if parameter is None or parameter.is_meta else parameter.device

    @property
    def vocab_size(self) -> int | None:
        """Return the number of rows of the embedding of token ids; None where there is none."""
        embedding = find_input_embedding(self.module) if "input_ids" in self.fields else None
        return int(embedding.weight.shape[0]) if embedding is not None else None


def only_read(encoder: Encoder, call: Call) -> Encoder:
    """Return the Encoder with those of its extra columns that the model's forward reads."""
    read = {*call.arguments.values()}
    return replace(encoder, extras={n: f for n, f in encoder.extras.items() if n in read})


def num_outputs(task: TaskSpec, encoder: Encoder) -> int | None:
    """Return the scores per row that a task needs of a model; None where it does not say."""
    head = task.head_for(encoder)
    return None if head is None or head.size is None else head.size(encoder)


def expect_scores(names: Names, task: TaskSpec, encoder: Encoder) -> Names:
    """Return the names, with the scores that the task needs of a model, and the output the user
    names.

    One score is enough for two classes that exclude each other.
    """
    count, single_logit = num_outputs(task, encoder), None
    head, exclusive = task.head_for(encoder), not is_multi_label(encoder)
    is_pair = exclusive and count == len(encoder.classes) == 2
    if head is not None and task.figures.class_scores is not None and is_pair:
        rank = 2 + task.fields_for(encoder)["labels"].rank
        single_logit = SingleLogit(rank, 1 if head.per_pixel else -1)
    usual = None if head is None else head.output
    reads = OutputReader(encoder.settings.outputs, usual, count, single_logit)
    return replace(names, reads=reads, by_lists=head is not None and head.lists_of_images)


def known_names(encoder: Encoder, columns: Sequence[str], of_data: Sequence[str]) -> Names:
    """Return the names of a batch's columns in the data, and the inputs of rows that are tuples."""
    other: dict[str, str] = {}
    for role, column in encoder.roles.items():
        names = (get_role(role).batch_column, "input_ids" if role == "text" else role)
        made = next((name for name in names if name in columns and name != "labels"), None)
        if made is not None:
            other |= {column: made, role: made}
    inputs = [other.get(name, name) for name in of_data if name in other or is_unnamed(name)]
    if any(map(is_unnamed, inputs)):
        return Names(other, inputs)
    lead = next(iter(columns), "")
    return Names(other, (lead, *encoder.further) if encoder.further else ())


def batch_columns(fields: Mapping[str, Field]) -> list[str]:
    """Return the columns of a batch that the Fields make: a sequence has an attention mask."""
    columns = list(fields)
    lead = lead_column(columns)
    if lead is not None and is_masked(fields[lead]) and "attention_mask" not in columns:
        columns.append("attention_mask")
    return columns


@dataclass(frozen=True)
class Job:
    """What is trained on what: all that memory, time and the loop depend on."""

    pipeline: Pipeline
    train: Store
    validation: Store
    batches: Batches
    num_steps: int
    epochs: int = 1
    eval_every: int | None = None
    generates: tuple[int, int] | None = None
    """Rows and new tokens that each evaluation generates."""
    autocast_dtype: torch.dtype | None = None
    """The lower precision of mixed precision; None for float32."""
    kept_bytes: int = 0
    """Memory of the predictions that the user's own metrics keep in an evaluation."""
    augment: ArrayAugment | None = None
    """How training rows are changed in each epoch; evaluations and probes have them as they are."""

    parallel: str = "ddp"
    """How several processes share the model: each has the whole, or a shard (fsdp)."""
    gathers_whole: bool = False
    """Whether a sharded model is gathered as a whole, not block by block."""
    frozen_dtype: torch.dtype | None = None
    """What frozen matrices are cast to when training begins; None leaves them."""
    optimizer: OptimizerSettings = field(default_factory=lambda: OptimizerSettings(lr=1e-3))
    named: Mapping[str, Store] = field(default_factory=dict)
    """The validation sets that have names; the first one is `validation`."""
    neftune: float | None = None
    """Strength of the noise on the embeddings of training rows."""

    @property
    def on_meta(self) -> tuple[nn.Module, Call]:
        """Return the module on the meta device as it is trained, and its Call; for traces."""
        module, call = self.pipeline.on_meta
        lower_frozen(module, self.frozen_dtype)
        return module, call

    def batch(self, rows: Any, epoch: int = 0, device: Any = None) -> dict[str, Any]:
        """Return training rows as one batch of tensors, augmented as in that epoch."""
        source = self.train if self.augment is None else self.augment.in_epoch(epoch)
        batch = self.pipeline.batch(source, rows, epoch, device)
        if self.neftune is None:
            return batch
        noise = row_noise(self.neftune, self.pipeline.seed, epoch, self.train, rows)
        return {**batch, COLUMN: noise}

    def evaluate(
        self, settings: EvaluationSettings, group: Group = ALONE, progress: Progress = silent
    ) -> Evaluation:
        """Return the metrics of the validation set and of the named ones."""
        return self.pipeline.evaluate_all(self.validation, self.named, settings, group, progress)

    @property
    def num_evaluations(self) -> int:
        """Return how often the validation rows are evaluated."""
        if not len(self.validation):
            return 0
        return max(1, self.num_steps // self.eval_every) if self.eval_every else self.epochs
