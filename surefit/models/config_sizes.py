"""Sizes of a transformers body that reads features, planned before anything is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LEAST_POSITIONS = 64
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")


@dataclass(frozen=True)
class ProjectionPlan:
    """From the width of the data to the width of the body."""

    width: int
    input_size: int
    """What the body takes as `inputs_embeds`; some bodies widen it themselves."""
    hidden_size: int
    longest: int
    positions: int | None
    """Most steps the body can tell apart; None where nothing limits them."""

    @property
    def cuts_rows(self) -> bool:
        """Whether the longest training row has more steps than the body has positions."""
        return self.positions is not None and self.longest > self.positions


def plan_projection(width: int, longest: int, config: Any) -> ProjectionPlan:
    """Plan the projection of rows of `width`, the longest of `longest` steps, into a model.

    >>> from types import SimpleNamespace
    >>> config = SimpleNamespace(hidden_size=256, max_position_embeddings=512, model_type="bert")
    >>> plan_projection(4000, 999, config)
    ProjectionPlan(width=4000, input_size=256, hidden_size=256, longest=999, positions=512)
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return ProjectionPlan(width, input_size(text), text.hidden_size, longest, max_positions(text))


def input_size(text: Any) -> int:
    """The width of `inputs_embeds`; some bodies widen it themselves."""
    sizes = (getattr(text, name, None) for name in ("embedding_size", "word_embed_proj_dim"))
    return next((size for size in sizes if isinstance(size, int)), int(text.hidden_size))


def follow_data(config: Any, width: int, longest: int) -> list[str]:
    """Size the config of an untrained body after the rows; what was changed, in words.

    >>> from types import SimpleNamespace
    >>> config = SimpleNamespace(vocab_size=271, max_position_embeddings=20, model_type="bert")
    >>> follow_data(config, 4000, 999)
    ['vocab_size 271 → 4000', 'max_position_embeddings 20 → 999']
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    changed = []
    special = (getattr(text, f"{name}_token_id", None) for name in ("pad", "bos", "eos"))
    vocabulary = max([width, *(each + 1 for each in special if isinstance(each, int))])
    if getattr(text, "vocab_size", vocabulary) != vocabulary:
        changed.append(f"vocab_size {text.vocab_size} → {vocabulary}")
        text.vocab_size = vocabulary
    room = max_positions(text)
    if room is not None and room < longest:
        name = next(n for n in _POSITIONS if isinstance(getattr(text, n, None), int))
        before = getattr(text, name)
        setattr(text, name, before + longest - room)
        changed.append(f"{name} {before} → {before + longest - room}")
    return changed


def batch_bytes(batch_size: int, steps: int, width: int) -> int:
    """Bytes of one batch of float32 features.

    >>> batch_bytes(256, 999, 4000)
    4091904000
    """
    return batch_size * steps * width * 4


def rows_that_fit(limit_bytes: int, steps: int, width: int) -> int:
    """Most rows of a batch whose features take no more than the limit.

    >>> rows_that_fit(2 * 10**9, 999, 4000)
    125
    """
    return limit_bytes // batch_bytes(1, steps, width)


def room_for(longest: int) -> int:
    """Positions of a body made for the data: rows met later may be longer than those seen.

    >>> room_for(20), room_for(999)
    (64, 1998)
    """
    return max(LEAST_POSITIONS, 2 * longest)


def max_positions(config: Any) -> int | None:
    """Most positions the model can tell apart, where its config says so."""
    for name in _POSITIONS:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            # RoBERTa and its kin count positions from the pad token's id on.
            offset = config.pad_token_id + 1 if _offsets_positions(config) else 0
            return value - offset
    return None


def _offsets_positions(config: Any) -> bool:
    kin = (
        "roberta",
        "camembert",
        "xlm-roberta",
        "xlm-roberta-xl",
        "longformer",
        "mpnet",
        "data2vec-text",
    )
    return config.model_type in kin and config.pad_token_id is not None
