"""The Pipeline: everything between rows and batches, losses and predictions.

`pipeline/open_pipeline.py:build_pipeline` builds it, for a plan and for the folder of a run, and
every command uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from surefit.batches.collate import PADDED, Layout, is_masked
from surefit.batches.field import Field, lead_column
from surefit.batches.loading import Prepare, load_batch, to_batch
from surefit.batches.order import Batches
from surefit.data.python.torch_data import is_unnamed
from surefit.data.roles import get_role
from surefit.data.table import Table
from surefit.errors import UsageError
from surefit.inputs.augment.array_changes import FIELDS as MIXED_FIELDS
from surefit.inputs.encode_table import encode_rows
from surefit.inputs.encoded_row import EncodedRow
from surefit.inputs.encoder import Encoder
from surefit.inputs.row_encoder import RowEncoder
from surefit.inputs.store import Store
from surefit.models.call import Call, Names, OwnLoss
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

    def accept(self, table: Table) -> Accepted:
        """Check a table's columns, resolve its files, and read its features as the model does."""
        return accept(table, self.task, self.encoder)

    def encode_row(self, row: Mapping[str, Any]) -> tuple[EncodedRow, ...]:
        """One row of an accepted table; raises why it is dropped or cannot be encoded."""
        return self.row_encoder(row)

    def encode(
        self,
        accepted: Accepted,
        rows: Any,
        copies: AugmentedCopies | None = None,
        progress: Progress = silent,
        stage: str = "encoding rows",
    ) -> Store:
        """Rows of an accepted table as columns on disk."""
        encoder = replace(self, encoder=accepted.encoder).row_encoder
        return encode_rows(accepted.table, rows, encoder, copies, progress, stage)

    def batch(
        self,
        source: Store | EpochRows,
        rows: Any,
        epoch: int | None = None,
        device: Any = None,
    ) -> dict[str, Any]:
        """Rows of a Store as one batch of tensors, on the module's device by default.

        In an epoch of training, rows of a live Dataset are read anew; else they are as stored.
        """
        device = self.device if device is None else device
        if epoch is not None and self.live is not None:
            return live_batch(self, source, rows, epoch, device)
        prepare, epoch = self.prepare, epoch or 0
        return load_batch(
            source,
            rows,
            {**MIXED_FIELDS, **self.fields},
            self.collate_fn,
            device,
            prepare and (lambda row, number, copy: prepare(row, epoch, number, copy)),
            self.layout,
        )

    def collate(self, rows: Sequence[Mapping[str, Any]], layout: Layout = PADDED) -> dict[str, Any]:
        """Encoded rows as one batch of tensors on the module's device."""
        return to_batch(rows, self.fields, self.collate_fn, self.device, layout)

    def divisor(self, store: Store, rows: Any) -> float:
        """What the loss of these rows is divided by: their targets, or their class weights."""
        options = self.encoder.settings.loss
        if options.class_weights is None:
            return int(store.num_targets[rows].sum())
        return loss_divisor(options, store.joined("labels", rows))

    @property
    def counts_in_loss(self) -> bool:
        """Whether only the loss knows its count, as a user's `loss_fn` does: a sum of weights."""
        return isinstance(self.loss, OwnLoss)

    @property
    def counts_when_read(self) -> bool:
        """Whether what a step's loss is divided by is known once its rows are read anew."""
        labels = self.fields.get("labels")
        per_row = labels is None or not labels.rank or labels.numpy_dtype.kind == "f"
        weights = self.encoder.settings.loss.class_weights
        return self.live is not None and not (per_row and weights is None)

    def outputs(self, batch: Batch) -> Any:
        """What the module makes of a batch in training."""
        return self.call(self.module, batch)

    def predicted(self, batch: Batch) -> Any:
        """What the module makes of a batch without its targets: what metrics compare with them."""
        return self.call.predicting(self.module, batch)

    def evaluate(
        self,
        store: Store,
        settings: EvaluationSettings,
        group: Group = ALONE,
        progress: Progress = silent,
    ) -> Evaluation:
        """The task's metrics over the rows of a Store."""
        return evaluate(self, store, settings, group, progress)

    def predict(
        self, table: Table, batch_size: int = 16, max_new_tokens: int = 64
    ) -> Iterator[dict[str, Any]]:
        """One prediction per row, in the order of the rows."""
        return predict(self.for_prediction, table, batch_size, max_new_tokens)

    @property
    def row_encoder(self) -> RowEncoder:
        """How one row is encoded."""
        targets = not self.encoder.predicting
        count = self.task.count_targets
        return RowEncoder(self.task.encode, self.encoder, self.fields, count, targets)

    @cached_property
    def prepare(self) -> Prepare | None:
        """What is drawn anew for a row in each epoch; None where the task draws nothing."""
        return self.task.preparer(self.encoder, self.seed)

    @cached_property
    def on_meta(self) -> tuple[nn.Module, Call]:
        """A copy of the module on the meta device, and its Call; one serves all traces."""
        return meta_copy(self.module, self.call)

    @property
    def for_prediction(self) -> Pipeline:
        """The same, for rows without targets and without what only training reads or adds."""
        encoder = only_read(self.encoder.without(self.task.targets), self.call)
        call = replace(
            self.call.predicting, head=None, on_batch=None, auxiliary=None, varlen=Varlen()
        )
        return replace(self, encoder=encoder, call=call)

    def with_probabilities(self, which: str) -> Pipeline:
        """The same, predicting the probabilities of all classes."""
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
        """The device of the module's parameters; batches for a module on meta stay on the CPU."""
        parameter = next(self.module.parameters(), None)
        return "cpu" if parameter is None or parameter.is_meta else parameter.device

    @property
    def vocab_size(self) -> int | None:
        """Rows of the embedding that token ids are looked up in; None where there is none."""
        embedding = find_input_embedding(self.module) if "input_ids" in self.fields else None
        return int(embedding.weight.shape[0]) if embedding is not None else None


