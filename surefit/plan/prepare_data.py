"""The data's side of a plan: files or Python objects to Tables, split, Encoder and Stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.config import Reading
from surefit.data.column_types import is_text
from surefit.data.open_data import open_table
from surefit.data.row_parts import HeldOut, RowParts, hold_out
from surefit.data.split import (
    NO_CONTENT,
    Hashes,
    Rows,
    find_contradictions,
    sample_rows,
    split_by_input,
)
from surefit.data.table import Table
from surefit.encode.augment.augmented_copies import AugmentedCopies
from surefit.encode.encode_table import collect_texts
from surefit.encode.encoded_row import RowFaultError, naming_own_code
from surefit.encode.encoder import Encoder
from surefit.encode.images.image_files import with_files
from surefit.encode.store import Store
from surefit.encode.text.tokenizer import load_tokenizer, train_tokenizer
from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.models.config_sizes import room_for
from surefit.models.model_source import ModelSource
from surefit.pipeline.accept import Accepted, check_columns
from surefit.pipeline.pipeline import Pipeline
from surefit.progress import Progress
from surefit.tasks import TASKS
from surefit.tasks.task_spec import Fit, TaskSpec

VALIDATION_ROWS_IN_TRAINING = rule(
    "SF210",
    "warning",
    "validation inputs that are also in training",
    why="The evaluation then measures memory, not learning.",
    fix="Remove the shared rows from one of the two sets.",
)

IDENTICAL_ROWS = rule(
    "SF214",
    "info",
    "rows with identical content",
    why="They were kept on one side of the split, so that none of them leaks into evaluation.",
    fix="Nothing to do.",
)

SHARED_INPUTS = rule(
    "SF222",
    "info",
    "inputs in both sets",
    why=(
        "A few inputs have most of the rows, so they cannot be kept in one set. Rows that are "
        "equal in input and target still are."
    ),
    fix="Nothing to do if the rows share an input by nature; else pass --eval-data.",
)

CONTRADICTING_ROWS = rule(
    "SF223",
    "warning",
    "rows that contradict each other",
    why="They have the same input, but different targets. At most one of them can be right.",
    fix="Correct the targets of the named rows, or delete one of them.",
)

SEVERAL_TARGETS = rule(
    "SF224",
    "info",
    "several targets for one input",
    why="The model learns a mixture of them. All rows of an input are kept in one set.",
    fix="Nothing to do if all of them are right.",
)

SAMPLE_CHECKED = rule(
    "SF218",
    "info",
    "a sample of the rows was checked",
    why=(
        "scan was given: rows, tokens and batches are those of the sample, and a fault in a row "
        "that was not drawn is not found."
    ),
    fix="Leave scan out to have every row checked.",
)

PAD_IS_EOS = rule(
    "SF311",
    "fixed",
    "pad token is eos",
    why="The tokenizer has no pad token. Padding goes by length, so eos is still learned.",
    fix="Nothing to do.",
)

LONGEST_DEFAULT = 1024
COMMON_SHARE = 0.25
"""An input that a larger share of the training rows has does not tell validation rows apart."""
TINY_VOCABULARY = 2048


@dataclass(frozen=True)
class SplitData:
    """Training and validation rows, which may come from two Tables, and what must not leak."""

    table: Table
    train: Rows
    validation_table: Table
    validation: Rows
    held_out: HeldOut


def open_tables(
    data: Any, eval_data: Any, reading: Reading, on_bad_file: str, ignore: Sequence[str]
) -> tuple[tuple[Table, Table | None], list[Finding]]:
    """The training Table without the ignored columns, and the validation Table if there is one."""
    if isinstance(data, list) and not data:
        raise UsageError("No data was given.", "Pass --data with a file or folder.")
    table = open_table(data, reading, on_bad_file, may_differ=True).without(ignore)
    if isinstance(eval_data, list) and not eval_data:
        return (table, None), [*table.findings]
    eval_table = open_table(eval_data, reading, on_bad_file, may_differ=True)
    return (table, eval_table), [*table.findings, *eval_table.findings]


def split_tables(
    table: Table,
    eval_table: Table | None,
    task: TaskSpec,
    roles: Mapping[str, str],
    share: float,
    seed: int,
    scan: int | None,
) -> tuple[SplitData, list[Finding]]:
    """Split off validation rows, or take the evaluation data; report duplicates and leakage."""
    parts = row_parts(table, task, roles)
    rows, found = _scanned(table, scan, seed)
    table = with_files(table, roles)
    inputs, whole = parts.hash_table(table, rows)
    if eval_table is None:
        split = split_by_input(inputs, whole, share, seed)
        if split.num_duplicates:
            message = (
                f"{split.num_duplicates} of {len(rows)} rows repeat another row, "
                "but for case, spaces and punctuation at most."
            )
            found.append(IDENTICAL_ROWS.finding(message))
        if split.num_shared:
            message = (
                f"{split.num_shared} of {len(split.evaluation)} validation rows have an input that "
                f"training rows have, too: {len(rows)} rows have {len(np.unique(inputs))} inputs."
            )
            found.append(SHARED_INPUTS.finding(message))
        train, validation, eval_table = rows[split.train], rows[split.evaluation], table
        held_out = hold_out(parts, inputs[split.train], inputs[split.evaluation])
    else:
        names = {column: column for column in table.columns} if task.whole_rows else {}
        check_columns(eval_table, task, {**roles, **names})
        train = rows
        eval_table = with_files(eval_table, roles)
        validation, notes = _scanned(eval_table, scan, seed)
        shown = parts.hash_table(eval_table, validation)
        found += [*notes, *_shared_inputs((inputs, whole), shown, eval_table, validation)]
        held_out = hold_out(parts, inputs, shown[0])
    found += _contradictions(table, rows, parts, (inputs, whole), task.exact_targets)
    return SplitData(table, train, eval_table, validation, held_out), found


def row_parts(table: Table, task: TaskSpec, roles: Mapping[str, str]) -> RowParts:
    """Which columns are the input of a row, and which its target.

    Without a role for the input, it is the whole row, without columns that number the rows.
    """
    targets = tuple(role for role in task.targets if role in roles)
    if not task.whole_rows or len(targets) < len(roles):
        return RowParts(roles, targets, task.divide)
    targets = tuple(roles[role] for role in targets)
    columns = [name for name in table.columns if name in targets or not _numbers_rows(table, name)]
    if {*columns} == {*targets}:
        columns = list(table.columns)
    return RowParts({name: name for name in columns}, targets, task.divide)


def _numbers_rows(table: Table, column: str) -> bool:
    """Whether a column of integers or text has another value in each row, as an id has."""
    import pyarrow.compute as pc

    kind = table.column_type(column)
    if table.num_rows < 2 or not (pa.types.is_integer(kind) or is_text(kind)):
        return False
    return bool(pc.count_distinct(table.arrow[column], mode="all").as_py() == table.num_rows)


def _scanned(table: Table, scan: int | None, seed: int) -> tuple[Rows, list[Finding]]:
    """The rows to be read: all of them, or the sample that `scan` asks for."""
    rows = sample_rows(table.num_rows, scan, seed)
    if len(rows) == table.num_rows:
        return rows, []
    file = table.sources[0].file
    message = f"{len(rows)} of {table.num_rows} rows of {file} are checked, drawn by the seed."
    return rows, [SAMPLE_CHECKED.finding(message, file=file)]


def _shared_inputs(
    trained: tuple[Hashes, Hashes], shown: tuple[Hashes, Hashes], eval_table: Table, rows: Rows
) -> list[Finding]:
    """Validation rows whose input a training row has; of common inputs, equal rows only."""
    names, sizes = np.unique(trained[0], return_counts=True)
    common = names[sizes > COMMON_SHARE * len(trained[0])]
    by_input = np.isin(shown[0], trained[0]) & ~np.isin(shown[0], common)
    equal = np.isin(shown[1], trained[1]) & (shown[1] != NO_CONTENT)
    shared = (by_input & (shown[0] != NO_CONTENT)) | equal
    if not shared.any():
        return []
    where = eval_table.where(int(rows[np.argmax(shared)]))
    message = (
        f"{int(shared.sum())} of {len(rows)} validation rows have the input of a training row, "
        f"{int(equal.sum())} of them also its target; row {where['row']} is the first."
    )
    return [VALIDATION_ROWS_IN_TRAINING.finding(message, where)]


def _contradictions(
    table: Table, rows: Rows, parts: RowParts, hashes: tuple[Hashes, Hashes], exact: bool
) -> list[Finding]:
    """Rows with one input and several targets, compared exactly, with the first two of them."""
    places = np.sort(find_contradictions(*hashes))
    if len(places) == 0:
        return []
    inputs, whole = parts.hash_some(table, rows[places], fold=False)
    found = find_contradictions(inputs, whole)
    if len(found) == 0:
        return []
    first = int(found.min())
    unlike = (inputs == inputs[first]) & (whole != whole[first])
    one, two = (table.where(int(rows[places[n]])) for n in (first, np.argmax(unlike)))
    file = f" of {two['file']}" if two["file"] != one["file"] else ""
    message = (
        f"{len(found)} of {len(rows)} rows have the input of another row, but another target "
        f"({len(np.unique(inputs[found]))} inputs); rows {one['row']} and {two['row']}{file}, for "
        "example."
    )
    suspicious = exact and 2 * len(found) <= len(rows)
    rule = CONTRADICTING_ROWS if suspicious else SEVERAL_TARGETS
    return [rule.finding(message, one)]


def choose_tokenizer(
    data: SplitData,
    task: TaskSpec,
    roles: Mapping[str, str],
    source: ModelSource,
    name: str | None,
    trust_remote_code: bool,
) -> tuple[Any, list[Finding]]:
    """The tokenizer of a name, or one made from the training texts."""
    if name is not None:
        tokenizer = load_tokenizer(name, trust_remote_code)
        if tokenizer.pad_token_id is not None and tokenizer.pad_token == tokenizer.eos_token:
            message = f"The tokenizer has no pad token of its own; {tokenizer.pad_token!r} pads."
            return tokenizer, [PAD_IS_EOS.finding(message)]
        return tokenizer, []
    if "input_ids" in roles:
        return None, []
    if not source.makes_tokenizer:
        raise UsageError(
            f"{source.name} comes without a tokenizer, and this task reads text.",
            "Give one with --tokenizer.",
        )
    texts = collect_texts(data.table, data.train, roles.values())  # type: ignore[arg-type]
    return train_tokenizer(texts, TINY_VOCABULARY, task.special_tokens), []


def length_limit(
    asked: int | None, max_tokens: int | None, positions: int | None, reads_tokens: bool
) -> int | None:
    """The longest row: what was asked for, else the model's positions and a default."""
    limits = [asked, max_tokens]
    if asked is None and reads_tokens:
        limits += [LONGEST_DEFAULT, positions]
    return min((limit for limit in limits if limit is not None), default=None)


