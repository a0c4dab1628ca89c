"""Runs on remote tar shards: one download per host, no secrets on disk, changes found on resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import run_python, sentiment_rows
from http_server import serve
from tar_files import tar_of

pytestmark = pytest.mark.processes
SECRET = "s3cr3t-word"


def shard(seed: int) -> bytes:
    """A tar file of texts with their classes."""
    members = []
    for number, row in enumerate(sentiment_rows(30, seed)):
        members.append((f"{number:03}.txt", row["text"].encode()))
        members.append((f"{number:03}.cls", row["label"].encode()))
    return tar_of(members)


def surefit(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and all that a command says."""
    cache = str(folder / "cache")
    code, out, said = run_python(folder, "-m", "surefit", *arguments, SUREFIT_CACHE=cache)
    return code, out + said


def test_a_run_of_two_processes_on_remote_shards(tmp_path: Path) -> None:
    files = {f"d/train-{k:02}.tar": shard(k) for k in range(2)}
    with serve(files, password=SECRET) as site:
        data = f"{site.url}/d/train-{{00..01}}.tar".replace("://", f"://me:{SECRET}@")
        options = ["--data", data, "--model", "tiny:bert", "--epochs", "1", "--output", "run"]
        code, said = surefit(tmp_path, "train", *options, "--processes", "2")
        assert code == 0, said
        assert sorted(site.gets()) == ["/d/train-00.tar", "/d/train-01.tar"]
        assert SECRET not in said
        for path in (*(tmp_path / "run").rglob("*"), *(tmp_path / "cache").rglob("*")):
            assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path
        assert f"{site.url}/d/train-00.tar" in (tmp_path / "run" / "plan.json").read_text()
        # the stored config has no credentials: the server refuses, and the copy is used
        code, said = surefit(tmp_path, "train", "--resume", "run", "--epochs", "2")
        assert (code, "SF169" in said) == (0, True), said
        site.files["/d/train-01.tar"] = shard(7)
        again = ("--resume", "run", "--epochs", "3", "--data", data)
        code, said = surefit(tmp_path, "train", *again)
        assert (code, "SF403" in said) == (1, True), said
