"""TaskSpec: all that makes one task, in one value. The loop knows nothing else about a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from surefit.batches.collate import Predicts, pad_token_id
from surefit.batches.field import Field
from surefit.batches.loading import Prepare
from surefit.data.cell_files import FILE_ROLES
from surefit.data.roles import Role, get_role
from surefit.data.row_parts import Divide
from surefit.data.several_columns import base_role
from surefit.data.table import Table
from surefit.findings import Finding
from surefit.inputs.encoded_row import EncodeRow
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import PLAIN
from surefit.inputs.row_encoder import count_labelled
from surefit.inputs.row_input import Planned, RowInput
from surefit.inputs.store import Store
from surefit.inputs.tokenizer import Reload
from surefit.targets.class_loss import ClassScores, class_loss
from surefit.targets.generation import Generate

if TYPE_CHECKING:
    import torch

    from surefit.targets.metrics.own_metric import OwnMetric

Batch = Mapping[str, Any]
Loss = Callable[[Any, Batch], "tuple[torch.Tensor, Any]"]
SumAndCount = Callable[[Any, Batch], "tuple[Any, Any]"]
MeasureBaselines = Callable[[Store | None, Store, Encoder], dict[str, dict[str, Any]]]
JudgeRows = Callable[[npt.NDArray[Any], Store, Encoder], dict[str, float]]
Fit = Callable[
    [Iterable[Mapping[str, Any]], Encoder], "tuple[Encoder, list[Finding]] | Mapping[str, Any]"
]
Misread = Callable[[Table, Mapping[str, str], Mapping[str, str]], Iterable[Finding]]
PredictedValues = Callable[[Any, Batch, Encoder], "tuple[torch.Tensor, torch.Tensor]"]
Better = Literal["higher", "lower"]
AdaptTokenizer = Callable[[Any, Mapping[str, str], Reload], Any]
OwnFields = Callable[
    [Table, Mapping[str, Mapping[str, Any]]], tuple[dict[str, Field], list[Finding]]
]
PrepareRow = Callable[[Mapping[str, Any], Encoder, np.random.Generator], Mapping[str, Any]]


@dataclass(frozen=True)
class Metric:
    """Sums over batches, and how the sums become a figure.

    Only the sums are held between batches and added up over processes, so a metric takes the
    same memory for ten rows and for ten million.
    """

    sums: Callable[..., Mapping[str, Any]]
    figure: Callable[[Mapping[str, Any]], Any]
    is_number: bool = True
    """Whether the figure is one number, by which a step can be called better than another."""
    beside: Callable[..., Mapping[str, Any]] | None = None
    """Further figures of the same sums, by the end of their names: `bin_error` of `roc_auc` is
    reported as `roc_auc_bin_error`."""
    better: Better | None = None
    """Which is better; None: as `better_of` knows it by the name."""
    uses_encoder: bool = False
    """Whether `sums` and `beside` take the Encoder as well, for names or units that were fitted."""


Body = Literal["rows", "steps", "step_classes"]


@dataclass(frozen=True)
class Head:
    """The output a model needs for the task.

    `auto_class` is the transformers class that has it; `size` the number of outputs, from what
    was fitted; `config` further settings of the model's config.

    Features have no such class: with `body`, a transformers model is used without a head, behind
    a projection. `rows` and `step_classes` give (B, size) and (B, T, size); `steps` gives steps as
    the features have them. The Encoder then has their FeatureStatistics.

    `unit` is what the outputs stand for, in messages. With `per_pixel`, they are (B, size, H, W).

    `predicts` is the position that predicts each token's label, so that nothing is computed at
    positions without one (see `speed/sparse_head.py`); left out, the head runs everywhere.
    """

    auto_class: str | None = None
    size: Callable[[Encoder], int] | None = None
    config: Callable[[Encoder], dict[str, Any]] | None = None
    body: Body | None = None
    unit: str = "classes"
    per_pixel: bool = False
    predicts: Predicts | None = None
    by_token: bool = False
    """Whether the loss needs the log-probability of each labelled token, not their sum."""
    output: str | None = None
    """The output of the transformers class that the loss reads, where it has no scores."""
    lists_of_images: bool = False
    """Whether forward takes lists of images and of targets, and returns losses or what it found."""


@dataclass(frozen=True)
class Reads:
    """Which data a task takes, beyond its roles, and how rows are told apart."""

    takes: Callable[[Table, Mapping[str, str]], bool] | None = None
    """Whether the columns found for the roles are of a kind the task can work with, where the
    roles alone do not decide; called when the task is inferred."""
    misread: Misread | None = None
    """What the columns found for the roles may be mistaken for, given those that the user names."""
    by_name: bool = False
    """Whether the task is never inferred, only named."""
    last_resort: bool = False
    """Whether the task is inferred only if the columns suit no other task."""
    mixes: tuple[str, ...] = ()
    """Roles of forms that one table may have together: a row is read by the form that it has."""
    file_roles: tuple[str, ...] = FILE_ROLES
    """Roles whose columns may hold paths of files."""
    class_files: bool = False
    """Whether several text files are classes: each line is a row, the file's name its label."""
    step_labels: bool = False
    """Whether the label may be a list with a class for each time step."""
    whole_rows: bool = False
    """Whether `encode` gets all columns under their names, besides the roles."""
    own_fields: OwnFields | None = None
    """Fields of columns that batches have under the names of the data, whoever reads them; given
    the table and the user's `fields`."""
    columns_read: Callable[[Encoder, Sequence[str]], Sequence[str]] | None = None
    """Which of the columns without a role are read, where `encode` gets whole rows; else all."""
    divide: Divide | None = None
    """A row by role to its input and its target, where that is not decided by `targets` alone.
    Rows with equal inputs stay in one set."""
    exact_targets: bool = True
    """Whether an input has one right target, so that rows with another one contradict it. Several
    texts or amounts may be right."""
    inferred: Callable[[Planned], list[Finding]] | None = None
    """What is reported, or refused, where nobody names the task."""
    link: Callable[[Store, Encoder], Store] | None = None
    """What encoded rows take from other rows."""
    check_rows: Callable[[Store, Table, Encoder], Iterable[Finding]] | None = None
    """What only this target can get wrong, in the encoded training rows."""
    inputs: tuple[RowInput, ...] = ()
    """The inputs that rows may have, looked for in this order; they are planned and augmented."""

    def input_of(self, roles: Mapping[str, str]) -> RowInput | None:
        """Return the input that rows with these roles have, if it is one of `inputs`."""
        return next((each for each in self.inputs if each.role in roles), None)

    def arrays(self, roles: Mapping[str, str]) -> RowInput | None:
        """Return the input whose arrays are changed in each epoch, if rows with these roles have
        one that the config can change."""
        given = self.input_of(roles)
        return given if given is not None and given.section is not None else None


