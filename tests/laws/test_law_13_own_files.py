"""Law 13: touch only our own files."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import surefit
from builders import MeanPool, feature_rows
from surefit.config import LOCAL_KEYS, RunConfig
from surefit.core import digests, files
from surefit.core.locks import OLD_SECONDS, WRITTEN, YOUNG_SECONDS, lock_run, sweep_scratch
from surefit.data.cache import TAG, entry_folder, open_cache, release_entries
from surefit.data.cache_contents import clean_cache, limit_cache, list_entries
from surefit.data.cache_entry import open_entry
from surefit.errors import UsageError
from surefit.run.checkpoints import prune_checkpoints
from surefit.run.run_folder import choose_folder, open_run

PACKAGE = Path(surefit.__file__).parent
SHADOWS = ("yaml", "torch", "json", "random", "surefit", "sitecustomize", "multiprocessing")
TRAINING = {
    *("data", "eval_data", "model", "tokenizer", "task", "columns", "ignore", "read", "features"),
    *("audio", "table", "image", "on_bad_file", "augmentation_factor", "augment", "epochs"),
    *("max_steps", "batch_size", "max_tokens", "grad_accum", "order", "max_seq_length"),
    *("overlong", "loss_on", "template", "loss", "lora", "lr", "lr_by", "freeze", "schedule"),
    *("warmup", "weight_decay", "clip", "on_nonfinite", "checkpointing", "precision"),
    *("padding_free", "compile", "parallel", "deterministic", "from_scratch", "seed", "optimizer"),
    *("eval_share", "split", "eval_every", "eval_at_start", "save_every", "keep"),
    *("label_separator", "metrics", "early_stopping", "generate", "max_dropped_share", "accept"),
    *(
        "autofix",
        "outputs",
        "label_order",
        "preference",
        "embedding",
        "box_format",
        "schedule_end",
        "restarts",
    ),
    *("fields", "forecast", "adapter"),
    *("ema", "neftune", "add_tokens", "packing"),
}
"""Keys that define the training; a new key belongs here, or its type is Local[…]."""
SPAWNS = """
import multiprocessing, os, surefit.cli

def spawn(arguments):
    child = multiprocessing.get_context("spawn").Process(target=os.getpid)
    child.start()
    child.join()
    return child.exitcode

if __name__ == "__main__":
    surefit.cli.run = spawn
    surefit.cli.main([])
