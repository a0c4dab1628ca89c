"""RowInput: how one kind of input (text, image, recording, features, table) is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from surefit.batches.field import Field
from surefit.config import RunConfig
from surefit.data.profile import Profile
from surefit.data.row_arrays import Axis
from surefit.data.split import Rows
from surefit.data.table import Table
from surefit.findings import Finding
from surefit.inputs.encoded_row import Encoding
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedInput
from surefit.inputs.model_hints import AudioInputs, Hints
from surefit.inputs.store import Store

Row = Mapping[str, Any]
Roles = Mapping[str, str]


ALONE = ("image", "audio", "features", "text", "input_ids")
"""Roles of inputs beside which columns without a role are not read."""


def is_blank(value: Any) -> bool:
    """Return whether a label or a cell is missing: None, NaN, or a text without letters."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value.strip())


class Reader(Protocol):
    """Measures the inputs of training rows that pass by."""

    def watch(self, rows: Iterable[Row]) -> Iterable[Row]:
        """Return the rows, unchanged."""

    def fitted(self) -> tuple[FittedInput, list[Finding]]:
        """Return what was measured, as the Encoder keeps it, and what was found."""


class ArrayChanges(Protocol):
    """How the arrays of one column are changed in each epoch: named changes, drawn and applied."""

    @property
    def changes(self) -> Mapping[str, float]:
        """The strength of each change."""

    @property
    def column(self) -> str:
        """The column of a batch."""

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, Any]:
        """Return what happens to one row: a value for each change."""

    def apply(self, row: Row, drawn: Row) -> dict[str, Any]:
        """Return the row after the changes."""

    def call_own(self, function: Any, array: Any, rng: np.random.Generator) -> Any:
        """Return a user's own change of an array."""

    def picture(self, row: Row) -> dict[str, Any]:
        """Return a row as pages show it: `png` or `lines`."""


MakeChanges = Callable[[Mapping[str, float], Encoder, Mapping[str, Field]], ArrayChanges]


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
    audio: Callable[[], AudioInputs | None] = lambda: None
    by_row: bool = True
    """Whether a model with an output per row is trained, which may read vectors."""
    step_labels: bool = False
    """Whether a list of labels may be those of a row's time steps."""


@dataclass(frozen=True)
class ReadBy:
    """Which models of transformers read an input and give an output per row."""

    auto_class: str | None = None
    """Their class; None: a body and an output of ours."""
    config: Callable[[Encoder], dict[str, Any]] = lambda encoder: {}
    """What the input sets in their config."""
    is_sequence: Callable[[Encoder], bool] = lambda encoder: False
    """Whether a body without a head can read it, behind a projection."""


@dataclass(frozen=True)
class RowInput:
    """How the input of a row is recognised, measured, encoded and read by a model."""

    role: str | None
    """The role of its column; None for tables: all columns without a role."""
    encode: Callable[[Row, Encoder, Row], Encoding]
    """The encoded row, with the targets given."""
    fields: Callable[[Encoder], Mapping[str, Field]]
    model: ReadBy = ReadBy()
    reader: Callable[[Encoder], Reader] | None = None
    takes: Callable[[Table, Roles], bool] = lambda table, roles: True
    holds_amounts: Callable[[Profile], bool] = lambda labels: labels.is_continuous
    """Whether the labels beside such an input are amounts, rather than classes."""
    section: str | None = None
    """The section of the config whose `augment` changes such inputs in each epoch."""
    content_name: str = ""
    """What such a column holds, in messages."""
    changes: MakeChanges | None = None
    """Makes the changes of `section` ready for the rows of a run."""
    plan: Callable[[Planned], tuple[FittedInput, list[Finding]]] | None = None
    """Chooses how such inputs are read, before what is fitted on training rows."""
    read_by: Callable[[Table, Sequence[str], Hints], str | None] = lambda table, arrays, hints: None
    """Of columns of arrays, the one that a custom module reads as such an input, if it is tried."""
    axes: Callable[[Table, Encoder], tuple[Axis, Axis] | None] = lambda table, encoder: None
    """Sequence length and feature size of the rows, once planned, if they have these axes: the
    memory of one batch is computed from them before any row is encoded."""
    adapt: Callable[[Table, Encoder], tuple[Table, Encoder, list[Finding]]] | None = None
    """Reads rows of another table, to evaluate or predict on, in the way of the training rows."""
    report_layout: Callable[[Table, str, Hints, str | None], Any] | None = None
    """How rows of a column will be read, for `surefit inspect`: a dataclass that prints itself."""
    content: Callable[[Any], Any] | None = None
    """What two cells must share to be equal, where that is not their bytes."""
    amounts: Callable[[Encoder], str | None] = lambda encoder: None
    """The column of a batch whose values are amounts, which are checked for their magnitude."""
    check_cells: Callable[[Table, str, Encoder], Iterable[Finding]] | None = None
    """What only such a column can get wrong, looked for in its cells."""
    check: Callable[[Store, Table, Encoder], Iterable[Finding]] | None = None
    """What only such inputs can get wrong, looked for in encoded training rows."""
    is_small: Callable[[Encoder], bool] = lambda encoder: False
    """Whether a row has a fixed size, so that many rows fit into a step."""
    one_length: str = ""
    """What to do for rows of one length, where padding changes what a model returns."""
