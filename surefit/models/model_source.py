"""A ModelSource: what is known of a model before it is built, and how to build it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from surefit.findings import Finding
from surefit.inputs.encoder import Encoder
from surefit.inputs.model_hints import Hints
from surefit.targets.task_spec import Head

if TYPE_CHECKING:
    from torch import nn

    from surefit.inputs.model_hints import AudioInputs


@dataclass(frozen=True)
class Built:
    """A model sized to the data, with the findings from building it."""

    module: nn.Module
    findings: tuple[Finding, ...] = ()
    newly_initialized: tuple[str, ...] = ()
    """Weights that start untrained in a model that is otherwise trained."""
    added_tokens: Sequence[int] = ()
    """Tokens whose rows of the embeddings are new, or trained at the user's wish."""


Build = Callable[[Head | None, Encoder], Built]


@dataclass(frozen=True)
class WeightLimits:
    """How many bytes of weights one process loads."""

    sharded: int | None = None
    """Of a model that is sharded over processes: a larger one is read shard by shard."""
    host: int | None = None
    """Of any model: a larger one is planned from its config."""


NO_LIMITS = WeightLimits()


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from.

    `build(head, encoder)` builds it; `tokenizer` is the folder or hub id of its tokenizer;
    `untrained` means that its weights are random; `code` is the user's file that defines it.
    """

    name: str
    kind: str
    build: Build
    outline: Build | None = None
    """Builds it without weights, for a plan that reads none."""
    max_positions: int | None = None
    tokenizer: str | None = None
    makes_tokenizer: bool = False
    untrained: bool = False
    loads: Literal["whole", "late", "config"] = "whole"
    """Which weights planning has: all, none before the model is sharded, or none at all."""
    code: str | None = None
    trust_remote_code: bool = False
    """Whether the folder or hub repository may run its own code."""
    auto_classes: frozenset[str] | None = None
    """The Auto classes that have a model of this architecture; None for custom modules."""
    model_type: str | None = None
    """The `model_type` of its config, by which transformers chooses the class of its tokenizer."""
    decoder_start: int | None = None
    """The `decoder_start_token_id` of an encoder-decoder model."""
    arguments: Callable[[Head | None], frozenset[str] | None] = lambda head: None
    """Returns the names of its forward's arguments; None if they are known when it is built."""
    hints: Callable[[], Hints] = Hints
    """Returns the feature sizes that the model expects, from which the layout is inferred."""
    follows_rows: bool = False
    """Whether the model is built with enough positions for the longest row."""
    image: dict[str, Any] = field(default_factory=dict)
    """Size, mean and std of its pixel values, where the model defines them."""
    audio: Callable[[], AudioInputs | None] = lambda: None
    """Returns what the model reads of audio; None where it reads none."""
    base: str | None = None
    """The folder or hub id of the base model, of a model that comes with adapters."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """What a saved run needs to build a custom module again."""

    @property
    def weightless(self) -> bool:
        """Whether planning has the config without the weights."""
        return self.loads != "whole"

    @property
    def base_name(self) -> str | None:
        """The hub id or path by which peft finds the model as a base; None if it has neither."""
        if self.kind != "pretrained" or self.untrained:
            return self.base
        return as_given(Path(self.name)) if Path(self.name).is_dir() else self.name

    def may_read(self, head: Head | None, columns: Iterable[str]) -> bool:
        """Whether forward reads one of these columns, as far as that is known before building."""
        columns = {*columns}
        if not columns:
            return False
        names = self.arguments(head)
        return names is None or not columns.isdisjoint(names)


def as_given(folder: Path) -> str:
    """Return the path of a folder as the user gave it; a relative one cannot be taken for a hub id.

    >>> as_given(Path("weights/base")), as_given(Path("/weights/base"))
    ('./weights/base', '/weights/base')
    """
    is_bare = not folder.is_absolute() and folder.parts[:1] != ("..",)
    return f"./{folder.as_posix()}" if is_bare else str(folder)
