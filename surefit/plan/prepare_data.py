"""The data's side of a plan: files or objects to Table, split, Encoder and Stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from surefit.batches.field import Field
from surefit.config import RunConfig
from surefit.data.data_rules import MISSING_COLUMN
from surefit.data.formats.number_columns import without_text_columns
from surefit.data.open_data import open_table
from surefit.data.split import NO_CONTENT, Rows, hash_rows, sample_rows, split_rows
from surefit.data.table import Table
from surefit.encode.augment.augmented_copies import Views
from surefit.encode.encode_table import collect_texts, encode_rows
from surefit.encode.encoded_row import RowFaultError
from surefit.encode.encoder import Encoder
from surefit.encode.features.feature_layout import relaid
from surefit.encode.images.image_files import with_files
from surefit.encode.store import Store
from surefit.encode.text.templates import read_asked
from surefit.encode.text.tokenizer import load_tokenizer, train_tokenizer
from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.models.feature_body_sizes import room_for
from surefit.models.model_source import ModelSource
from surefit.plan.plan import Given
from surefit.progress import Progress
from surefit.tasks.task_spec import Fit, TaskSpec

VALIDATION_ROWS_IN_TRAINING = rule(
    "SF210",
    "warning",
    "evaluation rows that are also training rows",
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
class Sides:
    """The rows to train on and the rows to evaluate on, which may come from two Tables."""

    table: Table
    train: Rows
    eval_table: Table
    evaluation: Rows


def open_training_table(config: RunConfig, given: Given) -> Table:
    """The Table to train on, without the columns that are to be ignored."""
    if given.data is None and not config.data:
        raise UsageError("No data was given.", "Pass --data with a file or folder.")
    data = given.data if given.data is not None else list(config.data)
    return open_table(data, config.read, config.on_bad_file).without(config.ignore)


def split_table(
    table: Table,
    task: TaskSpec,
    roles: Mapping[str, str],
    config: RunConfig,
    given: Given,
    found: list[Finding],
) -> Sides:
    """Hold out a share of the rows, or open the evaluation data; duplicates are found."""
    columns = list(table.columns) if task.whole_rows else list(roles.values())
    rows = _scanned(table, config, found)
    hashes = hash_rows(table, columns, fold=True, rows=rows)
    if given.eval_data is None and not config.eval_data:
        split = split_rows(hashes, config.eval_share, config.seed)
        if split.num_duplicates:
            message = (
                f"{split.num_duplicates} of {len(rows)} rows repeat another row, "
                "but for case, spaces and punctuation at most."
            )
            found.append(IDENTICAL_ROWS.finding(message))
        train, evaluation, eval_table = rows[split.train], rows[split.evaluation], table
    else:
        data = given.eval_data if given.eval_data is not None else list(config.eval_data)
        eval_table = _open_eval_table(data, columns, config, found)
        found[:] = without_text_columns(found, roles, task.whole_rows)
        train, evaluation = rows, _scanned(eval_table, config, found)
        shown = hash_rows(eval_table, columns, fold=True, rows=evaluation)
        found += _shared_rows(eval_table, evaluation, shown, hashes)
    return Sides(with_files(table, roles), train, with_files(eval_table, roles), evaluation)


def _scanned(table: Table, config: RunConfig, found: list[Finding]) -> Rows:
    """The rows to be read: all of them, or the sample that `scan` asks for."""
    rows = sample_rows(table.num_rows, config.scan, config.seed)
    if len(rows) < table.num_rows:
        file = table.sources[0].file
        message = f"{len(rows)} of {table.num_rows} rows of {file} are checked, drawn by the seed."
        found.append(SAMPLE_CHECKED.finding(message, file=file))
    return rows


def _open_eval_table(
    data: Any, columns: list[str], config: RunConfig, found: list[Finding]
) -> Table:
    eval_table = open_table(data, config.read, config.on_bad_file)
    found += eval_table.findings
    missing = next((c for c in columns if c not in eval_table.columns), None)
    if missing is not None:
        file = eval_table.sources[0].file
        raise MISSING_COLUMN.error(
            f"{file} has no column {missing!r}; it has {', '.join(eval_table.columns)}.",
            file=file,
            column=missing,
        )
    return eval_table


def _shared_rows(eval_table: Table, rows: Rows, hashes: Any, train_hashes: Any) -> list[Finding]:
    shared = np.isin(hashes, train_hashes) & (hashes != NO_CONTENT)
    if not shared.any():
        return []
    where = eval_table.where(int(rows[np.argmax(shared)]))
    message = (
        f"{int(shared.sum())} of {len(rows)} evaluation rows are also training "
        f"rows, row {where['row']} first."
    )
    return [VALIDATION_ROWS_IN_TRAINING.finding(message, where)]


def make_encoder(
    sides: Sides,
    task: TaskSpec,
    roles: Mapping[str, str],
    source: ModelSource,
    config: RunConfig,
    layout: dict[str, Any] | None,
    found: list[Finding],
) -> Encoder:
    """The Encoder for the model, with what the task learns from the training rows."""
    reads_tokens = "input_ids" in task.fields_for(Encoder(task.name, roles))
    tokenizer = _tokenizer(sides, task, roles, source, config, found) if reads_tokens else None
    encoder = Encoder(
        task.name,
        roles,
        tokenizer=tokenizer,
        whole_rows=task.whole_rows,
        max_length=_max_length(source, config, reads_tokens),
        settings={
            "overlong": config.overlong,
            "loss_on": config.loss_on,
            "template": read_asked(config.template),
            "decoder_start": source.decoder_start,
            "features.layout": layout,
            "seed": config.seed,
            "image.size": config.image.size,
            "image.model": source.image,
            "on_bad_file": config.on_bad_file,
        },
    )
    if task.fit is None:
        return encoder
    fitted = dict(_fit(task.fit, sides.table, sides.train, encoder))
    found += fitted.pop("findings", ())
    encoder = replace(encoder, fitted=fitted)
    return replace(encoder, max_length=_length_for_model(task, source, encoder, config))


def num_positions(task: TaskSpec, source: ModelSource, encoder: Encoder) -> int | None:
    """How long rows may be for the model; an untrained body for features is made to fit them."""
    head = task.head_for(encoder)
    if not source.follows_rows or head is None or head.body is None:
        return source.max_positions
    if source.kind == "tiny":
        return room_for(encoder.fitted["longest"])
    limits = (source.max_positions, encoder.fitted["longest"])
    return max(limits) if source.max_positions is not None else None


def _length_for_model(
    task: TaskSpec, source: ModelSource, encoder: Encoder, config: RunConfig
) -> int | None:
    """The limit of rows of features, once it is known how long they are."""
    asked = config.max_seq_length is not None and source.kind != "tiny"
    head = task.head_for(encoder)
    if head is None or head.body is None or asked:
        return encoder.max_length
    limits = (encoder.max_length, num_positions(task, source, encoder))
    return min((limit for limit in limits if limit is not None), default=None)


def _fit(fit: Fit, table: Table, rows: Rows, encoder: Encoder) -> Mapping[str, Any]:
    """What the task learns from the training rows; a row it cannot read is named."""
    at = 0

    def read() -> Iterator[dict[str, Any]]:
        nonlocal at
        for number, row in zip(rows.tolist(), table.rows(rows), strict=True):  # type: ignore[arg-type]
            at = number
            yield encoder.read(row)

    try:
        return fit(read(), encoder)
    except RowFaultError as fault:
        where = table.where(at)
        raise fault.rule.error(
            f"row {where['row']}: {fault.message}",
            where,
            fix=fault.fix,
            column=encoder.column_of(fault.column) if fault.column else None,
        ) from None


def _tokenizer(
    sides: Sides,
    task: TaskSpec,
    roles: Mapping[str, str],
    source: ModelSource,
    config: RunConfig,
    found: list[Finding],
) -> Any:
    name = config.tokenizer or source.tokenizer
    if name is not None:
        tokenizer = load_tokenizer(name, config.trust_remote_code)
        if tokenizer.pad_token_id is not None and tokenizer.pad_token == tokenizer.eos_token:
            message = f"The tokenizer has no pad token of its own; {tokenizer.pad_token!r} pads."
            found.append(PAD_IS_EOS.finding(message))
        return tokenizer
    if "input_ids" in roles:
        return None
    if not source.makes_tokenizer:
        raise UsageError(
            f"{source.name} comes without a tokenizer, and this task reads text.",
            "Give one with --tokenizer.",
        )
    texts = collect_texts(sides.table, sides.train, roles.values())  # type: ignore[arg-type]
    return train_tokenizer(texts, TINY_VOCABULARY, task.special_tokens)


def _max_length(source: ModelSource, config: RunConfig, reads_tokens: bool) -> int | None:
    limits = [config.max_seq_length, config.max_tokens]
    if config.max_seq_length is None and reads_tokens:
        limits += [LONGEST_DEFAULT, source.max_positions]
    return min((limit for limit in limits if limit is not None), default=None)


def encode_sides(
    sides: Sides,
    task: TaskSpec,
    encoder: Encoder,
    fields: Mapping[str, Field],
    progress: Progress,
    found: list[Finding],
    views: Views | None = None,
) -> tuple[Store, Store]:
    """Training rows with their views, and evaluation rows as they are, as columns on disk."""

    def encode(
        stage: str, table: Table, rows: Rows, encoder: Encoder, views: Views | None = None
    ) -> Store:
        return encode_rows(
            table,
            rows,
            encode=task.encode,
            fields=fields,
            count_targets=task.count_targets,
            encoder=encoder,
            progress=progress,
            stage=stage,
            views=views,
        )

    train = encode("encoding training rows", sides.table, sides.train, encoder, views)
    if sides.eval_table.key != sides.table.key:
        encoder, notes = relaid(encoder, sides.eval_table)
        found += notes
    return train, encode("encoding evaluation rows", sides.eval_table, sides.evaluation, encoder)
