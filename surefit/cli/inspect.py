"""`surefit inspect`: the contents of a data set, and one row as a model sees it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from surefit.cli.display import Display
    from surefit.config import RunConfig
    from surefit.data.table import Table
    from surefit.inspection.table_report import DataReport


def command(
    data: Annotated[list[str], typer.Argument(help="Files or folders.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="Also report what this model expects; with --row, encode the row for it."
        ),
    ] = None,
    row: Annotated[int | None, typer.Option(help="Show this row; rows count from 0.")] = None,
    task: Annotated[
        str | None, typer.Option(help="The task. Default: inferred from the data and the model.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A config key, such as read.delimiter=tab; may be repeated."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Report columns, lengths, empty and duplicate rows of a data set.

    With --model and --row, show one row as the model sees it.
    """
    from surefit.cli.display import Display, print_json, show_findings
    from surefit.cli.guarded_console import to_stderr
    from surefit.config import make_config, nest, parse_setting
    from surefit.data.open_data import open_table
    from surefit.data.remote.remote_copy import reading_once
    from surefit.errors import UsageError

    settings = nest(dict(parse_setting(text) for text in set_ or []))
    config = make_config(settings)
    if row is None:
        with Display() as display, reading_once(display.progress, config.cache_limit_gb):
            report = _report(data, config, model, task, json, display)
        print_json(report.as_dict()) if json else print(report)
        return 0
    with Display() as display, reading_once(display.progress, config.cache_limit_gb):
        table = open_table(data, config.read, config.on_bad_file)
    show_findings(table.findings, to_stderr())
    if not 0 <= row < table.num_rows:
        raise UsageError(
            f"--row is {row}; expected 0 to {table.num_rows - 1}.", "Pass the number of a row."
        )
    if model is None:
        shown = _plain(table.row(row))
    else:
        options = {**settings, "data": data, "model": model, "task": task}
        shown = _as_model_sees(table, row, options)
    print_json(shown) if json else _show(shown, encoded=model is not None)
    return 0


def _show(row: dict[str, Any], encoded: bool) -> None:
    """The row on stdout: its values, or the tokens of an encoded one."""
    from surefit.cli.guarded_console import to_stdout
    from surefit.cli.show_row import show_dropped, show_tokens, show_values

    if encoded and "dropped" in row:
        show_dropped(row, to_stdout())
    elif encoded and "tokens" in row:
        show_tokens(row, to_stdout())
    else:
        show_values(row, to_stdout())


def _report(
    data: list[str],
    config: RunConfig,
    model: str | None,
    task: str | None,
    json: bool,
    display: Display,
) -> DataReport:
    """The report; files that do not fit together are still described one by one."""
    from surefit.cli.display import show_findings
    from surefit.cli.terminal import user_output_to_stderr
    from surefit.data.open_data import open_table
    from surefit.errors import FindingError
    from surefit.inspection.array_report import describe_arrays
    from surefit.inspection.data_report import AskedReading, inspect_opened, look_at_files
    from surefit.models.open_model import open_model
    from surefit.tasks.find_task import find_task
    from surefit.user_code import NamedCode

    arrays = look_at_files(data, config.read, display.progress)
    try:
        table = open_table(data, config.read, config.on_bad_file)
    except FindingError:
        if not json and len(arrays) > 1:
            print(describe_arrays(arrays))
        raise
    show_findings(table.findings, display.console)
    with user_output_to_stderr():
        source = None
        if model is not None:
            trust = config.trust_remote_code
            source = open_model(model, trust_remote_code=trust, code=NamedCode())
        shape = config.features
        wanted = find_task(task, NamedCode()) if task is not None else None
        asked = AskedReading(config.columns, wanted, shape.steps, shape.width)
        return inspect_opened(table, arrays, source, asked, display.progress)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain_value(value) for name, value in row.items()}


def _plain_value(value: Any) -> Any:
    if hasattr(value, "dtype"):
        return f"{value.dtype} array {list(value.shape)}"
    if isinstance(value, list):
        return [_plain_value(item) for item in value]
    if isinstance(value, str):
        from surefit.shown_places import as_shown

        return as_shown(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _as_model_sees(table: Table, row: int, options: dict[str, Any]) -> dict[str, Any]:
    from surefit.cli.display import Display
    from surefit.errors import FindingError
    from surefit.inspection.row_view import show_row
    from surefit.plan.make_plan import make_plan
    from surefit.request import make_request

    # A row can be shown even if most of the others would be dropped.
    request = make_request({"max_dropped_share": 1.0, **options})
    with Display() as display:
        plan = make_plan(request, display.progress)
    if plan.job is None:
        raise FindingError(*(found for found in plan.findings if found.severity == "error"))
    return show_row(table, row, plan.job)
