"""`surefit inspect`: what is in a data set, and how a model would see one row of it."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer


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
    from surefit.cli.show import print_json, show_findings, to_stderr
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
        shown = _as_model_sees(row, {**settings, "data": data, "model": model, "task": task})
    if json:
        print_json(shown)
    else:
        for name, value in shown.items():
            print(f"{name}: {value}")
    return 0


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain_value(value) for name, value in row.items()}


def _plain_value(value: Any) -> Any:
    if hasattr(value, "dtype"):
        return f"{value.dtype} array {list(value.shape)}"
    if isinstance(value, list):
        return [_plain_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _as_model_sees(row: int, settings: dict[str, Any]) -> dict[str, Any]:
    from surefit.api import check
    from surefit.errors import FindingError
    from surefit.preflight.rows import show_row

    plan = check(**settings, eval_share=0.0)
    if plan.parts is None:
        raise FindingError(*(found for found in plan.findings if found.severity == "error"))
    return show_row(plan.parts.train, plan.parts.encoder, row)