@dataclass(frozen=True)
class TextUse:
    """What a task that reads text needs of it."""

    special_tokens: tuple[str, ...] = ()
    """Special tokens, such as `mask_token`, that a tokenizer made from the data must have; with
    `eos_token`, it ends every text with it."""
    adapt_tokenizer: AdaptTokenizer = lambda tokenizer, roles, reload: tokenizer
    """The tokenizer as the task needs it for these roles, and as plain transformers loads it
    (see `inputs/tokenizer.py`)."""
    augments: tuple[str, ...] = ()
    """Roles whose text may be changed in a training row's augmented copies, the targets
    staying as they are; without any, augmentation is refused."""
    splits_rows: bool = False
    """Whether `encode` can split rows over the limit into blocks (`overlong: split`)."""


@dataclass(frozen=True)
class Figures:
    """How the loss depends on what was settled, and what is measured and compared with what."""

    class_scores: ClassScores | None = None
    """The scores and the class of each target, (N, C) and (N,), where the loss is their
    cross-entropy: only then can it have class weights and label smoothing."""
    loss_by: Callable[[Encoder], Loss] | None = None
    """The loss as it was settled, where that is not the task's `loss`: rows are then two sequences
    each, and `loss` judges sequence by sequence, which is what probes compare."""
    smoothed_loss: Callable[[float], Loss] | None = None
    """The loss with so much label smoothing, where the targets are tokens rather than classes."""
    predicted_values: PredictedValues | None = None
    """Predictions and labels as a user's own metrics get them: probabilities (N, C) and classes,
    or numbers in the units of the data."""
    reads_outputs: bool = False
    """Whether a user's own metrics are functions of (outputs, batch), as a `loss_fn` is."""
    own_metrics: Mapping[str, OwnMetric] = field(default_factory=dict)
    """Metrics that the user brings to this run."""
    better: Mapping[str, Better] = field(default_factory=dict)
    """Which is better, for metrics whose direction the user states."""
    best: str = "loss"
    """The metric that decides the best step."""
    from_start: bool = False
    """Whether a trained model is its own baseline, and evaluated before the first step."""
    baselines: MeasureBaselines | None = None
    """Training rows (None if they are not at hand), validation rows and the Encoder to the figures
    of simple predictors, by name and metric (see `targets/baselines.py`)."""
    judge: JudgeRows | None = None
    """Predicted targets, one per validation row, to figures as the metrics have them. Tables have
    it: trees are judged beside the model (see `targets/baselines.py`)."""


