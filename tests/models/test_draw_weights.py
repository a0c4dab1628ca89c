"""Weights of a model that no process holds whole start as those of a whole model do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from builders import mostly_slow
from surefit.errors import RunFailedError
from surefit.models.draw_weights import draw_weight
from surefit.models.load_shards import build_empty, build_late
from surefit.models.sharded_tensors import unique_tensors

SIZES: dict[str, Any] = {"hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 96}
SIZES |= {"num_attention_heads": 4, "vocab_size": 257}
SPREAD = 0.2
"""Largest difference of two spreads, as a share: that of 1,000 draws differs by 2 %."""

CASES: dict[str, tuple[str, transformers.PreTrainedConfig]] = {
    "llama": ("CausalLM", transformers.LlamaConfig(**SIZES)),
    "llama, not tied": ("CausalLM", transformers.LlamaConfig(**SIZES, tie_word_embeddings=False)),
    "gpt2": (
        "CausalLM",
        transformers.GPT2Config(vocab_size=257, n_embd=48, n_layer=3, n_head=4, n_positions=64),
    ),
    "mixtral": ("CausalLM", transformers.MixtralConfig(**SIZES, num_local_experts=3)),
    "bert": ("SequenceClassification", transformers.BertConfig(**SIZES)),
    # Models that set the weights of the layers inside of them, to spreads of their own.
    "t5": (
        "SequenceClassification",
        transformers.T5Config(
            vocab_size=257, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4
        ),
    ),
    "clip": (
        "ImageClassification",
        transformers.CLIPConfig(vision_config={**SIZES, "image_size": 32, "patch_size": 8}),
    ),
}


def _draw_all(template: nn.Module, seed: int = 0) -> dict[str, torch.Tensor]:
    weights = unique_tensors(template).items()
    return {
        first: draw_weight(template, names, seed)
        for first, (weight, names) in weights
        if weight.is_meta
    }


@pytest.mark.parametrize("name", mostly_slow(CASES, every=3))
def test_drawn_weights_spread_as_those_of_the_model(name: str) -> None:
    kind, config = CASES[name]
    auto = getattr(transformers, f"AutoModelFor{kind}")
    torch.manual_seed(0)
    whole = auto.from_config(config).state_dict()
    drawn = _draw_all(build_empty(auto, config, False))
    assert drawn
    for each, weight in drawn.items():
        expected = whole[each]
        assert weight.shape == expected.shape
        if expected.numel() < 1000 or not expected.std():
            torch.testing.assert_close(weight.std(), expected.std(), rtol=1, atol=1e-6)
            torch.testing.assert_close(weight.mean(), expected.mean(), rtol=0, atol=0.3)
        else:
            torch.testing.assert_close(weight.std(), expected.std(), rtol=SPREAD, atol=0), each


def test_a_weight_depends_on_the_seed_and_its_name_alone() -> None:
    template = build_empty(transformers.AutoModelForCausalLM, CASES["llama"][1], False)
    torch.manual_seed(1)
    first = _draw_all(template)
    torch.manual_seed(2)
    again, other = _draw_all(template), _draw_all(template, seed=1)
    drawn = [each for each, weight in first.items() if weight.std()]
    assert all(torch.equal(first[each], again[each]) for each in first)
    assert not any(torch.equal(first[each], other[each]) for each in drawn)
    alike = [each for each in drawn if torch.equal(first[each], first[drawn[-1]])]
    assert alike == [drawn[-1]]  # no layer is a copy of another
    assert all(weight.is_meta for weight in template.parameters())


def test_weights_that_are_computed_from_others_are_drawn_whole() -> None:
    config = transformers.Wav2Vec2Config(**SIZES)  # its convolution has a weight norm
    auto = transformers.AutoModelForAudioClassification
    assert build_late(auto, config, None, None, False) is None


class Silent(transformers.PreTrainedModel):
    """A model that says of one weight only how it starts."""

    config_class = transformers.BertConfig

    def __init__(self, config: transformers.BertConfig) -> None:
        super().__init__(config)
        self.known = nn.Linear(4, 4, bias=False)
        self.unknown = nn.Parameter(torch.ones(4))
        self.post_init()


def test_weight_that_nothing_initialises_is_named() -> None:
    with torch.device("meta"):
        template = Silent(transformers.BertConfig())
    draw_weight(template, ("known.weight",), 0)
    with pytest.raises(RunFailedError, match="unknown"):
        draw_weight(template, ("unknown",), 0)
