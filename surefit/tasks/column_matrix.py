"""The rows of a table with one value per column, taken from their encoded vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.encode.encoder import Encoder
from surefit.encode.store import Store

Array = npt.NDArray[Any]
Part = Mapping[str, Any]
"""How a column, or a part of a date, becomes a part of the vector (see `tasks/tabular.py`)."""


def part_places(parts: Sequence[Part]) -> Iterator[tuple[Part, int, int]]:
    """Each part of the vector, and where it starts and ends."""
    start = 0
    for part in parts:
        width = 1 + part["blank"] if part["kind"] == "number" else len(part["values"]) + 1
        yield part, start, start + width
        start += width


def vector_width(parts: Sequence[Part]) -> int:
    """The size of the whole vector."""
    return max((end for _, _, end in part_places(parts)), default=0)


def is_table(encoder: Encoder, store: Store) -> bool:
    """Whether encoded rows are those of a table, with a part of the vector for each column."""
    return "columns" in encoder.fitted and "features" in store.fields


def spread_rows(store: Store, limit: int) -> Array:
    """The numbers of at most `limit` rows, spread evenly."""
    return np.linspace(0, len(store) - 1, min(limit, len(store))).astype(np.int64)


def feature_rows(store: Store, rows: Array | slice) -> Array:
    """The vectors of some rows, (N, W)."""
    width = int(store.offsets("features")[1]) if len(store) else 0
    return np.asarray(store.values("features").reshape(-1, width)[rows])


@dataclass(frozen=True)
class ColumnMatrix:
    """Reads one value per column: the number, NaN for a blank; or the number of the category."""

    places: tuple[tuple[Part, int, int], ...]

    @classmethod
    def of(cls, parts: Sequence[Part]) -> ColumnMatrix:
        """Numbers with few values are parts twice; their categories are left out."""
        numbers = {(part["column"], part["part"]) for part in parts if part["kind"] == "number"}
        return cls(
            tuple(
                place
                for place in part_places(parts)
                if place[0]["kind"] == "number"
                or (place[0]["column"], place[0]["part"]) not in numbers
            )
        )

    @property
    def categories(self) -> list[int]:
        """The columns of the matrix that hold categories."""
        return [at for at, (part, _, _) in enumerate(self.places) if part["kind"] == "category"]

    def read(self, vectors: Array) -> Array:
        """Vectors (N, W) to one value per column, (N, C)."""
        columns = []
        for part, start, end in self.places:
            if part["kind"] == "category":
                columns.append(vectors[:, start:end].argmax(1).astype(np.float32))
            elif part["blank"]:
                blank = vectors[:, start + 1] > 0.5
                columns.append(np.where(blank, np.float32(np.nan), vectors[:, start]))
            else:
                columns.append(vectors[:, start])
        return np.stack(columns, 1).astype(np.float32)
