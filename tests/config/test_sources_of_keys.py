"""The table of docs/security.md is true: what a run folder says of local keys is ignored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from surefit.config import RunConfig
from surefit.config.run_config import LOCAL_KEYS
from surefit.run.run_folder import Run

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "security.md"
OTHERS: dict[str, Any] = {
    "cache": "/elsewhere",
    "cache_limit_gb": 1e-9,
    "device_memory_gb": 7.0,
    "fit": "measured",
    "max_memory_gb": 7.0,
    "output": "/elsewhere",
    "probes": "all",
    "rehearse": True,
    "scan": 7,
    "stall_seconds": 7.0,
    "trackers": ["wandb"],
    "trust_remote_code": True,
    "workers": 7,
}
"""For each local key a value that a stranger may have written, and that is no default."""


def documented() -> dict[str, set[str]]:
    """The keys of each row of the table, by the words of the second cell."""
    text = DOCUMENT.read_text(encoding="utf-8").split("## Where a setting comes from")[1]
    rows = re.findall(r"^\| (`.*) \| (.*) \|$", text.split("\n## ")[0], re.MULTILINE)
    return {source: set(re.findall(r"`(\w+)`", keys)) for keys, source in rows}


def test_the_table_names_exactly_the_keys_of_the_command() -> None:
    rows = documented()
    local, *run = rows.values()
    assert local == {*LOCAL_KEYS}
    assert next(iter(rows)).startswith("this command")
    assert set.union(*run) <= {*RunConfig.model_fields} - local


def test_every_local_key_is_tried() -> None:
    assert {*OTHERS} == {*LOCAL_KEYS}
    plain = RunConfig()
    assert all(RunConfig(**{k: v}) != plain for k, v in OTHERS.items())


@pytest.mark.parametrize("key", sorted(OTHERS))
def test_a_run_folder_does_not_set_a_local_key(key: str, tmp_path: Path) -> None:
    import yaml

    settings = {"epochs": 7, key: OTHERS[key]}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    config = Run(tmp_path).config
    assert getattr(config, key) == getattr(RunConfig(), key)
    assert config.epochs == 7
