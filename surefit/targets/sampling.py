"""How the next token is chosen: the user's `generate.…` over a greedy search, and the model's own.

A sampled token is the likeliest one after Gumbel noise was added to the logits, which draws from
their softmax. The noise of an answer depends on the seed, its prompt and its number only: the same
row gets the same answers in any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.config import Generation
from surefit.errors import UsageError
from surefit.inputs.encoder import Encoder

if TYPE_CHECKING:
    import torch

    Choose = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Changes the logits of the next tokens, given all tokens so far."""

Settings = Mapping[str, Any]
"""Settings of transformers' GenerationConfig by name."""
Tokens = npt.NDArray[np.int64]
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")
"""Settings of sampling that a model's generation config may have, in the order of their effect."""
NOT_SAVED = ("do_sample", "num_return_sequences", "stop_strings", *SAMPLING)
"""What the saved generation config of a trained model keeps as the base model has it."""


def choose_settings(
    greedy: Settings, wanted: Generation, known: Settings, as_model: bool = False
) -> dict[str, Any]:
    """Return the settings of a greedy search with what the user wants instead.

    Where sampling is wanted, what is not set is as the model's generation config (`known`) has it.
    With `as_model`, it is wanted where that config samples.

    >>> choose_settings({"num_beams": 1}, Generation(temperature=0.7, samples=2), {"top_k": 5})
    {'num_beams': 1, 'do_sample': True, 'top_k': 5, 'temperature': 0.7, 'num_return_sequences': 2}
    """
    named = {name: getattr(wanted, name) for name in ("temperature", "top_k", "top_p")}
    given = {name: value for name, value in named.items() if value is not None}
    made = dict(greedy)
    if wanted.repetition_penalty is not None:
        made["repetition_penalty"] = wanted.repetition_penalty
    if wanted.stop:
        made["stop_strings"] = list(wanted.stop)
    asked = bool(given) or wanted.samples > 1
    if wanted.temperature == 0:
        _refuse_greedy(given, wanted.samples)
        return made
    if not asked and not (as_model and known.get("do_sample")):
        return made
    if made.get("num_beams", 1) > 1:
        raise UsageError(
            f"generate.from_model takes over num_beams {made['num_beams']}, and tokens are to be "
            "sampled.",
            "Use beams or sampling.",
        )
    usual = {name: known[name] for name in SAMPLING if known.get(name) is not None}
    sampling = {"temperature": 1.0, **usual, **given}
    several = {"num_return_sequences": wanted.samples} if wanted.samples > 1 else {}
    ordered = {name: sampling[name] for name in sorted(sampling, key=lambda n: n not in usual)}
    return {**made, "do_sample": True, **ordered, **several}


def _refuse_greedy(given: Settings, samples: int) -> None:
    """Refuse what only sampling has beside a temperature of 0."""
    without = [name for name in given if name != "temperature"]
    without += ["samples"] if samples > 1 else []
    if without:
        raise UsageError(
            f"generate.temperature is 0, so that the likeliest token is always chosen; "
            f"generate.{without[0]} needs sampling.",
            "Set generate.temperature above 0, or leave the other one out.",
        )


CHOOSING = (
    "temperature",
    "top_p",
    "top_k",
    "repetition_penalty",
    "stop",
    "samples",
    "seed",
    "system",
)
"""What the user may set of how text is generated."""


def refuse_unused(wanted: Generation) -> None:
    """Refuse settings of generation where no text is generated."""
    default = Generation()
    given = [name for name in CHOOSING if getattr(wanted, name) != getattr(default, name)]
    if given:
        raise UsageError(
            f"generate.{given[0]} is set, but no text is generated: the task, or the model, "
            "cannot.",
            "Leave it out.",
        )


def refuse_system(encoder: Encoder, wanted: Generation) -> None:
    """Refuse a system prompt where rows are no dialogues."""
    if wanted.system is not None and encoder.input.template is None:
        raise UsageError(
            f"generate.system is a message of a dialogue, which the task {encoder.task} does not "
            "read.",
            "Leave it out, or put the text into the prompts.",
        )


