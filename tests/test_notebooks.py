"""The notebooks of examples/ run from top to bottom."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import surefit

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NAMES = ("instruction_tuning", "feature_sequences", "text_images_tables")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_runs_and_shows_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = str(Path(surefit.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([package, os.environ.get("PYTHONPATH", "")]))
    made = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    NotebookClient(made, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    cells = [cell for cell in made.cells if cell.cell_type == "code"]
    shown = [output for cell in cells for output in cell.outputs]
    pages = [each for each in shown if "text/html" in each.get("data", {})]
    assert any("<iframe" in each["data"]["text/html"] for each in pages)
    printed = " ".join(str(each.get("text", "")) for each in shown if each.get("name") == "stdout")
    if name == "instruction_tuning":
        assert "SF601" in printed
        assert "surefit.Collator" in printed
    if name == "feature_sequences":
        assert "has shape [16, 99, 40]" in printed
        assert "SF433" in printed


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    nbformat.validate(stored)
    assert all(not cell.outputs for cell in stored.cells if cell.cell_type == "code")
    assert path.stat().st_size < 20_000
