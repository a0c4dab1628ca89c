"""A conversation with a trained causal language model: its template, its history, its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.config import Generation
from surefit.errors import UsageError
from surefit.models.auxiliary_loss import without_router_logits
from surefit.models.transformers_models import quiet_transformers
from surefit.pipeline.open_pipeline import with_generation
from surefit.pipeline.pipeline import Pipeline
from surefit.speed.compiling import not_compiled
from surefit.targets.generation import Made, generate_answers, num_new_tokens
from surefit.targets.sampling import cut_at
from surefit.targets.tokens import within_positions
from surefit.tasks.language_models import encode_answers, encode_text

if TYPE_CHECKING:
    from torch import nn

Message = Mapping[str, str]
Write = Callable[[str], None]


@dataclass(frozen=True)
class Talk:
    """A model to talk to. Without dialogues, it continues one text and has no history."""

    pipeline: Pipeline
    max_new_tokens: int
    dialogues: bool
    history: tuple[Message, ...] = ()

    def asked(self, text: str) -> Talk:
        """Return the conversation with a message of the user's at its end."""
        before = self.history if self.dialogues else ()
        return replace(self, history=(*before, {"role": "user", "content": text}))

    def answered(self, text: str) -> Talk:
        """Return the conversation with an answer; one that is empty is left out with its prompt."""
        if not text:
            return replace(self, history=self.history[:-1])
        return replace(self, history=(*self.history, {"role": "assistant", "content": text}))

    def with_system(self, text: str) -> Talk:
        """Return a new conversation with another system prompt; none if it is empty."""
        if not self.dialogues:
            raise UsageError(
                "This model continues a text; it reads no system prompt.", "Write it as text."
            )
        encoder = self.pipeline.encoder.with_settings(system=text or None)
        return replace(self, pipeline=replace(self.pipeline, encoder=encoder), history=())

    def of(self, module: nn.Module) -> Talk:
        """Return the same conversation with another model."""
        return replace(self, pipeline=replace(self.pipeline, module=module.eval()))

    def answer(self, write: Write = lambda text: None) -> Made:
        """Generate the answer to the last message; parts of it are written as they are made."""
        pipeline, module = self.pipeline, self.pipeline.module
        row = {"messages": list(self.history)} if self.dialogues else self.history[-1]
        (encoded,) = pipeline.encode_row(row)
        prompts = [np.asarray(encoded.columns["input_ids"])]
        prompts, most = within_positions(module, prompts, self.max_new_tokens)
        settings = pipeline.encoder.settings.generate or {}
        stops = settings.get("stop_strings", ())
        stream = Stream(pipeline.encoder.tokenizer, stops, write)
        streamer = stream if settings.get("num_beams", 1) == 1 else None
        with quiet_transformers(), without_router_logits(module), not_compiled(module):
            ((made,),) = generate_answers(
                module, prompts, settings, most, pipeline.encoder, "left", streamer
            )
        write(made.text[len(stream.shown) :])
        return made


def open_talk(pipeline: Pipeline, wanted: Generation) -> Talk:
    """Return a conversation with a trained model, which samples as its generation config does."""
    head = pipeline.task.head_for(pipeline.encoder)
    is_causal = head is not None and head.auto_class == "AutoModelForCausalLM"
    generate = pipeline.task.generate
    if not is_causal or generate is None:
        raise UsageError(
            f"This run has the task {pipeline.task.name}; chat needs a causal language model, "
            "which writes text.",
            "Use a run of the task sft, causal-lm or preference; for others there is surefit "
            "predict.",
        )
    if not generate.possible(pipeline.module, pipeline.encoder):
        raise UsageError(
            "This model cannot write text: it has no tokenizer, or no `generate`.",
            "Use a run of a transformers model on texts.",
        )
    one = wanted.model_copy(update={"samples": 1})
    pipeline = with_generation(pipeline, one, as_model=True).for_prediction
    dialogues = pipeline.encoder.input.template is not None
    roles = {"messages": "messages"} if dialogues else {"text": "content"}
    encoder = replace(pipeline.encoder, roles=roles, extras={}).with_settings(system=wanted.system)
    task = replace(pipeline.task, encode=encode_answers if dialogues else encode_text)
    pipeline.module.eval()
    most = num_new_tokens(encoder, wanted.max_new_tokens)
    return Talk(replace(pipeline, task=task, encoder=encoder), most, dialogues)


class Stream:
    """What transformers gives tokens to as they are made; writes text that will not change."""

    def __init__(self, tokenizer: Any, stops: Sequence[str], write: Write) -> None:
        self.shown = ""
        self._ids: list[int] | None = None
        self._tokenizer, self._stops, self._write = tokenizer, stops, write
        self._kept = max(map(len, stops), default=1) - 1

    def put(self, ids: Any) -> None:
        """Take the prompt first, then each token."""
        if self._ids is None:
            self._ids = []
            return
        self._ids += ids.reshape(-1).tolist()
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True).lstrip()
        text = cut_at(self._stops, text).removesuffix("\ufffd")  # a part of a character
        stable = text[: len(text) - self._kept].rstrip()
        if stable.startswith(self.shown) and stable != self.shown:
            self._write(stable[len(self.shown) :])
            self.shown = stable

    def end(self) -> None:
        """Leave the rest to the whole answer."""
