"""`surefit encode` on remote data, killed twice: it goes on, and gives what it would have given."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders import echo_rows
from http_server import serve
from surefit.cli import run

pytestmark = pytest.mark.slow

ROWS = 6_000
CODE = """
import sys, time
from surefit.encode import encode_table, encoded_chunks
from surefit.cli import run
encode_table.MARK_SECONDS = 0.0
real = encoded_chunks._encode_chunk
def encode(*arguments):
    time.sleep(0.4)
    return real(*arguments)
encoded_chunks._encode_chunk = encode
raise SystemExit(run(sys.argv[1:]))
"""


def options(url: str) -> list[str]:
    return ["encode", "--data", url, "--model", "tiny:llama", "--processes", "2", "--json"]


def start(cache: Path, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *options(url)],
        env={**os.environ, "SUREFIT_CACHE": str(cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def marked(cache: Path) -> int:
    """How many rows the half-encoded entry has, as its mark says."""
    for mark in cache.glob("encoded/.*.half/bookmark.json"):
        return int(json.loads(mark.read_text())["state"]["done"])
    return 0


def stores(cache: Path) -> dict[str, str]:
    files = [path for path in cache.glob("encoded/*/*") if path.suffix != ".json"]
    return {
        f"{path.parent.name}/{path.name}": hashlib.md5(path.read_bytes()).hexdigest()
        for path in files
    }


def test_killed_twice_and_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(json.dumps(row) + "\n" for row in echo_rows(ROWS)).encode()
    with serve({"d/rows.jsonl": rows}) as site:
        url, done, keys = f"{site.url}/d/rows.jsonl", 0, []
        for _ in range(2):
            child, now = start(tmp_path / "killed", url), 0
            while now <= done and child.poll() is None:
                time.sleep(0.05)
                now = marked(tmp_path / "killed")
            child.kill()
            problem = child.communicate()[1]
            assert now > done, problem
            done = now
        for name in ("killed", "whole"):
            monkeypatch.setenv("SUREFIT_CACHE", str(tmp_path / name))
            assert run(options(url)) == 0
            keys.append(json.loads(capsys.readouterr().out)["data_key"])
            assert site.gets() == ["/d/rows.jsonl"] * len(keys)  # killed ones had read it whole
    assert keys[0] == keys[1]
    assert stores(tmp_path / "killed") == stores(tmp_path / "whole")
