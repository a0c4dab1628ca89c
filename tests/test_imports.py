"""Imports point one way, towards config; and commands load only what they use."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import surefit

PACKAGE = Path(surefit.__file__).parent
ORDER = (
    "printable",
    "errors",
    "gigabytes",
    "core",
    "config",
    "progress",
    "processes",
    "forked_map",
    "findings",
    "user_code",
    "explainer",
    "batches",
    "data",
    "inputs",
    "targets",
    "tasks",
    "speed",
    "models",
    "pipeline",
    "memory",
    "request",
    "checks",
    "custom_loop",
    "inspection",
    "run",
    "report",
    "plan",
    "training",
    "api",
    "results",
    "ui",
    "cli",
    "__main__",
)
"""Every room of the package; a room imports those above it in this list, and no other."""

SHOWING = {("api", "cli"), ("run", "results"), ("run", "report")}
"""The functions of `import surefit` show what the commands show, with the same code, and a Run has
methods that show what it did."""


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> Iterator[tuple[int, str]]:
    """Line and room of each import that is run; those for type checkers are not."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typed = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typed or not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif node.module == "surefit":
            names = [f"surefit.{alias.name}" for alias in node.names]
        else:
            names = [node.module or ""]
        for name in names:
            parts = name.split(".")
            if parts[0] == "surefit" and len(parts) > 1 and parts[1] != "__version__":
                yield node.lineno, parts[1]


def test_imports_point_one_way() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = room_of(path)
        if room == "__init__":
            continue  # the public names, each imported when it is asked for
        assert room in ORDER, f"{path}: name the room {room!r} in ORDER"
        for line, other in imported_rooms(path):
            later = ORDER.index(other) > ORDER.index(room)
            if other != room and later and (room, other) not in SHOWING:
                wrong.append(f"{path.relative_to(PACKAGE)}:{line} {room} imports {other}")
    assert wrong == []


def test_the_explainer_imports_itself_and_the_standard_library() -> None:
    for path in (PACKAGE / "explainer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in named:
                is_own = f"{name}.".startswith("surefit.explainer.")
                assert is_own or name.split(".")[0] in sys.stdlib_module_names, (path, name)


def test_no_two_modules_have_one_name() -> None:
    names = [path.name for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_scripts_and_tests_import_what_is_there() -> None:
    root = PACKAGE.parent
    missing = []
    for path in (
        each for room in ("bench", "scripts", "tests") for each in root.glob(f"{room}/**/*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            module = getattr(node, "module", None) or ""
            if not isinstance(node, ast.ImportFrom) or not module.startswith("surefit"):
                continue
            inside = importlib.import_module(module)
            folder = root / module.replace(".", "/")
            for name in (alias.name for alias in node.names):
                if not hasattr(inside, name) and not list(folder.glob(f"{name}*")):
                    missing.append(f"{path.relative_to(root)}:{node.lineno}: {module}.{name}")
    assert missing == []


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_surefit_loads_almost_nothing() -> None:
    loaded = {name for name in loaded_by("import surefit") if name.startswith("surefit")}
    assert loaded == {"surefit"}


def test_the_functions_load_neither_torch_nor_the_causes_nor_the_memory_tracer() -> None:
    loaded = loaded_by("import surefit; surefit.predict")
    assert not loaded & {"torch", "transformers", "peft", "accelerate"}
    rooms = {name.split(".")[1] for name in loaded if name.startswith("surefit.")}
    assert not rooms & {"explainer", "memory", "checks", "plan", "training", "speed", "cli"}
