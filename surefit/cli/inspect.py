"""`surefit inspect`: what is in a data set, and how a model would see one row of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from surefit.data.table import Table


def command(
    data: Annotated[list[str], typer.Argument(help="Files or folders.")],
    model: Annotated[
        str | None, typer.Option(help="Show a row as this model would see it.")
    ] = None,
    row: Annotated[int | None, typer.Option(help="Number of the row, from 0.")] = None,
    task: Annotated[str | None, typer.Option(help="The task, if not worked out.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="How to read: --set read.delimiter=tab; repeatable."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> int:
    """Columns, lengths, empties, duplicates; with a model and a row, the row as it is read."""
    from surefit.cli.show import print_json, show_findings, to_stderr, to_stdout
    from surefit.cli.show_row import show_tokens, show_values
    from surefit.config import make_config, nest, parse_setting
    from surefit.data.inspect import inspect_table
    from surefit.data.open import open_table
    from surefit.errors import UsageError

    settings = nest(dict(parse_setting(text) for text in set_ or []))
    table = open_table(data, make_config(settings).read)
    show_findings(table.findings, to_stderr())
    if row is None and model is None:
        report = inspect_table(table)
        print_json(report.as_dict()) if json else print(report)
        return 0
    if row is None or not 0 <= row < table.num_rows:
        raise UsageError(
            f"--row is {row}; expected 0 to {table.num_rows - 1}.", "Give the number of a row."
        )
    if model is None:
        shown = _plain(table.row(row))
    else:
        options = {**settings, "data": data, "model": model, "task": task}
        shown = _as_model_sees(table, row, options)
    if json:
        print_json(shown)
    elif "tokens" in shown and model is not None:
        show_tokens(shown, to_stdout())
    else:
        show_values(shown, to_stdout())
    return 0


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain_value(value) for name, value in row.items()}


def _plain_value(value: Any) -> Any:
    if hasattr(value, "dtype"):
        return f"{value.dtype} array {list(value.shape)}"
    if isinstance(value, list):
        return [_plain_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _as_model_sees(table: Table, row: int, options: dict[str, Any]) -> dict[str, Any]:
    from surefit.api import split_options
    from surefit.cli.show import Display
    from surefit.data.images import with_files
    from surefit.errors import FindingError
    from surefit.planning import make_plan
    from surefit.preflight.rows import show_row

    # A row can be looked at though most of the others would be dropped.
    config, given = split_options({"max_dropped_share": 1.0, **options})
    with Display() as display:
        plan = make_plan(config, given, display.progress)
    if plan.parts is None or plan.task is None:
        raise FindingError(*(found for found in plan.findings if found.severity == "error"))
    return show_row(with_files(table, plan.roles), row, plan.task, plan.parts)
