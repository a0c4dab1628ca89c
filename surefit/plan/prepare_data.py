"""The data's side of a plan: files or Python objects to Tables, split, Encoder and Stores."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from surefit.batches.order import Batches
from surefit.config import Reading, RunConfig
from surefit.data.column_meanings import JUDGED_ANSWERS, RIVAL, check_meanings
from surefit.data.label_columns import join_columns
from surefit.data.message_rows import check_message_rows, check_python_text
from surefit.data.open_data import open_table, validation_of
from surefit.data.python.live_rows import kept_randomness
from surefit.data.python.streams import Stream
from surefit.data.split import Rows
from surefit.data.table import Table
from surefit.encode.augment.augmented_copies import AugmentedCopies
from surefit.encode.encode_table import collect_texts
from surefit.encode.encoded_row import NamingOwnCode, RowFaultError
from surefit.encode.encoder import Encoder
from surefit.encode.store import Store
from surefit.encode.text.tokenizer import load_again, load_tokenizer, train_tokenizer
from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.models.config_sizes import room_for
from surefit.models.model_source import ModelSource
from surefit.pipeline.accept import Accepted, refuse_stream
from surefit.pipeline.live_batch import ReadAnew
from surefit.pipeline.pipeline import Pipeline
from surefit.pipeline.stream_windows import StreamWindows
from surefit.plan.plan import Plan
from surefit.plan.split_data import SplitData
from surefit.progress import Progress
from surefit.tasks import TASKS
from surefit.tasks.task_spec import Fit, TaskSpec

PAD_IS_EOS = rule(
    "SF311",
    "fixed",
    "pad token is eos",
    why="The tokenizer has no pad token. Padding goes by length, so eos is still learned.",
    fix="Nothing to do.",
)

LONGEST_DEFAULT = 1024
TINY_VOCABULARY = 2048


def open_tables(
    data: Any,
    eval_data: Any,
    reading: Reading,
    on_bad_file: str,
    ignore: Sequence[str],
    each_a_class: bool = False,
    named: Collection[str] = (),
) -> tuple[tuple[Table, Table | None], list[Finding]]:
    """The training Table without the ignored columns, and the validation Table if there is one.

    That is the validation data, else the validation part of official splits. `named` are columns
    that the user names; several under one name are joined.
    """
    if isinstance(data, list) and not data:
        raise UsageError("No data was given.", "Pass --data with a file or folder.")
    options = {"each_a_class": each_a_class, "may_differ": True}
    table = open_table(data, reading, on_bad_file, "train", **options).without(ignore)
    table = join_columns(table, named)
    if isinstance(eval_data, list) and not eval_data:
        eval_data = validation_of(data)
        if eval_data is None:
            return (table, None), [*table.findings]
    eval_table = open_table(eval_data, reading, on_bad_file, "validation", **options)
    eval_table = join_columns(eval_table, named)
    return (table, eval_table), [*table.findings, *eval_table.findings]


def choose_tokenizer(
    data: SplitData,
    task: TaskSpec,
    roles: Mapping[str, str],
    source: ModelSource,
    name: str | None,
    trust_remote_code: bool,
) -> tuple[Any, list[Finding]]:
    """The tokenizer of a name, or one made from the training texts, as it is loaded when saved."""
    reload = partial(load_again, model_type=source.model_type)
    if name is not None:
        tokenizer = load_tokenizer(name, trust_remote_code)
        if name != source.tokenizer or source.kind == "gguf":  # its files are not these
            tokenizer = reload(tokenizer)
        tokenizer = task.adapt_tokenizer(tokenizer, roles, reload)
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
    tokenizer = reload(train_tokenizer(texts, TINY_VOCABULARY, task.special_tokens))
    return task.adapt_tokenizer(tokenizer, roles, reload), []


def keep_limit(encoder: Encoder, task: TaskSpec) -> None:
    """Let the saved tokenizer truncate where rows are truncated, if they lose their end.

    The prompt of a causal model keeps its end, and its tokenizer the limit of the model.
    """
    head = task.head_for(encoder)
    if encoder.tokenizer is None or encoder.max_length is None or head is None:
        return
    if head.predicts != "next_token":
        encoder.tokenizer.model_max_length = encoder.max_length


def length_limit(
    asked: int | None, max_tokens: int | None, positions: int | None, reads_tokens: bool
) -> int | None:
    """The longest row: what was asked for, else the model's positions and a default."""
    limits = [asked, max_tokens]
    if asked is None and reads_tokens:
        limits += [LONGEST_DEFAULT, positions]
    return min((limit for limit in limits if limit is not None), default=None)


