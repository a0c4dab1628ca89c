"""`check --sarif`: findings for code hosts; `surefit rule`: what a code means."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from builders import echo_rows, write_jsonl
from surefit.cli import app
from surefit.cli import run as command
from surefit.explainer.causes import AREAS
from surefit.findings import load_rules
from surefit.report.sarif import as_sarif

ROOT = Path(__file__).resolve().parents[2]


def test_each_finding_is_a_result_at_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{**row, "label": n % 2 == 0} for n, row in enumerate(echo_rows(20))]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    asked = ["check", "--data", "rows.jsonl", "--model", "tiny:llama", "--json"]
    assert command([*asked, "--sarif", "found.sarif"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    written = json.loads(Path("found.sarif").read_text())
    (run,) = written["runs"]
    assert written["version"] == "2.1.0"
    assert [each["ruleId"] for each in run["results"]] == [each["code"] for each in findings]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "rows.jsonl"
    first = next(each for each in run["results"] if each["ruleId"] == "SF131")
    assert first["level"] == "error"
    assert first["locations"][0]["logicalLocations"][0]["name"] == "label"
    assert command([*asked, "--sarif", "found.sarif"]) == 1  # its own file is replaced
    Path("mine").write_text("{}")
    assert command([*asked, "--sarif", "mine"]) == 2
    assert Path("mine").read_text() == "{}"


def test_a_line_becomes_a_region_and_a_finding_without_a_file_is_about_the_config() -> None:
    known = load_rules()["SF131"]
    found = [known.finding("bad", file="a b.csv", line=3), known.finding("worse", file="/d/x.csv")]
    text = as_sarif([*found, known.finding("none")], "run.yaml")
    places = [each["locations"][0] for each in json.loads(text)["runs"][0]["results"]]
    physical = [each["physicalLocation"] for each in places]
    uris = [each["artifactLocation"]["uri"] for each in physical]
    assert uris == ["a%20b.csv", "file:///d/x.csv", "run.yaml"]
    assert [each.get("region") for each in physical] == [{"startLine": 3}, None, None]


def test_the_meaning_of_a_code_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    known = load_rules()["SF131"]
    assert command(["rule", "sf131"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"SF131 (error): {known.title}\n")
    assert all(text in printed for text in (known.why, f"fix: {known.fix}", known.accept))
    cause = next(iter(AREAS.values()))[0]
    assert command(["rule", cause.code, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fix"] == cause.fix
    assert command(["rule", "SF999"]) == 2
    assert "docs/findings.md" in capsys.readouterr().err


def test_only_the_module_that_declares_a_rule_is_loaded() -> None:
    script = (
        "from surefit.findings import find_rule; import sys; print(find_rule('SF131').code, "
        "len([name for name in sys.modules if name.startswith('surefit.')]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    code, count = done.stdout.split()
    assert code == "SF131"
    assert int(count) < 60


def test_hook_and_action_call_commands_that_exist() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    script = " ".join(step["run"] for step in action["runs"]["steps"])
    options = CliRunner().invoke(app, ["check", "--help"]).output
    for text in (*(hook["entry"] for hook in hooks), script):
        words = text.replace("\n", " ").split()
        assert "surefit check" in text
        for option in (word for word in words if word.startswith("--")):
            assert option in options or option in ("--quiet", "--disable-pip-version-check")
    assert "${{" not in script  # inputs come as variables, never as text of the script
