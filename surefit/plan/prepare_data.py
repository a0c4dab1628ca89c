"""The data's side of a plan: files or Python objects to Tables, split, Encoder and Stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from surefit.config import Reading
from surefit.data.open_data import open_table
from surefit.data.split import NO_CONTENT, Rows, hash_rows, sample_rows, split_rows
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
from surefit.tasks.task_spec import Fit, TaskSpec

VALIDATION_ROWS_IN_TRAINING = rule(
    "SF210",
    "warning",
    "validation rows that are also training rows",
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
TINY_VOCABULARY = 2048


@dataclass(frozen=True)
class SplitData:
    """Training and validation rows, which may come from two Tables."""

    table: Table
    train: Rows
    validation_table: Table
    validation: Rows


def open_tables(
    data: Any, eval_data: Any, reading: Reading, on_bad_file: str, ignore: Sequence[str]
) -> tuple[tuple[Table, Table | None], list[Finding]]:
    """The training Table without the ignored columns, and the validation Table if there is one."""
    if isinstance(data, list) and not data:
        raise UsageError("No data was given.", "Pass --data with a file or folder.")
    table = open_table(data, reading, on_bad_file).without(ignore)
    if isinstance(eval_data, list) and not eval_data:
        return (table, None), [*table.findings]
    eval_table = open_table(eval_data, reading, on_bad_file)
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
    columns = list(table.columns) if task.whole_rows else list(roles.values())
    rows, found = _scanned(table, scan, seed)
    if eval_table is None:
        split = split_rows(hash_rows(table, columns, fold=True, rows=rows), share, seed)
        if split.num_duplicates:
            message = (
                f"{split.num_duplicates} of {len(rows)} rows repeat another row, "
                "but for case, spaces and punctuation at most."
            )
            found.append(IDENTICAL_ROWS.finding(message))
        train, validation, eval_table = rows[split.train], rows[split.evaluation], table
    else:
        whole = {column: column for column in columns} if task.whole_rows else {}
        check_columns(eval_table, task, {**roles, **whole})
        train = rows
        validation, notes = _scanned(eval_table, scan, seed)
        found += [*notes, *_shared_rows(table, rows, eval_table, validation, columns)]
    data = SplitData(with_files(table, roles), train, with_files(eval_table, roles), validation)
    return data, found


def _scanned(table: Table, scan: int | None, seed: int) -> tuple[Rows, list[Finding]]:
    """The rows to be read: all of them, or the sample that `scan` asks for."""
    rows = sample_rows(table.num_rows, scan, seed)
    if len(rows) == table.num_rows:
        return rows, []
    file = table.sources[0].file
    message = f"{len(rows)} of {table.num_rows} rows of {file} are checked, drawn by the seed."
    return rows, [SAMPLE_CHECKED.finding(message, file=file)]


def _shared_rows(
    table: Table, rows: Rows, eval_table: Table, eval_rows: Rows, columns: Sequence[str]
) -> list[Finding]:
    """Validation rows that are training rows too, by the columns that both tables have."""
    known = [column for column in columns if column in eval_table.columns]
    trained = hash_rows(table, known, fold=True, rows=rows)
    shown = hash_rows(eval_table, known, fold=True, rows=eval_rows)
    shared = np.isin(shown, trained) & (shown != NO_CONTENT)
    if not shared.any():
        return []
    where = eval_table.where(int(eval_rows[np.argmax(shared)]))
    message = (
        f"{int(shared.sum())} of {len(eval_rows)} validation rows are also training "
        f"rows, row {where['row']} first."
    )
    return [VALIDATION_ROWS_IN_TRAINING.finding(message, where)]


def choose_tokenizer(
    data: SplitData,
    task: TaskSpec,
    roles: Mapping[str, str],
    source: ModelSource,
    name: str | None,
    trust_remote_code: bool,
) -> tuple[Any, list[Finding]]:
    """The named tokenizer, the model's own, or one made from the training texts."""
    name = name or source.tokenizer
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
    train = pipeline.encode(training, data.train, copies, progress, "encoding training rows")
    accepted = training
    if data.validation_table.key != data.table.key:
        accepted = pipeline.accept(data.validation_table)
    validation = pipeline.encode(
        accepted, data.validation, progress=progress, stage="encoding validation rows"
    )
    return (train, validation), accepted.findings
