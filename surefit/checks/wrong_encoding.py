"""Text that was decoded with the wrong encoding, found by undoing it.

UTF-8 read as a single-byte encoding turns each character into two to four: `é` into `Ã©`. Encoding
the text again gives the bytes of UTF-8; text that was read rightly hardly ever does.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from surefit.data.column_types import is_list, is_object, is_text
from surefit.data.table import Table
from surefit.findings import Finding, rule

WRONG_ENCODING = rule(
    "SF243",
    "warning",
    "text decoded with the wrong encoding",
    why="UTF-8 was read as another encoding, or U+FFFD (�) replaces bytes that could not be "
    "decoded, and are lost. The model would learn, and write, the garbled form.",
    fix="Repair the text with text.encode('cp1252').decode('utf-8').",
    accept="The text is trained on as it is.",
)

MAX_REPAIRED = 5_000
"""Rows that are repaired, of those looked at."""
COVERED = 0.8
"""The share of a row's non-ASCII characters that must be garbled ones."""
OF_FOREIGN, OF_ALL = 0.2, 0.005
"""A column is garbled where this share of its rows with non-ASCII text is, or of all its rows."""
SHOWN = 3
CODECS = ("cp1252", "cp1251", "mac_roman")
REPLACEMENT = "\ufffd"

Rows = npt.NDArray[np.int64]


def _characters(codec: str, numbers: Sequence[int]) -> str:
    """What the bytes are read as; those that Windows leaves undefined stay control characters."""
    read = (bytes([n]).decode(codec, "ignore") or chr(n) for n in numbers)
    return "".join(read)


@cache
def _pattern(codec: str) -> re.Pattern[str]:
    """Garbled characters of the scripts in common use: lead bytes with their continuations."""
    after = _characters(codec, range(0x80, 0xC0))
    more = f"[{re.escape(after)}\x80-\x9f]"
    two = _characters(codec, [*range(0xC2, 0xC6), *range(0xCE, 0xD2), *range(0xD7, 0xDC)])
    three = _characters(codec, range(0xE0, 0xF0))
    parts = (f"[{two}]{more}", f"[{three}]{more}{{2}}", f"{_characters(codec, [0xF0])}{more}{{3}}")
    return re.compile("|".join(parts))


def _bytes(text: str, codec: str) -> bytes:
    return b"".join(
        bytes([ord(c)]) if "\x80" <= c <= "\x9f" else c.encode(codec, "replace") for c in text
    )


def repair(text: str, codec: str) -> str | None:
    """The text as it was meant, if most of its non-ASCII characters are garbled; else None.

    >>> repair("cafÃ© â€“ 5 â‚¬", "cp1252"), repair("РџСЂРёРІРµС‚", "cp1251")
    ('café – 5 €', 'Привет')
    >>> repair("CAFÉ – 5 €", "cp1252"), repair("Рівень", "cp1251")
    (None, None)
    """
    covered = letters = 0

    def undo(match: re.Match[str]) -> str:
        nonlocal covered, letters
        try:
            meant = _bytes(match[0], codec).decode("utf-8")
        except UnicodeDecodeError:
            return match[0]
        if unicodedata.category(meant)[0] not in "LNPSZ":
            return match[0]
        covered += len(match[0])
        letters += len(match[0]) > 2 and meant.isalpha()
        return meant

    meant = _pattern(codec).sub(undo, text)
    foreign = sum(not c.isascii() for c in text)
    if letters == 1 and covered == 3:  # `å…”` for one Chinese character among Latin ones
        return None
    return meant if covered and covered >= COVERED * foreign else None


@dataclass
class _Garbled:
    """What the rows of one column hold."""

    looked_at: int
    foreign: set[int] = field(default_factory=set)
    repaired: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    """Row to a piece of its text, the piece as it was meant, and the codec."""
    lost: dict[int, str] = field(default_factory=dict)

    def is_many(self, count: int) -> bool:
        few = count < 2 and self.looked_at >= 20
        share = OF_FOREIGN * len(self.foreign), OF_ALL * self.looked_at
        return count > 0 and not few and count >= min(share)


