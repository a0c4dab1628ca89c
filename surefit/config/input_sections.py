"""Sections of the config about inputs: how they are read, and how they are augmented."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from surefit.config.sections import CodeName, Section


class _Changes(Section):
    """Changes by name, each with its strength; a list of names has the usual strengths."""

    usual: ClassVar[Mapping[str, float]] = {}
    """The strength of a change that is only named."""

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        names = [value] if isinstance(value, str) else value
        if isinstance(names, list | tuple):
            unknown = next((name for name in names if name not in cls.usual), None)
            if unknown is not None:
                raise ValueError(f"expected some of {', '.join(cls.usual)}, not {unknown!r}")
            return {name: cls.usual[name] for name in names}
        if not isinstance(value, Mapping):
            return value
        given = {name: cls.usual.get(name) if v is True else v for name, v in value.items()}
        return {name: v for name, v in given.items() if v is not False}

    def asked(self) -> dict[str, float]:
        """Return the changes that are set, by name."""
        named = {name: getattr(self, name) for name in self.usual}
        return {name: value for name, value in named.items() if value is not None}


class ImageAugment(_Changes):
    """Changes of training images, drawn anew for each image in each epoch."""

    usual: ClassVar[Mapping[str, float]] = {
        "flip": 0.5,
        "flip_vertical": 0.5,
        "rotate": 10.0,
        "crop": 0.7,
        "shift": 0.1,
        "brightness": 0.2,
        "contrast": 0.2,
        "saturation": 0.2,
        "erase": 0.2,
        "mixup": 0.2,
        "cutmix": 1.0,
    }

    flip: float | None = Field(None, gt=0, le=1)
    """Probability that an image is mirrored left to right; 0.5 if only named."""
    flip_vertical: float | None = Field(None, gt=0, le=1)
    """Probability that an image is turned upside down; 0.5 if only named."""
    rotate: float | None = Field(None, gt=0, le=180)
    """Largest rotation in degrees, either way; 10 if only named."""
    crop: float | None = Field(None, gt=0, lt=1)
    """Smallest share of the image's area that is cut out and resized to the whole; 0.7 if only
    named."""
    shift: float | None = Field(None, gt=0, lt=1)
    """Largest shift, as a share of height and width; 0.1 if only named."""
    brightness: float | None = Field(None, gt=0, le=1)
    """Largest relative change of the brightness; 0.2 if only named."""
    contrast: float | None = Field(None, gt=0, le=1)
    """Largest relative change of the contrast; 0.2 if only named."""
    saturation: float | None = Field(None, gt=0, le=1)
    """Largest relative change of the saturation; 0.2 if only named."""
    erase: float | None = Field(None, gt=0, lt=1)
    """Largest share of the area of a rectangle that is replaced by the mean colour; 0.2 if only
    named."""
    mixup: float | None = Field(None, gt=0)
    """Blend with another training image and its label, with shares from Beta(mixup, mixup); 0.2 if
    only named."""
    cutmix: float | None = Field(None, gt=0)
    """Paste a rectangle of another training image, with a share from Beta(cutmix, cutmix); 1 if
    only named. With mixup, each image gets one of the two."""


class SeriesAugment(_Changes):
    """Changes of training series or vectors, drawn anew for each row in each epoch."""

    usual: ClassVar[Mapping[str, float]] = {
        "jitter": 0.05,
        "scale": 0.1,
        "time_mask": 0.2,
        "channel_mask": 0.2,
        "mixup": 0.2,
    }

    jitter: float | None = Field(None, gt=0)
    """Standard deviation of added noise, in units of each channel's spread; 0.05 if only named."""
    scale: float | None = Field(None, gt=0, le=1)
    """Largest relative change of the distance from the mean; 0.1 if only named."""
    time_mask: float | None = Field(None, gt=0, le=1)
    """Largest share of consecutive steps that are replaced by the mean (SpecAugment); 0.2 if only
    named."""
    channel_mask: float | None = Field(None, gt=0, le=1)
    """Largest share of adjacent channels that are replaced by the mean (SpecAugment); 0.2 if only
    named."""
    mixup: float | None = Field(None, gt=0)
    """Blend with another training row and its label, with shares from Beta(mixup, mixup); 0.2 if
    only named."""


