"""Time series of aeon and sktime (`.ts`) to ragged features [time, channels] and labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.config import Reading
from surefit.data.formats.opened import bad_line
from surefit.data.formats.text_decoding import TextFile
from surefit.data.formats.text_lines import Records
from surefit.errors import FindingError


def read_records(path: Path, reading: Reading) -> Records:
    """Line number and row of each series: `features` [time, channels] and `label`, if there is."""
    file = TextFile(path, reading)
    yield from _Reader(path).series(file.lines())
    yield from file.findings


@dataclass
class _Reader:
    """Reads the lines of one file; what its header states, as far as it was read."""

    path: Path
    dimensions: int | None = None
    classes: frozenset[str] | None = None
    has_target: bool = False

    def series(self, lines: Iterator[tuple[int, str]]) -> Records:
        """Yield the series after `@data`, one per line."""
        number, in_data = 0, False
        for number, line in lines:
            line = line.strip()
            if not line or line.startswith(("#", "%")):
                continue
            if in_data:
                yield number, self._parse(line, number)
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

    def _parse(self, line: str, number: int) -> dict[str, Any]:
        parts = line.split(":")
        label: str | float | None = None
        if self.classes is not None or self.has_target:
            label = self._label(parts.pop().strip(), number)
        if not parts:
            raise self._fail(number, "found a class and no values")
        self.dimensions = self.dimensions or len(parts)
        if len(parts) != self.dimensions:
            raise self._fail(number, f"found {len(parts)} channels; expected {self.dimensions}")
        channels = []
        for place, part in enumerate(parts):
            cells = [cell.strip() for cell in part.split(",")] if part.strip() else []
            cells = ["nan" if cell == "?" else cell for cell in cells]
            channels.append(self._numbers(cells, f"channel {place}", number))
        for place, channel in enumerate(channels):
            if len(channel) != len(channels[0]):
                raise self._fail(
                    number,
                    f"channel {place} has {len(channel)} values, but channel 0 has "
                    f"{len(channels[0])}",
                )
        row = {"features": np.stack(channels, axis=1)}
        return row if label is None else {**row, "label": label}

    def _label(self, text: str, number: int) -> str | float:
        if self.classes is None:
            return float(self._numbers([text], "the target", number)[0])
        if self.classes and text not in self.classes:
            known = ", ".join(sorted(self.classes))
            raise self._fail(number, f"the class is {text[:40]!r}; @classLabel names {known[:80]}")
        return text

    def _numbers(self, cells: list[str], what: str, number: int) -> npt.NDArray[np.float32]:
        try:
            return np.array([float(cell) for cell in cells], np.float32)
        except ValueError as error:
            raise self._fail(number, f"{what} has a value that is not a number ({error})") from None

    def _fail(self, number: int, what: str, fix: str = "") -> FindingError:
        return bad_line(self.path, number, f"{what}.", fix)
