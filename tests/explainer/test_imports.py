"""The explainer imports nothing else of surefit and no library, and loads causes when needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import surefit

PACKAGE = Path(surefit.__file__).parent
FILES = sorted((PACKAGE / "explainer").rglob("*.py"))


def imported_modules(path: Path) -> set[str]:
    """All modules that a file imports, at its top or inside its functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_the_explainer_imports_itself_and_the_standard_library(path: Path) -> None:
    for module in imported_modules(path):
        is_own = module == "surefit.explainer" or module.startswith("surefit.explainer.")
        assert is_own or module.split(".")[0] in sys.stdlib_module_names, f"imports {module}"


def test_causes_are_loaded_by_the_first_explanation() -> None:
    script = (
        "import sys, surefit, surefit.api, surefit.cli, surefit.training.failures\n"
        "loaded = lambda: [m for m in sys.modules if m.startswith('surefit.explainer.causes')]\n"
        "assert not loaded(), loaded()\n"
        "assert 'surefit.explainer.match' not in sys.modules\n"
        "assert surefit.explain('CUDA out of memory').code == 'SF650'\n"
        "assert loaded()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
