"""Models of transformers: the sizes they accept, those without an embedding, and its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    CanineConfig,
    CanineForSequenceClassification,
    CanineTokenizer,
    PerceiverConfig,
    PerceiverForSequenceClassification,
    PerceiverTokenizer,
)
from transformers.utils import logging

import surefit
from builders import sentiment_rows
from surefit.errors import UsageError
from surefit.models.pretrained import _refuse_endless
from surefit.models.tiny import TinySizes, open_tiny, tiny_config, tiny_families
from surefit.models.transformers_models import OFFSET_POSITIONS, max_positions, quiet_transformers

ENCODERS = {
    arch: auto
    for family, auto in (
        ("text-classification", "AutoModelForSequenceClassification"),
        ("masked-lm", "AutoModelForMaskedLM"),
    )
    for arch in tiny_families()[family]
    if arch in OFFSET_POSITIONS
}


@pytest.mark.parametrize("arch", ENCODERS)
def test_positions_after_the_pad_token_are_not_counted(arch: str) -> None:
    """RoBERTa and its relatives number positions from pad_token_id + 1."""
    config = tiny_config(arch, TinySizes(97, hidden_size=32, max_positions=64))
    config.pad_token_id = config.pad_token_id or 0
    assert config.max_position_embeddings == 64 + config.pad_token_id + 1
    longest = max_positions(config)
    assert longest == 64
    model = getattr(transformers, ENCODERS[arch]).from_config(config).eval()
    ids = torch.full((1, longest + 1), 7)
    with torch.no_grad():
        model(input_ids=ids[:, :-1], attention_mask=torch.ones_like(ids[:, :-1]))
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            model(input_ids=ids, attention_mask=torch.ones_like(ids))


@pytest.mark.parametrize("arch", ["t5", "bert", "gpt2", "bart", "vit"])
def test_tiny_models_have_no_dropout(arch: str) -> None:
    config = tiny_config(arch)
    parts = [config.to_dict()] + [v for v in config.to_dict().values() if isinstance(v, dict)]
    rates = {k: v for part in parts for k, v in part.items() if "drop" in str(k) and v is not None}
    assert rates
    assert not any(rates.values())


def test_an_architecture_that_is_not_listed_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match="is not an architecture that tiny: builds") as raised:
        open_tiny("git")
    assert "--from-scratch" in raised.value.fix
    with pytest.raises(UsageError, match="close matches: llama"):
        open_tiny("lama")


def canine() -> tuple[Any, Any]:
    config = CanineConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=32,
        num_hash_buckets=64,
        max_position_embeddings=512,
    )
    return CanineForSequenceClassification(config), CanineTokenizer()


def perceiver() -> tuple[Any, Any]:
    config = PerceiverConfig(
        num_latents=4, d_latents=32, d_model=32, num_self_attends_per_block=1, num_labels=2
    )
    return PerceiverForSequenceClassification(config), PerceiverTokenizer()


@pytest.mark.slow
@pytest.mark.parametrize("make", [canine, perceiver])
def test_a_model_without_an_input_embedding_is_trained(make: Any, tmp_path: Path) -> None:
    for part in make():
        part.save_pretrained(tmp_path / "model")
    run = surefit.train(
        data=sentiment_rows(8),
        model=str(tmp_path / "model"),
        task="text-classification",
        max_steps=2,
        batch_size=4,
        eval_share=0.0,
        output=str(tmp_path / "run"),
    )
    assert len([event for event in run.history if event["event"] == "step"]) == 2


@pytest.mark.parametrize("bars", [True, False])
def test_bars_and_verbosity_are_put_back(bars: bool) -> None:
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    (logging.enable_progress_bar if bars else logging.disable_progress_bar)()
    logging.set_verbosity_info()
    try:
        with quiet_transformers():
            assert not logging.is_progress_bar_enabled()
            assert logging.get_verbosity() == logging.ERROR
        assert logging.is_progress_bar_enabled() == bars
        assert logging.get_verbosity() == logging.INFO
    finally:
        (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
        logging.set_verbosity(verbosity)


@pytest.mark.parametrize(
    ("more", "named"),
    [({"num_hidden_layers": -1}, "num_hidden_layers=-1"), ({"depths": [1, 2**31]}, "depths=2,147")],
)
def test_a_config_of_layers_that_cannot_be_built_is_refused(more: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        _refuse_endless("m", transformers.LlamaConfig(**more))
    _refuse_endless("m", transformers.LlamaConfig(vision_feature_layer=-2))
