"""The notebook for a hosted GPU: its commands are commands of this version."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import typer

from surefit.cli import app

NOTEBOOK = Path(__file__).parents[2] / "examples" / "selftest_on_a_gpu.ipynb"


def test_the_cells_of_the_notebook() -> None:
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    commands = [line[1:].split() for cell in cells for line in cell.split("\n") if line[:1] == "!"]
    own = [words[1:] for words in commands if words[0] == "surefit"]
    assert own
    group = typer.main.get_command(app)
    context = group.make_context("surefit", [], resilient_parsing=True)
    for arguments in own:
        name, subcommand, rest = group.resolve_command(context, arguments)  # type: ignore[attr-defined]
        assert subcommand is not None
        subcommand.make_context(name, rest, parent=context)
    for cell in cells:
        ast.parse("\n".join(line for line in cell.split("\n") if line[:1] != "!"))
    assert all(cell.get("outputs", []) == [] for cell in book["cells"])