def only_read(encoder: Encoder, call: Call) -> Encoder:
    """The Encoder with those of its extra columns that the model's forward reads."""
    read = {*call.arguments.values()}
    return replace(encoder, extras={n: f for n, f in encoder.extras.items() if n in read})


def num_outputs(task: TaskSpec, encoder: Encoder) -> int | None:
    """The scores per row that a task needs of a model; None where it does not say."""
    head = task.head_for(encoder)
    return None if head is None or head.size is None else head.size(encoder)


def expect_scores(names: Names, task: TaskSpec, encoder: Encoder) -> Names:
    """The names, with the scores that the task needs of a model, and the output the user names.

    One score is enough for two classes that exclude each other.
    """
    count, single_logit = num_outputs(task, encoder), None
    head, exclusive = task.head_for(encoder), not is_multi_label(encoder)
    if head is not None and task.figures.class_scores is not None and exclusive and count == 2:
        rank = 2 + task.fields_for(encoder)["labels"].rank
        single_logit = SingleLogit(rank, 1 if head.per_pixel else -1)
    return replace(names, reads=OutputReader(encoder.settings.outputs, count, single_logit))


def known_names(encoder: Encoder, columns: Sequence[str], of_data: Sequence[str]) -> Names:
    """The names of a batch's columns in the data, and the inputs of rows that are tuples."""
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
    """The columns of a batch that is made by the Fields: a sequence has an attention mask."""
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
    """Whether a divided model is gathered as a whole, not block by block."""
    frozen_dtype: torch.dtype | None = None
    """What frozen matrices are cast to when training begins; None leaves them."""
    optimizer: OptimizerSettings = field(default_factory=lambda: OptimizerSettings(lr=1e-3))

    @property
    def on_meta(self) -> tuple[nn.Module, Call]:
        """The module on the meta device as it is trained, and its Call; for traces."""
        module, call = self.pipeline.on_meta
        lower_frozen(module, self.frozen_dtype)
        return module, call

    def batch(self, rows: Any, epoch: int = 0, device: Any = None) -> dict[str, Any]:
        """Training rows as one batch of tensors, augmented as in that epoch."""
        source = self.train if self.augment is None else self.augment.in_epoch(epoch)
        return self.pipeline.batch(source, rows, epoch, device)

    @property
    def num_evaluations(self) -> int:
        """How often the validation rows are evaluated."""
        if not len(self.validation):
            return 0
        return max(1, self.num_steps // self.eval_every) if self.eval_every else self.epochs
