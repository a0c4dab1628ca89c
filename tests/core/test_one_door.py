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


WRITES = {"write_text", "write_bytes", "touch", "mkdir", "makedirs", "chmod"}
MODES = {"w", "wb", "x", "xb", "a", "ab", "w+", "r+", "r+b", "w+b"}
IN_TEMPORARY = {
    *("cli/selftest.py", "data/cache_entry.py", "data/formats/idx.py", "data/formats/opened.py"),
    *("data/formats/numpy_files.py", "data/formats/tar_shards.py", "data/row_parts.py"),
    *("inputs/store.py", "inputs/tokenizer.py", "models/save_model.py", "models/sharding.py"),
    *("plan/proof.py", "run/checkpoints.py", "run/choose_checkpoint.py", "training/reference.py"),
    "targets/sentence_folder.py",
}
"""Modules that fill temporary folders, which `core/files.py` has made and gives their names."""
OTHER_WRITES = {
    "cli/demo.py": "makes the folder of its data",
    "cli/run_commands.py": "makes the folder of a user's --output",
    "data/cache.py": "makes the folders of the cache; a link in their place is refused",
    "data/remote_data.py": "makes folders inside a locked entry of the cache",
    "inputs/tokenizer_trial.py": "makes the folder of records",
    "memory/process_memory.py": "writes to /proc/self",
    "processes.py": "the error file that torchrun names",
    "run/events.py": "a file that `files.open_own` has opened",
    "run/run_folder.py": "makes the folder of a new run, refused if a link is in it",
    "training/rehearse.py": "makes folders inside a scratch folder",
    "user_code/run_code.py": "makes the folder of records",
}


def writes(path: Path) -> bool:
    """Whether a module opens a file to write, or makes a file or folder."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        owner = getattr(getattr(called, "value", None), "id", "")
        if name in WRITES and owner != "files":
            return True
        given = [*node.args, *(word.value for word in node.keywords if word.arg == "mode")]
        modes = {each.value for each in given if isinstance(each, ast.Constant)}
        if name in ("open", "open_memmap") and modes & MODES:
            return True
    return False


def test_files_are_written_by_one_room_or_in_its_temporary_folders() -> None:
    names = {path: path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    found = {name for path, name in names.items() if writes(path)}
    assert {name for name in found if not name.startswith("core/")} == IN_TEMPORARY | {
        *OTHER_WRITES
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
