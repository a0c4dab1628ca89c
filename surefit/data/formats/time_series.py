"""Time series of aeon and sktime (`.ts`) to ragged features [time, channels] and labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.config import Reading
from surefit.data.data_rules import NO_DATA
from surefit.data.formats.numpy_files import ragged_column
from surefit.data.formats.opened import Opened, bad_line, converted, reading_key
from surefit.data.formats.text_decoding import TextFile
from surefit.errors import FindingError
from surefit.findings import Finding

FORMAT_VERSION = 1
CHUNK_SERIES = 256

Series = tuple[npt.NDArray[np.float32], str | float | None]
"""Values [time, channels], and the class or target."""


def open_ts(path: Path, reading: Reading) -> Opened:
    """Convert a `.ts` file into the cache once, then memory-map it."""

    def write(target: Path) -> Sequence[Finding]:
        file = TextFile(path, reading)
        series = _Reader(path).series(file.lines())
        first = next(series, None)
        if first is None:
            raise NO_DATA.error(f"{path.name} has no rows.", file=str(path))
        _write(first, series, target)
        return file.findings

    return converted(reading_key(path, reading, "ts", FORMAT_VERSION), write)


def _write(first: Series, series: Iterator[Series], path: Path) -> None:
    chunk = [first, *islice(series, CHUNK_SERIES - 1)]
    batch = _batch(chunk)
    with pa.ipc.new_file(path, batch.schema) as writer:
        while chunk:
            writer.write_batch(_batch(chunk))
            chunk = list(islice(series, CHUNK_SERIES))


def _batch(chunk: Sequence[Series]) -> pa.RecordBatch:
    offsets = np.cumsum([0, *(len(values) for values, _ in chunk)])
    columns: dict[str, Any] = {
        "features": ragged_column(np.concatenate([values for values, _ in chunk]), offsets)
    }
    if chunk[0][1] is not None:
        columns["label"] = pa.array([label for _, label in chunk])
    return pa.RecordBatch.from_pydict(columns)


@dataclass
class _Reader:
    """Reads the lines of one file; what its header states, as far as it was read."""

    path: Path
    dimensions: int | None = None
    classes: frozenset[str] | None = None
    has_target: bool = False

    def series(self, lines: Iterator[tuple[int, str]]) -> Iterator[Series]:
        """The series after `@data`, one per line."""
        number, in_data = 0, False
        for number, line in lines:
            line = line.strip()
            if not line or line.startswith(("#", "%")):
                continue
            if in_data:
                yield self._parse(line, number)
            elif line.startswith("@"):
                in_data = line.lower() == "@data"
                self._read_tag(line, number)
            else:
                raise self._fail(number, f"expected a line of the header, found {line[:40]!r}")
        if number and not in_data:
            raise self._fail(number, "the file has no line @data")

    def _read_tag(self, line: str, number: int) -> None:
        name, *words = line.split()
        name, first = name.lower(), words[0].lower() if words else ""
        if name in ("@dimensions", "@dimension"):
            if not first.isdigit() or first == "0":
                raise self._fail(number, f"expected a number of channels, found {line[:40]!r}")
            self.dimensions = int(first)
        elif name == "@classlabel" and first == "true":
            self.classes = frozenset(words[1:])
        elif name == "@targetlabel":
            self.has_target = first == "true"
        elif name == "@timestamps" and first == "true":
            what = "series with time stamps, (time, value), are not supported; expected values only"
            raise self._fail(number, what, "Save the values only, with @timeStamps false.")

    def _parse(self, line: str, number: int) -> Series:
        parts = line.split(":")
        label: str | float | None = None
        if self.classes is not None or self.has_target:
            label = self._label(parts.pop().strip(), number)
        if not parts:
            raise self._fail(number, "found a class and no values")
        self.dimensions = self.dimensions or len(parts)
        if len(parts) != self.dimensions:
            raise self._fail(number, f"found {len(parts)} channels; expected {self.dimensions}")
        channels = [self._channel(part, place, number) for place, part in enumerate(parts)]
        for place, channel in enumerate(channels):
            if len(channel) != len(channels[0]):
                raise self._fail(
                    number,
                    f"channel {place} has {len(channel)} values, but channel 0 has "
                    f"{len(channels[0])}",
                )
        return np.stack(channels, axis=1), label

    def _label(self, text: str, number: int) -> str | float:
        if self.classes is None:
            return float(self._numbers([text], "the target", number)[0])
        if self.classes and text not in self.classes:
            known = ", ".join(sorted(self.classes))
            raise self._fail(number, f"the class is {text[:40]!r}; @classLabel names {known[:80]}")
        return text

    def _channel(self, part: str, place: int, number: int) -> npt.NDArray[np.float32]:
        cells = [cell.strip() for cell in part.split(",")] if part.strip() else []
        cells = ["nan" if cell == "?" else cell for cell in cells]
        return self._numbers(cells, f"channel {place}", number)

    def _numbers(self, cells: list[str], what: str, number: int) -> npt.NDArray[np.float32]:
        try:
            return np.array([float(cell) for cell in cells], np.float32)
        except ValueError as error:
            raise self._fail(number, f"{what} has a value that is not a number ({error})") from None

    def _fail(self, number: int, what: str, fix: str = "") -> FindingError:
        return bad_line(self.path, number, f"{what}.", fix)