def check_encoding(table: Table, column: str) -> Iterator[Finding]:
    """Texts of a column, lists and dialogues too, on a sample spread over the rows."""
    if not _holds_text(table.column_type(column)):
        return
    profile = table.profile(column)
    found = _Garbled(-(-table.num_rows // profile.stride))
    for rows, values in profile.spread():
        for texts, places in _strings(values, rows):
            _look(texts, places, found)
    yield from _judge(table, column, found)


def _holds_text(kind: pa.DataType) -> bool:
    if is_list(kind):
        return _holds_text(kind.value_type)
    return is_text(kind) or (is_object(kind) and any(_holds_text(each.type) for each in kind))


def _strings(values: pa.Array, rows: Rows) -> Iterator[tuple[pa.Array, Rows]]:
    """All texts within a column, with the row each is from."""
    kind = values.type
    if is_text(kind):
        yield values, rows
    elif is_list(kind) and _holds_text(kind):
        parents = np.asarray(pc.list_parent_indices(values))
        yield from _strings(pc.list_flatten(values), rows[parents])
    elif is_object(kind):
        for place in range(kind.num_fields):
            yield from _strings(pc.struct_field(values, [place]), rows)


def _look(texts: pa.Array, rows: Rows, found: _Garbled) -> None:
    foreign = pc.not_equal(pc.binary_length(texts), pc.utf8_length(texts)).fill_null(False)
    chosen, rows = texts.filter(foreign), rows[np.asarray(foreign)]
    found.foreign.update(rows.tolist())
    lost = np.asarray(pc.match_substring(chosen, REPLACEMENT))
    for place in np.flatnonzero(lost).tolist():
        text = chosen[place].as_py()
        found.lost.setdefault(int(rows[place]), _piece(text, text.index(REPLACEMENT)))
    for codec in CODECS:
        matched = np.asarray(pc.match_substring_regex(chosen, _pattern(codec).pattern))
        for place in np.flatnonzero(matched).tolist():
            row = int(rows[place])
            if row in found.repaired or len(found.repaired) > MAX_REPAIRED:
                continue
            text = chosen[place].as_py()
            meant = repair(text, codec)
            if meant is None:
                continue
            first = _pattern(codec).search(text)
            piece = _piece(text, first.start() if first else 0)
            if REPLACEMENT in meant:
                found.lost.setdefault(row, piece)
            else:
                found.repaired[row] = (piece, repair(piece, codec) or meant[:40], codec)


def _piece(text: str, place: int) -> str:
    """The words around a place."""
    start = text.rfind(" ", 0, max(0, place - 8)) + 1 if place > 8 else 0
    end = text.find(" ", place + 8)
    return text[start : end if 0 < end <= place + 30 else place + 30]


def _undoes(codec: str, repaired: Iterable[tuple[str, str, str]]) -> bool:
    """Whether Python's codec knows all characters of the texts, as undoing it requires."""
    try:
        return all(piece.encode(codec) for piece, _, _ in repaired)
    except UnicodeEncodeError:
        return False


def _judge(table: Table, column: str, found: _Garbled) -> Iterator[Finding]:
    of_rows = f"of {found.looked_at:,} rows looked at"
    if found.is_many(len(found.repaired)):
        rows = sorted(found.repaired)
        codec = found.repaired[rows[0]][2]
        shown = ", ".join(
            f"{found.repaired[row][0]!r} in row {table.where(row)['row']} for "
            f"{found.repaired[row][1]!r}"
            for row in rows[:SHOWN]
        )
        message = (
            f"column {column!r}: {len(rows):,} {of_rows} are UTF-8 that was read as {codec}: "
            f"{shown}."
        )
        codecs = [name for name in (codec, "latin-1") if _undoes(name, found.repaired.values())]
        by_hand = f"text.encode({codecs[0]!r}).decode('utf-8'), or with " if codecs else ""
        fix = (
            f"Repair each text with {by_hand}ftfy.fix_text (pip install ftfy). If you set "
            "read.encoding, leave it out: UTF-8 is tried first."
        )
        yield WRONG_ENCODING.finding(message, table.where(rows[0]), fix=fix, column=column)
    elif found.is_many(len(found.lost)):
        rows = sorted(found.lost)
        shown = ", ".join(
            f"{found.lost[row]!r} in row {table.where(row)['row']}" for row in rows[:SHOWN]
        )
        message = f"column {column!r}: {len(rows):,} {of_rows} hold replaced characters: {shown}."
        fix = "Make the data again from its source, with the source's own encoding."
        yield WRONG_ENCODING.finding(message, table.where(rows[0]), fix=fix, column=column)