def overlong_policy(asked: str | None, task: TaskSpec) -> str:
    """What happens to rows over the limit: what was asked for, else the task's default."""
    if asked == "split" and not task.splits_rows:
        able = ", ".join(name for name, other in TASKS.items() if other.splits_rows)
        raise UsageError(
            f"overlong is split, but {task.name} cannot split a row into blocks.",
            f"Set overlong to truncate, drop or error; tasks that can split rows: {able}.",
        )
    return asked or ("split" if task.splits_rows else "truncate")


def fit_encoder(
    encoder: Encoder, data: SplitData, task: TaskSpec, source: ModelSource, asked: int | None
) -> tuple[Encoder, list[Finding]]:
    """The Encoder with what the task learns from the training rows; `asked` is max_seq_length."""
    if task.fit is None:
        return encoder, []
    fitted = dict(_fit(task.fit, data.table, data.train, encoder))
    found = list(fitted.pop("findings", ()))
    encoder = replace(encoder, fitted=fitted)
    head = task.head_for(encoder)
    if head is None or head.body is None or (asked is not None and source.kind != "tiny"):
        return encoder, found
    limits = (encoder.max_length, num_positions(task, source, encoder))
    longest = min((limit for limit in limits if limit is not None), default=None)
    return replace(encoder, max_length=longest), found


