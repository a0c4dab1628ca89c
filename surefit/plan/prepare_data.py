"""The data's side of a plan: files or Python objects to Tables, their task and their columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from surefit.batches.order import Batches
from surefit.config import RunConfig, joint_parts
from surefit.data.forecast_windows import (
    FORECASTING,
    Windows,
    cut_windows,
    is_forecast,
    plan_windows,
)
from surefit.data.formats.number_columns import without_text_columns
from surefit.data.formats.numpy_files import as_stored
from surefit.data.forms import spread_columns
from surefit.data.open_data import open_table, validation_of
from surefit.data.python.live_rows import kept_randomness
from surefit.data.python.streams import Stream
from surefit.data.rendered_chats import check_rendered
from surefit.data.several_columns import join_columns, part_columns
from surefit.data.split_columns import PartColumn, find_part_column
from surefit.data.stored_messages import check_message_rows, check_python_text
from surefit.data.table import Table
from surefit.data.unread_columns import JUDGED_ANSWERS, SPLIT_NOT_READ, check_meanings
from surefit.errors import FindingError, UsageError
from surefit.findings import Finding
from surefit.inputs import own_columns
from surefit.inputs.encoder import Encoder
from surefit.pipeline.accept import refuse_stream
from surefit.pipeline.live_batch import ReadAnew, StreamWindows
from surefit.pipeline.pipeline import Pipeline
from surefit.plan.augmentation import own_function
from surefit.plan.choose_form import choose_form, further_inputs, with_given_ids
from surefit.plan.draft import Draft, Findings, Wanted
from surefit.plan.metrics import choose_metrics
from surefit.request import Request, named_eval_data
from surefit.targets.own_outputs import require_loss_fn
from surefit.targets.task_spec import Columns, TaskSpec, account_columns
from surefit.tasks import ORDERED_TASK, OWN_TASK, TASKS
from surefit.tasks.choose_task import choose_task, find_task, takes_class_files
from surefit.tasks.source_forms import Forms, unify_forms
from surefit.user_code import report_code


def find_wanted(d: Draft) -> tuple[Wanted, Findings]:
    """Return the task that the user names, if any."""
    name, is_ordered = d.config.task, bool(d.config.label_order)
    name = name or (FORECASTING if is_forecast(d.config) else None)
    if d.objects.task is not None or name is None:
        return d.objects.task or (ORDERED_TASK if is_ordered else None), ()
    wanted = find_task(name, d.request.code)
    if is_ordered and wanted is not ORDERED_TASK and name in TASKS:
        raise UsageError(
            f"label_order has no effect on {name}: it orders the classes of {ORDERED_TASK.name}.",
            f"Leave it out, or write --task {ORDERED_TASK.name}.",
        )
    return wanted, report_code("task", name)


Tables = tuple[Table, Table | None]


def open_data(d: Draft) -> tuple[tuple[Tables, PartColumn | None, bool], list[Finding]]:
    """Return the tables, the column of parts, and whether arrays in them are kept as stored."""
    with as_stored(d.wanted is OWN_TASK or _may_be_own(d)) as kept:
        tables, found = open_tables(d.request, d.wanted)
    has_eval_data, split = tables[1] is not None, d.config.split
    if is_forecast(d.config):  # windows have other rows than the table
        split = split.model_copy(update={"column": "none"})
    parts = find_part_column(tables[0], split, has_eval_data, part_columns(d.config.columns)[0])
    return (_without(tables, parts), parts, bool(kept)), found


def cut_into_windows(d: Draft) -> tuple[tuple[Tables, Windows | None], list[Finding]]:
    """Return the tables as windows, where they are series to forecast."""
    if not is_forecast(d.config):
        return (d.tables, None), []
    windows = plan_windows(d.tables[0], d.config)
    table, eval_table = (None if each is None else cut_windows(each, windows) for each in d.tables)
    assert table is not None
    opened = [finding for each in d.tables if each is not None for finding in each.findings]
    found = [*table.findings, *(eval_table.findings if eval_table is not None else ())]
    return ((table, eval_table), windows), [each for each in found if each not in opened]


def _without(tables: Tables, parts: PartColumn | None) -> Tables:
    return tables if parts is None else (tables[0].without([parts.column]), None)


def open_data_again(d: Draft) -> tuple[Tables, Findings]:
    """Return tables with arrays as tasks read them, unless the module reads them as they are."""
    if not d.kept_arrays or d.wanted is not None or _is_own(d):
        return d.tables, ()
    return _without(open_tables(d.request, d.wanted)[0], d.part_column), ()


def open_tables(request: Request, wanted: Wanted) -> tuple[Tables, list[Finding]]:
    """Return the training Table without the ignored columns, and the validation Table if there is
    one.

    That is the validation data, else the validation part of official splits. Of several named
    sets, it is the one that decides which step is best. Of the columns that the user names,
    several under one name are joined.
    """
    config, objects = request.config, request.objects
    data = objects.data if objects.data is not None else list(config.data)
    eval_data = objects.eval_data if objects.eval_data is not None else list(config.eval_data)
    eval_data = next(iter(named_eval_data(request).values()), eval_data)
    named = part_columns(config.columns)[0].values()
    if isinstance(data, list) and not data:
        raise UsageError("No data was given.", "Pass --data with a file or folder.")
    options = {"each_a_class": takes_class_files(wanted), "may_differ": True}
    roles = wanted.role_names if isinstance(wanted, TaskSpec) else ()
    table = open_table(data, config.read, config.on_bad_file, "train", **options)
    table = join_columns(spread_columns(table.without(config.ignore), roles), named)
    if isinstance(eval_data, list) and not eval_data:
        eval_data = validation_of(data)
        if eval_data is None:
            return (table, None), [*table.findings]
    eval_table = open_table(eval_data, config.read, config.on_bad_file, "validation", **options)
    eval_table = join_columns(spread_columns(eval_table, roles), named)
    return (table, eval_table), [*table.findings, *eval_table.findings]


def find_own_loss(d: Draft) -> tuple[Callable[..., Any] | None, list[Finding]]:
    """Return the user's own loss: passed in, or named as `loss.function`."""
    name, passed = d.config.loss.function, d.objects.loss_fn
    return own_function("loss.function", name, passed, d.request.code)


