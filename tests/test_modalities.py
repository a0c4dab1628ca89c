"""What is special about an input is in its folder: no other room decides anything by its name.

The rule: outside `inputs/`, `targets/`, `tasks/`, `config/` and `explainer/`, no module imports
from the folder of an input, and no role of an input (image, audio, features …) is compared with
something, looked up in a mapping, or a key of one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import surefit
from surefit.tasks import INPUTS

PACKAGE = Path(surefit.__file__).parent
FREE = {"inputs", "targets", "tasks", "config", "explainer"}
FOLDERS = {path.name for path in (PACKAGE / "inputs").iterdir() if path.is_dir()} - {"augment"}
WORDS = {*INPUTS} - {"text", "input_ids"} | {"images", "chat"}
"""`text` and `input_ids` are also names of columns that every opener makes and of batch columns."""

ALLOWED = {
    "data": "openers name the columns that they make, and the table of roles is there",
    "plan/choose_form.py": "decides which unnamed array of a user is which role",
    "custom_loop.py": "reads arrays of features for a loop of the user's own; there is no task",
}


def deciding(node: ast.AST) -> Iterator[ast.AST | None]:
    """The operands of comparisons and of set operations, the keys of mappings and of look-ups."""
    match node:
        case ast.Compare():
            yield from (
                inner for side in (node.left, *node.comparators) for inner in ast.walk(side)
            )
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
            yield from ast.walk(node)
        case ast.Subscript():
            yield node.slice
        case ast.Dict():
            yield from node.keys
        case ast.Call(func=ast.Attribute(attr="get" | "pop" | "isdisjoint" | "intersection")):
            yield from (inner for given in node.args[:1] for inner in ast.walk(given))
        case ast.Call(func=ast.Name(id="get_role")):
            yield from node.args


def named(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            parts = f"{node.module}.{node.names[0].name}".split(".")
            if parts[:2] == ["surefit", "inputs"] and parts[2] in FOLDERS:
                yield node.lineno, f"imports {node.module}"
        for part in deciding(node):
            if isinstance(part, ast.Constant) and part.value in WORDS:
                yield part.lineno, f"decides by {part.value!r}"


def test_only_inputs_targets_and_tasks_name_a_modality() -> None:
    found, used = [], set()
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        room = place.parts[0]
        if room in FREE:
            continue
        for line, what in named(ast.parse(path.read_text(encoding="utf-8"))):
            allowed = {room, place.as_posix()} & ALLOWED.keys()
            used |= allowed
            if not allowed:
                found.append(f"{place}:{line} {what}")
    assert found == []
    assert used == {*ALLOWED}, "remove what no longer needs to be allowed"


def test_the_rule_sees_comparisons_look_ups_and_imports() -> None:
    for code in (
        "if role == 'image': pass",
        "x = roles['audio']",
        "x = roles.get('features')",
        "x = {'image', 'audio'} & found",
        "makers = {'image': make}",
        "from surefit.inputs.audio.audio_input import AUDIO_INPUT",
    ):
        assert [*named(ast.parse(code))], code
    assert not [*named(ast.parse("message = 'the image of a row'"))]
