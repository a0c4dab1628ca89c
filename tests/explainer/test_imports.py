"""The explainer imports nothing else of surefit and no library, and loads causes when needed."""

from __future__ import annotations

import ast
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
