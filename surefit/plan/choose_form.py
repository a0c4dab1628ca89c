"""Which columns a custom module reads, where names and types alone do not say so.

A module does not declare its inputs: its forward has names, and it is tried on zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from surefit.data.column_types import array_rank, is_array
from surefit.data.roles import get_role
from surefit.data.row_shapes import row_shape
from surefit.data.table import Table
from surefit.encode.features.feature_layout import Hints
from surefit.encode.images.image_files import CHANNELS
from surefit.tasks.task_spec import TaskSpec


def choose_form(
    table: Table,
    hints: Hints,
    wanted: TaskSpec | Sequence[TaskSpec] | None,
    chosen: Mapping[str, str],
) -> dict[str, str]:
    """The columns by role that the user chose, with the one that the module decides."""
    tasks = (wanted,) if isinstance(wanted, TaskSpec) else wanted
    possible = {"image", "features"}
    if tasks is not None:
        possible &= {role for task in tasks for role in task.role_names}
    taken = {*chosen.values()}
    arrays = [name for name in table.columns if name not in taken and _is_input(table, name)]
    if possible & {*chosen} or not arrays or "inputs_embeds" in hints.arguments:
        return dict(chosen)
    if "image" in possible and len(arrays) == 1 and _are_images(table, arrays[0], hints):
        return {**chosen, "image": arrays[0]}
    named = [name for name in hints.arguments if name in arrays]
    if "features" in possible and len(arrays) > 1 and named and _is_flat(table, named[0]):
        return {**chosen, "features": named[0]}
    return dict(chosen)


def _is_input(table: Table, column: str) -> bool:
    """Whether a column has arrays, and its name is no label's."""
    is_label = column.lower() in get_role("label").names
    return is_array(table.column_type(column)) and not is_label


def _is_flat(table: Table, column: str) -> bool:
    return array_rank(table.column_type(column)) <= 2


def _are_images(table: Table, column: str, hints: Hints) -> bool:
    """Whether the module reads the arrays as images, and not as sequences."""
    if hints.reads_images is None or array_rank(table.column_type(column)) not in (2, 3):
        return False
    sizes = [axis.size for axis in row_shape(table, column).axes]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return False
    if len(known) == 3:
        sides = known[:2] if known[2] in CHANNELS else known[1:]
        return bool({known[0], known[2]} & {*CHANNELS}) and hints.reads_images(*sides)
    as_sequence = hints.accepts is not None and hints.accepts(*known)
    return not as_sequence and hints.reads_images(*known)
