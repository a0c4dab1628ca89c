"""Runs on remote tar shards: one download per host, no secrets on disk, changes found on resume."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builders import sentiment_rows
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


def surefit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "surefit", *arguments],
        cwd=folder,
        env={**os.environ, "SUREFIT_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def written(*folders: Path) -> dict[Path, bytes]:
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files}


def test_a_run_of_two_processes_on_remote_shards(tmp_path: Path) -> None:
    files = {f"d/train-{k:02}.tar": shard(k) for k in range(2)}
    with serve(files, password=SECRET) as site:
        data = f"{site.url}/d/train-{{00..01}}.tar".replace("://", f"://me:{SECRET}@")
        options = ["--data", data, "--model", "tiny:bert", "--epochs", "1", "--output", "run"]
        made = surefit(tmp_path, "train", *options, "--processes", "2")
        assert made.returncode == 0, made.stderr
        assert sorted(site.gets()) == ["/d/train-00.tar", "/d/train-01.tar"]
        for path, content in written(tmp_path / "run", tmp_path / "cache").items():
            assert SECRET.encode() not in content, path
        assert SECRET not in made.stdout + made.stderr
        assert f"{site.url}/d/train-00.tar" in (tmp_path / "run" / "plan.json").read_text()
        # the stored config has no credentials: the server refuses, and the copy is used
        gone = surefit(tmp_path, "train", "--resume", "run", "--epochs", "2")
        assert gone.returncode == 0, gone.stderr
        assert "SF169" in gone.stdout + gone.stderr
        site.files["/d/train-01.tar"] = shard(7)
        changed = surefit(tmp_path, "train", "--resume", "run", "--epochs", "3", "--data", data)
        assert changed.returncode == 1, changed.stderr
        assert "SF403" in changed.stdout + changed.stderr
