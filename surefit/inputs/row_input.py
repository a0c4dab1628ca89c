"""RowInput: how one kind of input (text, image, recording, features, table) is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from surefit.batches.field import Field
from surefit.config import RunConfig
from surefit.data.profile import Profile
from surefit.data.split import Rows
from surefit.data.table import Table
from surefit.findings import Finding
from surefit.inputs.encoded_row import Encoding
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedInput
from surefit.inputs.features.feature_layout import Hints

Row = Mapping[str, Any]
Roles = Mapping[str, str]


def is_blank(value: Any) -> bool:
    """Whether a label or a cell is missing: None, NaN, or a text without letters."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value.strip())


class Reader(Protocol):
    """Measures the inputs of training rows that pass by."""

    def watch(self, rows: Iterable[Row]) -> Iterable[Row]:
        """The rows, unchanged."""

    def fitted(self) -> tuple[FittedInput, list[Finding]]:
        """What was measured, as the Encoder keeps it, and what was found."""


@dataclass(frozen=True)
class AudioInputs:
    """What is known of a model before the audio is looked at."""

    extractor: Mapping[str, Any] = field(default_factory=dict)
    """Settings of its feature extractor, as in preprocessor_config.json; empty for a module."""
    least_samples: int = 1
    untrained: bool = False
    """Whether the extractor, and the model with it, can be fitted to the data."""
    sizes: tuple[int, ...] = ()
    """Sizes that layers of a custom module expect, which may be mel bands."""
    gives_rows: Callable[..., bool] | None = None
    """Tries a custom module: whether it gives one output per row for rows of a shape, whose time
    is the axis of that number; with `columns`, for several columns of audio."""


@dataclass(frozen=True)
class Planned:
    """What is known before any row is encoded: training rows, config, and the model's inputs."""

    table: Table
    rows: Rows
    encoder: Encoder
    config: RunConfig
    hints: Hints
    image: Mapping[str, Any]
    """What the model's files say about images (see `ImageHints.model`)."""
    audio: Callable[[], AudioInputs | None]


@dataclass(frozen=True)
class RowInput:
    """How the input of a row is recognised, measured, encoded and read by a model."""

    role: str | None
    """The role of its column; None for tables: all columns without a role."""
    encode: Callable[[Row, Encoder, Row], Encoding]
    """The encoded row, with the targets given."""
    fields: Callable[[Encoder], Mapping[str, Field]]
    auto_class: str | None = None
    """The class of transformers with an output per row; None: a body and an output of ours."""
    reader: Callable[[Encoder], Reader] | None = None
    config: Callable[[Encoder], dict[str, Any]] = lambda encoder: {}
    """What the input sets in the config of a transformers model."""
    takes: Callable[[Table, Roles], bool] = lambda table, roles: True
    holds_amounts: Callable[[Profile], bool] = lambda labels: labels.is_continuous
    """Whether the labels beside such an input are amounts, rather than classes."""
    section: str | None = None
    """The section of the config whose `augment` changes such inputs in each epoch."""
    plan: Callable[[Planned], tuple[FittedInput, list[Finding]]] | None = None
    """Chooses how such inputs are read, before what is fitted on training rows."""
    is_sequence: Callable[[Encoder], bool] = lambda encoder: False
    """Whether a transformers body without a head can read it, behind a projection."""