class FeatureShape(Section):
    """How rows of features and their labels are read, and how they are augmented."""

    steps: int | None = Field(None, ge=1)
    """Sequence length of an array saved as [rows, steps*width]."""
    width: int | None = Field(None, ge=1)
    """Feature size of an array saved as [rows, steps*width]."""
    labels: Literal["step", "row"] | None = None
    """Whether a list of labels has a class for each time step, or classes of the whole row;
    inferred from the length of the lists if not set."""
    stride: int = Field(1, ge=1)
    """Time steps that share one output of a module that downsamples, where each step has a
    class."""
    augment: SeriesAugment = SeriesAugment()
    """Changes of training series or vectors, drawn anew for each row in each epoch."""


class Tables(Section):
    """How the columns of a table are read, and what its result is compared with."""

    max_categories: int = Field(50, ge=2, le=1000)
    """Different values of a text column that are read; the rarer ones count as unknown."""
    trees: bool = True
    """Fit gradient-boosted trees on the same rows, and print their figures beside the model's."""


class Images(Section):
    """How images are resized, normalised and augmented."""

    channels: PositiveInt | None = None
    """Channels of the images: 1 for gray, 3 for RGB, 4 for RGBA, others as in arrays. Default:
    those that the first layer of a custom module reads, else 3."""
    mean: tuple[float, ...] | None = None
    """What is subtracted from pixels from 0 to 1, one number or one per channel. Default: the
    model's, else the mean of the training images."""
    std: tuple[PositiveFloat, ...] | None = None
    """What pixels are then divided by, one number or one per channel. Default: the model's, else
    the standard deviation of the training images."""

    size: tuple[PositiveInt, PositiveInt] | None = None
    """Height and width of the images, or one number for both. Default: the model's size, else the
    most common size in the data."""
    augment: ImageAugment = ImageAugment()
    """Changes of training images, drawn anew for each image in each epoch."""

    @field_validator("size", mode="before")
    @classmethod
    def _square(cls, value: Any) -> Any:
        return (value, value) if isinstance(value, int) else value

    def asked(self) -> dict[str, Any]:
        """Return channels, mean and std where they are set, as JSON."""
        named = {"channels": self.channels, "mean": self.mean, "std": self.std}
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in named.items()
            if value is not None
        }


class Audio(Section):
    """How audio is read and augmented."""

    rate: int | None = Field(None, ge=1_000, le=1_000_000)
    """Sampling rate in Hz; other audio is resampled. Default: the model's, else the most common
    one in the data."""
    form: Literal["waveform", "log-mel"] | None = None
    """What a custom module reads. Default: the form that its forward accepts."""
    mels: int | None = Field(None, ge=8, le=512)
    """Mel bands of log-mel spectrograms. Default: what a custom module accepts, such as 64."""
    seconds: PositiveFloat | None = None
    """How much of each row is read; what happens to longer rows is set by overlong. Default: the
    model's limit, else 30."""
    pad: bool = False
    """Whether every row is padded with silence to audio.seconds, so that all have one length. A
    custom module that accepts no other length gets them so without it."""
    augment: SeriesAugment = SeriesAugment()
    """Changes of training waveforms or spectrograms, drawn anew for each row in each epoch."""


ChangeName = Literal["wording", "synonyms", "case", "spacing", "punctuation", "typos"]


class Augmentation(Section):
    """How the augmented copies of a training row differ from it."""

    changes: tuple[ChangeName, ...] | None = None
    """Changes to draw from: wording, synonyms, case, spacing, punctuation, typos. Default: all but
    typos, and synonyms only with a table; none with augment.function."""
    frames: tuple[str, ...] = ()
    """Phrasings of an instruction, with {} in its place, instead of the English ones."""
    typo_rate: float = Field(0.05, gt=0, le=1)
    """Share of the eligible words that get a typo."""
    synonyms: str | dict[str, str | tuple[str, ...]] | None = None
    """A JSON, CSV or TSV file of words and their synonyms, or a mapping of them."""
    function: CodeName | None = None
    """Your own change as module:function, f(value, rng) -> value: a text of an augmented copy, or
    the array of an image [C, H, W], a series [T, W] or a vector [W] in each epoch."""

    @field_validator("frames")
    @classmethod
    def _with_room(cls, frames: tuple[str, ...]) -> tuple[str, ...]:
        wrong = next((frame for frame in frames if frame.count("{}") != 1), None)
        if wrong is not None:
            raise ValueError(f"expected {{}} once in each, where the text goes, not in {wrong!r}")
        return frames