def overlong_policy(asked: str | None, task: TaskSpec, table: Table) -> str:
    """What happens to rows over the limit: what was asked for, else the task's default."""
    if isinstance(table.live, Stream):
        if asked == "split":
            raise UsageError(
                "overlong is split, but the rows of a stream are not split into blocks.",
                "Set overlong to truncate, drop or error, or split the texts in the stream.",
            )
        return asked or "truncate"
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
        with NamingOwnCode(fit):
            return fit(read(), encoder)
    except RowFaultError as fault:
        where = table.where(at if fault.place is None else int(rows[fault.place]))
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


def check_unread(
    table: Table, plan: Plan, chosen: Mapping[str, str]
) -> tuple[str | None, list[Finding]]:
    """What the columns mean that the task does not read; `chosen` are those that the user names.

    Where the user accepts it, also the column that says which answers are good.
    """
    task, roles, columns = plan.task, plan.roles, plan.columns
    assert task is not None
    assert columns is not None
    found = list(task.misread(table, roles, chosen)) if task.misread is not None else []
    meanings = [each for each in task.meanings if each is not RIVAL or not chosen]
    found += check_meanings(table, meanings, roles, columns)
    found += check_message_rows(table, roles, chosen)
    found += check_python_text(table, roles)
    judged = (f.where["column"] for f in found if f.code == JUDGED_ANSWERS.code)
    accepted = JUDGED_ANSWERS.code in plan.config.accept
    kept_where = next((str(column) for column in judged if accepted), None)
    return kept_where, found


MOST_WINDOWS = 20
"""Windows of a stream that the plan looks at."""


def check_stream(table: Table, eval_table: Table | None, config: RunConfig) -> None:
    """Refuse what a stream cannot do."""
    if eval_table is not None:
        refuse_stream(eval_table)
    if not isinstance(table.live, Stream):
        return
    name = table.live.name
    if config.max_steps is None:
        raise UsageError(
            f"data is {name}, a stream that does not end within {table.num_rows:,} rows, so its "
            "epochs have no end.",
            "Give the number of steps: --max-steps 1000 (max_steps=1000).",
        )
    if config.workers:
        raise UsageError(
            f"workers is {config.workers}, and a stream is read by one process.",
            "Leave workers out.",
        )
    if config.split.folds is not None:
        raise UsageError(
            "split.folds divides all rows, and a stream has no number of rows.",
            "Leave split.folds out.",
        )


def read_live(
    pipeline: Pipeline,
    data: SplitData,
    train: Store,
    validation: Store,
    copies: AugmentedCopies | None,
) -> Pipeline:
    """The Pipeline that reads training rows while training, if no Store can have them."""
    live = data.table.live
    if live is None or not len(train):
        return pipeline
    copies = copies and replace(copies, held_out=data.held_out)
    if isinstance(live, Stream):
        own = data.validation_table.key == data.table.key
        held_out = frozenset(validation.source_row.tolist()) if own else frozenset()
        lengths = np.asarray(train.lengths)
        windows = StreamWindows(live, len(train), lengths, held_out, data.table.files)
        return replace(pipeline, live=replace(windows, copies=copies))
    if ((np.diff(train.source_row) == 0) & (np.diff(train.copy) == 0)).any():
        raise UsageError(
            "Long rows are split into blocks, and the rows of this Dataset are drawn anew in each "
            "epoch, with other lengths.",
            "Truncate them instead: --set overlong=truncate.",
        )
    source = ReadAnew(replace(live, files=data.table.files), copies)
    pipeline = replace(pipeline, live=source)
    with kept_randomness():
        source.encoded(pipeline, train, [0], 0)
    return pipeline


def run_length(pipeline: Pipeline, batches: Batches, config: RunConfig) -> tuple[int, int]:
    """The number of steps, and of epochs that they reach; a stream has as many as it takes."""
    per_epoch = max(batches.steps_per_epoch, 1)
    if isinstance(pipeline.live, StreamWindows):
        assert config.max_steps is not None
        return config.max_steps, min(-(-config.max_steps // per_epoch), MOST_WINDOWS)
    num_steps = batches.steps_per_epoch * config.epochs
    num_steps = min(num_steps, config.max_steps or num_steps)
    return num_steps, -(-num_steps // per_epoch)
