"""Files and rows of different forms in one data set: each is read by its own form.

Columns of one role get one name, so that all rows are read alike. Where the task can read several
forms (prompts and answers, messages), a row is read by the one that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from surefit.data.cache import fingerprint
from surefit.data.data_rules import FILES_DO_NOT_MATCH
from surefit.data.table import Table
from surefit.findings import Finding, rule
from surefit.targets.task_spec import TaskSpec
from surefit.tasks.choose_task import roles_for

READ_BY_OWN_FORM = rule(
    "SF140",
    "info",
    "files or rows of different forms",
    why="Each is read by its own form: the columns of one role are one column to the task.",
    fix="Nothing to do if the named columns mean the same.",
)

FORMS_CANNOT_BE_MIXED = rule(
    "SF141",
    "error",
    "forms that cannot be mixed",
    why="The task reads either form, but not both in one run.",
    fix="Convert the rows to one form, or train on them in two runs.",
)


@dataclass(frozen=True)
class Forms:
    """Tables whose columns have one name per role, and what their own columns are read as."""

    table: Table
    eval_table: Table | None
    roles: Mapping[str, str]
    read_as: Mapping[str, str] = field(default_factory=dict)
    """Columns of files in another form, and their roles."""


def unify_forms(
    table: Table,
    eval_table: Table | None,
    task: TaskSpec,
    roles: Mapping[str, str],
    chosen: Mapping[str, str],
) -> tuple[Forms, list[Finding]]:
    """Give the columns of each role one name in all files; refuse files that cannot be read."""
    named = (s.file for s in table.sources if {*roles.values()} <= {*(s.columns or table.columns)})
    unifier = _Unifier(task, chosen, next(named, table.sources[0].file), dict(roles))
    table = unifier.unify(table)
    if eval_table is not None:
        eval_table = unifier.unify(eval_table)
    return Forms(table, eval_table, unifier.known, unifier.read_as), unifier.found


def read_as_known(
    table: Table, task: TaskSpec, roles: Mapping[str, str]
) -> tuple[Table, dict[str, str], list[Finding]]:
    """Return a table to evaluate or predict, with the columns that were read in training.

    Of roles that training did not have, those of forms that the task can mix are added.
    """
    targets = {role for role in task.targets if role not in roles}
    needs = tuple(tuple(r for r in names if r not in targets) for names in task.needs)
    unifier = _Unifier(replace(task, needs=needs), {}, "training", dict(roles))
    table = unifier.unify(table)
    known = {
        role: c for role, c in unifier.known.items() if role in roles or role in task.reads.mixes
    }
    return table, known, unifier.found


@dataclass
class _Unifier:
    """The names of the roles' columns, so far; each table adds roles that only it has."""

    task: TaskSpec
    chosen: Mapping[str, str]
    first_file: str
    known: dict[str, str]
    read_as: dict[str, str] = field(default_factory=dict)
    found: list[Finding] = field(default_factory=list)

    def unify(self, table: Table) -> Table:
        """Return the table with one name for the columns of each role."""
        files = _parts(table)
        parts = [self._joined(part) for part in files]
        renamed = [self._renamed(part, len(parts) > 1) for part in parts]
        if all(new is part.arrow for new, part in zip(renamed, files, strict=True)):
            return table
        try:
            joined = pa.concat_tables(renamed, promote_options="permissive")
        except pa.ArrowException as error:
            reason = str(error).removeprefix("Unable to merge: ")
            shown = " and ".join(part.sources[0].file for part in parts)
            message = f"{shown} cannot be read together: {reason}."
            raise FORMS_CANNOT_BE_MIXED.error(message, file=parts[-1].sources[0].file) from None
        names = [new.column_names for new in renamed]
        key = fingerprint(table.key, names, [part.key for part in parts])
        return replace(table, arrow=joined, key=key)

    def _renamed(self, part: Table, is_one_of_several: bool) -> pa.Table:
        """Return the rows of one file, with the known names of the roles' columns."""
        own = self._own_roles(part)
        file = part.sources[0].file
        if own is None:
            needed = {self.known[r] for r in self.known if not self.task.role(r).may_be_missing}
            if is_one_of_several and needed.isdisjoint(part.columns):
                raise FILES_DO_NOT_MATCH.error(
                    f"{file} has none of the columns {', '.join(sorted(needed))} and no other form "
                    f"of {self.task.name}: its columns are {', '.join(part.columns)}.",
                    file=file,
                )
            return part.arrow
        self._check_mix(own, file)
        names = _new_names(part, self.known, own)
        self.known |= {role: names[c] for role, c in own.items() if role not in self.known}
        self.read_as |= {column: role for role, column in own.items()}
        message = f"{file} is read by its own form: {_shown(own)}."
        self.found.append(READ_BY_OWN_FORM.finding(message, file=file))
        return part.arrow.rename_columns([names.get(c, c) for c in part.arrow.column_names])

    def _joined(self, part: Table) -> Table:
        """Return the rows of one file, with those of another form read by it."""
        for _ in self.task.needs:
            others = self._rows_of_other_form(part)
            own = None if others is None else roles_for(self.task, others, {}, by_type=False)
            if others is None or own is None:
                break
            if self.chosen and not {*own.items()} <= {*self.chosen.items()}:
                break
            file = part.sources[0].file
            self._check_mix(own, file)
            part = self._with_form(part, own, file)
            message = (
                f"{others.num_rows:,} of {part.num_rows:,} rows of {file} are read by their own "
                f"form: {_shown(own)}."
            )
            self.found.append(READ_BY_OWN_FORM.finding(message, file=file))
        return part

    def _rows_of_other_form(self, part: Table) -> Table | None:
        """Rows in which all columns of the known forms are missing; None if there are none."""
        forms = [names for names in self.task.needs if {*names} <= {*self.known}]
        needed = {self.known[role] for names in forms for role in names} & {*part.columns}
        if not needed or not all(part.arrow[c].null_count for c in needed):
            return None
        rows = part.arrow.filter(reduce(pc.and_, (pc.is_null(part.arrow[c]) for c in needed)))
        filled = [c for c in rows.column_names if rows[c].null_count < rows.num_rows]
        return Table(rows.select(filled), part.sources[:1], part.key) if filled else None

    def _with_form(self, part: Table, own: Mapping[str, str], file: str) -> Table:
        """Return the table with the columns of another form in those of the known roles."""
        arrow = part.arrow
        for role, column in own.items():
            known = self.known.setdefault(role, column)
            self.read_as[column] = role
            if known == column or known not in arrow.column_names:
                continue
            try:
                both = pc.coalesce(arrow[known], arrow[column])
            except pa.ArrowException:
                message = (
                    f"{file}: the columns {known!r} and {column!r} are both the {role}, and have "
                    "different types."
                )
                raise FORMS_CANNOT_BE_MIXED.error(message, file=file, column=column) from None
            arrow = arrow.set_column(arrow.column_names.index(known), known, both)
        key = fingerprint(part.key, [*own.items()])
        return replace(part, arrow=arrow, key=key)

    def _own_roles(self, part: Table) -> dict[str, str] | None:
        """Return the roles of a file in another form; None if it has the known form, or no form."""
        columns, task = {*part.columns}, self.task
        if any({self.known.get(role) for role in names} <= columns for names in task.needs):
            return None
        asked = {role: column for role, column in self.chosen.items() if column in columns}
        alike = {role: column for role, column in self.known.items() if column in columns}
        tries = (roles_for(task, part, each, by_type=False) for each in (alike | asked, asked))
        return next((own for own in tries if own is not None), None)

    def _check_mix(self, own: Mapping[str, str], file: str) -> None:
        """Refuse a form that the task cannot read beside the known one."""
        for role, column in own.items():
            known = self.known.get(role, column)
            endings = [end for end in self.task.role(role).endings if column.endswith(end)]
            if endings and not known.endswith(endings[0]):
                raise FORMS_CANNOT_BE_MIXED.error(
                    f"{file} has {column!r}, and {role} is {known!r}: their values are written "
                    "in different ways.",
                    fix=f"Convert the values into a column {known!r}.",
                    file=file,
                    column=column,
                )
        forms = [{*names} for names in self.task.needs]
        if any(form <= {*self.known} and form <= {*own} for form in forms):
            return
        both = [form for form in forms if form <= {*self.known} or form <= {*own}]
        if all(form <= {*self.task.reads.mixes} for form in both):
            return
        raise FORMS_CANNOT_BE_MIXED.error(
            f"{self.task.name} cannot read {self.first_file} ({_shown(self.known)}) and {file} "
            f"({_shown(own)}) in one run.",
            file=file,
        )


def _shown(roles: Mapping[str, str]) -> str:
    return ", ".join(f"{role} = {column}" for role, column in roles.items())


def _parts(table: Table) -> list[Table]:
    """Return table's files, each with its own columns; the table itself if all have the same."""
    if len({source.columns for source in table.sources}) == 1:
        return [table]
    ends = [source.first_row for source in table.sources[1:]] + [table.num_rows]
    parts: list[Table] = []
    for source, end in zip(table.sources, ends, strict=True):
        columns = [name for name in table.columns if name in source.columns]
        arrow = table.arrow.slice(source.first_row, end - source.first_row).select(columns)
        parts.append(Table(arrow, (replace(source, first_row=0),), table.key))
    return parts


def _new_names(part: Table, known: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return column to new name: that of its role; other columns give way to it."""
    names: dict[str, str] = {}
    taken = {*known.values()}
    for role, column in own.items():
        free = column if column not in taken else f"{column}.{role}"
        names[column] = known.get(role, free)
    used = {*names.values()}
    for column in part.columns:
        if column not in names and column in used:
            names[column] = f"{column}.unread"
    return names
