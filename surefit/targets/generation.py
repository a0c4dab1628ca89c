"""Text generation with settings of surefit's own, whatever the model's generation config sets.

transformers fills every setting that a call leaves open from the model's `generation_config.json`:
penalties, forbidden and forced tokens, a minimum length, beams. An evaluation would then measure
those as well. Here the model's config is set aside while text is generated; what is taken over
from it was named in `generate.from_model`, or is how it samples where sampling is asked for, and
is in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.batches.collate import Side, pad_stack
from surefit.inputs.encoder import Encoder
from surefit.targets.sampling import (
    SAMPLING,
    Draws,
    Settings,
    cut_at,
    num_samples,
    penalized,
    sampled,
    stops_at,
)

if TYPE_CHECKING:
    import torch

USUAL_NEW_TOKENS = 64
"""How long answers may be where the data does not say."""


@dataclass(frozen=True)
class Sample:
    """One generated answer beside the expected one, and further answers that are right, too."""

    prompt: str
    expected: str | None
    got: str
    references: tuple[str, ...] = ()
    cut_off: bool = False
    """Whether the answer was not at its end when it had as many tokens as it may have."""
    others: tuple[str, ...] = ()
    """Further answers to the same prompt, where several are asked for."""

    def as_dict(self) -> dict[str, Any]:
        """Return the sample as events have it."""
        shown = {"prompt": self.prompt, "expected": self.expected, "got": self.got}
        further = {"references": list(self.references), "others": list(self.others)}
        marked = {"cut_off": True} if self.cut_off else {}
        return {**shown, **{name: texts for name, texts in further.items() if texts}, **marked}

    @property
    def answers(self) -> list[Sample]:
        """Return a sample for each of its answers."""
        return [replace(self, got=got, others=()) for got in (self.got, *self.others)]


@dataclass(frozen=True)
class Generate:
    """How a task makes text, and how the text is scored.

    `answer(model, rows, encoder, max_new_tokens)` gives a Sample per encoded row;
    `scores(sample)` gives figures whose means are reported, `together(samples)` figures of all
    samples as one; `names` are the names of both. Where there are none, text is made for
    predictions only. `possible(model, encoder)` returns whether this model can generate text.
    `settings(model, encoder)` returns what text is generated with: settings of transformers'
    GenerationConfig, which `answer` finds in `encoder.settings.generate`.
    """

    answer: Callable[[Any, Sequence[Mapping[str, Any]], Encoder, int], list[Sample]]
    scores: Callable[[Sample], Mapping[str, float]] = lambda sample: {}
    names: tuple[str, ...] = ()
    possible: Callable[[Any, Encoder], bool] = lambda model, encoder: True
    together: Callable[[Sequence[Sample]], Mapping[str, float]] = lambda samples: {}
    settings: Callable[[Any, Encoder], Mapping[str, Any]] = lambda model, encoder: {}


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
    """Return settings of a greedy search, with the special tokens that are known.

    >>> greedy(eos_token_id=[2], pad_token_id=0, forced_bos_token_id=None)
    {'do_sample': False, 'num_beams': 1, 'eos_token_id': [2], 'pad_token_id': 0}
    """
    known = {name: token for name, token in tokens.items() if token is not None}
    return {"do_sample": False, "num_beams": 1, **known}


def num_new_tokens(encoder: Encoder, wanted: int | None) -> int:
    """Return how many tokens an answer may have: as wanted, else as the training data's have."""
    return wanted or encoder.settings.answer_tokens or USUAL_NEW_TOKENS


@dataclass(frozen=True)
class Made:
    """One generated answer, and whether it was cut off."""

    text: str
    cut_off: bool


def as_sample(
    prompt: str, expected: str | None, made: Sequence[Made], references: tuple[str, ...] = ()
) -> Sample:
    """Return the answers to one prompt as a sample."""
    first, *others = made
    further = tuple(each.text for each in others)
    return Sample(prompt, expected, first.text, references, first.cut_off, further)


def generate_answers(
    model: Any,
    prompts: Sequence[npt.NDArray[np.int64]],
    settings: Settings,
    max_new_tokens: int,
    encoder: Encoder,
    side: Side = "right",
    streamer: Any = None,
) -> list[list[Made]]:
    """Return the answers to each prompt that the model generates with these settings and no others.

    The prompts are padded on one side, with the settings' `pad_token_id`. Those of a decoder are
    padded on the left, and its output has them before the answers.
    """
    made: list[list[Made]] = [[] for _ in prompts]
    for number in range(num_samples(settings)):
        draws = Draws(encoder.settings.seed, number)
        output = _generate(
            model, prompts, settings, max_new_tokens, (encoder.tokenizer, side, streamer), draws
        )
        start = max(map(len, prompts)) if side == "left" else 1
        for answers, ids in zip(made, output[:, start:].tolist(), strict=True):
            answers.append(_read(ids, settings, encoder.tokenizer))
    return made


def _generate(
    model: Any,
    prompts: Sequence[npt.NDArray[np.int64]],
    settings: Settings,
    max_new_tokens: int,
    writing: tuple[Any, Side, Any],
    draws: Draws,
) -> torch.Tensor:
    """Return the tokens of one answer to each prompt, behind what the model begins with."""
    import torch

    tokenizer, side, streamer = writing
    device, shape = next(model.parameters()).device, (max(len(ids) for ids in prompts),)
    ids = pad_stack(prompts, shape, "int64", settings["pad_token_id"], side)
    mask = pad_stack([np.ones_like(ids) for ids in prompts], shape, "int64", 0, side)
    inputs = {
        "input_ids": torch.from_numpy(ids).to(device),
        "attention_mask": torch.from_numpy(mask).to(device),
    }
    chosen = {**settings, "max_new_tokens": max_new_tokens}
    stops = chosen.pop("stop_strings", ())
    chosen.pop("num_return_sequences", None)
    with torch.no_grad():
        if own_config(model) is None:  # a `generate` of the user's own
            with draws.seeded(prompts):
                made: torch.Tensor = model.generate(**inputs, **chosen)
            return made
        from transformers import GenerationConfig
        from transformers.generation import LogitsProcessorList, StoppingCriteriaList

        steps = [penalized(settings, prompts) if side == "left" else None]
        steps.append(sampled(settings, prompts, draws))
        processors = [step for step in steps if step is not None]
        if side == "left":
            chosen.pop("repetition_penalty", None)
        for name in SAMPLING:
            chosen.pop(name, None)
        chosen["do_sample"] = False  # what is drawn is in the noise
        start = shape[0] if side == "left" else 0
        criteria = [stops_at(stops, tokenizer, start)] if stops else []
        further: dict[str, Any] = {} if streamer is None else {"streamer": streamer}
        further["logits_processor"] = LogitsProcessorList(processors)
        further["stopping_criteria"] = StoppingCriteriaList(criteria)
        with _config_set_aside(model):
            made = model.generate(**inputs, generation_config=GenerationConfig(**chosen), **further)
    return made


def _read(ids: Sequence[int], settings: Settings, tokenizer: Any) -> Made:
    """Return an answer as text, without what ends it."""
    ends, stops = settings.get("eos_token_id"), settings.get("stop_strings", ())
    ends = ends if isinstance(ends, list | tuple) else [ends]
    place = next((n for n, token in enumerate(ids) if token in ends), None)
    text = tokenizer.decode(ids, skip_special_tokens=True)
    stopped = any(stop in tokenizer.decode(ids[:place]) for stop in stops)
    return Made(cut_at(stops, text).strip(), place is None and not stopped)


def own_config(model: Any) -> Any:
    """Return the model's generation config; None if transformers does not generate for it."""
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
