"""Text that should not be in data: one table of markers, and text that was decoded wrongly.

A marker is a pattern. Its share of the rows decides: a chat token is a fault wherever it is, while
mark-up in half of the rows is what the column is made of. One finding per column names them all.

UTF-8 read as a single-byte encoding turns each character into two to four: `é` into `Ã©`. Encoding
the text again gives the bytes of UTF-8; text that was read rightly hardly ever does.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from surefit.data.column_types import is_list, is_object, is_text
from surefit.data.rendered_chats import are_rendered
from surefit.data.table import Table
from surefit.findings import Finding, rule
from surefit.inputs.encoder import Encoder

STRAY_TEXT = rule(
    "SF243",
    "warning",
    "text that should not be in data",
    why="Wrong decoding (é as Ã©, or � for lost bytes), tokens of a chat template, placeholders, "
    "mark-up, messages of a service and the like are learned, and written, as if they were "
    "content.",
    fix="Remove it from the texts, or drop these rows.",
    accept="The text is trained on as it is.",
)

Rows = npt.NDArray[np.int64]
SHOWN = 3
FEWEST, LEAST_SHARE, NOT_RARE = 2, 0.005, 0.02
"""Rows with a marker, and their share of the rows, from which it is reported; the larger share is
for markers that texts may have for a reason."""
USUAL = 0.6
"""The share of the rows from which mark-up or placeholders are what the column is made of."""


@dataclass(frozen=True)
class Marker:
    """A pattern (RE2) of what should not be there, and the fix."""

    name: str
    pattern: str
    fix: str
    most: float = 1.0
    """The share of the rows up to which it is odd."""
    in_code: bool = False
    """Whether source code has it as well."""
    least: float = LEAST_SHARE
    """The share of the rows from which it is odd."""
    of_chats: bool = False
    """Whether chats that are written out as one text have it."""


LEAVE_OUT = "Remove these from the texts; the template or tokenizer adds its own."
DROP = "Drop these rows, or make their texts again."
REFUSALS = "refusals of an assistant"
MARKERS = (
    Marker(
        "special tokens",
        r"<\|(?:im_start|im_end|im_sep|endoftext|begin_of_text|end_of_text|eot_id|end|user|system|"
        r"assistant|start_header_id|end_header_id|return|channel|message|pad)\|>|<｜[^｜<>]{1,30}｜>|"
        r"\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>|</?s>|<(?:bos|eos|pad)>|"
        r"\[(?:CLS|SEP|PAD|MASK)\]",
        LEAVE_OUT,
        of_chats=True,
    ),
    Marker(
        "lines of a prompt template",
        r"(?m)^#{2,3} ?(?:Instructions?|Response|Input|Assistant|Human|User) ?:|"
        r"Below is an instruction that describes a task",
        LEAVE_OUT,
        of_chats=True,
    ),
    Marker(
        "turns of a dialogue",
        r"(?m)^(?:Human|User|Assistant|USER|ASSISTANT|HUMAN) ?:",
        "Leave the further turns out, or give dialogues as messages.",
        USUAL,
        least=NOT_RARE,
        of_chats=True,
    ),
    Marker(
        "names of a field",
        r"^(?:Output|Response|Completion|Target|Label|Answer) ?:",
        LEAVE_OUT,
        USUAL,
        least=0.05,
    ),
    Marker(
        "placeholders",
        r"\{\{ ?[A-Za-z_.]+ ?\}\}|\$\{[A-Za-z_.]+\}|<(?:INSERT|YOUR)[ _][^>]{1,40}>|"
        r"\[(?:INSERT|YOUR|Insert|Your) [^\]]{1,40}\]|(?i:lorem ipsum)",
        "Fill the placeholders, or drop these rows.",
        USUAL,
        in_code=True,
        least=NOT_RARE,
    ),
    Marker(
        "notes to be done",
        r"^\W*(?:TODO|FIXME|TBD|XXX)\b",
        DROP,
        USUAL,
    ),
    Marker(
        "mark-up",
        r"(?i)</?(?:div|p|br|span|li|ul|td|tr|table|h[1-6]|strong|script|html|body)(?:\s[^<>]*)?/?>"
        r"|<a href=",
        "Remove the mark-up: bs4.BeautifulSoup(text, 'html.parser').get_text().",
        USUAL,
        in_code=True,
        least=NOT_RARE,
    ),
    Marker(
        "entities",
        r"&(?:amp|quot|nbsp|lt|gt|apos|#[0-9]{2,5}|#x[0-9a-fA-F]{2,5});",
        "Undo the entities: html.unescape(text).",
        USUAL,
        in_code=True,
    ),
    Marker(
        REFUSALS,
        r"(?i)\bas an? (?:AI|artificial intelligence)(?: language)? model\b|"
        r"^(?:I'm|I am|I’m) sorry, but I (?:cannot|can't|can’t|am unable)",
        "Drop these rows, unless the model is to refuse as well.",
        least=NOT_RARE,
    ),
    Marker(
        "messages of a service",
        r"(?i)\b(?:error|http|status)(?: code)?:? [45][0-9][0-9]\b|too many requests|"
        r"rate limit (?:exceeded|reached)|internal server error|service unavailable|"
        r"context length exceeded|Traceback \(most recent call last\)",
        DROP,
        in_code=True,
    ),
    Marker(
        "marks of truncation",
        r"(?i)[\[(<](?:truncated|cut off|message clipped|continue reading|read more)[\])>]|"
        r"(?:\.\.\.|…) ?(?:read|see|show) more\W*$",
        "Get the whole texts, or drop these rows.",
    ),
    Marker("encoded data", r"[A-Za-z0-9+/]{160,}|data:[a-z]+/[a-z]+;base64,", DROP, least=NOT_RARE),
    Marker(
        "escape sequences",
        r"\\n|\\t[^a-z]|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}",
        "Undo the escapes, most likely by reading the source as JSON.",
        USUAL,
        in_code=True,
    ),
    Marker(
        "control characters",
        r"[\x00-\x08\x0e-\x1f\x7f]",
        "Remove them: re.sub(r'[\\x00-\\x08\\x0e-\\x1f\\x7f]', '', text).",
    ),
)
"""What should not be in texts; to add one, add a row, and a case in tests/faults."""
CODE = re.compile(
    r"(?m)^\s*(?:def |class |import |#include|public |function |return\b|</?\w+>$)|[;{]$"
)
REPLACEMENT = "\ufffd"


@dataclass
class Hits:
    """The rows with one marker, and where the first texts have it."""

    rows: set[int] = field(default_factory=set)
    shown: dict[int, str] = field(default_factory=dict)

    def add(self, row: int, text: str, place: int) -> None:
        """Count a row."""
        self.rows.add(row)
        if len(self.shown) < SHOWN:
            self.shown.setdefault(row, _piece(text, place))


@dataclass(frozen=True)
class Repaired:
    """A piece of a text, the piece as it was meant, the codec, and the first garbled character."""

    piece: str
    meant: str
    codec: str
    garbled: str


@dataclass
class Scan:
    """What the rows of one column hold."""

    looked_at: int
    hits: dict[str, Hits] = field(default_factory=dict)
    foreign: set[int] = field(default_factory=set)
    repaired: dict[int, Repaired] = field(default_factory=dict)
    lost: Hits = field(default_factory=Hits)

    def is_many(self, count: int) -> bool:
        """Whether so many rows are garbled, rather than text about encodings."""
        few = count < 2 and self.looked_at >= 20
        share = OF_FOREIGN * len(self.foreign), OF_ALL * self.looked_at
        return count > 0 and not few and count >= min(share)


def check_markers(table: Table, column: str, encoder: Encoder) -> Iterator[Finding]:
    """Yield what a column's texts should not have, on a sample spread over the rows."""
    if not _holds_text(table.column_type(column)) or column in table.files:
        return
    profile = table.profile(column)
    scan = Scan(-(-table.num_rows // profile.stride))
    own = _own_tokens(encoder)
    is_chat = column == encoder.roles.get("messages") or (
        column == encoder.roles.get("text") and "label" not in encoder.roles
    )
    marks_are_read = is_chat and is_text(table.column_type(column)) and are_rendered(table, column)
    for rows, values in profile.spread():
        for texts, places in _strings(values, rows):
            _look(texts, places, scan, own)
    for marker in MARKERS if marks_are_read else ():
        if marker.of_chats:
            scan.hits.pop(marker.name, None)
    if column == encoder.roles.get("rejected"):  # what the model is to avoid
        scan.hits.pop(REFUSALS, None)
    yield from _judge(table, column, scan)


def _own_tokens(encoder: Encoder) -> str:
    """Return a pattern of the tokenizer's special tokens, but for those that are words."""
    tokenizer = encoder.tokenizer
    names = {} if tokenizer is None else tokenizer.special_tokens_map
    unknown = names.get("unk_token")
    known = [n for n in names.values() if isinstance(n, str) and len(n) > 3 and n != unknown]
    return "|".join(re.escape(name) for name in known if re.match(r"[<\[].*[>\]]$", name))


def _holds_text(kind: pa.DataType) -> bool:
    if is_list(kind):
        return _holds_text(kind.value_type)
    return is_text(kind) or (is_object(kind) and any(_holds_text(each.type) for each in kind))


def _strings(values: pa.Array, rows: Rows) -> Iterator[tuple[pa.Array, Rows]]:
    """Yield all texts within a column, with the row each is from."""
    kind = values.type
    if is_text(kind):
        yield values, rows
    elif is_list(kind) and _holds_text(kind):
        parents = np.asarray(pc.list_parent_indices(values))
        yield from _strings(pc.list_flatten(values), rows[parents])
    elif is_object(kind):
        for place in range(kind.num_fields):
            yield from _strings(pc.struct_field(values, [place]), rows)


def _look(texts: pa.Array, rows: Rows, scan: Scan, own: str) -> None:
    every = "|".join(f"(?:{marker.pattern})" for marker in MARKERS) + (own and f"|{own}")
    matched = np.asarray(pc.match_substring_regex(texts, every).fill_null(False))
    for place in np.flatnonzero(matched).tolist():
        text = texts[place].as_py()
        is_code = CODE.search(text) is not None
        for marker in MARKERS:
            found = None if is_code and marker.in_code else _compiled(marker, own).search(text)
            if found:
                scan.hits.setdefault(marker.name, Hits()).add(int(rows[place]), text, found.start())
    foreign = pc.not_equal(pc.binary_length(texts), pc.utf8_length(texts)).fill_null(False)
    _look_at_codecs(texts.filter(foreign), rows[np.asarray(foreign)], scan)


@cache
def _compiled(marker: Marker, own: str) -> re.Pattern[str]:
    more = f"|{own}" if own and marker is MARKERS[0] else ""
    return re.compile(marker.pattern + more)


def _piece(text: str, place: int) -> str:
    """Return the words around a place."""
    start = text.rfind(" ", 0, max(0, place - 8)) + 1 if place > 8 else 0
    end = text.find(" ", place + 8)
    return text[max(start, place - 40) : min(end if end > 0 else place + 30, place + 30)]


def _judge(table: Table, column: str, scan: Scan) -> Iterator[Finding]:
    """One finding for a column; its rows are those of the first marker."""
    parts, fixes, first = [], [], []
    for kind, hits, fix in _found(scan):
        shown = ", ".join(
            f"{piece} in row {table.where(row)['row']}" for row, piece in sorted(hits.shown.items())
        )
        parts.append(f"{len(hits.rows):,} of {scan.looked_at:,} rows looked at {kind}: {shown}")
        fixes.append(fix)
        first.append(min(hits.rows))
    if parts:
        message = f"column {column!r}: {'; '.join(parts)}."
        fix = " ".join(dict.fromkeys(fixes))
        yield STRAY_TEXT.finding(message, table.where(first[0]), fix=fix, column=column)


def _found(scan: Scan) -> Iterator[tuple[str, Hits, str]]:
    """Yield what is said of the rows, the rows with the pieces to quote, and the fix."""
    repaired = scan.repaired
    differ = len(repaired) < MANY_ALIKE or len({each.garbled for each in repaired.values()}) > 1
    if differ and scan.is_many(len(repaired)):
        first = sorted(repaired)[:SHOWN]
        codec = repaired[first[0]].codec
        codecs = [name for name in (codec, "latin-1") if _undoes(name, repaired)]
        by_hand = f"text.encode({codecs[0]!r}).decode('utf-8'), or with " if codecs else ""
        shown = {row: f"{repaired[row].piece!r} for {repaired[row].meant!r}" for row in first}
        fix = (
            f"Repair each text with {by_hand}ftfy.fix_text (pip install ftfy). If you set "
            "read.encoding, leave it out: UTF-8 is tried first."
        )
        yield f"are UTF-8 that was read as {codec}", Hits({*repaired}, shown), fix
    elif scan.is_many(len(scan.lost.rows)):
        fix = "Make the data again from its source, with the source's own encoding."
        yield "hold replaced characters", _quoted(scan.lost), fix
    for marker in MARKERS:
        hits = scan.hits.get(marker.name, Hits())
        share = len(hits.rows) / max(scan.looked_at, 1)
        if len(hits.rows) >= FEWEST and marker.least <= share <= marker.most:
            yield f"have {marker.name}", _quoted(hits), marker.fix


def _quoted(hits: Hits) -> Hits:
    return Hits(hits.rows, {row: repr(piece) for row, piece in hits.shown.items()})


MAX_REPAIRED = 5_000
"""Rows that are repaired, of those looked at."""
MANY_ALIKE = 8
"""From so many rows on, more than one character must be garbled: `ƒè` is common in Ewe."""
COVERED = 0.8
"""The share of a row's non-ASCII characters that must be garbled ones."""
OF_FOREIGN, OF_ALL = 0.2, 0.005
"""A column is garbled where this share of its rows with non-ASCII text is, or of all its rows."""
CODECS = ("cp1252", "cp1251", "mac_roman")


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
    """Return the text as it was meant, if most of its non-ASCII characters are garbled; else None.

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


def _look_at_codecs(texts: pa.Array, rows: Rows, scan: Scan) -> None:
    scan.foreign.update(rows.tolist())
    lost = np.asarray(pc.match_substring(texts, REPLACEMENT))
    for place in np.flatnonzero(lost).tolist():
        text = texts[place].as_py()
        scan.lost.add(int(rows[place]), text, text.index(REPLACEMENT))
    for codec in CODECS:
        matched = np.asarray(pc.match_substring_regex(texts, _pattern(codec).pattern))
        for place in np.flatnonzero(matched).tolist():
            row = int(rows[place])
            if row in scan.repaired or len(scan.repaired) > MAX_REPAIRED:
                continue
            text = texts[place].as_py()
            meant = repair(text, codec)
            if meant is None:
                continue
            first = _pattern(codec).search(text)
            start = first.start() if first else 0
            piece = _piece(text, start)
            if REPLACEMENT in meant:
                scan.lost.add(row, text, start)
            else:
                known = first[0] if first else ""
                scan.repaired[row] = Repaired(
                    piece, repair(piece, codec) or meant[:40], codec, known
                )


def _undoes(codec: str, repaired: dict[int, Repaired]) -> bool:
    """Return whether Python's codec knows all characters of the texts, as undoing it requires."""
    try:
        return all(each.piece.encode(codec) for each in repaired.values())
    except UnicodeEncodeError:
        return False
