"""WebDataset tar shards: the members with one key are a row, and extensions are its columns.

Nothing is unpacked, and no name leads out of the file. Images and audio stay in it: cells have the
place of their bytes. Texts, classes, JSON and arrays are read into an Arrow table once.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from surefit.config import Reading
from surefit.data.cache import fingerprint
from surefit.data.cache_entry import file_fingerprint, open_entry
from surefit.data.column_types import AUDIO_ENDINGS, IMAGE_ENDINGS
from surefit.data.data_rules import CORRUPT_FILE, NOT_UTF8, PICKLED_DATA, check_expansion
from surefit.data.formats.jsonl import JsonReader
from surefit.data.formats.opened import Opened
from surefit.data.formats.text_decoding import MAX_LINE_BYTES, is_gzip, open_bytes, too_long
from surefit.data.formats.text_lines import Records, open_records
from surefit.findings import Finding, note, rule

MEMBERS_LEFT_OUT = rule(
    "SF182",
    "warning",
    "members of a tar file that are not read",
    why="What they hold is not part of the rows. A pickle runs code when it is loaded.",
    fix="Save what is needed as .json, .npy, .txt, .cls, or an image or audio file.",
    accept="These members are not read.",
)

TWIN_MEMBERS = rule(
    "SF183",
    "error",
    "member twice in a tar file",
    why="A row has one value in a column; which of the two is meant cannot be told.",
    fix="Give each sample a key of its own, and write the file again.",
)

HEADER_BYTES = 1 << 20
"""The longest name or extended header; tarfile would read one of any length into memory."""
MOST_MEMBERS = 20_000_000
BLOCK = 512
TAR_FAULTS = (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, IndexError)
_LONG = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
LONGEST_CLASS = 1 << 12
_INTEGER = re.compile(r"[+-]?\d{1,18}")


@dataclass(frozen=True)
class Member:
    """A file inside a tar file: its name, and the place of its bytes."""

    name: str
    offset: int
    size: int


class LeftOut(dict[str, tuple[int, str]]):
    """How many members are not read, by the reason, with the first name of each."""

    def add(self, reason: str, name: str) -> None:
        """Count one more."""
        count, first = self.get(reason, (0, name))
        self[reason] = count + 1, first


Sample = tuple[str, dict[str, Member]]
"""The key of a row, and its members by extension."""


def open_tar(path: Path, reading: Reading) -> Opened:
    """Return the rows of a `.tar`, `.tar.gz` or `.tgz` file."""
    _unpacked(path)  # the cells of a table that is there already point into it
    return open_records(read_samples, path, reading, unit="row")


def read_samples(path: Path, reading: Reading) -> Records:
    """Yield number and columns of each sample."""
    reader = _Reader(path, _unpacked(path), reading)
    yield from reader.rows()
    yield from reader.notes()


def _unpacked(path: Path) -> Path:
    """Return the tar file itself, or the content of a gzip of it, in the cache."""
    if not is_gzip(path):
        return path

    def fill(folder: Path) -> None:
        with open_bytes(path) as packed, (folder / "shard.tar").open("wb") as target:
            while chunk := packed.read(1 << 22):
                target.write(chunk)
                check_expansion(path, target.tell())

    key = fingerprint("unpacked", file_fingerprint(path))
    return open_entry("tables", key, fill, lambda folder: folder / "shard.tar")


class _Reader:
    """Reads the samples of one tar file."""

    def __init__(self, path: Path, tar: Path, reading: Reading) -> None:
        self.path, self.tar, self.reading = path, tar, reading
        self.left_out = LeftOut()
        members = list(read_index(tar, path, self.left_out))
        self.naming = choose_names([member.name for member in members])
        self.samples = list(self._group(members))
        self.json = JsonReader(path)
        self.json_names: dict[str, str] = {}
        self.folders = self._class_folders()

    def rows(self) -> Records:
        """Yield the rows, numbered from 0."""
        with self.tar.open("rb") as file:
            self.named_classes = self._has_named_classes(file)
            for number, sample in enumerate(self.samples):
                yield number, self._row(number, sample, file)

    def _group(self, members: Sequence[Member]) -> Iterator[Sample]:
        """Members with the same key, wherever they are in the file, in the order of their first."""
        samples: dict[str, dict[str, Member]] = {}
        for member in members:
            parts = divide(member.name, self.naming.at_first_dot)
            if parts is None:
                self.left_out.add("names without an extension", member.name)
                continue
            key, extension = parts
            if extension not in self.naming.columns:
                kind = kind_of_extension(extension)
                what = "pickles" if kind == "pickle" else f"the extension {extension!r}"
                self.left_out.add(what, member.name)
                samples.setdefault(key, {})
                continue
            sample = samples.setdefault(key, {})
            if extension in sample:
                message = f"{self.path.name} has the member {member.name!r} twice."
                where = self._where(list(samples).index(key))
                raise TWIN_MEMBERS.error(message, where, column=self.naming.columns[extension])
            sample[extension] = member
        yield from ((key, sample) for key, sample in samples.items() if sample)

    def _class_folders(self) -> list[str] | None:
        """Return folder of each sample, if folders are the only thing that tells classes apart."""
        kinds = {kind_of_extension(extension) for extension in self.naming.columns}
        if not kinds <= {"image", "audio"} or not kinds:
            return None
        folders = [key.rpartition("/")[0].rpartition("/")[2] for key, _ in self.samples]
        return folders if all(folders) and len({*folders}) > 1 else None

    def _has_named_classes(self, file: IO[bytes]) -> dict[str, bool]:
        """Return whether classes are names rather than numbers, by extension."""
        found: dict[str, bool] = {}
        for number, (_, sample) in enumerate(self.samples):
            for extension, member in sample.items():
                if kind_of_extension(extension) == "class" and not found.get(extension):
                    text = self._text(member, number, file, LONGEST_CLASS).strip()
                    found[extension] = not _INTEGER.fullmatch(text)
        return found

    def _row(self, number: int, sample: Sample, file: IO[bytes]) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for extension, member in sample[1].items():
            column, kind = self.naming.columns[extension], kind_of_extension(extension)
            if kind in ("image", "audio"):
                place = f"{self.path.resolve()}/{member.name}"
                where = {"tar": str(self.tar.resolve()), "offset": member.offset}
                row[column] = {"path": place, **where, "size": member.size}
            elif kind == "json":
                row |= self._json(column, member, number, file)
            elif kind == "array":
                row[column] = self._array(member, number, file)
            else:
                text = self._text(member, number, file)
                if kind == "class":
                    text = text.strip()
                named = self.named_classes.get(extension, True)
                row[column] = text if named else int(text)
        if self.folders is not None:
            row["label"] = self.folders[number]
        return row

    def _bytes(self, member: Member, file: IO[bytes], most: int = MAX_LINE_BYTES) -> bytes:
        if member.size > most:
            raise too_long(self.path, 1)
        file.seek(member.offset)
        return file.read(member.size)

    def _text(
        self, member: Member, number: int, file: IO[bytes], most: int = MAX_LINE_BYTES
    ) -> str:
        raw = self._bytes(member, file, most)
        try:
            return raw.decode(self.reading.encoding or "utf-8-sig").removesuffix("\n")
        except (UnicodeDecodeError, LookupError) as error:
            message = f"{self.path.name}, row {number}: {member.name} is not UTF-8 ({error})."
            raise NOT_UTF8.error(message, self._where(number)) from None

    def _json(self, column: str, member: Member, number: int, file: IO[bytes]) -> dict[str, Any]:
        """Return values of an object as columns; those that another member has keep a prefix."""
        text = self._text(member, number, file)
        try:
            value = self.json.decoder.decode(text)
        except (ValueError, RecursionError) as error:
            message = f"{self.path.name}, row {number}: {member.name} is not JSON: {error}."
            raise CORRUPT_FILE.error(message, self._where(number)) from None
        self.json.check(value, number + 1, text.count("[") + text.count("{"))
        if not isinstance(value, dict) or column not in PLAIN_JSON:
            return {column: value}
        taken = {*self.naming.columns.values()}
        names = {key: f"{column}.{key}" if key in taken else key for key in value}
        self.json_names |= names
        return {names[key]: inner for key, inner in value.items()}

    def _array(self, member: Member, number: int, file: IO[bytes]) -> Any:
        raw = io.BytesIO(self._bytes(member, file, 4 * MAX_LINE_BYTES))
        try:
            array = np.lib.format.read_array(raw, allow_pickle=False)
        except Exception as error:  # numpy raises all kinds of errors on damaged bytes
            shown = f"{self.path.name}, row {number}: {member.name}"
            if "Python objects" in str(error) or "pickle" in str(error):
                message = f"{shown} contains pickled Python objects, which surefit does not load."
                raise PICKLED_DATA.error(message, self._where(number)) from None
            message = f"{shown} is not a readable .npy file: {str(error).rstrip('.')}."
            raise CORRUPT_FILE.error(message, self._where(number)) from None
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        return native if native.ndim else native.item()

    def _where(self, number: int) -> Mapping[str, str | int]:
        return {"file": str(self.path), "row": number}

    def notes(self) -> Iterator[Finding]:
        """Yield what is known of the file once its rows have been read."""
        shown = [f"{e} → {c}" for e, c in self.naming.columns.items() if e != c]
        shown += [f"{k} of json → {n}" for k, n in self.json_names.items() if k != n]
        shown += ["folder → label"] if self.folders is not None else []
        shown += [] if self.naming.at_first_dot else ["names are divided at the last dot"]
        if shown:
            message = f"{self.path.name}: {', '.join(shown)}."
            yield note(message, file=str(self.path))
        for reason, (count, first) in self.left_out.items():
            message = f"{self.path.name}: {count:,} not read ({reason}), the first is {first!r}."
            yield MEMBERS_LEFT_OUT.finding(message, file=str(self.path))
        yield from self.json.findings()


class _Header(tarfile.TarInfo):
    """A header whose name and attributes are of a sane length."""

    def _proc_member(self, archive: Any) -> Any:
        if self.type in _LONG and self.size > HEADER_BYTES:
            raise tarfile.ReadError(f"a header has {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]


def read_index(tar: Path, path: Path, left_out: LeftOut) -> Iterator[Member]:
    """Yield the regular files of an uncompressed tar file; what else it has is counted.

    `path` is the file that errors name, which may be a gzip of it. A file that ends early, or goes
    on after its end, is refused: rows would be lost.
    """
    with tar.open("rb") as file:
        try:
            with tarfile.open(fileobj=file, mode="r:", tarinfo=_Header) as archive:
                for number, header in enumerate(iter(archive.next, None)):
                    archive.members = []  # type: ignore[attr-defined]  # they would grow
                    if number >= MOST_MEMBERS:
                        raise tarfile.ReadError(f"it has more than {MOST_MEMBERS:,} members")
                    reason = _why_not(header)
                    if reason:
                        left_out.add(reason, header.name)
                    elif header.isreg() and not os.path.basename(header.name).startswith("."):
                        name = header.name.removeprefix("./")
                        yield Member(name, header.offset_data, header.size)
                _check_end(file, archive.offset)
        except TAR_FAULTS as error:
            message = f"{path.name} is not a readable tar file: {str(error).rstrip('.')}."
            fix = "Write or download it again."
            raise CORRUPT_FILE.error(message, fix=fix, file=str(path)) from None


def _why_not(header: tarfile.TarInfo) -> str:
    """Why a member is not read; empty for files and folders."""
    if header.issym() or header.islnk():
        return "links"
    if header.isdev():
        return "devices or pipes"
    if header.issparse():
        return "sparse files"
    if not (header.isreg() or header.isdir()):
        return "entries of an unknown type"
    parts = header.name.split("/")
    if header.name.startswith("/") or ".." in parts or "\0" in header.name:
        return "names that lead out of the archive"
    return ""


def _check_end(file: IO[bytes], offset: int) -> None:
    """A tar file ends with blocks of zeros, and with nothing else."""
    size = file.seek(0, os.SEEK_END)
    file.seek(offset)
    if size - offset < BLOCK:
        raise tarfile.ReadError(f"it has no end mark after {offset:,} bytes: it is cut off")
    while chunk := file.read(1 << 20):
        if chunk.count(0) != len(chunk):
            raise tarfile.ReadError(
                f"after its last readable member, at byte {offset:,}, it goes on with other data"
            )


def merge_notes(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, with the like ones of many shards as one that counts them."""
    kept: dict[tuple[str, ...], Finding] = {}
    counts: Counter[tuple[str, ...]] = Counter()
    for place, found in enumerate(findings):
        said = found.message.removeprefix(f"{Path(str(found.where.get('file', ''))).name}: ")
        is_note = found.code in ("", MEMBERS_LEFT_OUT.code)
        key = (found.code, _VARIES.sub("", said)) if is_note else (found.code, str(place))
        kept.setdefault(key, found)
        counts[key] += 1
    return tuple(
        found
        if counts[key] == 1
        else replace(found, message=f"{found.message} The same in {counts[key] - 1:,} more files.")
        for key, found in kept.items()
    )


