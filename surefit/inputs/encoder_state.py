"""What an Encoder keeps, as typed values: settings, and what was fitted on training rows.

All of it is saved as JSON in `encoder.json`. `load_encoder` validates every type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from surefit.data.forecast_windows import Windows
from surefit.inputs.audio.audio_format import AudioFormat
from surefit.inputs.features.feature_layout import FeatureLayout
from surefit.inputs.image.pixel_format import ImageHints, PixelFormat

ClassName = int | str
Made = TypeVar("Made")


def as_fitted(value: Made | None) -> Made:
    """Return what an Encoder keeps once it is planned and fitted."""
    assert value is not None
    return value


@dataclass(frozen=True)
class ClassLoss:
    """What the cross-entropy of classes is weighted and smoothed with."""

    class_weights: tuple[float, ...] | None = None
    """A weight for each class, in the order of the model's outputs; None: all count the same."""
    label_smoothing: float = 0.0


PLAIN = ClassLoss()


@dataclass(frozen=True)
class Preference:
    """How preferences become a loss."""

    method: str = "dpo"
    beta: float = 0.1
    gamma: float = 0.0
    """The margin that SimPO asks for."""


@dataclass(frozen=True)
class Embedding:
    """How vectors of texts are made and compared."""

    loss: str = "ranking"
    scale: float = 20.0
    margin: float = 0.5
    pooling: str = "mean"


@dataclass(frozen=True)
class KnownTokens:
    """Token ids that come from the model or from the data, not from the tokenizer."""

    decoder_start: int | None = None
    """What the decoder of the model begins with."""
    pad: int | None = None
    """What the model pads rows of token ids with."""
    largest: int | None = None
    """The largest id of labelled rows of ids, which an untrained model is made to have."""
    added: tuple[int, ...] = ()
    """Tokens that the user adds, whose embeddings are trained."""


@dataclass(frozen=True)
class LabelReading:
    """What the user says about how labels are written."""

    separator: str | None = None
    """The sign between the classes of one text, or `none`."""
    order: tuple[ClassName, ...] = ()
    """The classes from the lowest to the highest."""
    blank_is_none: bool = False
    """Whether a blank label means that no class applies, where a row may have several."""
    by: str | None = None
    """What lists of labels beside features are of: a `step` or a `row`."""


@dataclass(frozen=True)
class Settings:
    """The user's choices about reading rows and about what is computed from them."""

    overlong: str = "truncate"
    on_bad_file: str = "error"
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Markers of missing values by column, in lower case."""
    missing_texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Texts that stand for a missing text by column, as spelled."""
    kept_where: str | None = None
    """The column that calls answers good or bad; rows with bad ones are dropped."""
    seed: int = 0
    loss_on: str = "answers"
    template: str | None = None
    """The template that the user names, or its Jinja text."""
    labels: LabelReading = LabelReading()
    box_format: str | None = None
    """The format of boxes that the user names."""
    max_categories: int | None = None
    """Different values of a text column of a table that are read."""
    outputs: str | int | None = None
    """Which output of the module is used."""
    loss: ClassLoss = PLAIN
    preference: Preference | None = None
    embedding: Embedding | None = None
    windows: Windows | None = None
    """How tables of series are cut into rows."""
    generate: Mapping[str, Any] | None = None
    """What text is generated with: settings of transformers' GenerationConfig."""
    answer_tokens: int | None = None
    """Tokens that nearly all answers of the training rows have at most."""
    system: str | None = None
    """A system prompt for the dialogues that are predicted for."""
    tokens: KnownTokens = KnownTokens()
    predicting: bool = False
    """Whether rows are read to predict for, without their targets."""
    all_probabilities: bool = False
    """Whether predictions have the probabilities of all classes."""


@dataclass(frozen=True)
class FeatureStatistics:
    """Feature size, longest sequence, and mean and scale of each feature."""

    width: int | None = None
    """None if no training row had the axes [sequence length, feature size]."""
    longest: int = 1
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    distributions: bool = False
    """Whether every step is a distribution over the features."""


