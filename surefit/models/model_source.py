"""A model before it is built: what the plan may ask of it, and how to build it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from surefit.encode.encoder import Encoder
from surefit.encode.features.feature_layout import Hints
from surefit.findings import Finding
from surefit.tasks.task_spec import Head

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Built:
    """A model sized to the data, and what was found or changed on the way."""

    module: nn.Module
    findings: tuple[Finding, ...] = ()
    fresh: tuple[str, ...] = ()
    """Weights that start untrained in a model that is otherwise trained."""
    added_tokens: range = range(0)
    """Rows of the embeddings that were added for the tokenizer."""


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from.

    `build(head, encoder)` makes it; `tokenizer` names the folder or hub id of its tokenizer;
    `untrained` says that its weights are fresh; `code` is the user's file that is run for it.
    """

    name: str
    kind: str
    build: Callable[[Head | None, Encoder], Built]
    max_positions: int | None = None
    tokenizer: str | None = None
    makes_tokenizer: bool = False
    untrained: bool = False
    weightless: bool = False
    """Whether only the config is here: such a model can be planned, not trained."""
    code: str | None = None
    auto_classes: frozenset[str] | None = None
    """The Auto classes of transformers that have a model of this architecture, if it is theirs."""
    decoder_start: int | None = None
    """The token that a decoder beside an encoder begins with, where the model has learned one."""
    hints: Callable[[], Hints] = Hints
    """Gives the sizes of features that the model names, by which the rows' layout is planned."""
    follows_rows: bool = False
    """Whether its positions are made for the longest row rather than given."""
    image: dict[str, Any] = field(default_factory=dict)
    """What the model decides of its pixel values: size, mean, std."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """What a saved run needs to make the module again, for modules that are the user's own."""