_VARIES = re.compile(r"^[\d,]+|the first is .*")
"""What differs between the like notes of two shards."""


Kind = Literal["image", "audio", "text", "class", "json", "array", "pickle", "unknown"]

_KINDS: dict[Kind, tuple[str, ...]] = {
    "image": tuple(ending[1:] for ending in (*IMAGE_ENDINGS, ".pbm")),
    "audio": tuple(ending[1:] for ending in AUDIO_ENDINGS),
    "text": ("txt", "text", "transcript"),
    "class": ("cls", "cls2", "class", "count", "index", "inx", "id"),
    "json": ("json", "jsn"),
    "array": ("npy",),
    "pickle": ("pyd", "pickle", "pkl", "pth", "pt"),
}
_KIND_OF: dict[str, Kind] = {ending: kind for kind, all_ in _KINDS.items() for ending in all_}
_NAMES: dict[Kind, str] = {
    "image": "image",
    "audio": "audio",
    "text": "text",
    "array": "features",
}
"""The usual name of a column, for the one extension of its kind."""
READ: tuple[Kind, ...] = ("image", "audio", "text", "class", "json", "array")
PLAIN_JSON = ("json", "jsn")
"""Columns of objects whose values become columns of their own."""
MOST_EXTENSIONS = 100
"""More extensions than this are parts of names: a dot in a key, not before an extension."""
_AT_FIRST = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)")
_AT_LAST = re.compile(r"(.*[^/])\.([^./]+)")