"""
DELETING = ("os.replace", "os.rename", "os.renames", "os.unlink", "os.remove", "shutil.rmtree")
LOCAL = {
    *("cache", "cache_limit_gb", "device_memory_gb", "fit", "max_memory_gb", "output", "probes"),
    *("rehearse", "scan", "stall_seconds", "trackers", "trust_remote_code"),
    "workers",
}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def write(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a user's file")


def fill(key: str) -> None:
    open_entry("tables", key, lambda f: (f / "x").write_text("value"), lambda f: None)


def test_a_folder_with_other_files_gets_a_cache_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    write(home / "photos" / "2024" / "a.jpg", home / "tables" / "x.csv", home / "digests.sqlite")
    write(home / TAG, home / "in-use" / "flat", home / ".draft.0123abcd.tmp")
    before = contents(home)
    monkeypatch.setenv("SUREFIT_CACHE", str(home))
    fill("one")
    assert open_cache() == home / "surefit-cache"
    release_entries()
    assert limit_cache(1e-9) == []
    fill("two")
    release_entries()
    assert clean_cache()[0] == 1
    inside = home / "surefit-cache"
    assert {p: c for p, c in contents(home).items() if not p.is_relative_to(inside)} == before


def test_what_a_user_put_into_the_cache_stays(cache: Path) -> None:
    fill("ours")
    fill("with a note")
    run = cache / "runs" / "model"
    with files.new_folder(run, sealed=True) as folder:  # sealed by surefit, and no entry
        (folder / "weights").write_text("x")
    write(cache / "tables" / "mine" / "x", cache / "tables" / "with a note" / "note.txt")
    write(cache / "tables" / ".other.lock", cache / "photos" / "a.jpg", cache / "mine.txt")
    write(cache / "tables" / ".draft.0123abcd.tmp" / "x", cache / "tables" / f".{'0' * 32}.lock")
    (cache / "tables" / "link").symlink_to(run)
    (cache / "linked").symlink_to(run.parent)
    kept = {p: c for p, c in contents(cache).items() if p.parent.name != "ours"}
    release_entries()
    assert [entry.path for entry in list_entries()] == ["tables/ours"]
    limit_cache(1e-9)
    clean_cache()
    open_cache()
    assert contents(cache) == kept
    assert not (cache / "tables" / "ours").exists()


def test_the_place_of_an_entry_is_not_a_path(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not the name of a cache entry"):
        entry_folder("encoded", "../../victim")
    (tmp_path / "victim").mkdir()
    (open_cache() / "encoded").symlink_to(tmp_path / "victim")
    with pytest.raises(UsageError, match="is a link"):
        entry_folder("encoded", "key")


def test_a_folder_in_the_way_is_kept_under_another_name(tmp_path: Path) -> None:
    write(tmp_path / "model" / "mine.gguf")
    with files.new_folder(tmp_path / "model", sealed=True) as folder:
        (folder / "weights").write_text("x")
    assert (tmp_path / "model.earlier" / "mine.gguf").read_text() == "a user's file"
    assert (tmp_path / "model" / "weights").is_file()


def test_a_checkpoint_with_a_user_s_file_is_not_pruned(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        with files.new_folder(tmp_path / f"step-{step:08d}", sealed=True) as folder:
            (folder / "weights").write_text("x")
    write(tmp_path / "step-00000002" / "notes.txt")
    prune_checkpoints(tmp_path, 1, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_link_in_a_run_is_not_followed(tmp_path: Path, name: str) -> None:
    write(tmp_path / "victim" / "step-00000001" / "x", tmp_path / "victim.txt")
    before, run = contents(tmp_path), tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to(tmp_path / ("victim.txt" if "." in name else "victim"))
    with pytest.raises(UsageError, match="is a link"), lock_run(run):
        pass
    with pytest.raises(UsageError, match="is a link"):
        choose_folder(str(run), "run")
    assert contents(tmp_path).items() >= before.items()
    assert (run / name).is_symlink()


@pytest.mark.parametrize("name", ["plan.json", "checkpoints", "model", "model/config.json"])
def test_a_run_is_not_read_through_a_link(tmp_path: Path, name: str) -> None:
    run, victim = tmp_path / "run", tmp_path / "victim"
    write(*(run / each for each in ("config.yaml", "plan.json", "model/config.json")))
    (run / "checkpoints").mkdir()
    shutil.move(run / name, victim)
    (run / name).symlink_to(victim)
    with pytest.raises(UsageError, match="is a link"):
        open_run(run)


def test_an_entry_without_a_mark_or_with_a_link_is_not_read(cache: Path, tmp_path: Path) -> None:
    def read(key: str) -> str:
        def make(folder: Path) -> None:
            (folder / "x").write_text("ours")

        return open_entry("tables", key, make, lambda folder: (folder / "x").read_text())

    assert read("a") == read("b") == "ours"
    release_entries()
    forged, linked = cache / "tables" / "a", cache / "tables" / "b"
    (forged / files.MARK).unlink()
    (forged / "x").write_text("forged")
    digests.seal(forged)
    shutil.move(linked / "x", tmp_path / "elsewhere")
    (linked / "x").symlink_to(tmp_path / "elsewhere")
    assert read("a") == read("b") == "ours"
    assert (cache / "tables" / "a.earlier" / "x").read_text() == "forged"
    assert (tmp_path / "elsewhere").read_text() == "ours"
    assert not (linked / "x").is_symlink()


def test_a_lock_that_surefit_did_not_write_is_left(tmp_path: Path) -> None:
    write(tmp_path / "run" / ".lock")
    with (
        pytest.raises(UsageError, match="not a lock"),
        lock_run(tmp_path / "run"),
    ):
        pass
    assert (tmp_path / "run" / ".lock").read_text() == "a user's file"


def test_planted_scratch_folders_are_left(tmp_path: Path) -> None:
    write(tmp_path / "victim.txt", tmp_path / ".run.scratch.0123abcd.tmp" / "x")
    planted, own = (tmp_path / f".run.scratch.{n}.tmp" for n in ("89abcdef", "aaaaaaaa"))
    for folder in (planted, own):
        folder.mkdir()
        files.mark(folder)
    (planted / ".lock").symlink_to(tmp_path / "victim.txt")
    for folder in tmp_path.glob(".run*"):
        os.utime(folder, times=(0, os.stat(folder).st_mtime - 2 * YOUNG_SECONDS))
    before = contents(tmp_path)
    young = tmp_path / ".export.0123abcd.tmp"
    old = tmp_path / ".export.abcd0123.tmp"
    for folder in (young, old):
        folder.mkdir()
        files.mark(folder)
    os.utime(old, times=(0, os.stat(old).st_mtime - 2 * OLD_SECONDS))
    sweep_scratch(tmp_path)
    assert young.exists()
    assert not old.exists()
    assert contents(tmp_path).items() >= {(p, c) for p, c in before.items() if p.parent != own}
    assert not own.exists()


def test_a_project_with_a_config_is_not_taken_for_a_killed_start(tmp_path: Path) -> None:
    write(tmp_path / "config.yaml")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UsageError, match="already holds"):
        choose_folder(str(tmp_path), "run")


def test_only_one_module_replaces_and_deletes_files() -> None:
    """What else a name such as `remove` or `replace` is called on is not a file."""
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in DELETING or called.endswith((".unlink", "fcntl.lockf", "FileLock")):
                wrong.append(f"{name}:{node.lineno} {called}")
    allowed = ("core/files.py", "core/locks.py")
    assert [each for each in wrong if not each.startswith(allowed)] == []


def test_every_key_defines_the_training_or_is_local() -> None:
    assert set(LOCAL_KEYS) == LOCAL
    assert set(RunConfig.model_fields) - LOCAL == TRAINING


def test_a_stranger_s_run_sets_nothing_of_this_machine(tmp_path: Path, cache: Path) -> None:
    run = surefit.train(
        data=feature_rows(40), model=MeanPool(), max_steps=1, output=str(tmp_path / "run")
    )
    victim = tmp_path / "victim"
    write(victim / "photos" / "2024" / "a.jpg")
    (victim / TAG).write_text((cache / TAG).read_text())
    before = contents(victim)
    planted = {"cache": str(victim), "cache_limit_gb": 1e-9, "trackers": ["tensorboard"]}
    planted |= {"trust_remote_code": True, "workers": 99, "output": str(victim)}
    for name, load, dump in (
        ("config.yaml", yaml.safe_load, yaml.safe_dump),
        ("plan.json", json.loads, json.dumps),
    ):
        path = run.path / name
        held = load(path.read_text())
        (held["config"] if name == "plan.json" else held).update(planted)
        path.write_text(dump(held))
    config = open_run(run.path).config
    assert config.with_local(RunConfig()) == config
    surefit.evaluate(run.path, data=feature_rows(10), model=MeanPool())
    surefit.train(resume=run.path, data=feature_rows(40), model=MeanPool(), max_steps=2)
    assert contents(victim) == before
    assert not list((run.path).glob("surefit"))


def test_processes_do_not_import_from_the_working_folder(tmp_path: Path) -> None:
    """Each command that starts Python has -P or -I; `-m surefit` takes the folder off its path."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            parts = node.elts if isinstance(node, ast.List) else []
            if parts and ast.unparse(parts[0]) == "sys.executable":
                assert ast.unparse(parts[1]) in ("'-P'", "'-I'"), (path, ast.unparse(node))
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported ' + __file__)")
    script = Path(sys.executable).with_name("surefit")
    child = tmp_path / "bin" / "child.py"  # like the script, whose folder is first on its path
    child.parent.mkdir()
    child.write_text(SPAWNS)
    safe = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    for started in ([str(script), "tasks"], [sys.executable, str(child)]):
        done = subprocess.run(
            started, cwd=tmp_path, env=safe, capture_output=True, text=True, check=False
        )
        assert "imported" not in done.stderr, started
        assert done.returncode == 0, done.stderr
    (tmp_path / "surefit.py").unlink()  # with it, Python itself would find that for -m
    done = subprocess.run(
        [sys.executable, "-m", "surefit", "tasks"],
        cwd=tmp_path,
        env=safe,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_copied_mark_proves_nothing(cache: Path, tmp_path: Path) -> None:
    fill("a")
    planted = (cache / "tables" / "b", cache / "tables" / ".b.12345678.tmp")
    for folder in planted:
        write(folder / "thesis.txt")
        shutil.copy(cache / "tables" / "a" / files.MARK, folder)
    release_entries()
    clean_cache()
    assert not (cache / "tables" / "a").exists()
    assert all((folder / "thesis.txt").is_file() for folder in planted)


def test_an_empty_file_with_two_names_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    (tmp_path / "run").mkdir()
    os.link(tmp_path / "mine", tmp_path / "run" / ".lock")
    with pytest.raises(UsageError), lock_run(tmp_path / "run"):
        pass
    assert (tmp_path / "mine").read_bytes() == b""
