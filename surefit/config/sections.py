"""Sections of the config: what all share, reading, splitting, generation, loss, metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from surefit.core.patterns import NoPatternError, num_groups

Switch = Literal["auto", "on", "off"]
Value = TypeVar("Value")
LOCAL = "local"
Local = Annotated[Value, LOCAL]
"""The type of a key that belongs to this machine or this command. All other keys define the
training. The folder of a run sets only those: it may come from a stranger."""


class Section(BaseModel):
    """Frozen keys and values; unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _as_meant(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for numbers: YAML reads `yes` and `on` as true.

        A single value is a list of one where several are allowed.
        """
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and "on" in get_args(kind):
            return "on" if value else "off"
        if isinstance(value, bool) and bool not in (kind, *get_args(kind)):
            raise ValueError("expected a value, not true or false")
        takes_many = any(get_args(each)[1:] == (...,) for each in (kind, *get_args(kind)))
        return (value,) if takes_many and isinstance(value, str | int | float) else value


def _check_code_name(name: str) -> str:
    if ":" not in name:
        raise ValueError("expected module:function")
    return name


CodeName = Annotated[str, AfterValidator(_check_code_name)]
"""Code of the user's own, as module:function."""


class FieldChoice(Section):
    """How a column becomes a tensor, where it should not be as inferred."""

    axes: tuple[str, ...] | None = None
    """A name for each axis of a row, without the batch; those along which rows differ in size end
    with `time`."""
    dtype: Literal["bool", "int64", "int32", "float32", "float64"] | None = None
    """The type of the numbers in a batch."""
    pad: float | int | None = None
    """The value that rows are padded with."""
    aligned_with: str | None = None
    """A column that has the same length in every row."""
    masked: bool = True
    """Whether a batch has the mask of the column."""

    def asked(self) -> dict[str, Any]:
        """Return what is set, by name."""
        return self.model_dump(exclude_defaults=True)


class LossOptions(Section):
    """What the loss is, and how the classes of rows and words count in it."""

    function: CodeName | None = None
    """Your own loss as module:function, f(outputs, batch) -> a mean over rows, (sum, count), or a
    dict with the key loss and parts that are reported."""
    class_weights: Literal["balanced"] | dict[str, float] | None = None
    """Weight of each class in the loss, by class name; classes that are not named have 1. balanced:
    all classes count the same, however many rows they have. Where rows may have several classes, it
    counts the rows with the class against those without. Default: all rows count the same."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Label smoothing of the cross-entropy: this share of the target is spread over all classes."""

    @field_validator("class_weights", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if isinstance(value, Mapping):  # YAML reads class names such as 0 and 1 as numbers
            return {str(name): weight for name, weight in value.items()}
        if value is not None and value != "balanced":
            raise ValueError("expected balanced, or a weight for each class: {spam: 5, ham: 1}")
        return value

    @field_validator("class_weights")
    @classmethod
    def _above_zero(cls, value: Any) -> Any:
        wrong = [n for n, weight in value.items() if weight <= 0] if isinstance(value, dict) else []
        if wrong:
            raise ValueError(f"expected weights above 0; that of {wrong[0]!r} is not")
        return value


class MetricChoice(Section):
    """A metric that is asked for: built in, or your own."""

    function: CodeName | None = None
    """Your own metric as module:function, f(predictions, labels) -> a number; or an object with
    update, compute and reset, such as one of torchmetrics. Default: the built-in metric."""
    better: Literal["higher", "lower"] | None = None
    """Which is better; needed where the metric decides the best step."""


def read_metrics(value: Any) -> Any:
    """Return a name, a list of names, or a mapping of names to module:function, as choices by name.

    >>> read_metrics(["roc_auc"]), read_metrics({"cost": "my:cost"})
    ({'roc_auc': {}}, {'cost': {'function': 'my:cost'}})
    """
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list | tuple):
        parts = [read_metrics(one) if isinstance(one, Mapping) else {str(one): {}} for one in value]
        value = {str(name): choice for part in parts for name, choice in part.items()}
    if not isinstance(value, Mapping):
        return value
    return {
        str(name): {"function": one} if isinstance(one, str) else {} if one is None else one
        for name, one in value.items()
    }


def join_names(nested: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested keys as names with dots.

    >>> join_names({"layer": {0: 1e-4}, "head": 1e-3})
    {'layer.0': 0.0001, 'head': 0.001}
    """
    joined: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            joined |= join_names(value, f"{prefix}{name}.")
        else:
            joined[f"{prefix}{name}"] = value
    return joined


class Reading(Section):
    """How data files are read, where it cannot be inferred."""

    encoding: str | None = None
    """Encoding of text files. Default: UTF-8, or Windows-1252 if the text can be nothing else."""
    delimiter: str | None = None
    """Delimiter between the cells of a table. Default: inferred."""
    names: tuple[str, ...] = ()
    """Column names of a table without a header line."""
    pattern: str | None = None
    """A regular expression; its named groups become the columns of each line."""
    field: str | None = None
    """Path to the list of rows in a JSON file, such as data or data.items."""
    missing: tuple[str, ...] | None = None
    """Texts that stand for a missing value in columns of numbers, dates and categories, in any
    case. Default: NA, N/A, NaN, null, ?, - and the like."""
    roles: dict[str, str] = Field({})
    """What the roles of messages are, where they have names of their own: {client: user, agent:
    assistant}."""
    decimal: Literal["point", "comma"] | None = None
    """The decimal mark of numbers in delimited text; with it, grouped thousands and signs of
    currencies are read, too: 1.234,50 €. Default: only plain numbers, such as 1234.5, are read."""
    label_from: str | None = None
    """A regular expression, searched in the names of files that are a row each (images, audio,
    .npy, .txt); its first group is the label, such as (\\d)_.*"""

    @field_validator("label_from")
    @classmethod
    def _has_group(cls, pattern: str | None) -> str | None:
        try:
            groups = 1 if pattern is None else num_groups(pattern, "read.label_from")
        except NoPatternError as error:
            raise ValueError(f"not a regular expression ({error})") from None
        if groups == 0:
            raise ValueError("expected a group in parentheses, which is the label")
        return pattern

    @field_validator("names")
    @classmethod
    def _different(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("the column names must be distinct")
        return names


class Splitting(Section):
    """How validation rows are split off the training data."""

    by: str | None = None
    """A column of groups, such as patient_id: all rows of a group stay in one set. The column is
    not an input of the model unless it has a role."""
    column: str | None = None
    """A column that says which part a row belongs to: train, validation (val, dev) or test; test
    rows are not used. Default: a column with a name such as split, set or fold that has such values
    only; none: no column."""
    time: str | None = None
    """A column of dates or numbers: the latest rows are the validation set (eval_share)."""
    gap: float | str | None = None
    """Leave out the rows that are less than this before the validation set of split.time: a
    duration such as 12h, 7d or 2w for dates, a number in the column's unit for numbers."""
    stratify: Switch = "auto"
    """Whether each class has the same share of both sets; auto: where there are few classes."""
    folds: int | None = Field(None, ge=2, le=1000)
    """Cross-validation: train this many runs, each with another part of the rows as its validation
    set, and report the mean and the spread of their metrics. eval_share is not used."""
    fold: int | None = Field(None, ge=0)
    """The fold that is the validation set, from 0 on, for a single run. Default: all, in turn."""

    @model_validator(mode="after")
    def _one_of(self) -> Splitting:
        if self.fold is not None and (self.folds is None or self.fold >= self.folds):
            raise ValueError("split.fold is one of split.folds, counted from 0")
        return self

    @model_validator(mode="after")
    def _one_way(self) -> Splitting:
        by_column = None if self.column == "none" else self.column
        ways = {"by": self.by, "column": by_column, "time": self.time, "folds": self.folds}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1 and given != ["by", "folds"]:
            raise ValueError(f"split.{given[0]} and split.{given[1]} exclude each other")
        if self.gap is not None and self.time is None:
            raise ValueError("split.gap is the gap of split.time, which is not set")
        return self

    @field_validator("gap")
    @classmethod
    def _duration(cls, gap: float | str | None) -> float | str | None:
        if gap is not None and not re.fullmatch(r"\d+(\.\d+)?\s*(s|min|h|d|w)?", str(gap)):
            raise ValueError("expected a number, or one with s, min, h, d or w, such as 7d")
        return gap

    @property
    def is_settled(self) -> bool:
        """Whether the user says how rows are split, so that no column is looked for."""
        return any(each is not None for each in (self.by, self.column, self.time, self.folds))

    @property
    def draws_apart(self) -> bool:
        """Whether the validation rows are meant to differ: other groups, or later rows."""
        return self.by is not None or self.time is not None


class Lora(Section):
    """LoRA: train low-rank adapters on a frozen model, instead of all weights."""

    r: int = Field(0, ge=0)
    """Rank of the LoRA adapters; 0 trains the whole model, without LoRA."""
    alpha: float | None = Field(None, gt=0)
    """LoRA alpha; the adapters are scaled by alpha / r. Default: 2 × r."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the input of the adapters."""
    targets: tuple[str, ...] = ()
    """Layers to adapt, by the end of their names or as regular expressions. Default: all linear
    layers but the output embedding."""
    rslora: bool = False
    """rsLoRA: scale by alpha / √r, which keeps the updates of large ranks from vanishing."""
    dora: bool = False
    """DoRA: train the magnitude of the weights apart from their direction."""
    modules_to_save: tuple[str, ...] = ()
    """Modules to train in full beside the adapters, by the end of their names or as regular
    expressions, such as lm_head. Heads of a task are always trained in full."""
    quantize: Literal["4bit"] | None = None
    """4bit: keep the frozen weights in 4 bits (QLoRA), on CUDA or a CPU; needs bitsandbytes."""

    @model_validator(mode="after")
    def _meant(self) -> Lora:
        fields = Lora.model_fields.items()
        given = [name for name, field in fields if getattr(self, name) != field.default]
        if self.r == 0 and given:
            raise ValueError(f"lora.{given[0]} has no effect while lora.r is 0; set lora.r")
        return self


class PreferenceOptions(Section):
    """How preferences become a loss, for the task preference."""

    method: Literal["dpo", "ipo", "simpo", "orpo", "kto"] | None = None
    """dpo, ipo and kto compare with a reference, the model before training; simpo and orpo need
    none. Default: dpo for pairs, kto for single answers that are good or bad."""
    beta: float | None = Field(None, gt=0)
    """Strength of the preference; with a reference, the larger the closer to it. Default: 0.1;
    simpo: 2."""
    gamma: float | None = Field(None, ge=0)
    """The margin of rewards that simpo asks for. Default: half of beta."""


class EmbeddingOptions(Section):
    """How pairs and triplets of texts become a loss, for the task embedding."""

    loss: Literal["ranking", "cosine", "triplet"] | None = None
    """ranking: the positive among all texts of the batch (MultipleNegativesRankingLoss); cosine:
    similarity against the score; triplet: nearer than the negative by a margin. Default: cosine for
    pairs with a score, else ranking."""
    scale: float | None = Field(None, gt=0)
    """What ranking multiplies similarities by: 1 / temperature. Default: 20."""
    margin: float | None = Field(None, gt=0)
    """The margin of triplet, of distances between vectors of length 1. Default: 0.5."""
    pooling: Literal["mean", "cls", "last"] | None = None
    """How the vectors of tokens become one. Default: as the model's folder says, else mean."""


class Forecast(Section):
    """How a long table of series is cut into windows, for the task forecasting. The column that is
    forecast is columns.label; all columns of numbers are inputs."""

    group: str | None = None
    """The column that tells the series apart. Default: the table is one series."""
    time: str | None = None
    """The column of dates or numbers that orders the rows of a series."""
    history: int | None = Field(None, ge=1)
    """Steps that the model sees."""
    horizon: int | None = Field(None, ge=1)
    """Steps that are forecast."""
    season: int | None = Field(None, ge=1)
    """Steps of a season, such as 24 for hours of a day: the seasonal baseline repeats the last one,
    and MASE is relative to that."""


class EarlyStopping(Section):
    """When training stops before the last epoch."""

    metric: str | None = None
    """Metric that decides the best step and early stopping. Default: the task's choice."""
    patience: int | None = Field(None, ge=1)
    """Stop after this many evaluations without improvement. Default: never."""


class Generation(Section):
    """How text is generated: at each evaluation, by predict and by chat."""

    rows: int = Field(64, ge=0)
    """Validation rows to generate answers for; 0 for none."""
    max_new_tokens: int | None = Field(None, ge=1)
    """Maximum number of tokens in a generated answer; a longer one is marked as cut off. Default:
    as many as 99 % of the training rows' answers have, from 16 to 256; 64 without answers."""
    temperature: float | None = Field(None, ge=0, le=100)
    """Sample with this temperature; 0: always the likeliest token. Default: no sampling. What is
    not set while sampling is as in the model's generation config."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Sample from the likeliest tokens that have this probability together."""
    top_k: int | None = Field(None, ge=1)
    """Sample from this many of the likeliest tokens."""
    repetition_penalty: float | None = Field(None, gt=0)
    """Divide the scores of tokens that the prompt or the answer already has; above 1: less
    repetition."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer, besides the end token; they are not part of it."""
    samples: int = Field(1, ge=1, le=1000)
    """Answers per prompt, which are sampled; scores are the means over all of them."""
    seed: int | None = Field(None, ge=0, lt=2**32)
    """Seed of sampling; an answer depends on it and the prompt only. Default: the seed of the
    run."""
    system: str | None = None
    """System prompt for predict and chat, and for evaluate where it is set there. A row's own
    system message follows it."""
    from_model: tuple[str, ...] = ()
    """Settings to take over from the model's generation config, such as repetition_penalty or
    num_beams. Default: none; the likeliest token is chosen at each step."""
    scorer: CodeName | None = None
    """Your own score as module:function, f(expected, got) -> a number or a dict of numbers; higher
    is better."""

    @field_validator("stop", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        """Read numbers as texts, which YAML does not; refuse an empty text, which ends nothing."""
        texts = value if isinstance(value, list | tuple) else [value]
        if value is None or "" in texts:
            raise ValueError("expected texts; in YAML, quote one with special signs: '###'")
        return tuple(str(text) if isinstance(text, int | float) else text for text in texts)
