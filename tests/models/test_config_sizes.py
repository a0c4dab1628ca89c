"""Sizes read from a config are the sizes that the model accepts."""

from __future__ import annotations

import pytest
import torch
import transformers

from surefit.models.config_sizes import OFFSET_POSITIONS, max_positions
from surefit.models.tiny_architectures import FAMILIES
from surefit.models.tiny_config import TinySizes, shrink_config

ENCODERS = {
    arch: auto
    for family, auto in (
        ("text-classification", "AutoModelForSequenceClassification"),
        ("masked-lm", "AutoModelForMaskedLM"),
    )
    for arch in FAMILIES[family]
    if arch in OFFSET_POSITIONS
}


@pytest.mark.parametrize("arch", ENCODERS)
def test_positions_after_the_pad_token_are_not_counted(arch: str) -> None:
    """RoBERTa and its relatives number positions from pad_token_id + 1."""
    special: dict[str, int | None] = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    config = shrink_config(arch, TinySizes(97, hidden_size=32, max_positions=64), special)
    assert config.max_position_embeddings == 66
    longest = max_positions(config)
    assert longest == 64
    model = getattr(transformers, ENCODERS[arch]).from_config(config).eval()
    ids = torch.full((1, longest + 1), 7)
    with torch.no_grad():
        model(input_ids=ids[:, :-1], attention_mask=torch.ones_like(ids[:, :-1]))
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            model(input_ids=ids, attention_mask=torch.ones_like(ids))
