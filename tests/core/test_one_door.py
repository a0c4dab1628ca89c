"""Only `core/` deletes, renames and links: no other module could follow a stranger's link."""

from __future__ import annotations

import ast
from pathlib import Path

import surefit

PACKAGE = Path(surefit.__file__).parent
CHANGES = {
    "os": {"remove", "unlink", "rmdir", "removedirs", "replace", "rename", "symlink", "link"},
    "shutil": {"rmtree", "move", "copy", "copyfile", "copytree"},
    "path": {"unlink", "rmdir", "rename", "symlink_to", "hardlink_to"},
}
"""Functions by module, and methods of paths, that change what a name leads to."""
ALLOWED = {
    ("run/exported_model.py", "shutil.copytree"): "into a folder that `files.new_folder` made",
    ("run/run_folder.py", "os.rmdir"): "the empty folder that it has just made, to try the place",
    ("run/run_folder.py", "path.rmdir"): "an empty folder, which takes nothing with it",
}


def changes_of(path: Path) -> set[str]:
    """The calls in a module that change what names lead to, whether called or passed on."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module in CHANGES:
            found |= {f"{node.module}.{each.name}" for each in node.names}
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value.id if isinstance(node.value, ast.Name) else "path"
        owner = owner if owner in ("os", "shutil") else "path"
        found.add(f"{owner}.{node.attr}")
    return {name for name in found if name.split(".")[1] in CHANGES[name.split(".")[0]]}


def found_in(package: Path) -> set[tuple[str, str]]:
    """The module and the call of every change outside of `core/`; columns are renamed, too."""
    return {
        (path.relative_to(package).as_posix(), call)
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] != "core"
        for call in changes_of(path)
        if call != "path.rename"  # of tables; that of a path goes through the same check of `os`
    }


def test_only_one_room_changes_what_names_lead_to() -> None:
    assert found_in(PACKAGE) == {*ALLOWED}


def test_the_search_finds_what_it_is_for(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(
        "import os\nfrom shutil import rmtree\nos.replace\np.unlink()"
    )
    calls = {call for _, call in found_in(tmp_path)}
    assert calls == {"os.replace", "shutil.rmtree", "path.unlink"}
