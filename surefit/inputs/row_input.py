"""RowInput: how one kind of input (text, image, recording, features, table) is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from surefit.batches.field import Field
from surefit.data.profile import Profile
from surefit.data.table import Table
from surefit.findings import Finding
from surefit.inputs.encoded_row import Encoding
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedInput

Row = Mapping[str, Any]
Roles = Mapping[str, str]


class Reader(Protocol):
    """Measures the inputs of training rows that pass by."""

    def watch(self, rows: Iterable[Row]) -> Iterable[Row]:
        """The rows, unchanged."""

    def fitted(self) -> tuple[FittedInput, list[Finding]]:
        """What was measured, as the Encoder keeps it, and what was found."""


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
    is_sequence: Callable[[Encoder], bool] = lambda encoder: False
    """Whether a transformers body without a head can read it, behind a projection."""