HASHED_WIDTH = 128
"""Places that the values of a column share, where it has too many for a place each."""


@dataclass(frozen=True)
class TablePart:
    """How a column of a table, or a part of a date, becomes a part of the row's vector."""

    column: str
    kind: Literal["number", "category", "hashed"]
    part: str | None = None
    """Which part of a date, such as `month`."""
    order: str | None = None
    """The order of year, month and day in a column of dates."""
    mean: float = 0.0
    scale: float = 1.0
    blank: bool = False
    """Whether a second place says that the number is missing."""
    values: tuple[Any, ...] = ()
    """The categories that are known; None stands for a blank."""

    @property
    def width(self) -> int:
        """How many places of the vector it takes."""
        if self.kind == "hashed":
            return HASHED_WIDTH
        return 1 + self.blank if self.kind == "number" else len(self.values) + 1


@dataclass(frozen=True)
class TemplateState:
    """The template of a run, as it was fitted."""

    name: str
    text: str
    end: str | None
    """The special token that ends answers; None: the tokenizer's eos is added."""
    joins_system: bool = False
    """Whether a system message is put before the first user's."""
    calls_as_text: bool = False
    """Whether tool calls are written as JSON, as the template writes none."""


@dataclass(frozen=True)
class FittedInput:
    """How inputs are read, as planned before and fitted on training rows; each task uses some."""

    image_hints: ImageHints = field(default_factory=ImageHints)
    pixels: PixelFormat | None = None
    further_pixels: Mapping[str, PixelFormat] = field(default_factory=dict)
    """Further columns of images that are read in another way than the first one."""
    audio: AudioFormat | None = None
    layout: FeatureLayout | None = None
    features: FeatureStatistics | None = None
    columns: tuple[TablePart, ...] | None = None
    """Those of a table."""
    template: TemplateState | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The most common shape of a row in each column of the task `custom`."""

    @property
    def statistics(self) -> FeatureStatistics:
        """Sizes and statistics of features, once they are fitted."""
        assert self.features is not None
        return self.features

    @property
    def width(self) -> int | None:
        """The feature size: of features, else of the vector that a row of a table becomes."""
        if self.features is not None:
            return self.features.width
        return None if self.columns is None else sum(part.width for part in self.columns)


@dataclass(frozen=True)
class ClassLabels:
    """The classes, in the order of the model's outputs, and how a label names them."""

    names: tuple[ClassName, ...]
    counts: tuple[int, ...] = ()
    """How many training rows, or time steps, have each class."""
    several: bool = False
    """Whether a row may have several classes."""
    separator: str | None = None
    """The sign between several classes in one text."""
    hot_size: int | None = None
    """The length of labels that are lists of 0 and 1."""
    hot_names: tuple[str, ...] = ()
    """The columns of 0 and 1 that are the classes, if there are several."""
    by_step: bool = False
    """Whether each time step has a class."""


@dataclass(frozen=True)
class MaskClasses:
    """Of masks: how many pixels each class has, and the number that is ignored."""

    pixel_counts: tuple[int, ...]
    ignored: int | None


@dataclass(frozen=True)
class BoxFormat:
    """What the four numbers of a box are: `xyxy`, `xywh` or `cxcywh`."""

    order: str = "xyxy"
    relative: bool = False
    """Whether they are shares of the image's sides, not pixels."""


@dataclass(frozen=True)
class NumberScales:
    """Mean and standard deviation of each number that is predicted; names if there are several."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class MaskingTokens:
    """What masking tokens needs to know: the mask token, special tokens, how many there are."""

    mask: int
    special: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True)
class FittedTarget:
    """What is learned, as fitted on training rows; each task uses some."""

    classes: ClassLabels | None = None
    masks: MaskClasses | None = None
    boxes: BoxFormat | None = None
    numbers: NumberScales | None = None
    masking: MaskingTokens | None = None
