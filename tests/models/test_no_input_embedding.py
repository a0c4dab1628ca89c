"""Models that have no embedding of token ids are trained from their folder as others are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    CanineConfig,
    CanineForSequenceClassification,
    CanineTokenizer,
    PerceiverConfig,
    PerceiverForSequenceClassification,
    PerceiverTokenizer,
)

import surefit
from builders import sentiment_rows


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