def num_samples(settings: Settings | None) -> int:
    """Return how many answers a prompt gets."""
    return int((settings or {}).get("num_return_sequences", 1))


def known_settings(config: Any) -> dict[str, Any]:
    """Return what a generation config sets; nothing where the model has none."""
    given = {} if config is None else config.to_dict()
    return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Draws:
    """What the noise of each answer is drawn from: the seed, and the number of the answer."""

    seed: int = 0
    number: int = 0

    def key(self, prompt: Tokens) -> int:
        """Return the seed of one answer."""
        content = np.asarray(prompt, np.int64).tobytes()
        known = sha256(f"{self.seed} {self.number} ".encode() + content).digest()
        return int.from_bytes(known[:8], "big") >> 1

    @contextmanager
    def seeded(self, prompts: Sequence[Tokens]) -> Iterator[None]:
        """Seed torch for a model that samples by itself; its state is put back."""
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(self.key(np.concatenate(prompts)))
            yield


def sampled(settings: Settings, prompts: Sequence[Tokens], draws: Draws) -> Choose | None:
    """Return what makes the sampled token the likeliest one; None for a greedy search."""
    if not settings.get("do_sample"):
        return None
    import torch
    from transformers import generation

    makers: dict[str, Callable[[Any], Any]] = {
        "temperature": lambda value: generation.TemperatureLogitsWarper(float(value)),
        "top_k": lambda value: generation.TopKLogitsWarper(int(value)),
        "top_p": lambda value: generation.TopPLogitsWarper(float(value)),
        "min_p": lambda value: generation.MinPLogitsWarper(float(value)),
        "typical_p": lambda value: generation.TypicalLogitsWarper(float(value)),
    }
    idle = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0, "typical_p": 1.0}
    asked = {name: settings[name] for name in SAMPLING if name in settings}
    warpers = [makers[name](v) for name, v in asked.items() if v != idle[name]]
    sources = [torch.Generator().manual_seed(draws.key(prompt)) for prompt in prompts]

    def choose(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.float()
        for warper in warpers:
            scores = warper(ids, scores)
        size = scores.shape[1]
        waits = torch.stack([torch.empty(size).exponential_(generator=g) for g in sources])
        noise = -waits.clamp_min(torch.finfo(waits.dtype).tiny).log()  # Gumbel
        return scores + noise.to(scores.device)

    return choose


def penalized(settings: Settings, prompts: Sequence[Tokens]) -> Choose | None:
    """Return the repetition penalty for left-padded prompts, whose padding was not said."""
    penalty = settings.get("repetition_penalty", 1.0)
    if penalty == 1.0:
        return None
    import torch
    from transformers.generation import RepetitionPenaltyLogitsProcessor

    process = RepetitionPenaltyLogitsProcessor(float(penalty))
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]

    def choose(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        beams = len(ids) // len(padding)  # the beams of a prompt follow one another
        starts = [start for start in padding for _ in range(beams)]
        made = [process(ids[n : n + 1, s:], scores[n : n + 1]) for n, s in enumerate(starts)]
        return torch.cat(made)

    return choose


def stops_at(stops: Sequence[str], tokenizer: Any, start: int) -> Callable[..., torch.Tensor]:
    """Return a criterion that ends answers, which begin at `start`, with one of the texts."""
    import torch

    most = max(len(stop.encode()) for stop in stops) + 8  # a token has at least one byte

    def criterion(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        texts = tokenizer.batch_decode(ids[:, max(start, ids.shape[1] - most) :])
        ended = [any(stop in text for stop in stops) for text in texts]
        return torch.tensor(ended, device=ids.device)

    return criterion


def cut_at(stops: Sequence[str], text: str) -> str:
    """Return the text before the first of the texts that end it.

    >>> cut_at(["\\n", "."], "One. Two")
    'One'
    """
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text