@dataclass(frozen=True)
class Naming:
    """Where names are divided, and the column of each extension that is read."""

    columns: dict[str, str]
    at_first_dot: bool = True


def divide(name: str, at_first_dot: bool = True) -> tuple[str, str] | None:
    """Key and extension of a name: the extension begins at the first dot.

    >>> divide("a/0001.seg.PNG"), divide("a/0001.seg.PNG", at_first_dot=False), divide("README")
    (('a/0001', 'seg.png'), ('a/0001.seg', 'png'), None)
    """
    matched = (_AT_FIRST if at_first_dot else _AT_LAST).fullmatch(name)
    return None if matched is None else (matched[1], matched[2].lower())


def kind_of_extension(extension: str) -> Kind:
    """Return what a member holds, by the last part of its extension."""
    return _KIND_OF.get(extension.rpartition(".")[2], "unknown")


def choose_names(names: Collection[str]) -> Naming:
    """Return the columns of the members of a file.

    `jpg` becomes `image`, `cls` becomes `label`, `txt` becomes `text`, and so on, if no sample has
    two of a kind; else the extensions are the names.
    """
    at_first = {parts[1] for name in names if (parts := divide(name, True)) is not None}
    at_first_dot = len(at_first) <= MOST_EXTENSIONS
    divided = [parts for name in names if (parts := divide(name, at_first_dot)) is not None]
    by_kind: dict[Kind, list[str]] = {}
    for extension in dict.fromkeys(extension for _, extension in divided):
        by_kind.setdefault(kind_of_extension(extension), []).append(extension)
    columns: dict[str, str] = {}
    for kind in READ:
        extensions = by_kind.get(kind, [])
        usual = _NAMES.get(kind)
        plain = [each for each in extensions if "." not in each]
        if kind == "class":
            columns |= {each: "label" if each == "cls" else each for each in extensions}
        elif usual is not None and plain and _one_each(divided, {*plain}):
            columns |= {each: usual if each in plain else each for each in extensions}
        else:
            columns |= {each: each for each in extensions}
    return Naming(columns, at_first_dot)


def _one_each(divided: Iterable[tuple[str, str]], extensions: Collection[str]) -> bool:
    """Return whether no sample has two of these extensions."""
    seen: set[str] = set()
    for key, extension in divided:
        if extension in extensions:
            if key in seen:
                return False
            seen.add(key)
    return True
