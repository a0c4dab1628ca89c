"""The help of the options is the docstring under the config field, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer
from pydantic import BaseModel

from surefit.cli import app
from surefit.cli.options import OPTIONS, read_help
from surefit.config import SHORT_KEYS, RunConfig, known_keys


def field_of(key: str) -> Any:
    """The pydantic field of a dotted key."""
    section: type[BaseModel] = RunConfig
    *sections, name = SHORT_KEYS.get(key, key).split(".")
    for part in sections:
        annotation = section.model_fields[part].annotation
        assert isinstance(annotation, type)
        section = annotation
    return section.model_fields[name]


def docstring(key: str) -> str:
    return " ".join((field_of(key).description or "").split())


def options_of(command: str) -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return {option.name: option for option in group.commands[command].params}


@pytest.mark.parametrize("command", ["train", "check"])
def test_every_option_has_the_docstring_of_its_key(command: str) -> None:
    options = options_of(command)
    assert {*options} - {*OPTIONS} <= {
        *(
            "config",
            "resume",
            "trust_code",
            "set_",
            "json",
            "help",
            "processes",
            "device",
            "timings",
            "quiet",
            "verbose",
        )
    }
    for name in OPTIONS:
        assert docstring(name)
        assert options[name].help == docstring(name), name


def test_every_key_has_a_docstring_and_its_default_is_read_from_the_source() -> None:
    about = read_help()
    assert {*about} == {*known_keys(), *SHORT_KEYS}
    for key, found in about.items():
        default = field_of(key).default
        unshown = default is None or default is False or default in ((), {}, "")
        assert found.text == docstring(key), key
        assert found.default == ("" if unshown else str(default)), key


def test_help_names_the_defaults_and_loads_no_config() -> None:
    code = (
        "import sys, surefit.cli\n"
        "surefit.cli.run(['--help'])\n"
        "assert 'pydantic' not in sys.modules, 'pydantic was imported'\n"
        "surefit.cli.run(['train', '--help'])\n"
        "assert 'surefit.config' not in sys.modules, 'the config was imported'\n"
        "heavy = {'torch', 'transformers', 'peft', 'accelerate', 'pyarrow', 'numpy', 'plotly'}\n"
        "assert not heavy & {*sys.modules}, heavy & {*sys.modules}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert f"{docstring('epochs')} [default: (3)]" in said
    assert f"{docstring('output')} --resume" in said
