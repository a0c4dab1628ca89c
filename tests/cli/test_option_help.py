"""The help of the options is the docstring under the config field, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer

from surefit.cli import app
from surefit.cli.options import OPTIONS
from surefit.config import SHORT_KEYS, config_fields

OWN = {
    *("config", "resume", "trust_code", "set_", "json", "help", "processes", "device", "timings"),
    *("quiet", "verbose", "report", "sarif"),
}
"""Options that are no config keys."""


def docstring(key: str) -> str:
    return " ".join((config_fields()[SHORT_KEYS.get(key, key)].description or "").split())


def options_of(command: str) -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return {option.name: option for option in group.commands[command].params}


@pytest.mark.parametrize("command", ["train", "check"])
def test_every_option_has_the_docstring_of_its_key(command: str) -> None:
    options = options_of(command)
    assert {*options} - {*OPTIONS} <= OWN
    for name in OPTIONS:
        assert docstring(name)
        assert options[name].help == docstring(name), name


def test_every_key_has_a_docstring() -> None:
    assert [key for key in config_fields() if not docstring(key)] == []


def test_help_names_the_defaults_and_loads_no_library() -> None:
    code = (
        "import sys, surefit.cli\n"
        "surefit.cli.run(['--help'])\n"
        "surefit.cli.run(['train', '--help'])\n"
        "heavy = {'torch', 'transformers', 'peft', 'accelerate', 'pyarrow', 'numpy'}\n"
        "assert not heavy & {*sys.modules}, heavy & {*sys.modules}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert f"{docstring('epochs')} [default: (3)]" in said
    assert f"{docstring('output')} --resume" in said
