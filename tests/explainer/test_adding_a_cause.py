"""CONTRIBUTING.md shows how to add a cause: its example is added to a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_cause_of_the_page_is_explained(tmp_path: Path) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.split("## Adding a cause for `explain`\n")[1].split("\n## ")[0]
    cause, raised, derive = map(
        textwrap.dedent, re.findall(r"```py\n(.*?) *```", section, re.DOTALL)
    )
    path = re.search(r"`(surefit/explainer/causes/\w+\.py)`:\n", section)
    assert path is not None
    shutil.copytree(ROOT / "surefit", tmp_path / "surefit")
    source = (tmp_path / path[1]).read_text(encoding="utf-8")
    assert source.endswith("\n)\n")
    source = source.removesuffix(")\n") + cause + ")\n"
    source = source.replace("CAUSES = (", f"{derive}\n\nCAUSES = (")
    (tmp_path / path[1]).write_text(source, encoding="utf-8")
    script = (
        "import surefit, torch\n"
        f"cases = {{\n{raised}}}\n"
        "code, call = cases.popitem()[1]\n"
        "try:\n    call(None)\n"
        "except Exception as error:\n    found = surefit.explain(error)\n"
        "assert found.code == code, found\nprint(found)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script.replace("zeros", "torch.zeros")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("SF999  topk() requests more elements than the axis has")