def num_positions(task: TaskSpec, source: ModelSource, encoder: Encoder) -> int | None:
    """How long rows may be for the model; an untrained body for features is made to fit them."""
    head = task.head_for(encoder)
    if not source.follows_rows or head is None or head.body is None:
        return source.max_positions
    if source.kind == "tiny":
        return room_for(encoder.fitted["longest"])
    limits = (source.max_positions, encoder.fitted["longest"])
    return max(limits) if source.max_positions is not None else None


def _fit(fit: Fit, table: Table, rows: Rows, encoder: Encoder) -> Mapping[str, Any]:
    """What the task learns from the training rows; a row it cannot read is named."""
    at = 0

    def read() -> Iterator[dict[str, Any]]:
        nonlocal at
        for number, row in zip(rows.tolist(), table.rows(rows), strict=True):  # type: ignore[arg-type]
            at = number
            yield encoder.read(row)

    try:
        with naming_own_code(fit):
            return fit(read(), encoder)
    except RowFaultError as fault:
        where = table.where(at)
        raise fault.rule.error(
            f"row {where['row']}: {fault.message}",
            where,
            fix=fault.fix,
            column=encoder.column_of(fault.column) if fault.column else None,
        ) from None


def encode_split(
    pipeline: Pipeline, data: SplitData, copies: AugmentedCopies | None, progress: Progress
) -> tuple[tuple[Store, Store], Sequence[Finding]]:
    """Training rows with their copies, and validation rows as they are, as columns on disk."""
    training = Accepted(data.table, pipeline.encoder)
    copies = copies and replace(copies, held_out=data.held_out)
    train = pipeline.encode(training, data.train, copies, progress, "encoding training rows")
    accepted = training
    if data.validation_table.key != data.table.key:
        accepted = pipeline.accept(data.validation_table)
    validation = pipeline.encode(
        accepted, data.validation, progress=progress, stage="encoding validation rows"
    )
    return (train, validation), accepted.findings
