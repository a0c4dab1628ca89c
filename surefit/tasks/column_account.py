"""The account of columns: each column of the data with its role, or None where it is not used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from surefit.data.further_columns import base_role
from surefit.encode.encoder import Encoder
from surefit.tasks.task_spec import TaskSpec

Columns = Mapping[str, str | None]
"""Each column of the data and its role; None where it is not used."""

FEATURES = "features"
"""The role of the columns that a task reads together, such as those of a table."""


def account_columns(columns: Sequence[str], task: TaskSpec, encoder: Encoder) -> Columns:
    """The role of each column, as far as the Encoder is decided.

    Columns that the model's forward names have the role of that name.
    """
    role_of = {
        column: base_role(role, column) for role, column in reversed([*encoder.roles.items()])
    }
    role_of |= {column: column for column in encoder.extras}
    if encoder.settings.get("kept_where"):
        role_of.setdefault(encoder.settings["kept_where"], "label")
    others = [name for name in columns if name not in role_of]
    if task.whole_rows:
        read = others if task.columns_read is None else task.columns_read(encoder, others)
        role_of |= dict.fromkeys(read, FEATURES)
    return {name: role_of.get(name) for name in columns}


def describe_unused(columns: Columns | None, ignored: Iterable[str] = ()) -> str:
    """The columns that are not used, in one line; empty if there are none.

    >>> describe_unused({"text": "text", "id": None, "url": None}, ["url"])
    'id, url (ignored)'
    """
    left = {*ignored}
    unused = [name for name, role in (columns or {}).items() if role is None]
    return ", ".join(f"{name} (ignored)" if name in left else name for name in unused)
