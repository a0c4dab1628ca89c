"""CoNLL files to rows: one token per line, a blank line between sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from surefit.config import Reading
from surefit.data.formats.opened import bad_line
from surefit.data.formats.text_decoding import TextFile
from surefit.data.formats.text_lines import Records

SAMPLE_LINES = 1000
UNIVERSAL = (
    *("ids", "tokens", "lemmas", "tags", "xpos"),
    *("feats", "heads", "deprels", "deps", "misc"),
)
"""The columns of CoNLL-U; `tags` are the universal parts of speech."""


MAX_TOKENS = 1_000_000
"""The longest sentence that is read: it is held in memory."""


def read_records(path: Path, reading: Reading) -> Records:
    """Yield the first line of each sentence, and its columns as lists of text.

    The first column is `tokens` and the last `tags`; those between are column_1 and so on.
    """
    sample = list(islice(TextFile(path, reading).lines(), SAMPLE_LINES))
    delimiter = reading.delimiter or (
        "\t" if any("\t" in line.strip() for _, line in sample) else None
    )
    names = _column_names([_cells(line, delimiter) for _, line in sample if line.strip()], reading)
    sentence: list[Sequence[str]] = []
    begin, file = 0, TextFile(path, reading)
    for number, line in file.lines():
        cells = _cells(line, delimiter)
        if not line.strip() or line.startswith("-DOCSTART-"):
            if sentence:
                yield begin, _columns(names, sentence)
            sentence = []
        elif len(cells) == len(names):
            if names == UNIVERSAL and not cells[0].isdigit():
                continue  # a multiword token, whose words follow, or an empty node
            begin = begin if sentence else number
            sentence.append(cells)
            if len(sentence) > MAX_TOKENS:
                what = f"the sentence has more than {MAX_TOKENS:,} tokens."
                raise bad_line(path, begin, what, "Separate sentences by blank lines.")
        elif not line.startswith(("# ", "#\t")) and line.strip() != "#":  # not a comment
            what = f"{len(cells)} columns, but {len(names)} in other lines ({', '.join(names)})"
            raise bad_line(path, number, f"{what}: {line.strip()[:60]!r}")
    if sentence:
        yield begin, _columns(names, sentence)
    yield from file.findings


def _cells(line: str, delimiter: str | None) -> list[str]:
    return line.rstrip("\r\n").split(delimiter)


def _columns(names: Sequence[str], sentence: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    columns = zip(*sentence, strict=True)
    return {name: list(column) for name, column in zip(names, columns, strict=True)}


def _column_names(sample: Sequence[Sequence[str]], reading: Reading) -> tuple[str, ...]:
    if reading.names:
        return reading.names
    widths = Counter(len(cells) for cells in sample if not cells[0].startswith(("#", "-DOCSTART-")))
    width = widths.most_common(1)[0][0] if widths else 0
    numbered = any(len(cells) == width and cells[0] == "1" for cells in sample)
    if width == len(UNIVERSAL) and numbered:
        return UNIVERSAL
    if width < 2:
        return ("tokens",)
    return ("tokens", *(f"column_{place}" for place in range(1, width - 1)), "tags")