@dataclass(frozen=True)
class TaskSpec:
    """One task: how a row is encoded, its Fields, the loss, the metrics, the head.

    `encode(row, encoder)` gets the row by role and returns its columns, or an Encoding where texts
    are to be tokenized.
    `loss(outputs, batch)` returns a sum over targets and their count. A metric is a function of
    (outputs, batch) that returns a sum and a count, or a Metric.
    `fields` and `head` may be functions of the Encoder, where they depend on the roles that were
    found or on what was fitted.
    """

    name: str
    fields: Mapping[str, Field] | Callable[[Encoder], Mapping[str, Field]]
    encode: EncodeRow
    loss: Loss
    metrics: Mapping[str, SumAndCount | Metric] = field(default_factory=dict)
    head: Head | Callable[[Encoder], Head] | None = None
    summary: str = ""
    """One line for `surefit tasks`."""
    needs: tuple[tuple[str, ...], ...] = ()
    """Alternative sets of roles; the data must have all of one. Empty: rows as they are."""
    optional: tuple[str, ...] = ()
    """Roles that are used where the data has them."""
    roles: tuple[Role, ...] = ()
    """Roles of the task's own: the column names they are recognised by, the types they accept. A
    role without one is looked up in `data/roles.py`, else recognised by its own name."""
    targets: tuple[str, ...] = ("label",)
    """Roles that rows to predict on need not have."""
    fit: Fit | None = None
    """Returns the Encoder with what is fitted on training rows, such as the class names, and what
    was found; or a dict of a task of your own, which the Encoder keeps as `own`."""
    count_targets: Callable[[Mapping[str, Any]], int] = count_labelled
    """How many targets an encoded row has; equals the loss's count."""
    prepare: PrepareRow | None = None
    """What is drawn anew in each epoch: an encoded row, and a random generator of its own, to the
    row as the model gets it. The number of targets stays."""
    decode: Callable[[Any, Batch, Encoder], list[dict[str, Any]]] | None = None
    """Predictions, one dict per row of the batch."""
    generate: Generate | None = None
    reads: Reads = field(default_factory=Reads)
    text: TextUse = field(default_factory=TextUse)
    figures: Figures = field(default_factory=Figures)

    def role(self, name: str) -> Role:
        """Return the role of that name: the task's own, else the usual one."""
        return next((role for role in self.roles if role.name == name), None) or get_role(name)

    @property
    def role_names(self) -> tuple[str, ...]:
        """Every role that a column can be given, those that are needed first."""
        needed = (name for names in self.needs for name in names)
        return tuple(dict.fromkeys((*needed, *self.optional)))

    def fields_for(self, encoder: Encoder) -> dict[str, Field]:
        """Return the Fields with the tokenizer's pad token and the columns the model asks for."""
        own = self.fields(encoder) if callable(self.fields) else self.fields
        fields = {**own, **_further_fields(own, encoder), **encoder.extras}
        pad = encoder.settings.tokens.pad  # of the model, for rows of token ids
        pad = pad if encoder.tokenizer is None else pad_token_id(encoder.tokenizer)
        if pad is not None and "input_ids" in fields:
            fields["input_ids"] = replace(fields["input_ids"], pad=pad)
        return fields

    def for_prediction(self, encoder: Encoder) -> Encoder:
        """Return the Encoder for rows to predict for, which do not need the targets.

        Where no prompt has a column of its own, the answers that begin with it are still read.
        """
        left = {role: c for role, c in encoder.roles.items() if role not in self.targets}
        if not {*left} & {*self.reads.mixes}:
            left |= {role: c for role, c in encoder.roles.items() if role in self.reads.mixes}
        return replace(encoder, roles=left).with_settings(predicting=True)

    def loss_for(self, encoder: Encoder) -> Loss:
        """Return loss, with the class weights and the label smoothing that the Encoder keeps."""
        if self.figures.loss_by is not None:
            return self.figures.loss_by(encoder)
        options = encoder.settings.loss
        if options == PLAIN:
            return self.loss
        if self.figures.class_scores is not None:
            return class_loss(self.figures.class_scores, options)
        smoothed = self.figures.smoothed_loss
        return smoothed(options.label_smoothing) if smoothed is not None else self.loss

    def head_for(self, encoder: Encoder) -> Head | None:
        """Return the head for the roles that were found."""
        return self.head(encoder) if callable(self.head) else self.head

    def preparer(self, encoder: Encoder, seed: int) -> Prepare | None:
        """`prepare`, drawing from (seed, epoch, row, copy) alone; None where the task has none."""
        prepare = self.prepare
        if prepare is None:
            return None
        return lambda columns, epoch, row, copy: prepare(
            columns, encoder, np.random.default_rng([seed, epoch, row, copy])
        )

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Every figure an evaluation can give."""
        generated = self.generate.names if self.generate else ()
        return ("loss", *self.metrics, *generated, *self.figures.own_metrics)

    @property
    def watchable_metrics(self) -> tuple[str, ...]:
        """The figures that early_stopping.metric may name."""
        known = self.metrics
        return tuple(n for n in self.metric_names if getattr(known.get(n), "is_number", True))


def _further_fields(own: Mapping[str, Field], encoder: Encoder) -> dict[str, Field]:
    """Return a Field like that of the input, which a task names first, for each further column."""
    lead = next(iter(own.values()), None)
    if lead is None:
        return {}
    return {
        column: replace(lead, axes=tuple(f"{column}.{axis}" for axis in lead.axes), masked=False)
        for column in encoder.further
    }


def full_precision(logits: torch.Tensor) -> torch.Tensor:
    """Half-precision logits as float32, for losses; wider ones as they are."""
    return logits.float() if logits.dtype.itemsize < 4 else logits


LOWER_IS_BETTER = frozenset({"loss", "perplexity", "mae", "rmse", "log_loss", "mase", "smape"})
HIGHER_IS_BETTER = frozenset(
    {
        *("accuracy", "macro_f1", "token_accuracy", "entity_f1", "r2", "top1", "top5", "iou"),
        *("dice", "reward_accuracy", "reward_margin"),
    }
)
"""Names of metrics that have one direction, whoever computes them."""


def better_of(task: TaskSpec, metric: str) -> Better | None:
    """Whether higher or lower figures of a metric are better; None where nobody has said it."""
    stated = task.figures.better.get(metric) or getattr(task.metrics.get(metric), "better", None)
    if stated is not None:
        return "lower" if stated == "lower" else "higher"
    if metric in LOWER_IS_BETTER:
        return "lower"
    generated = task.generate.names if task.generate is not None else ()
    return "higher" if metric in HIGHER_IS_BETTER or metric in generated else None


def is_better(metric: str, new: float, old: float | None, better: Better | None = None) -> bool:
    """Return whether `new` beats `old`, in the direction of the metric.

    >>> is_better("loss", 1.0, 2.0), is_better("accuracy", 0.5, 0.6)
    (True, False)
    """
    if old is None:
        return True
    lower = metric in LOWER_IS_BETTER if better is None else better == "lower"
    return new < old if lower else new > old


Columns = Mapping[str, str | None]
"""Each column of the data and its role; None where it is not used."""

FEATURES = "features"
"""The role of the columns that a task reads together, such as those of a table."""


def account_columns(columns: Sequence[str], task: TaskSpec, encoder: Encoder) -> Columns:
    """Return the role of each column, as far as the Encoder is decided.

    Columns that the model's forward names have the role of that name.
    """
    role_of = {
        column: base_role(role, column) for role, column in reversed([*encoder.roles.items()])
    }
    role_of |= {column: column for column in encoder.extras}
    if encoder.settings.kept_where:
        role_of.setdefault(encoder.settings.kept_where, "label")
    others = [name for name in columns if name not in role_of]
    if task.reads.whole_rows:
        read = (
            others if task.reads.columns_read is None else task.reads.columns_read(encoder, others)
        )
        role_of |= dict.fromkeys(read, FEATURES)
    return {name: role_of.get(name) for name in columns}


def describe_unused(columns: Columns | None, ignored: Iterable[str] = ()) -> str:
    """Return the columns that are not used, in one line; empty if there are none.

    >>> describe_unused({"text": "text", "id": None, "url": None}, ["url"])
    'id, url (ignored)'
    """
    left = {*ignored}
    unused = [name for name, role in (columns or {}).items() if role is None]
    return ", ".join(f"{name} (ignored)" if name in left else name for name in unused)
