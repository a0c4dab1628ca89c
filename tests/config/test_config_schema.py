"""`surefit schema`: editors accept what surefit reads, and refuse what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from surefit.cli import run as command
from surefit.config import config_schema, make_config

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.M | re.S)


def configs() -> list[dict[str, Any]]:
    """The configs of the examples and of the pages."""
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "examples").glob("*.yaml"))]
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        texts += BLOCK.findall(page.read_text("utf-8"))
    # 1e-4 is a number in the YAML of editors (1.2), and a text in PyYAML's (1.1).
    loaded = [yaml.safe_load(re.sub(r"(?<![.\d])(\d)e-", r"\1.0e-", text)) for text in texts]
    return [each for each in loaded if isinstance(each, dict) and "data" in each]


def accepts(config: Any) -> bool:
    return jsonschema.Draft202012Validator(config_schema()).is_valid(config)


def test_every_config_that_is_shown_fits_the_schema() -> None:
    schema = config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    found = configs()
    assert len(found) > 10
    validator = jsonschema.Draft202012Validator(schema)
    for config in found:
        validator.validate(config)


@pytest.mark.parametrize(
    "config",
    [
        {"data": "a.jsonl", "model": "tiny:llama"},
        {"data": ["a.jsonl", "b.jsonl"], "compile": True},
        {"lora.r": 8, "lora": {"alpha": 16}, "lora_r": 8},
        {"columns.prompt": "question", "columns": {"label": ["casual", "registered"]}},
        {"metrics": ["roc_auc"], "accept": "SF131", "batch_size": "auto"},
        {"eval_data": {"web": "a.jsonl"}},
    ],
)
def test_what_is_read_is_accepted(config: Any) -> None:
    make_config(config)
    assert accepts(config)


@pytest.mark.parametrize(
    "config", [{"learning_rate": 1}, {"lora": {"rank": 8}}, {"schedule": "step"}, {"epochs": 0}]
)
def test_what_is_refused_is_not_accepted(config: Any) -> None:
    assert not accepts(config)


def test_the_command_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["properties"]["lr"]["description"].startswith("Peak learning rate")
