"""`surefit inspect`: the contents of a data set, and one row as a model sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from surefit.cli.terminal import as_line
from surefit.printable import printable

if TYPE_CHECKING:
    from surefit.cli.display import Display
    from surefit.config import RunConfig
    from surefit.data.table import Table
    from surefit.inspection.data_report import DataReport


def inspect(
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
    from surefit.cli.terminal import to_stderr
    from surefit.config import make_config, nest, parse_setting
    from surefit.data.open_data import open_table
    from surefit.data.remote_data import reading_once
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
        shown = {name: _plain_value(value) for name, value in table.row(row).items()}
    else:
        options = {**settings, "data": data, "model": model, "task": task}
        shown = _as_model_sees(table, row, options)
    print_json(shown) if json else _show(shown, encoded=model is not None)
    return 0


def _show(row: dict[str, Any], encoded: bool) -> None:
    """Print the row: its values, or the tokens of an encoded one."""
    from surefit.cli.terminal import to_stdout

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
    """Return the report; files that do not fit together are still described one by one."""
    from surefit.cli.display import show_findings
    from surefit.cli.terminal import user_output_to_stderr
    from surefit.data.open_data import open_table
    from surefit.errors import FindingError
    from surefit.inspection.data_report import (
        AskedReading,
        describe_arrays,
        inspect_opened,
        look_at_files,
    )
    from surefit.tasks.choose_task import find_task
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
            from surefit.models.open_model import open_model  # it imports torch

            trust = config.trust_remote_code
            source = open_model(model, trust_remote_code=trust, code=NamedCode())
        shape = config.features
        wanted = find_task(task, NamedCode()) if task is not None else None
        asked = AskedReading(config.columns, wanted, shape.steps, shape.width)
        return inspect_opened(table, arrays, source, asked, display.progress)


def _plain_value(value: Any) -> Any:
    if hasattr(value, "dtype"):
        return f"{value.dtype} array {list(value.shape)}"
    if isinstance(value, list):
        return [_plain_value(item) for item in value]
    if isinstance(value, str):
        from surefit.printable import redact

        return redact(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _as_model_sees(table: Table, row: int, options: dict[str, Any]) -> dict[str, Any]:
    from surefit.cli.display import Display
    from surefit.cli.terminal import user_output_to_stderr
    from surefit.memory.process_memory import infrequent_collection
    from surefit.request import make_request

    with infrequent_collection(), Display() as display, user_output_to_stderr():
        from surefit.inspection.row_view import show_row
        from surefit.plan.stages import read_for_row

        return show_row(table, row, read_for_row(make_request(options), display.progress))


STYLES = {
    "prompt": "",
    "learned": "bold green",
    "special": "cyan",
    "learned special": "bold black on green",
    "truncated": "strike red",
    "block": "bold magenta",
}
BRACKETS = {
    "prompt": "{}",
    "learned": "⟦{}⟧",
    "special": "‹{}›",
    "learned special": "⟦‹{}›⟧",
    "truncated": "⟨cut: {}⟩",
    "block": "⟨block {}⟩",
}
WORDS = {
    "prompt": "not labelled",
    "learned": "labelled",
    "special": "special",
    "learned special": "labelled special",
    "truncated": "truncated",
}
SETS = {"training": "training set", "evaluation": "validation set"}


def show_tokens(shown: Mapping[str, Any], console: Console) -> None:
    """Show the number of tokens, a legend, and the text in parts of one kind."""
    side = f", {SETS[shown['side']]}" if shown["side"] else ""
    side += f", {len(shown['blocks'])} blocks" if "blocks" in shown else ""
    label = f"; class {shown['class']!r}" if "class" in shown else ""
    console.print(as_line(f"row {shown['row']}{side}: {_count_tokens(shown['tokens'])}{label}"))
    legend = Text("legend: ")
    for kind in WORDS:
        legend.append(_written(kind, WORDS[kind], console)).append(" ")
    console.print(legend, "")
    text = Text()
    for part in shown["parts"]:
        text.append(_written(part["kind"], part["text"], console))
    console.print(text)


def _count_tokens(tokens: Sequence[Mapping[str, Any]]) -> str:
    """Return how many tokens are labelled, special and truncated."""
    cut = sum(token["kind"] == "truncated" for token in tokens)
    special = sum(token["special"] for token in tokens)
    counts = [f"{special} special"]
    if any(token["learned"] is not None for token in tokens):  # else the row has the label
        counts.insert(0, f"{sum(token['kind'] == 'learned' for token in tokens)} labelled")
    return f"{len(tokens) - cut} tokens ({', '.join(counts)}), {cut} truncated"


def show_dropped(shown: Mapping[str, Any], console: Console) -> None:
    """Print why a row is dropped."""
    from surefit.inputs.encoded_row import phrase_of

    why = f" ({shown['why']})" if "why" in shown else ""
    console.print(as_line(f"dropped: row {shown['row']} is {phrase_of(shown['dropped'])}{why}"))


def show_values(shown: Mapping[str, Any], console: Console) -> None:
    """Show a row without tokens: name and value, line by line."""
    for name, value in shown.items():
        inner = value.items() if isinstance(value, Mapping) else [(None, value)]
        for part, each in inner:
            console.print(as_line(f"{name}, {part}: {each}" if part else f"{name}: {each}"))


def _written(kind: str, text: str, console: Console) -> Text:
    written = text if console.is_terminal and kind != "block" else BRACKETS[kind].format(text)
    return Text(printable(written), style=STYLES[kind] if console.is_terminal else "")
