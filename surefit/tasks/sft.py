"""sft: instruction fine-tuning. The answer is learned, the prompt is only read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from surefit.batches.field import Field
from surefit.data.encode import Encoded, Skip, refuse_overlong
from surefit.data.encoder import Encoder
from surefit.tasks.causal import (
    answer,
    can_generate,
    count_targets,
    ends_with_eos,
    first_ids,
    is_overlong,
    read_ids,
    read_text,
)
from surefit.tasks.causal import token_ids as _ids
from surefit.tasks.spec import Generate, Head, Sample, TaskSpec
from surefit.tasks.text_scores import exact_match, rouge_l, token_f1
from surefit.tasks.tokens import IGNORED, from_before, token_loss, token_metrics


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoded | Skip:
    """Prompt, line break, answer, eos; only the answer and its eos carry labels.

    Prompt and answer are tokenised apart, so no token lies across their boundary.
    """
    if "input_ids" in row:
        return _encode_tokens(row, encoder)
    prompt, answer = read_text(row, "prompt", encoder), read_text(row, "answer", encoder)
    context = read_text(row, "input", encoder)
    if context:  # the input of instruction, input and output
        prompt = f"{prompt}\n{context}"
    predicting = encoder.settings.get("predicting")
    if not (prompt or "").strip() or not (predicting or (answer or "").strip()):
        return Skip("empty")
    tokenizer = encoder.tokenizer
    start = first_ids(encoder)
    asked = _ids(tokenizer, f"{prompt}\n")
    if predicting or answer is None:
        ids = start + asked[-encoder.max_length :] if encoder.max_length else start + asked
        return _encoded(ids, [IGNORED] * len(ids), len(ids))
    told = [*_ids(tokenizer, answer), tokenizer.eos_token_id]
    room = None if encoder.max_length is None else encoder.max_length - len(start) - len(told)
    overlong = room is not None and len(asked) > room
    if room is not None and overlong:
        skip = refuse_overlong(len(start) + len(asked) + len(told), encoder)
        if skip is not None:
            return skip
        if room < 1:  # the answer itself does not fit; without its end it teaches never to stop
            return Skip("overlong")
        asked = asked[-room:]
    ids = start + asked + told
    read = [IGNORED] * (len(start) + len(asked)) + told
    labels = list(ids) if encoder.settings["loss_on"] == "all" else read
    return _encoded(ids, labels, len(start) + len(asked), overlong, learns_eos=True)


def _encoded(
    ids: Any, labels: Any, prompt_length: int, truncated: bool = False, learns_eos: bool = False
) -> Encoded:
    columns = {"input_ids": ids, "labels": labels, "prompt_length": prompt_length}
    return Encoded(columns, truncated, learns_eos)


def _encode_tokens(row: Mapping[str, Any], encoder: Encoder) -> Encoded | Skip:
    """Rows that are tokenised already: `input_ids`, and `labels` where some are masked."""
    ids, labels = read_ids(row, bool(encoder.settings.get("predicting")))
    if len(ids) == 0:
        return Skip("empty")
    overlong = is_overlong(len(ids), encoder)
    if overlong:
        skip = refuse_overlong(len(ids), encoder)
        if skip is not None:
            return skip
        ids, labels = ids[-encoder.max_length :], labels[-encoder.max_length :]  # type: ignore[operator]
    learned = np.flatnonzero(labels != IGNORED)
    prompt_length = int(learned[0]) if len(learned) else len(ids)
    return _encoded(ids, labels, prompt_length, overlong, ends_with_eos(labels, encoder))


def scores(sample: Sample) -> dict[str, float]:
    """Word F1, exact match and ROUGE-L of one generated answer."""
    expected = sample.expected or ""
    return {
        "token_f1": token_f1(expected, sample.got),
        "exact_match": exact_match(expected, sample.got),
        "rouge_l": rouge_l(expected, sample.got),
    }


SPEC = TaskSpec(
    name="sft",
    summary="answers to prompts: prompt and answer columns, or input_ids and labels",
    needs=(("input_ids",), ("prompt", "answer")),
    optional=("labels", "mask", "input"),
    targets=("answer", "labels"),
    fields={
        "input_ids": Field(("time",), "int64", 0),
        "labels": Field(("time",), "int64", IGNORED, "input_ids"),
        "prompt_length": Field((), "int64"),
    },
    encode=encode,
    count_targets=count_targets,
    loss=token_loss(from_before),
    metrics=token_metrics(from_before),
    generate=Generate(answer, scores, ("token_f1", "exact_match", "rouge_l"), can_generate),
    head=Head(auto_class="AutoModelForCausalLM", learns="from_before"),
    predicts_next=True,
)
