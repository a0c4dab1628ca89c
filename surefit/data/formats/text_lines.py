"""Text files to rows, one per line; labels at the start of lines become a column."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import Any

from surefit.config import Reading
from surefit.data.data_rules import CORRUPT_FILE
from surefit.data.formats.text_decoding import TextFile
from surefit.data.formats.text_records import Records
from surefit.errors import UsageError
from surefit.findings import rule

LINE_LAYOUT_INFERRED = rule(
    "SF113",
    "info",
    "line layout inferred",
    why="The file does not state the layout of its lines.",
    fix="Set read.pattern, a regular expression with named groups, if the layout is wrong.",
)


SAMPLE_LINES = 1000
_FEWEST_LINES = 4

FASTTEXT = "__label__x text"
LAYOUTS: dict[str, re.Pattern[str]] = {
    FASTTEXT: re.compile(r"(?P<label>__label__\S+(\s+__label__\S+)*)(\s+(?P<text>.*))?"),
    "LABEL:fine text": re.compile(r"(?P<label>[A-Za-z]\w*):(?P<fine>[\w-]+)[ \t]+(?P<text>\S.*)"),
}
"""Layouts of lines that start with a label; groups become columns."""


def read_records(path: Path, reading: Reading) -> Records:
    """Line number and row of each line; without labels or a pattern, the line is `text`."""
    pattern, shown = _chosen_pattern(reading), f"read.pattern {reading.pattern!r}"
    if pattern is None:
        name = _find_layout(path, reading)
        pattern, shown = LAYOUTS.get(name or ""), f"the layout {name!r} of the earlier lines"
        if pattern is not None:
            columns = ", ".join(pattern.groupindex)
            message = f"{path.name}: lines are {name!r}; the columns are {columns}."
            yield LINE_LAYOUT_INFERRED.finding(message, file=str(path))
    several = pattern is LAYOUTS[FASTTEXT] and _has_several_labels(path, reading)
    file = TextFile(path, reading)
    for number, line in file.lines():
        line = line.rstrip("\r\n")
        if pattern is None:
            yield number, {"text": line}
        elif line.strip():
            row = _match(pattern, line, shown, path, number)
            if pattern is LAYOUTS[FASTTEXT]:
                labels = [label.removeprefix("__label__") for label in row["label"].split()]
                row["label"] = labels if several else labels[0]
            yield number, row
    yield from file.findings


def _chosen_pattern(reading: Reading) -> re.Pattern[str] | None:
    if reading.pattern is None:
        return None
    try:
        pattern = re.compile(reading.pattern)
    except re.error as error:
        raise UsageError(
            f"read.pattern is {reading.pattern!r}: {error}.", "Write a regular expression."
        ) from None
    if not pattern.groupindex:
        raise UsageError(
            f"read.pattern is {reading.pattern!r}, which has no named groups.",
            "Name the groups after the columns: (?P<label>\\w+) (?P<text>.*)",
        )
    return pattern


def _find_layout(path: Path, reading: Reading) -> str | None:
    """The layout that all of the first lines have, with labels that recur."""
    lines = (line.strip() for _, line in TextFile(path, reading).lines())
    sample = [line for line in islice(lines, SAMPLE_LINES) if line]
    if len(sample) < _FEWEST_LINES:
        return None
    for name, pattern in LAYOUTS.items():
        matches = [match for line in sample if (match := pattern.fullmatch(line))]
        labels = {match["label"] for match in matches}
        if len(matches) == len(sample) and len(labels) <= len(sample) / 2:
            return name
    return None


def _match(
    pattern: re.Pattern[str], line: str, shown: str, path: Path, number: int
) -> dict[str, Any]:
    match = pattern.fullmatch(line.strip())
    if match is None:
        raise CORRUPT_FILE.error(
            f"{path.name}, line {number}: does not match {shown}: {line.strip()[:60]!r}",
            fix="Correct the named line, or set read.pattern to a pattern that all lines match.",
            file=str(path),
            line=number,
        )
    return match.groupdict()


def _has_several_labels(path: Path, reading: Reading) -> bool:
    """Whether any line starts with two labels; then all rows get a list of labels."""
    two = re.compile(r"\s*__label__\S+\s+__label__")
    return any(two.match(line) for _, line in TextFile(path, reading).lines())