def _may_be_own(d: Draft) -> bool:
    """Return whether a module may read all columns as they are, with the user's `loss_fn`."""
    own = d.loss_fn or d.objects.training_step
    return d.wanted is None and own is not None and not d.config.columns


def _is_own(d: Draft) -> bool:
    """Return whether the task is `custom`, though nobody names it."""
    if not _may_be_own(d):
        return False
    if d.objects.collate_fn is not None:  # which makes what forward gets
        return own_columns.has_numbers(_ungrouped(d))
    return own_columns.suits(_ungrouped(d), d.hints)


def _ungrouped(d: Draft) -> Table:
    """Return the training data without the column of groups."""
    table, by = d.tables[0], d.config.split.by
    return table.without([name for name in table.columns if name == by])


def choose_task_and_roles(d: Draft) -> tuple[tuple[TaskSpec, dict[str, str]], list[Finding]]:
    """Return the task with its metrics, and its roles."""
    config, table, hints = d.config, d.tables[0], d.hints
    chosen, further = part_columns(config.columns)
    if d.windows is not None:
        chosen = {**chosen, **d.windows.roles}
    wanted = OWN_TASK if _is_own(d) else d.wanted
    columns = choose_form(table, hints, wanted, chosen, config.split.by)
    if not (config.tokenizer or d.source.tokenizer or d.source.makes_tokenizer):
        columns = with_given_ids(table, wanted, columns)
    try:
        task, roles = choose_task(table, wanted, columns, d.source.auto_classes)
    except FindingError:
        if _may_be_own(d) and own_columns.has_numbers(_ungrouped(d)):
            own_columns.check_call(_ungrouped(d), hints)
        raise
    if task.reads.own_fields is not None:
        require_loss_fn(task, d.loss_fn or d.objects.training_step)
        if d.objects.collate_fn is None:
            own_columns.check_call(_ungrouped(d), hints)
    roles |= further_inputs(table, roles, hints.arguments, further)
    task, found = choose_metrics(config.metrics, d.objects.metrics, d.request.code, task)
    return (task, roles), found


