"""How rows of features will be read, as `surefit inspect` prints it."""

from __future__ import annotations

from dataclasses import dataclass

from surefit.data.data_rules import ROWS_RESHAPED
from surefit.data.row_arrays import row_shape
from surefit.data.table import Table
from surefit.errors import FindingError
from surefit.inputs.features.feature_layout import plan_layout, planned_axes
from surefit.inputs.model_hints import Hints
from surefit.printable import one_line


@dataclass(frozen=True)
class LayoutReport:
    """How rows of features will be read; `fault` where that cannot be decided."""

    column: str
    rows: str
    """The axes of a row as it is, such as [7…29, 12]."""
    steps: list[int] | None  # shortest and longest
    width: int | None
    expects: str | None
    """What the model expects, where one was given."""
    fixes: list[str]
    fault: str | None

    def __str__(self) -> str:
        lines = [f"\nlayout: rows of column {self.column!r} are {self.rows}"]
        if self.steps is not None:
            least, most = self.steps
            steps = str(least) if least == most else f"{least} to {most}"
            size = self.width or "differs from row to row"
            lines.append(f"  read as   sequence length {steps}, feature size {size}")
        if self.expects is not None:
            lines.append(f"  model     {one_line(self.expects)}")
        lines += [f"  fix       {one_line(fix)}" for fix in self.fixes]
        return "\n".join([*lines, *([f"  unclear   {one_line(self.fault)}"] if self.fault else [])])


def report_layout(table: Table, column: str, hints: Hints, expects: str | None) -> LayoutReport:
    """Return how rows of features will be read, and why; what keeps them from it is `fault`.

    `expects` is what the model expects, in words.
    """
    shape = row_shape(table, column)
    found = [each for each in table.findings if each.code == ROWS_RESHAPED.code]
    steps = width = fault = None
    try:
        layout, notes = plan_layout(shape, hints, column)
        steps, width = planned_axes(shape, layout)
        found += notes
    except FindingError as error:
        fault = "; ".join(f"{each.message} {each.fix}" for each in error.findings)
    fixes = [f"{each.code} {each.message}" for each in found]
    if hints.hidden_size is not None and width is not None and width.size is not None:
        fixes.append(f"SF325 a projection maps feature size {width} to {hints.hidden_size}.")
    span = None if steps is None else [steps.least, steps.most]
    size = None if width is None else width.size
    return LayoutReport(column, str(shape), span, size, expects, fixes, fault)
