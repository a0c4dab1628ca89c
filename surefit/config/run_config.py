"""Every config key: its type, its default and its help.

The docstring under a field is the only text about it: `--help` and docs/config.md are made from it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationInfo, field_validator

from surefit.config.data_sources import SET_NAME, Source, read_source
from surefit.config.input_sections import Audio, Augmentation, FeatureShape, Images, Tables
from surefit.config.sections import (
    LOCAL,
    EarlyStopping,
    EmbeddingOptions,
    FieldChoice,
    Forecast,
    Generation,
    Local,
    Lora,
    LossOptions,
    MetricChoice,
    PreferenceOptions,
    Reading,
    Section,
    Splitting,
    Switch,
    join_names,
    read_metrics,
)
from surefit.core.foreign import parse_yaml
from surefit.errors import UsageError

DEFAULT_ROWS = 8
"""Rows of a micro-batch where nothing else is asked for or chosen."""


class RunConfig(Section):
    """Everything that decides a run, apart from Python objects passed in."""

    data: tuple[Source, ...] = ()
    """Training data: a file, a folder, a URL (s3://, gs://, hf://, https:// …) or a hub id.
    Several: a YAML list, or repeat the option. A source with a name (NAME=path) or keys of its own,
    {path, name, columns, weight, cap}, has its own metrics, such as NAME_loss; weight: how often an
    epoch draws each of its rows; cap: the most rows that an epoch draws of it."""
    eval_data: tuple[str, ...] | dict[str, str] = ()
    """Validation data, as for data. Several sets are {NAME: path}, or NAME=path repeated: each has
    its metrics, such as NAME_loss, and the first decides which step is best, or the one that
    early_stopping.metric names. Default: a share of the training data (eval_share)."""
    model: str = ""
    """A local folder, a hub id, a .gguf file, tiny:ARCH (small and untrained) or module:function
    (your own nn.Module)."""
    tokenizer: str | None = None
    """Folder or hub id of the tokenizer. Default: the model's own."""
    add_tokens: tuple[str, ...] = ()
    """Tokens that texts are not split inside, such as <tool>: added to the tokenizer if it lacks
    them. Their embeddings are trained, with LoRA as well."""
    task: str | None = None
    """The task; `surefit tasks` lists them. Default: inferred from the data and the model."""
    columns: dict[str, str] = Field({})
    """The column of each role, as columns.ROLE. Default: inferred from the column names. Several
    columns of 0 and 1 are one target as a list, such as [casual, registered] for columns.label."""
    ignore: tuple[str, ...] = ()
    """Columns that are not read, such as those that leak the target."""
    read: Reading = Reading()
    """How data files are read, where it cannot be inferred."""
    features: FeatureShape = FeatureShape()
    """How rows of features and their labels are read, and how they are augmented."""

    audio: Audio = Audio()
    """How audio is read and augmented."""
    table: Tables = Tables()
    """How the columns of a table are read, and what its result is compared with."""
    image: Images = Images()
    """How images are resized, normalised and augmented."""
    on_bad_file: Literal["error", "skip"] = "error"
    """What happens if an image, or one of several data files, cannot be read: an error, or it is
    skipped."""

    augmentation_factor: int = Field(1, ge=1, le=1000)
    """Copies of each training row per epoch, counting the row itself; the others are augmented."""
    augment: Augmentation = Augmentation()
    """How the augmented copies of a training row differ from it."""

    epochs: int = Field(3, ge=1, le=10**18)
    """Passes over the training rows."""
    max_steps: int | None = Field(None, ge=1, le=10**18)
    """Stop after this many optimizer steps, whatever the number of epochs."""
    batch_size: int | Literal["auto"] | None = None
    """Rows per micro-batch per process. auto: the most rows that fit in memory; the effective batch
    size stays 8 × grad_accum. Default: 8; for images, vectors and rows of tables with one target,
    up to 256 that fit, as long as an epoch has 100 steps."""
    max_tokens: int | None = Field(None, ge=1)
    """Padded positions per micro-batch, instead of a fixed number of rows."""
    grad_accum: int = Field(1, ge=1)
    """Gradient accumulation: micro-batches per optimizer step per process."""
    order: Literal["auto", "shuffle", "windowed", "grouped"] = "auto"
    """The order of rows. shuffle: at random; windowed: the same steps, with the rows of each sorted
    by length, so that its padded micro-batches have less padding; grouped: each step has rows of
    similar length, which can harm training. auto: shuffle where batches are padding-free, else
    windowed."""
    max_seq_length: int | None = Field(None, ge=2)
    """Maximum sequence length in tokens. Default: the model's limit, but no more than 1024."""
    overlong: Literal["split", "truncate", "drop", "error"] | None = None
    """What happens to rows longer than max_seq_length; split: consecutive blocks of one row.
    Default: split for causal-lm, truncate for other tasks."""
    loss_on: Literal["answers", "last", "all"] = "answers"
    """Tokens the loss is computed on in instruction data; answers: completion-only loss; last: only
    the last answer of a dialogue."""
    template: str | None = None
    """Chat template: chat (the tokenizer's own), plain, chatml, alpaca, a file or Jinja text.
    Default: chat if the tokenizer has a template, else plain."""

    outputs: int | str | None = None
    """The output of a module that the loss, metrics and predictions are computed from, where it
    returns several: a key, or a number from 0 on (a loss is not counted). Default: an output with a
    name such as logits, scores or prediction, else the first with as many scores as needed."""
    loss: LossOptions = LossOptions()
    """How the classes of rows and words count in the loss."""
    preference: PreferenceOptions = PreferenceOptions()
    """How preferences become a loss, for the task preference."""
    embedding: EmbeddingOptions = EmbeddingOptions()
    """How pairs and triplets of texts become a loss, for the task embedding."""
    forecast: Forecast = Forecast()
    """How a long table of series is cut into windows."""
    lora: Lora = Lora()
    """LoRA: train low-rank adapters on a frozen model, instead of all weights."""
    adapter: Literal["continue", "stack", "merge"] | None = None
    """What becomes of the LoRA adapters that --model brings (a run, an export, a folder of peft).
    continue (the default): train them further; stack: keep them, and train new ones on top; merge:
    merge them into the weights, which are then trained (or new adapters, with lora.r)."""
    lr: float | None = Field(None, gt=0)
    """Peak learning rate. Default: 2e-5; 2e-4 with LoRA; 1e-3 for untrained models."""
    lr_by: dict[str, float] = Field({})
    """Peak learning rates of some parameters, by patterns of their names (as for freeze), such as
    {classifier: 1e-3}; the last pattern that matches counts, and the others have lr."""
    freeze: tuple[str, ...] = ()
    """Parameters that are not trained, by patterns of their names: a part of the name between dots
    (bert.embeddings, layer.0), a wildcard (*.bias) or a regular expression."""
    schedule: Literal["cosine", "linear", "constant", "wsd", "inverse-sqrt"] = "cosine"
    """Learning rate schedule after the warm-up. wsd: constant, then linear in the last fifth;
    inverse-sqrt: falls with the square root of the step."""
    schedule_end: float = Field(0.0, ge=0, lt=1)
    """The learning rate that cosine, linear and wsd fall to, as a share of the peak."""
    restarts: int = Field(0, ge=0, le=1000)
    """How often a cosine schedule starts again at the peak."""
    warmup: float = Field(0.03, ge=0, lt=1)
    """Share of the steps in which the learning rate rises to its peak."""
    optimizer: str = Field("adamw", min_length=1)
    """adamw, adafactor, sgd, muon (hidden matrices; AdamW for the rest), lion, adamw-8bit (needs
    bitsandbytes), a name of the package pytorch-optimizer, or module:function, which gets the
    trained parameters and returns an optimizer."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of the optimizer; biases and norms are exempt."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Keep an average of the trained weights, with this decay at each step, such as 0.99.
    Evaluations, model/ and exports have the average; checkpoints have both."""
    neftune: float | None = Field(None, gt=0)
    """NEFTune: noise of this strength, such as 5, on the embeddings of training rows."""
    clip: float = Field(1.0, ge=0)
    """Maximum gradient norm; 0 for no clipping."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What happens at a step whose loss or gradient is NaN or infinite: the run stops, or the step
    is skipped and counted."""
    checkpointing: bool = False
    """Gradient checkpointing: recompute activations in the backward pass. Less memory, slower."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Mixed precision; auto is bf16 on CUDA (fp16 where bf16 is emulated) and fp32 elsewhere."""
    padding_free: Switch = "auto"
    """Padding-free (varlen) batches, without padding or packing; auto: where the model keeps the
    rows apart."""
    packing: bool = False
    """Accepted because other tools have it: padding-free batches take its place."""
    compile: Switch = "auto"
    """torch.compile for the model's layers; auto: where it saves time."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Several processes: each holds the whole model (ddp), or a share of its weights, gradients
    and optimizer state (fsdp, torch's fully_shard)."""
    stall_seconds: Local[float | None] = Field(None, ge=0)
    """Several processes: how long they wait for one that does not answer before the run ends (the
    timeout of the process group); 0: for ever. Default: 1800."""
    deterministic: bool = False
    """Deterministic kernels on CUDA: a resumed run equals an uninterrupted one bit for bit."""
    from_scratch: bool = False
    """Start from the model's config with newly initialized weights."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Seed of the split, the augmented copies, the order of rows, new weights and dropout."""

    eval_share: float = Field(0.1, ge=0, lt=1)
    """Share of the rows in the validation set, if there is no eval_data."""
    split: Splitting = Splitting()
    """How validation rows are split off the training data."""
    eval_every: int | None = Field(None, ge=1)
    """Evaluate every N steps. Default: once per epoch."""
    eval_at_start: bool | None = None
    """Also evaluate before the first step. Default: for a trained model of the task embedding,
    which has no other baseline."""
    save_every: int | None = Field(None, ge=1)
    """Save a checkpoint every N steps, in addition to those at each evaluation."""
    keep: int = Field(2, ge=1)
    """Number of latest checkpoints to keep, in addition to the best one."""
    label_separator: str | None = Field(None, min_length=1)
    """The sign between several classes in one text, such as | in red|blue. Default: inferred; none:
    every text is one class."""
    label_order: tuple[str | int, ...] = ()
    """The classes from the lowest to the highest, such as [low, medium, high], for the task
    ordinal. Default: the order of their numbers, or of well-known names."""
    box_format: Literal["xyxy", "xywh", "cxcywh"] | None = None
    """What the four numbers of a box are: two corners, a corner and a size, or the centre and a
    size. Default: inferred."""
    fields: dict[str, FieldChoice] = Field({})
    """How columns become tensors in the task custom, by column: fields.x.pad=-1, fields.x.axes,
    fields.x.dtype, fields.x.masked=false; from Python also a surefit.Field. Default: inferred."""
    metrics: dict[str, MetricChoice] = Field({})
    """Metrics beside those of the task: built-in ones of classes by name ([roc_auc, pr_auc,
    log_loss, precision, recall, confusion, top3]), and your own as NAME: module:function or
    NAME: {function: module:function, better: lower}."""
    early_stopping: EarlyStopping = EarlyStopping()
    """When training stops before the last epoch."""
    generate: Generation = Generation()
    """How much text is generated at each evaluation, for tasks that generate text."""
    max_dropped_share: float = Field(0.5, ge=0, le=1)
    """Refuse the data if a larger share of its rows would be dropped."""

    accept: tuple[str, ...] = ()
    """Codes of findings to accept, such as [SF131]: they no longer stop the run, and the plan
    records them. `docs/findings.md` has the codes that can be accepted, and what then happens."""
    autofix: bool = True
    """Apply repairs that are unambiguous, and report them; false: report errors instead."""
    scan: Local[int | None] = Field(None, ge=2)
    """Check a random sample of N rows instead of all; `train` refuses it."""
    fit: Local[Literal["predicted", "measured"]] = "predicted"
    """How `check` finds the memory peak: predicted from shapes, or also measured in a real step on
    the largest batch. `train` begins with that step for custom modules, on devices, with
    `max_memory_gb`, and where the predicted peak is over half of the free memory."""
    max_memory_gb: Local[float | None] = Field(None, gt=0)
    """Memory limit of the run, in GB (10⁹ bytes). Default: the free memory."""
    device_memory_gb: Local[float | None] = Field(None, gt=0)
    """Plan for a device with this much memory, in GB, instead of this machine."""

    probes: Local[Literal["quick", "all"]] = "quick"
    """Tests on the model before training; all: also overfit one batch."""
    rehearse: Local[bool] = False
    """Dress rehearsal: before step 1, evaluate, generate, save, load and write the report once at
    their true size, in a scratch folder that is removed. `train` always rehearses the
    parts that take little time."""
    workers: Local[int] = Field(0, ge=0)
    """Worker processes that make batches; 0 for a thread, which is enough unless collating is
    slow."""
    trackers: Local[tuple[str, ...]] = ()
    """Experiment trackers of Accelerate, such as tensorboard."""
    trust_remote_code: Local[bool] = False
    """Allow a model folder or hub repository to run its own Python code."""
    cache: Local[str | None] = None
    """Folder for encoded rows and other derived files; if it holds other files, its subfolder
    surefit-cache is used. Default: $SUREFIT_CACHE, else ~/.cache/surefit."""
    cache_limit_gb: Local[float | None] = Field(None, gt=0)
    """Size limit of the cache, in GB (10⁹ bytes): after planning, the entries that were not used
    for the longest time are removed. Entries in use stay. Default: no limit."""
    output: Local[str | None] = None
    """Folder of the run. Default: a new folder under runs/."""

    @field_validator("columns", mode="before")
    @classmethod
    def _one_name_for_lists(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {
            role: joint_name([str(each) for each in column])
            if isinstance(column, list | tuple) and column
            else column
            for role, column in value.items()
        }

    @field_validator("model", "tokenizer", "output", "cache")
    @classmethod
    def _as_path(cls, value: Any) -> Any:
        """Refuse what no file can be called: a NUL, a lone surrogate that stands for no byte."""
        if isinstance(value, str):
            try:
                os.fsencode(value)
            except UnicodeEncodeError:
                raise ValueError("it has characters that no name of a file has") from None
            if "\0" in value:
                raise ValueError("it has a NUL, which no name of a file has")
        return value

    @field_validator("data", mode="before")
    @classmethod
    def _sources(cls, value: Any) -> Any:
        is_one = isinstance(value, str) or (isinstance(value, Mapping) and "path" in value)
        several = [value] if is_one else value
        is_list = isinstance(several, list | tuple)
        return tuple(map(read_source, several)) if is_list else value

    @property
    def data_paths(self) -> tuple[str, ...]:
        """Return where the training data is, of all sources."""
        return tuple(each if isinstance(each, str) else each.path for each in self.data)

    @field_validator("eval_data", mode="before")
    @classmethod
    def _named_sets(cls, value: Any) -> Any:
        """Return NAME=path of each validation set as a mapping; a file of that name is a path."""
        paths = [value] if isinstance(value, str) else value
        if not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
            return value
        named = [None if os.path.exists(path) else SET_NAME.match(path) for path in paths]
        if not any(named):
            return value
        if not all(named):
            raise ValueError("expected NAME=path for all validation sets, or for none")
        return {found[1]: found[2] for found in named if found}

    @property
    def eval_paths(self) -> tuple[str, ...]:
        """Return where the validation data is, of all sets."""
        named = self.eval_data
        return tuple(named.values()) if isinstance(named, dict) else named

    @field_validator("batch_size", mode="before")
    @classmethod
    def _rows_or_auto(cls, value: Any) -> Any:
        rows = int(value) if isinstance(value, str) and value.isdecimal() else value
        if value in ("auto", None) or (type(rows) is int and rows >= 1):
            return rows
        raise ValueError("expected a whole number of at least 1, or auto")

    def with_local(self, other: RunConfig) -> RunConfig:
        """Return the config with the keys of the machine and the command that `other` has."""
        return self.model_copy(update={name: getattr(other, name) for name in LOCAL_KEYS})

    @property
    def micro_batch_rows(self) -> int:
        """Return `batch_size` after planning has chosen it; of a model without a run, the usual."""
        return self.batch_size if isinstance(self.batch_size, int) else DEFAULT_ROWS

    @field_validator("schedule_end", "restarts")
    @classmethod
    def _used(cls, value: Any, info: ValidationInfo) -> Any:
        users = ("cosine",) if info.field_name == "restarts" else ("cosine", "linear", "wsd")
        schedule = info.data.get("schedule", users[0])
        if value and schedule not in users:
            raise ValueError(f"it has no effect with schedule: {schedule}")
        return value

    @field_validator("adapter")
    @classmethod
    def _has_rank(cls, value: str | None, info: ValidationInfo) -> str | None:
        lora = info.data.get("lora")
        if value == "stack" and lora is not None and not lora.r:
            raise ValueError("stack trains new adapters; set lora.r to their rank")
        return value

    @field_validator("metrics", mode="before")
    @classmethod
    def _choices(cls, value: Any) -> Any:
        return read_metrics(value)

    @field_validator("lr_by", mode="before")
    @classmethod
    def _joined(cls, value: Any) -> Any:
        """Join patterns with dots, which `--set lr_by.layer.0=1e-4` takes apart."""
        return join_names(value) if isinstance(value, Mapping) else value

    @field_validator("lr_by")
    @classmethod
    def _above_zero(cls, rates: dict[str, float]) -> dict[str, float]:
        wrong = next((name for name, rate in rates.items() if rate <= 0), None)
        if wrong is not None:
            raise ValueError(f"expected rates above 0; to keep {wrong!r} as it is, use freeze")
        return rates


LOCAL_KEYS = tuple(n for n, info in RunConfig.model_fields.items() if LOCAL in info.metadata)
SHORT_KEYS = {"lora_r": "lora.r", "label_from": "read.label_from"}
"""Options whose key is in a section."""


def joint_name(columns: Sequence[str]) -> str:
    """Return one name for several columns; that of a single column is its own.

    >>> joint_name(["casual", "registered"]), joint_name(["label"])
    ('[casual, registered]', 'label')
    """
    if len(columns) == 1:
        return columns[0]
    flow: str = yaml.safe_dump(
        list(columns), default_flow_style=True, allow_unicode=True, width=float("inf")
    )
    return flow.strip()


def joint_parts(name: str) -> list[str]:
    """Return the columns that one name stands for; none for the name of a single column.

    >>> joint_parts("[casual, registered]"), joint_parts("label")
    (['casual', 'registered'], [])
    """
    if not (name.startswith("[") and name.endswith("]")):
        return []
    try:
        parts = parse_yaml(name, list[str], name)
    except UsageError:
        return []
    return parts if len(parts) > 1 else []
