"""Paths and Python objects to a Table: one opener per file format, chosen by the file's ending."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from surefit.config import DataSource, Reading, as_sources, make_config, name_sources
from surefit.data.cache import fingerprint, module_fingerprint
from surefit.data.cache_entry import content_hashes, file_fingerprint
from surefit.data.column_types import describe_type
from surefit.data.data_rules import (
    CORRUPT_FILE,
    DIFFERENT_COLUMNS,
    FILES_DO_NOT_MATCH,
    NO_DATA,
)
from surefit.data.find_files import Finder, locate
from surefit.data.formats import (
    arrow_files,
    class_folders,
    conll,
    delimited,
    detection_folders,
    idx,
    json_rows,
    jsonl,
    numpy_files,
    tar_shards,
    text_lines,
    time_series,
    torch_files,
)
from surefit.data.formats.array_files import align_shards, doubtful_shards, open_per_row
from surefit.data.formats.file_rows import media_kind, open_file_rows, open_media, read_named_files
from surefit.data.formats.number_columns import text_by_few_cells
from surefit.data.formats.opened import IDX, Opened, labels_beside, reading_file
from surefit.data.formats.text_decoding import is_text_file
from surefit.data.formats.text_lines import label_texts, open_records, pair_texts, without_empty
from surefit.data.forms import name_roles, spread_columns
from surefit.data.official_splits import Part, without_part
from surefit.data.python.objects import dict_splits, open_object
from surefit.data.roles import get_role
from surefit.data.table import Source, Table
from surefit.errors import FindingError, UsageError
from surefit.findings import Finding, note, rule

FILE_LEFT_OUT = rule(
    "SF430",
    "warning",
    "file left out",
    why="The file cannot be read, and on_bad_file=skip leaves out such files.",
    fix="Write or download the file again.",
    accept="The file is skipped.",
)


FORMAT_VERSION = 5

Opener = Callable[[Path, Reading], Opened]

OPENERS: dict[str, Opener] = {
    ".jsonl": partial(open_records, jsonl.read_records),
    ".ndjson": partial(open_records, jsonl.read_records),
    ".json": partial(open_records, json_rows.read_records),
    ".csv": partial(delimited.open_cells, delimiter=","),
    ".tsv": partial(delimited.open_cells, delimiter="\t"),
    ".txt": partial(open_records, text_lines.read_records),
    ".conll": partial(open_records, conll.read_records),
    ".conllu": partial(open_records, conll.read_records),
    ".ts": partial(open_records, time_series.read_records),
    idx.ENDING: idx.open_idx,
    ".npy": numpy_files.open_npy,
    ".npz": numpy_files.open_npz,
    ".parquet": arrow_files.open_parquet,
    ".arrow": arrow_files.open_arrow,
    ".safetensors": torch_files.open_safetensors,
    ".pt": torch_files.open_pt,
    ".tar": tar_shards.open_tar,
    ".tgz": tar_shards.open_tar,
}
"""The ending of a file name (without .gz), and the function that opens such a file."""


LFS_POINTER, POINTER_BYTES = b"version https://git-lfs.github.com/spec/", 1024
"""How a pointer of Git LFS begins, and a size that none reaches."""


def open_table(
    data: Any,
    reading: Reading | None = None,
    on_bad_file: str = "error",
    part: Part = "train",
    each_a_class: bool = False,
    may_differ: bool = False,
) -> Table:
    """Open one or several paths (concatenated), or a Python object, as one Table.

    With `on_bad_file="skip"`, files that cannot be read are left out, unless none can be read. Of
    a folder with official splits, `part` is read. With `each_a_class`, several text files are the
    classes of their lines. With `may_differ`, files may be of different forms, without a column in
    common.
    """
    first = data[0] if isinstance(data, list) and data else None
    are_rows = part == "test" and isinstance(first, dict) and {*first} == {"path"}
    sources = None if are_rows else as_sources(data)  # named files to predict for have no more
    if sources is not None and not all(isinstance(each, str) for each in sources):
        named = name_sources(make_config({"data": sources}).data)
        open_one = partial(open_table, reading=reading, on_bad_file=on_bad_file, part=part)
        return mix_sources([(each, open_one([each.path])) for each in named])
    data = sources or data
    if not isinstance(data, list | tuple) or not all(isinstance(d, str | Path) for d in data):
        table = open_object(data)
    elif data:
        finder, skip = Finder(OPENERS, ending, part, each_a_class), on_bad_file == "skip"
        paths, copies = locate(data, finder)
        table = _open_paths(paths, reading or Reading(), skip, finder, may_differ)
        about = [found for copy in copies for found in copy.findings]
        for copy in copies:  # a command says it once
            copy.findings.clear()
        table = replace(table, findings=(*about, *table.findings))
    else:
        raise UsageError("No data was given.", "Pass --data with a file or folder.")
    if table.num_rows == 0:
        shown = ", ".join(source.file for source in table.sources)
        raise NO_DATA.error(f"{shown} has no rows.", file=table.sources[0].file)
    reading = reading or Reading()
    return read_named_files(name_roles(spread_columns(table), reading.roles), reading)


def _open_paths(
    paths: Sequence[Path], reading: Reading, skip: bool, finder: Finder, may_differ: bool
) -> Table:
    files, notes = finder.files_of(paths)
    read = [*files, *(labels for file in files if (labels := labels_beside(file)))]
    by_name = len(read) > 1 or reading.label_from is not None  # names may mean classes
    names = [file.name for file in read] if by_name else []
    content_hashes([str(file) for file in read])  # all of them at once, in parallel
    contents = [_key_of(file) for file in read]
    stored = ["as stored"] if numpy_files.is_as_stored() else []
    key = fingerprint(FORMAT_VERSION, names, contents, reading.model_dump(), *stored)
    columns = open_file_rows(files, reading, finder.part != "test")
    columns = columns or _open_as_columns(files) or open_per_row(files)
    if columns is not None:
        source = Source(str(files[0].parent), 0)
        return Table(columns.arrow, (source,), key, (*notes, *columns.findings))
    files, opened, left_out = _open_each(files, reading, skip)
    if list(paths) == files and not finder.each_a_class:
        opened = pair_texts(files, opened)  # files of a folder are shards, not source and target
    files, opened, empty = without_empty(files, opened)
    classes = label_texts(files, opened) if finder.each_a_class else None
    if classes is not None:
        opened, key = classes, fingerprint(key, "classes")
    return _join(files[: len(opened)], opened, key, [*notes, *left_out, *empty], may_differ)


def mix_sources(tables: Sequence[tuple[DataSource, Table]]) -> Table:
    """Return the rows of several sources, each with its own columns under the names of their roles.

    Of columns that a source names, the roles are the new names; another column of that name gives
    way.
    """
    sources: list[Source] = []
    opened, notes, first = [], list[Finding](), 0
    for source, table in tables:
        for role, column in source.columns.items():
            table.require_column(f"columns.{role}", column)
        new = {column: get_role(role).names[0] for role, column in source.columns.items()}
        taken = {*new.values()} - {*new}
        names = {n: new.get(n, f"{n}.unread" if n in taken else n) for n in table.columns}
        opened.append(Opened(table.arrow.rename_columns([names[n] for n in table.columns])))
        for each in table.sources:
            columns = tuple(names[name] for name in each.columns or table.columns)
            sources.append(Source(each.file, first + each.first_row, columns, source.name or ""))
        if new:
            read = ", ".join(f"{role} = {column}" for role, column in source.columns.items())
            notes.append(note(f"Source {source.name}: {read}.", file=table.sources[0].file))
        notes += table.findings
        first += table.num_rows
    arrow = _concatenate([Path(source.path) for source, _ in tables], opened)
    known = [(each.name, [*each.columns.items()], table.key) for each, table in tables]
    files = dict.fromkeys(name for _, table in tables for name in table.files)
    contents = dict.fromkeys(name for _, table in tables for name in table.contents)
    key = fingerprint("mixed", known)
    return Table(arrow, tuple(sources), key, tuple(notes), tuple(files), tuple(contents))


def files_of(data: Sequence[str | Path]) -> list[Path]:
    """Return the local files to open for some data, without label files that belong to others."""
    finder = Finder(OPENERS, ending)
    return finder.files_of(locate(data, finder)[0])[0]


def validation_of(data: Any) -> Any:
    """The validation part of data with official splits: paths, or a Dataset; None without one."""
    if isinstance(data, list | tuple) and any(isinstance(each, DataSource) for each in data):
        return [
            each.model_copy(update={"path": str(path)})
            for each in name_sources(data)
            for path in validation_of([each.path]) or ()
        ] or None
    if isinstance(data, list | tuple) and data and all(isinstance(d, str | Path) for d in data):
        finder = Finder(OPENERS, ending)
        found = (finder.splits_in(path) for path in locate(data, finder)[0])
        parts = [splits.parts.get("validation", ()) for splits in found if splits is not None]
        return [path for paths in parts for path in paths] or None
    if type(data).__name__ == "DatasetDict":
        named = dict_splits(data).parts.get("validation")
        return data[named[0].name] if named else None
    return None


def _open_each(
    files: Sequence[Path], reading: Reading, skip: bool
) -> tuple[list[Path], Sequence[Opened], list[Finding]]:
    """Open every file; the errors of all files are raised together, or those are left out."""
    good: list[Path] = []
    opened: list[Opened] = []
    faults: list[Finding] = []
    for file in files:
        try:
            _refuse_pointer(file)
            with reading_file(file):
                opened.append(opener_of(file)(file, reading))
            good.append(file)
        except FindingError as error:
            faults += error.findings
    if faults and (not skip or not good):
        skipping = "Or leave such files out: --set on_bad_file=skip."
        beside = [replace(fault, fix=f"{fault.fix} {skipping}") for fault in faults]
        raise FindingError(*(beside if good else faults))
    left_out = [FILE_LEFT_OUT.finding(f"Skipped: {f.message}", f.where) for f in faults]
    return good, opened, left_out


def _refuse_pointer(path: Path) -> None:
    """Raise if a file is what a clone has in place of a large file that was not downloaded."""
    if path.is_file() and path.stat().st_size < POINTER_BYTES:
        with path.open("rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise CORRUPT_FILE.error(
                    f"{path.name} is a Git LFS pointer: the data itself was not downloaded.",
                    fix=f"Download it: git -C {shlex.quote(str(path.parent))} lfs pull.",
                    file=str(path),
                )


def _key_of(path: Path) -> str:
    if path.is_dir() and detection_folders.labels_of(path) is not None:
        return detection_folders.yolo_fingerprint(path)
    if path.is_dir():
        return class_folders.folder_fingerprint(path)
    opener = opener_of(path)
    code = (*opener.args, opener.func)[0] if isinstance(opener, partial) else opener
    return fingerprint(file_fingerprint(path), module_fingerprint(code.__module__))


def ending(path: Path) -> str:
    """Return the ending that names the format of a file; for a gzip, the one before `.gz`.

    >>> ending(Path("train.jsonl.gz"))
    '.jsonl'
    """
    name = path.name.lower().removesuffix(".gz")
    return idx.ENDING if IDX.fullmatch(name) else Path(name).suffix


def holds_lines(table: Table) -> bool:
    """Return whether the rows of a table are the lines of plain text files."""
    endings = [ending(Path(source.file)) for source in table.sources]
    return table.columns == ("text",) and all(
        each == ".txt" or (each not in OPENERS and Path(source.file).is_file())
        for each, source in zip(endings, table.sources, strict=True)
    )


def opener_of(path: Path) -> Opener:
    """The opener of a file by its ending, or of a folder of class folders; else lines of text."""
    if path.is_dir():
        is_yolo = detection_folders.labels_of(path) is not None
        return detection_folders.open_yolo if is_yolo else class_folders.open_folder
    if detection_folders.is_coco(path):
        return detection_folders.open_coco
    if media_kind(path) is not None:
        return open_media
    opener = OPENERS.get(ending(path))
    if opener is None and is_text_file(path):
        return _open_other_text
    if opener is None:
        *most, last = OPENERS
        raise UsageError(
            f"{path} has the ending {path.suffix or 'none'!r}; expected {', '.join(most)} or "
            f"{last}.",
            "Convert the file, or give it the ending of its format.",
        )
    return opener


def _open_other_text(path: Path, reading: Reading) -> Opened:
    opened = OPENERS[".txt"](path, reading)
    if reading.pattern is not None or any(not found.code for found in opened.findings):
        return opened
    said = note(f"{path.name} is read as text, one row per line.", file=str(path))
    return Opened(opened.arrow, (said, *opened.findings))


def _open_as_columns(files: Sequence[Path]) -> Opened | None:
    """Several `.npy` files as columns (X.npy, y.npy, mask.npy); None if they are shards.

    They are columns if one has a single axis, or if the shape of one begins the shape of another.
    """
    if len(files) < 2 or any(file.suffix != ".npy" for file in files):
        return None
    names = {file: without_part(file.stem) for file in files}  # X_train.npy and X_val.npy are X
    shapes = {names[file]: numpy_files.shape_of(file) for file in files}
    if len(shapes) < len(files) or any(shape is None for shape in shapes.values()):
        return None
    by_rank = sorted((shape for shape in shapes.values() if shape), key=len)
    least, most = by_rank[0], by_rank[-1]
    if len(least) == len(most) or (len(least) > 1 and least != most[: len(least)]):
        return None
    mapped = {names[file]: numpy_files.map_npy(file, str(file)) for file in files}
    return Opened(numpy_files.arrays_to_arrow(mapped, str(files[0].parent)))


def _join(
    files: Sequence[Path],
    opened: Sequence[Opened],
    key: str,
    notes: Sequence[Finding] = (),
    may_differ: bool = False,
) -> Table:
    """Return the rows of several files, concatenated."""
    converted: Sequence[Finding] = ()
    if len(opened) > 1:
        opened, converted = align_shards(files, opened)
    sources, first = [], 0
    for file, part in zip(files, opened, strict=True):
        sources.append(Source(str(file), first, tuple(part.arrow.column_names)))
        first += part.arrow.num_rows
    found_inside = [found for part in opened for found in part.findings]
    findings = (*notes, *converted, *tar_shards.merge_notes(found_inside))
    findings += _missing_columns(files, opened, may_differ)
    findings += doubtful_shards(files) if all(file.suffix == ".npy" for file in files) else ()
    return Table(_concatenate(files, opened), tuple(sources), key, findings)


def _missing_columns(
    files: Sequence[Path], opened: Sequence[Opened], may_differ: bool
) -> tuple[Finding, ...]:
    """Return a warning for the first file whose columns are not those of the first file."""
    names = set(opened[0].arrow.column_names)
    for file, part in zip(files[1:], opened[1:], strict=True):
        other = set(part.arrow.column_names)
        if other == names:
            continue
        if other.isdisjoint(names) and not may_differ:
            message = (
                f"{files[0]} and {file} have no column in common: {', '.join(sorted(names))}; and "
                f"{', '.join(sorted(other))}."
            )
            fix = "Give the columns the same names in both files, or pass one of the files alone."
            raise FILES_DO_NOT_MATCH.error(message, file=str(file), fix=fix)
        only = {files[0].name: sorted(names - other), file.name: sorted(other - names)}
        parts = [f"only {name} has {', '.join(odd)}" for name, odd in only.items() if odd]
        message = f"{files[0].name} and {file.name} have different columns: {'; '.join(parts)}."
        return (DIFFERENT_COLUMNS.finding(message, file=str(file)),)
    return ()


def _concatenate(files: Sequence[Path], opened: Sequence[Opened]) -> pa.Table:
    schema = opened[0].arrow.schema
    for part, file in zip(opened[1:], files[1:], strict=True):
        try:
            schema = pa.unify_schemas([schema, part.arrow.schema], promote_options="permissive")
        except pa.ArrowException as error:
            cause = text_by_few_cells(found for other in opened for found in other.findings)
            reason = cause.message if cause is not None else _other_type(schema, part, str(error))
            raise FILES_DO_NOT_MATCH.error(
                f"{file} and {files[0]} cannot be read as one table: {reason}",
                {"file": str(file)} if cause is None else cause.where,
                fix="Convert the column to one type in all files." if cause is None else cause.fix,
            ) from None
    return pa.concat_tables([part.arrow for part in opened], promote_options="permissive")


def _other_type(schema: pa.Schema, part: Opened, message: str) -> str:
    """Return the first column that has another type in a file than in those before it."""
    for name in schema.names:
        if name in part.arrow.column_names:
            before, here = schema.field(name).type, part.arrow.schema.field(name).type
            if describe_type(before) != describe_type(here):
                return f"column {name!r} holds {describe_type(here)}, not {describe_type(before)}."
    return message[:160]
