"""Entries of the cache: verified when opened, rebuilt when damaged, swept, pruned."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cache_damage import KINDS, damage, prepare, run_sample

from builders import write_jsonl
from opening import entry_files
from surefit.cli import run as command
from surefit.core import files
from surefit.data.cache import (
    collect_damage,
    open_cache,
    release_entries,
    scratch_in_cache,
    sweep,
)
from surefit.data.cache_contents import clean_cache, limit_cache, list_entries
from surefit.data.cache_entry import open_entry
from surefit.data.open_data import open_table
from surefit.errors import RunFailedError, UsageError
from surefit.inputs.store import Store

TEXT = "value"


def value_of(key: str, text: str = TEXT) -> str:
    return open_entry(
        "tables",
        key,
        lambda folder: (folder / "x").write_text(text),
        lambda folder: (folder / "x").read_text(),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["x", "digests.json"])
def test_damaged_entry_is_rebuilt_and_reported(cache: Path, kind: str, name: str) -> None:
    assert value_of("one") == TEXT
    damage(cache / "tables" / "one" / name, kind, seed=3)
    with collect_damage() as found:
        assert value_of("one", "again") == "again"
    assert [each.code for each in found] == ["SF820"]
    assert name in found[0].message
    with collect_damage() as found:
        assert value_of("one") == "again"
    assert not found


@pytest.mark.slow
def test_seeded_sample_of_corruptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python tests/cache_damage.py 100` has the full count."""
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    assert run_sample(tmp_path, range(5)) == []


FILL = """
import sys
from surefit.data.cache_entry import open_entry
def fill(folder):
    (folder / 'x').write_text('of the child')
    print('ready', flush=True)
    sys.stdin.readline()
open_entry('tables', 'k', fill, lambda folder: None)
"""


@pytest.fixture
def child(cache: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that writes the entry `k`, and finishes it when it is sent a line."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", FILL], text=True, **pipes) as child:
        assert child.stdout.readline() == "ready\n"
        yield child
        child.kill()


def test_killed_writes_are_swept_and_living_ones_stay(
    cache: Path, child: subprocess.Popen[str]
) -> None:
    left = list((cache / "tables").glob(".k.*.tmp"))
    assert len(left) == 1
    assert sweep(open_cache()) == []
    assert clean_cache()[0] == 0  # neither the folder in work nor what is in use
    assert left[0].exists()
    child.kill()
    child.wait()
    assert (cache / "tables" / ".k.lock").exists()
    release_entries()
    value_of("other")  # the next start
    assert [path.name for path in (cache / "tables").iterdir()] == ["other"]


def test_a_process_waits_for_another_one_that_writes_the_same(
    cache: Path, child: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[str] = []

    class Waiting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            waited.append(record.getMessage())
            child.stdin.write("finish\n")
            child.stdin.flush()

    monkeypatch.setattr("surefit.data.cache.QUIET_SECONDS", 0.0)
    log, handler = logging.getLogger("surefit.data.cache"), Waiting()
    log.addHandler(handler)
    try:
        assert value_of("k") == "of the child"
    finally:
        log.removeHandler(handler)
    assert f"process {child.pid} on" in waited[0]


def test_what_another_process_uses_is_not_removed(cache: Path) -> None:
    value_of("k")
    release_entries()
    code = (
        "import sys; from surefit.data.cache import entry_folder; entry_folder('tables', 'k');"
        "print('ready', flush=True); sys.stdin.readline()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as child:
        assert child.stdout.readline() == "ready\n"
        assert clean_cache()[0] == 0
        assert [found.code for found in limit_cache(1e-9)] == ["SF821"]
        child.kill()
    assert clean_cache()[0] == 1


def test_a_cache_that_was_deleted_is_made_anew(cache: Path) -> None:
    value_of("k")
    shutil.rmtree(cache)
    assert value_of("k", "other") == "other"
    assert clean_cache()[0] == 0  # this process uses the new entry
    release_entries()
    assert clean_cache()[0] == 1


def test_limit_removes_the_least_recently_used(cache: Path) -> None:
    for number in range(4):
        value_of(f"k{number}", "x" * 1000)
        stamp = time.time() - 1000 + number
        os.utime(cache / "tables" / f"k{number}" / "digests.json", (stamp, stamp))
    release_entries()
    value_of("k0", "")  # the oldest is used again, and in use
    kept = {entry.name: entry.num_bytes for entry in list_entries()}
    room = (sum(e.num_bytes for e in list_entries()) - kept["k1"] + 10) / 1e9
    assert limit_cache(room) == []
    assert {entry.name for entry in list_entries()} == {"k0", "k2", "k3"}
    assert [found.code for found in limit_cache(1e-9)] == ["SF821"]
    assert {entry.name for entry in list_entries()} == {"k0"}


def test_command_shows_and_cleans(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value_of("old")
    value_of("new")
    stamp = time.time() - 40 * 86_400
    os.utime(cache / "tables" / "old" / "digests.json", (stamp, stamp))
    release_entries()
    assert command(["cache", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["kinds"]["tables"]["entries"] == 2
    assert about["bytes"] == sum(entry["num_bytes"] for entry in about["entries"])
    assert command(["cache", "clean", "--older-than", "30"]) == 0
    assert {path.parent.name for path in entry_files(cache)} == {"new"}
    assert command(["cache", "clean", "--json"]) == 0
    assert not entry_files(cache)
    assert command(["cache"]) == 0
    assert command(["cache", "wipe"]) == 2


def test_unwritable_cache_is_a_clear_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    data = write_jsonl(tmp_path / "rows.jsonl", [{"text": "a"}])
    for place in (tmp_path / "file", tmp_path / "file" / "inside", Path("/proc/nowhere")):
        monkeypatch.setenv("SUREFIT_CACHE", str(place))
        with pytest.raises(UsageError, match="cache folder"):
            open_table(data)
        assert command(["inspect", str(data)]) == 2
        told = capsys.readouterr().err
        assert str(place) in told
        assert "SUREFIT_CACHE" in told


def test_store_that_is_cut_off_while_in_use_is_a_message(cache: Path, plan_of: Any) -> None:
    plan = plan_of()
    store = plan.job.train
    assert isinstance(store, Store)
    store.columns([0])
    file = store.folder / "input_ids.values"
    os.truncate(file, 3)
    with pytest.raises(RunFailedError, match=r"input_ids\.values was cut off"):
        store.columns([0])
    assert [f.code for f in plan_of().findings if f.severity == "warning"] == ["SF820"]


@pytest.fixture
def plan_of(tmp_path: Path) -> Any:
    import surefit
    from builders import echo_rows

    path = write_jsonl(tmp_path / "rows.jsonl", echo_rows(30))
    return lambda: surefit.check(data=str(path), model="tiny:llama")


def test_scratch_of_a_living_process_stays_and_that_of_a_dead_one_is_swept(cache: Path) -> None:
    with scratch_in_cache() as folder:
        (folder / "file").write_text("x")
        assert sweep(open_cache()) == []
        assert folder.is_dir()
    assert not folder.exists()
    folder.mkdir()  # left by a process that was killed
    files.mark(folder)
    release_entries()
    open_cache()
    assert not folder.exists()
