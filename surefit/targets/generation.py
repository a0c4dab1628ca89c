"""Text generation with settings of surefit's own, whatever the model's generation config sets.

transformers fills every setting that a call leaves open from the model's `generation_config.json`:
penalties, forbidden and forced tokens, a minimum length, beams. An evaluation would then measure
those as well. Here the model's config is set aside while text is generated; what is taken over
from it was named in `generate.from_model` and is in the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.batches.collate import Side, pad_stack

if TYPE_CHECKING:
    import torch

Settings = Mapping[str, Any]
"""Settings of transformers' GenerationConfig by name."""


SHAPING = (
    "repetition_penalty",
    "no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "encoder_no_repeat_ngram_size",
    "num_beams",
    "length_penalty",
    "early_stopping",
    "exponential_decay_length_penalty",
    "min_length",
    "min_new_tokens",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "sequence_bias",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "eos_token_id",
    "renormalize_logits",
    "remove_invalid_values",
)
"""Settings that change the tokens of a search without sampling; generate.from_model may name them.
Sampling is not among them: an evaluation is reproducible."""


def greedy(**tokens: Any) -> dict[str, Any]:
    """Settings of a greedy search, with the special tokens that are known.

    >>> greedy(eos_token_id=[2], pad_token_id=0, forced_bos_token_id=None)
    {'do_sample': False, 'num_beams': 1, 'eos_token_id': [2], 'pad_token_id': 0}
    """
    known = {name: token for name, token in tokens.items() if token is not None}
    return {"do_sample": False, "num_beams": 1, **known}


def generate_tokens(
    model: Any,
    prompts: Sequence[npt.NDArray[np.int64]],
    settings: Settings,
    max_new_tokens: int,
    side: Side = "right",
) -> torch.Tensor:
    """The tokens that the model generates with these settings and no others.

    The prompts are padded on one side, with the settings' `pad_token_id`.
    """
    import torch

    device, shape = next(model.parameters()).device, (max(len(ids) for ids in prompts),)
    ids = pad_stack(prompts, shape, "int64", settings["pad_token_id"], side)
    mask = pad_stack([np.ones_like(ids) for ids in prompts], shape, "int64", 0, side)
    inputs = {
        "input_ids": torch.from_numpy(ids).to(device),
        "attention_mask": torch.from_numpy(mask).to(device),
    }
    chosen = {**settings, "max_new_tokens": max_new_tokens}
    with torch.no_grad():
        if own_config(model) is None:  # a `generate` of the user's own
            made: torch.Tensor = model.generate(**inputs, **chosen)
            return made
        from transformers import GenerationConfig

        with _config_set_aside(model):
            made = model.generate(**inputs, generation_config=GenerationConfig(**chosen))
    return made


def own_config(model: Any) -> Any:
    """The model's generation config; None if transformers does not generate for it."""
    return getattr(model, "generation_config", None)


@contextmanager
def _config_set_aside(model: Any) -> Iterator[None]:
    """Replace the generation config of the model, and of models inside it, by an empty one."""
    from transformers import GenerationConfig

    name = "generation_config"
    holders = [(part, part.__dict__[name]) for part in model.modules() if name in part.__dict__]
    for part, _ in holders:
        part.generation_config = GenerationConfig()
    try:
        yield
    finally:
        for part, config in holders:
            part.generation_config = config
