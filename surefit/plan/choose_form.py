"""Which columns a custom module reads, where names and types alone do not say so.

A module does not declare its inputs: its forward has names, and it is tried on zeros.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from surefit.data.column_types import array_rank, is_array
from surefit.data.column_values import is_identifier
from surefit.data.further_columns import SEVERAL
from surefit.data.roles import get_role
from surefit.data.row_shapes import row_shape
from surefit.data.table import Table
from surefit.encode.features.feature_layout import Hints
from surefit.encode.images.channel_axis import FIRST, own_axis
from surefit.plan.several_inputs import lead_input
from surefit.tasks.image_segmentation import MASKS
from surefit.tasks.task_spec import TaskSpec


def choose_form(
    table: Table,
    hints: Hints,
    wanted: TaskSpec | Sequence[TaskSpec] | None,
    chosen: Mapping[str, str],
    split_by: str | None = None,
) -> dict[str, str]:
    """The columns by role that the user chose, with those that the module decides."""
    found = _with_input(table, hints, wanted, chosen)
    arrays = [name for name in table.columns if _is_input(table, name)]
    several = {*found} & {*SEVERAL} - {*chosen}
    if not (arrays or several) or "label" in found or not _may_have(wanted, "label"):
        return found
    label = _label_beside(table, {*found.values(), *hints.arguments, *arrays, split_by or ""})
    if label is None:
        return found or _inputs_and_targets(table, hints, arrays)
    if len(arrays) == 1 and not {"image", "features"} & {*found} and _is_flat(table, arrays[0]):
        found["features"] = arrays[0]
    return {**found, "label": label}


def _inputs_and_targets(table: Table, hints: Hints, arrays: Sequence[str]) -> dict[str, str]:
    """Of two columns of vectors alone, that which the module reads, and the other as targets."""
    ranks = [array_rank(table.column_type(name)) for name in arrays]
    if ranks != [1, 1] or len(table.columns) != 2 or hints.reads_vectors is None:
        return {}
    sizes = {name: row_shape(table, name).axes[0].size for name in arrays}
    read = [name for name, size in sizes.items() if size and hints.reads_vectors(size)]
    if len(read) != 1:
        return {}
    return {"features": read[0], "label": next(name for name in arrays if name != read[0])}


def _may_have(wanted: TaskSpec | Sequence[TaskSpec] | None, role: str) -> bool:
    tasks = (wanted,) if isinstance(wanted, TaskSpec) else wanted
    return tasks is None or any(role in task.role_names for task in tasks)


def _label_beside(table: Table, read: Collection[str]) -> str | None:
    """The only column left that may be the label, where others are inputs, ids or groups."""
    label = get_role("label")
    may_be = [name for name in table.columns if label.accepts(table.column_type(name), False)]
    if len(may_be) < 2 or any(name.lower() in label.names for name in table.columns):
        return None  # the name or the type alone decides
    left = [name for name in may_be if name not in read and not is_identifier(name)]
    return left[0] if len(left) == 1 else None


def _with_input(
    table: Table,
    hints: Hints,
    wanted: TaskSpec | Sequence[TaskSpec] | None,
    chosen: Mapping[str, str],
) -> dict[str, str]:
    tasks = (wanted,) if isinstance(wanted, TaskSpec) else wanted
    possible = {"image", "features"}
    if tasks is not None:
        possible &= {role for task in tasks for role in task.role_names}
    taken = {*chosen.values()}
    lead = {} if {*SEVERAL} & {*chosen} else _lead_input(table, hints, tasks, taken)
    if lead:
        return {**chosen, **lead}
    arrays = [name for name in table.columns if name not in taken and _is_input(table, name)]
    if possible & {*chosen} or not arrays or "inputs_embeds" in hints.arguments:
        return dict(chosen)
    arrays = _without_masks(table, arrays)
    if "image" in possible and len(arrays) == 1 and _are_images(table, arrays[0], hints):
        return {**chosen, "image": arrays[0]}
    named = [name for name in hints.arguments if name in arrays]
    if "features" in possible and len(arrays) > 1 and named and _is_flat(table, named[0]):
        return {**chosen, "features": named[0]}
    return dict(chosen)


def _lead_input(
    table: Table, hints: Hints, tasks: Sequence[TaskSpec] | None, taken: Collection[str]
) -> dict[str, str]:
    possible = [
        role for role in SEVERAL if tasks is None or any(role in task.role_names for task in tasks)
    ]
    return lead_input(table, hints.arguments, taken, possible)


def _without_masks(table: Table, arrays: list[str]) -> list[str]:
    """The arrays but masks of pixels, where one of three axes is beside them."""
    others = [name for name in arrays if name.lower() not in MASKS.names]
    has_image = len(others) == 1 and array_rank(table.column_type(others[0])) == 3
    return others if has_image else arrays


def _is_input(table: Table, column: str) -> bool:
    """Whether a column has arrays, and its name is no label's."""
    is_label = column.lower() in get_role("label").names
    return is_array(table.column_type(column)) and not is_label


def _is_flat(table: Table, column: str) -> bool:
    return array_rank(table.column_type(column)) <= 2


def _are_images(table: Table, column: str, hints: Hints) -> bool:
    """Whether the module reads the arrays as images, and not as sequences."""
    rank = array_rank(table.column_type(column))
    if hints.image is None or rank not in (2, 3):
        return False
    sizes = [axis.size for axis in row_shape(table, column).axes]
    if rank == 3 and 1 not in sizes:
        return True  # features have two axes
    known, channels = [size for size in sizes if size is not None], hints.image["channels"]
    if len(known) < len(sizes) or hints.reads_images is None or channels is None:
        return False
    if rank == 2:
        as_sequence = hints.accepts is not None and hints.accepts(*known)
        return not as_sequence and hints.reads_images(channels, *known) is not False
    sides = known[1:] if own_axis(known) == FIRST else known[:2]
    return hints.reads_images(channels, *sides) is not False
