"""Each line of the table in docs/security.md names a test, and there is such a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "security.md"


def rows() -> list[list[str]]:
    section = PAGE.read_text(encoding="utf-8").split("## What a stranger's files can do")[1]
    lines = re.findall(r"^\| (.*) \|$", section.split("\n## ")[0], re.MULTILINE)
    return [line.split(" | ") for line in lines[2:]]


def test_each_line_names_a_test_that_exists() -> None:
    assert len(rows()) >= 25
    for row in rows():
        file, name = row[-1].strip("`").split("::")
        functions = ast.walk(ast.parse((TESTS / file).read_text(encoding="utf-8")))
        assert name in {each.name for each in functions if isinstance(each, ast.FunctionDef)}, row
