"""The Encoder: how one row is read. It is saved with the model, for `evaluate` and `predict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.batches.field import Field
from surefit.core import files
from surefit.core.foreign import check_unicode, read_json
from surefit.data.roles import role_of_batch_column
from surefit.data.several_columns import extra_roles
from surefit.data.stored_messages import as_messages
from surefit.data.written_values import is_missing
from surefit.errors import UsageError
from surefit.inputs.encoder_state import FittedInput, FittedTarget, Settings

if TYPE_CHECKING:
    from surefit.inputs.chat.dialogues import DialogueTokenizer

FILE = "encoder.json"
MESSAGES = "messages"
"""The role of a dialogue, which a row may have as JSON text."""
FORMAT_VERSION = 2


@dataclass(frozen=True)
class _Version:
    format_version: int


@dataclass(frozen=True)
class Encoder:
    """How rows of one task are read: columns by role, tokenizer, limits, what was fitted.

    `settings` are the user's choices, such as the treatment of overlong rows. `input` and `target`
    are fitted on training rows only, such as the class names.
    """

    task: str
    roles: Mapping[str, str]
    tokenizer: Any = None
    max_length: int | None = None
    settings: Settings = field(default_factory=Settings)
    input: FittedInput = field(default_factory=FittedInput)
    target: FittedTarget = field(default_factory=FittedTarget)
    own: Mapping[str, Any] = field(default_factory=dict)
    """What `fit` of a user's own TaskSpec returned, as JSON."""
    whole_rows: bool = False
    """Whether columns without a role are read, too."""
    extras: Mapping[str, Field] = field(default_factory=dict)
    """Other columns that the model's forward names, and how they become tensors."""

    @property
    def classes(self) -> list[Any]:
        """The class names, in the order of the model's outputs."""
        return [] if self.target.classes is None else list(self.target.classes.names)

    @property
    def predicting(self) -> bool:
        """Whether rows are read to predict for, without their targets."""
        return self.settings.predicting

    @cached_property
    def class_ids(self) -> dict[Any, int]:
        """Class name to output number."""
        return {name: place for place, name in enumerate(self.classes)}

    @cached_property
    def further(self) -> dict[str, Encoder]:
        """The further columns of a role, each with the Encoder that reads it as the role is read.

        What was fitted on a column of its own goes before what is shared.
        """
        own, shared = self.input.further_pixels, self.input.pixels
        return {
            column: replace(
                self,
                roles={base: column},
                input=replace(self.input, pixels=own.get(column, shared)),
            )
            for role, base in extra_roles(self.roles).items()
            for column in [self.roles[role]]
        }

    @cached_property
    def eos_id(self) -> int | None:
        """The token that ends a text; cached, as tokenizers look it up by name."""
        return getattr(self.tokenizer, "eos_token_id", None)

    @cached_property
    def first_ids(self) -> list[int]:
        """The tokens that start a text: bos if the tokenizer adds it."""
        from surefit.inputs.tokenizer import adds_bos

        return [self.tokenizer.bos_token_id] if adds_bos(self.tokenizer) else []

    @cached_property
    def dialogues(self) -> DialogueTokenizer:
        """Turns dialogues into tokens with the fitted template."""
        from surefit.inputs.chat.dialogues import DialogueTokenizer
        from surefit.inputs.chat.template_rendering import read_template

        return DialogueTokenizer(read_template(self.input.template, self.tokenizer))

    @cached_property
    def end_ids(self) -> list[int]:
        """The tokens that end a text or an answer: eos, and the template's end token."""
        if self.input.template is not None:
            return self.dialogues.template.end_ids
        return [] if self.eos_id is None else [self.eos_id]

    def column_of(self, name: str) -> str:
        """Return the user's column of a role or of a column in a batch; else the name itself.

        A field of its objects keeps its name: `messages.image` is `conversations.image`.
        """
        role, dot, inner = name.partition(".")
        if dot and name not in self.roles and role in self.roles:
            return f"{self.roles[role]}.{inner}"
        return self.roles.get(name) or self.roles.get(role_of_batch_column(name), name)

    def with_settings(self, **settings: Any) -> Encoder:
        """Return the Encoder with other settings."""
        return replace(self, settings=replace(self.settings, **settings))

    @cached_property
    def _missing(self) -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
        """The markers of missing values by column, in lower case; and such texts, as spelled."""
        kinds = (self.settings.missing, self.settings.missing_texts)
        folded, exact = ({name: frozenset(m) for name, m in by.items()} for by in kinds)
        return folded, exact

    def read(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row by role; other columns only if the model or the task reads them."""
        folded, exact = self._missing
        blank = [name for name, known in folded.items() if is_missing(row.get(name), known)]
        blank += [name for name, known in exact.items() if str(row.get(name)).strip() in known]
        row = {**row, **dict.fromkeys(blank)} if blank else row
        read = {role: row[column] for role, column in self.roles.items() if column in row}
        if MESSAGES in read:
            read[MESSAGES] = as_messages(read[MESSAGES])
        kept = row if self.whole_rows else {n: row[n] for n in self.extras if n in row}
        return {**kept, **read}

    def state(self) -> dict[str, Any]:
        """Return all but the tokenizer, as JSON."""
        return {
            "format_version": FORMAT_VERSION,
            "task": self.task,
            "roles": dict(self.roles),
            "max_length": self.max_length,
            "settings": asdict(self.settings),
            "input": asdict(self.input),
            "target": asdict(self.target),
            "own": dict(self.own),
            "whole_rows": self.whole_rows,
            "extras": {name: asdict(spec) for name, spec in self.extras.items()},
        }

    def save(self, folder: Path) -> None:
        """Write the Encoder, with its tokenizer, into the model's folder."""
        if self.tokenizer is not None:
            self._save_tokenizer(folder)
        for form in (self.input.pixels, self.input.audio):
            processor = None if form is None else form.processor_config()
            if processor is not None:
                files.write_json(folder / "preprocessor_config.json", processor)
        files.write_json(folder / FILE, self.state())

    def _save_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer, with the template that was trained with as its chat template."""
        tokenizer, own = self.tokenizer, getattr(self.tokenizer, "chat_template", None)
        if self.input.template is not None:
            tokenizer.chat_template = self.dialogues.chat_template
        tokenizer.save_pretrained(folder)
        if self.input.template is not None:
            tokenizer.chat_template = own


def load_encoder(folder: Path, trust_remote_code: bool = False) -> Encoder:
    """Read an Encoder that `save` wrote; its tokenizer's own code runs only if it is trusted."""
    encoder, tokenizer = read_encoder(folder), None
    if (folder / "tokenizer_config.json").is_file():
        from surefit.inputs.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(str(folder), trust_remote_code)
    return replace(encoder, tokenizer=tokenizer)


def read_encoder(folder: Path) -> Encoder:
    """Return all but the tokenizer of an Encoder that `save` wrote."""
    path = folder / FILE
    if not path.is_file():
        raise UsageError(
            f"{folder} has no {FILE}, so surefit does not know how to read rows for it.",
            "Pass the folder of a run, or a model folder that surefit wrote.",
        )
    if read_json(path, _Version).format_version != FORMAT_VERSION:
        raise UsageError(
            f"{path} was written by another version of surefit.", "Use the version that wrote it."
        )
    check_unicode(path)  # lone surrogates are in no column and no class
    return read_json(path, Encoder)
