"""Whether a table has what a task reads, and the table as it is then read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from surefit.data.cell_files import with_files
from surefit.data.data_rules import MISSING_COLUMN
from surefit.data.forecast_windows import cut_windows
from surefit.data.forms import spread_columns
from surefit.data.python.streams import Stream
from surefit.data.several_columns import base_role, join_columns
from surefit.data.table import Table
from surefit.errors import UsageError
from surefit.findings import Finding
from surefit.inputs.encoder import Encoder
from surefit.targets.task_spec import TaskSpec
from surefit.tasks.source_forms import read_as_known


@dataclass(frozen=True)
class Accepted:
    """A table whose columns suit, and the Encoder that reads its rows."""

    table: Table
    encoder: Encoder
    findings: tuple[Finding, ...] = ()


def accept(table: Table, task: TaskSpec, encoder: Encoder) -> Accepted:
    """Check the columns, find the files they name, and lay features out as in training."""
    refuse_stream(table)
    if encoder.settings.windows is not None:
        table = cut_windows(table, encoder.settings.windows, encoder.predicting)
    table = spread_columns(_named_as_read(table, task, encoder), task.role_names)
    table = join_columns(table, encoder.roles.values())
    table, roles, found = read_as_known(table, task, encoder.roles)
    encoder = replace(encoder, roles=roles) if roles != encoder.roles else encoder
    check_columns(table, task, encoder.roles, encoder.extras)
    given, notes = task.reads.input_of(encoder.roles), list[Finding]()
    if given is not None and given.adapt is not None:
        table, encoder, notes = given.adapt(table, encoder)
    return Accepted(
        with_files(table, encoder.roles, task.reads.file_roles), encoder, (*found, *notes)
    )


def refuse_stream(table: Table) -> None:
    """Refuse a Table of the first rows alone, where all rows are to be evaluated or predicted."""
    if isinstance(table.live, Stream):
        raise UsageError(
            f"{table.live.name} is a stream that does not end within {table.num_rows:,} rows.",
            "Pass some of its rows: list(itertools.islice(stream, 1000)).",
        )


def check_columns(
    table: Table, task: TaskSpec, roles: Mapping[str, str], extras: Iterable[str] = ()
) -> None:
    """Refuse a table without a column that is read; roles that may be missing are not asked for."""
    read = _read_roles(table, task, roles)
    needed = {
        roles[role]: base_role(role, roles[role])
        for role in read
        if not task.role(role).may_be_missing
    }
    needed |= dict.fromkeys(extras, "an argument of the model's forward")
    missing = next((column for column in needed if column not in table.columns), None)
    if missing is None:
        return
    file = table.sources[0].file
    raise MISSING_COLUMN.error(
        f"{file} has no column {missing!r} ({needed[missing]}); it has {', '.join(table.columns)}.",
        fix=f"Rename the column that holds it to {missing!r}, or add it.",
        file=file,
        column=missing,
    )


def _read_roles(table: Table, task: TaskSpec, roles: Mapping[str, str]) -> list[str]:
    """Return the roles that a table must have: of several forms that are read, those of its own."""
    left_out = {*task.targets} - {*roles}
    forms = [{*names} - left_out for names in task.needs]
    forms = [form for form in forms if form <= {*task.reads.mixes} & {*roles}]
    for form in sorted(forms, key=len, reverse=True):
        if form and all(roles[role] in table.columns for role in form):
            return [role for role in roles if role in form or role not in task.reads.mixes]
    return list(roles)


def _named_as_read(table: Table, task: TaskSpec, encoder: Encoder) -> Table:
    """Rename the only column of a table to predict for, where one is read."""
    if not encoder.predicting or len(table.columns) != 1:
        return table
    read = [c for role, c in encoder.roles.items() if not task.role(role).may_be_missing]
    if {*encoder.roles} <= {*task.targets}:
        read = [role for role in task.reads.mixes if role not in task.targets][:1]
    return replace(table, arrow=table.arrow.rename_columns(read)) if len(read) == 1 else table
