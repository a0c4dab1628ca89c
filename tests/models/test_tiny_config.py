"""Tiny models have no dropout."""

from __future__ import annotations

import pytest

from surefit.models.tiny_config import tiny_config


@pytest.mark.parametrize("arch", ["t5", "bert", "gpt2", "bart", "vit", "encoder-decoder"])
def test_no_dropout(arch: str) -> None:
    config = tiny_config(arch)
    parts = [config.to_dict()] + [v for v in config.to_dict().values() if isinstance(v, dict)]
    rates = {k: v for part in parts for k, v in part.items() if "drop" in str(k) and v is not None}
    assert rates
    assert not any(rates.values())