def needed_findings(d: Draft) -> tuple[tuple[Finding, ...], Findings]:
    """Return the findings without those about numbers in columns that are not read as numbers."""
    return tuple(without_text_columns(d.plan.findings, d.plan.roles, d.task.reads.whole_rows)), ()


def unify_columns(d: Draft) -> tuple[Forms, list[Finding]]:
    """Return the tables with one column name per role, whatever the form of each file."""
    return unify_forms(*d.tables, d.task, d.plan.roles, part_columns(d.config.columns)[0])


def account(
    d: Draft, encoder: Encoder
) -> tuple[tuple[Mapping[str, str], Columns], tuple[Finding, ...]]:
    """Return the role of every column, also of columns of files in another form."""
    table, eval_table = d.tables
    names = (*table.columns, *d.config.ignore, *(eval_table.columns if eval_table else ()))
    read = account_columns([*dict.fromkeys(names)], d.task, encoder)
    columns = {c: role for name, role in read.items() for c in joint_parts(name) or [name]}
    other = {name: role for name, role in d.forms.read_as.items() if columns.get(name) is None}
    by = d.config.split.by
    grouped = {} if by is None or by in encoder.roles.values() else {by: "split.by"}
    parted = {} if d.part_column is None else {d.part_column.column: "split.column"}
    return (encoder.roles, {**columns, **other, **grouped, **parted}), ()


def check_unread(d: Draft) -> tuple[str | None, list[Finding]]:
    """Return what the columns mean that the task does not read.

    Where the user accepts it, also the column that says which answers are good.
    """
    task, table, roles, columns = d.task, d.forms.table, d.plan.roles, d.plan.columns
    chosen = d.config.columns
    assert columns is not None
    found = list(task.reads.misread(table, roles, chosen)) if task.reads.misread is not None else []
    meant = check_meanings(table, roles, columns, chosen)
    all_parts = d.config.split.column == "none"  # as the user says
    found += [f for f in meant if not (all_parts and f.code == SPLIT_NOT_READ.code)]
    found += check_message_rows(table, roles, chosen)
    found += check_python_text(table, roles)
    found += check_rendered(table, roles, chosen)
    judged = (f.where["column"] for f in found if f.code == JUDGED_ANSWERS.code)
    accepted = JUDGED_ANSWERS.code in d.config.accept
    return next((str(column) for column in judged if accepted), None), found


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
    if config.split.time is not None:
        raise UsageError(
            "split.time takes the latest of all rows, and a stream has no last row.",
            "Leave split.time out.",
        )
    if config.split.folds is not None:
        raise UsageError(
            "split.folds divides all rows, and a stream has no number of rows.",
            "Leave split.folds out.",
        )


def read_live(d: Draft, pipeline: Pipeline) -> Pipeline:
    """Return the Pipeline that reads training rows while training, if no Store can have them."""
    data, train, live = d.data, d.train, d.data.table.live
    if live is None or not len(train):
        return pipeline
    copies = d.copies and replace(d.copies, held_out=data.held_out)
    if isinstance(live, Stream):
        own = data.validation_table.key == data.table.key
        held_out = frozenset(d.validation.source_row.tolist()) if own else frozenset()
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
    """Return number of steps, and of epochs that they reach; a stream has as many as it takes."""
    per_epoch = max(batches.steps_per_epoch, 1)
    if isinstance(pipeline.live, StreamWindows):
        assert config.max_steps is not None
        return config.max_steps, min(-(-config.max_steps // per_epoch), MOST_WINDOWS)
    num_steps = batches.steps_per_epoch * config.epochs
    num_steps = min(num_steps, config.max_steps or num_steps)
    return num_steps, -(-num_steps // per_epoch)
