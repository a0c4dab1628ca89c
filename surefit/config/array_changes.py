"""Config keys of augmentation that is drawn anew for each training row in each epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from surefit.config.section import Section


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
        """The changes that are set, by name."""
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
