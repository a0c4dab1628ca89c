"""Reads and sets the sizes in a transformers config: positions, embedding size, vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LEAST_POSITIONS = 64
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
OFFSET_POSITIONS = (
    *("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke"),
    *("markuplm", "mpnet", "prophetnet", "roberta", "roberta-prelayernorm", "xlm-roberta"),
    *("xlm-roberta-xl", "xmod"),
)
"""Architectures that number positions from pad_token_id + 1."""


@dataclass(frozen=True)
class ProjectionPlan:
    """The projection from the data's feature size to the input size of a body."""

    feature_size: int
    input_size: int
    """The size of the body's `inputs_embeds`; some bodies project it to their hidden size."""
    hidden_size: int
    longest: int
    """The sequence length of the longest training row."""
    positions: int | None
    """The longest sequence that the body accepts; None where nothing limits it."""


def plan_projection(feature_size: int, longest: int, config: Any) -> ProjectionPlan:
    """Plan the projection of rows of up to `longest` steps into a model.

    >>> from types import SimpleNamespace
    >>> config = SimpleNamespace(hidden_size=256, max_position_embeddings=512, model_type="bert")
    >>> plan_projection(4000, 999, config)
    ProjectionPlan(feature_size=4000, input_size=256, hidden_size=256, longest=999, positions=512)
    """
    text = _text_config(config)
    return ProjectionPlan(
        feature_size, input_size(text), text.hidden_size, longest, max_positions(text)
    )


def input_size(text: Any) -> int:
    """The size of `inputs_embeds`; some bodies project it to their hidden size."""
    sizes = (getattr(text, name, None) for name in ("embedding_size", "word_embed_proj_dim"))
    return next((size for size in sizes if isinstance(size, int)), int(text.hidden_size))


def resize_config(config: Any, feature_size: int, longest: int) -> list[str]:
    """Size the config of an untrained body to the data; returns the changes.

    >>> from types import SimpleNamespace
    >>> config = SimpleNamespace(vocab_size=271, max_position_embeddings=20, model_type="bert")
    >>> resize_config(config, 4000, 999)
    ['vocab_size 271 → 4000', 'max_position_embeddings 20 → 999']
    """
    text = _text_config(config)
    changed = []
    special = (getattr(text, f"{name}_token_id", None) for name in ("pad", "bos", "eos"))
    vocabulary = max([feature_size, *(each + 1 for each in special if isinstance(each, int))])
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


def _text_config(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def room_for(longest: int) -> int:
    """Positions of a body built for the data, with room for longer rows later.

    >>> room_for(20), room_for(999)
    (64, 1998)
    """
    return max(LEAST_POSITIONS, 2 * longest)


def max_positions(config: Any) -> int | None:
    """The longest sequence that the model accepts, where its config limits it."""
    for name in _POSITIONS:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            offset = config.pad_token_id + 1 if offsets_positions(config) else 0
            return value - offset
    return None


def offsets_positions(config: Any) -> bool:
    """Whether the pad token decides where positions begin."""
    return config.model_type in OFFSET_POSITIONS and config.pad_token_id is not None
