"""The rules of the test suite itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from builders import mostly_slow

TEST = """
import pytest


def test_of_real_data(shared):
    if not (shared / "data").exists():
        pytest.skip("shared/data is not there")
"""


@pytest.mark.parametrize(
    ("there", "code"), mostly_slow([((), 1), (("data",), 0), (None, 0)], every=3)
)
def test_a_skip_for_want_of_shared_data_fails_where_the_folder_is(
    tmp_path: Path, there: tuple[str, ...] | None, code: int
) -> None:
    tests = tmp_path / "repository" / "tests"
    tests.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("conftest.py"), tests)
    (tests / "test_one.py").write_text(TEST, encoding="utf-8")
    if there is not None:
        for name in (".", *there):
            (tmp_path / "shared" / name).mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    done = subprocess.run(command, cwd=tests, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert ("skipped though the shared folder is there" in done.stdout) == (code == 1)
