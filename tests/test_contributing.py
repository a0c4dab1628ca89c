"""CONTRIBUTING.md is followed to the letter: the files are written, and the task trains."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from builders import WORDS
from surefit.explainer.causes import CAUSES
from surefit.findings import load_rules

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_finding_of_the_page_can_be_declared() -> None:
    from surefit.data.python.rows_to_arrow import open_rows
    from surefit.findings import RULES, load_rules

    source = next(
        block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "rule(" in block
    )
    code = re.search(r"SF\d+", source)
    assert code is not None
    assert code[0] not in load_rules(), "the page must use a free code"
    names: dict[str, object] = {}
    try:
        exec(source, names)
        check = names["check_columns"]
        found = check(open_rows([{"a": 1, "b": None}, {"a": 2, "b": None}]))  # type: ignore[operator]
        assert [(each.code, each.where["column"]) for each in found] == [(code[0], "b")]
    finally:
        RULES.pop(code[0], None)


def run_python(folder: Path, *arguments: str, code: int = 0) -> str:
    """What Python prints, with the copy of the package in `folder`."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_data_format_of_the_page_is_read_and_trained_on(tmp_path: Path) -> None:
    found = re.search(r"^## Adding a data format\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    name = re.search(r"`surefit/data/formats/(\w+)\.py`:\n", found[1])
    assert name is not None
    source, line = re.findall(r"```python\n(.*?)```", found[1], re.DOTALL)
    shutil.copytree(ROOT / "surefit", tmp_path / "surefit")
    data = tmp_path / "surefit" / "data"
    (data / "formats" / f"{name[1]}.py").write_text(source, encoding="utf-8")
    registry = (data / "open_data.py").read_text(encoding="utf-8")
    imports = "from surefit.data.formats import (\n"
    registry = registry.replace(imports, f"{imports}    {name[1]},\n")
    openers = "OPENERS: dict[str, Opener] = {\n"
    registry = registry.replace(openers, f"{openers}{line}")
    (data / "open_data.py").write_text(registry, encoding="utf-8")
    blocks = [f"text: {WORDS[n % 9]} {n}\nlabel: {'ab'[n % 2]}\n" for n in range(40)]
    (tmp_path / "notes.rec").write_text("\n".join(blocks), encoding="utf-8")
    options = ("--data", "notes.rec", "--model", "tiny:bert")
    run_python(tmp_path, "-m", "surefit", "train", *options, "--max-steps", "2", "--output", "run")
    with gzip.open(tmp_path / "notes.rec.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join([*blocks[:9], "text without a colon\n"]))
    check = ("-m", "surefit", "check", "--json", *options[2:], "--data", "notes.rec.gz")
    answer = run_python(tmp_path, *check, code=1)
    (fault,) = json.loads(answer)["findings"]
    assert (fault["code"], fault["where"]["line"]) == ("SF102", 28)


def test_the_cause_of_the_page_is_explained(tmp_path: Path) -> None:
    section = PAGE.split("## Adding a cause for `explain`\n")[1].split("\n## ")[0]
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
    said = run_python(tmp_path, "-c", script.replace("zeros", "torch.zeros"))
    assert said.startswith("SF999  topk() requests more elements than the axis has")


def test_findings_and_causes_share_no_code() -> None:
    findings, causes = {*load_rules()}, {*CAUSES}
    assert not findings & causes
    assert {code[:3] for code in causes} <= {"SF6", "SF9"}
    assert not {code[:3] for code in findings} & {"SF6", "SF9"}
