"""Sizes of a transformers body that reads features, planned before anything is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LEAST_POSITIONS = 64


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
    hidden_size = text.hidden_size
    sizes = (getattr(text, name, None) for name in ("embedding_size", "word_embed_proj_dim"))
    input_size = next((size for size in sizes if isinstance(size, int)), hidden_size)
    return ProjectionPlan(width, input_size, hidden_size, longest, max_positions(text))


def room_for(longest: int) -> int:
    """Positions of a body made for the data: rows met later may be longer than those seen.

    >>> room_for(20), room_for(999)
    (64, 1998)
    """
    return max(LEAST_POSITIONS, 2 * longest)


def max_positions(config: Any) -> int | None:
    """Most positions the model can tell apart, where its config says so."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
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
