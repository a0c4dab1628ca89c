"""Commands work in every locale, whatever characters the data has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builders import mostly_slow, write_jsonl

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


@pytest.mark.parametrize(
    "arguments", mostly_slow([["--row", "3"], ["--row", "3", "--json"], []], every=3)
)
def test_text_that_the_locale_cannot_write_is_written_as_utf8(
    tmp_path: Path, arguments: list[str]
) -> None:
    rows = [{"prompt": f"Grüße {'a ' * n}", "completion": "☃"} for n in range(20)]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    done = subprocess.run(
        [sys.executable, "-m", "surefit", "inspect", "rows.jsonl", *arguments],
        cwd=tmp_path,
        env={**os.environ, **ASCII},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode("utf-8")
    if "--json" in arguments:
        assert json.loads(shown) == rows[3]
    elif arguments:
        assert "Grüße" in shown
        assert "☃" in shown
