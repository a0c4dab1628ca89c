"""sft: instruction fine-tuning. The answer is learned, the prompt is only read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.collate import pad_stack, pad_token_id
from surefit.batches.field import Field
from surefit.data.encode import Encoded, RowFaultError, Skip
from surefit.data.encoder import Encoder
from surefit.data.tokenizer import adds_bos
from surefit.tasks.spec import (
    Batch,
    Generate,
    Head,
    Metric,
    Sample,
    TaskSpec,
    full_precision,
)
from surefit.tasks.text_scores import exact_match, token_f1

if TYPE_CHECKING:
    import torch

IGNORED = -100


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoded | Skip:
    """Prompt, line break, answer, eos; only the answer and its eos carry labels.

    Prompt and answer are tokenised apart, so no token lies across their boundary.
    """
    if "input_ids" in row:
        return _encode_tokens(row, encoder)
    prompt, answer = _text(row, "prompt", encoder), _text(row, "answer", encoder)
    context = _text(row, "input", encoder)
    if context:  # the input of instruction, input and output
        prompt = f"{prompt}\n{context}"
    predicting = encoder.settings.get("predicting")
    if not (prompt or "").strip() or not (predicting or (answer or "").strip()):
        return Skip("empty")
    tokenizer = encoder.tokenizer
    start = [tokenizer.bos_token_id] if adds_bos_cached(encoder) else []
    asked = _ids(tokenizer, f"{prompt}\n")
    if predicting or answer is None:
        ids = start + asked[-encoder.max_length :] if encoder.max_length else start + asked
        return _encoded(ids, [IGNORED] * len(ids), len(ids))
    told = [*_ids(tokenizer, answer), tokenizer.eos_token_id]
    room = None if encoder.max_length is None else encoder.max_length - len(start) - len(told)
    overlong = room is not None and len(asked) > room
    if room is not None and overlong:
        skip = _refuse_overlong(len(start) + len(asked) + len(told), encoder)
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
    ids = np.asarray([] if row["input_ids"] is None else row["input_ids"])
    if ids.size == 0:
        return Skip("empty")
    given = row.get("labels")
    labels = ids if given is None else np.asarray(given)
    if encoder.settings.get("predicting"):  # all of it is prompt
        labels = np.full_like(ids, IGNORED)
    for name, values in (("input_ids", ids), ("labels", labels)):
        if values.ndim != 1:
            raise RowFaultError(
                "SF208", f"column {name!r} has {values.ndim} axes; expected one list of ids", name
            )
    if len(labels) != len(ids):
        raise RowFaultError(
            "SF201",
            f"column 'labels' has length {len(labels)}, but 'input_ids', which it runs along, "
            f"has length {len(ids)}",
            "labels",
        )
    ids, labels = _without_padding(ids, labels, row.get("mask"))
    overlong = encoder.max_length is not None and len(ids) > encoder.max_length
    if overlong:
        skip = _refuse_overlong(len(ids), encoder)
        if skip is not None:
            return skip
        ids, labels = ids[-encoder.max_length :], labels[-encoder.max_length :]  # type: ignore[operator]
    eos = getattr(encoder.tokenizer, "eos_token_id", None)
    learns_eos = eos is not None and bool(labels[-1] == eos)
    learned = np.flatnonzero(labels != IGNORED)
    prompt_length = int(learned[0]) if len(learned) else len(ids)
    return _encoded(ids, labels, prompt_length, overlong, learns_eos)


def _without_padding(ids: Any, labels: Any, mask: Any) -> tuple[Any, Any]:
    """Leave out positions that an attention mask of the data's own calls padding."""
    if mask is None:
        return ids, labels
    if len(mask) != len(ids):
        raise RowFaultError(
            "SF201",
            f"the attention mask has length {len(mask)}, but 'input_ids', which it runs along, "
            f"has length {len(ids)}",
            "attention_mask",
        )
    kept = np.asarray(mask) != 0
    return ids[kept], labels[kept]


def _refuse_overlong(length: int, encoder: Encoder) -> Skip | None:
    policy = encoder.settings["overlong"]
    if policy == "error":
        raise RowFaultError("SF212", f"{length} tokens, but max_seq_length is {encoder.max_length}")
    return Skip("overlong") if policy == "drop" else None


def _text(row: Mapping[str, Any], role: str, encoder: Encoder) -> str | None:
    value = row.get(role)
    if value is not None and not isinstance(value, str):
        raise RowFaultError("SF213", f"{value!r} is not text", encoder.roles[role])
    return value


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def adds_bos_cached(encoder: Encoder) -> bool:
    """Whether rows begin with bos, asked of the tokenizer once."""
    known = encoder.tokenizer.__dict__.get("_surefit_adds_bos")
    if known is None:
        known = encoder.tokenizer._surefit_adds_bos = adds_bos(encoder.tokenizer)
    return bool(known)


def count_targets(columns: Mapping[str, Any]) -> int:
    """Labels a causal model can learn: each is predicted from the position before it."""
    return int((columns["labels"][1:] != IGNORED).sum())


def _shifted(outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels of the learned positions: (N, V) and (N,)."""
    labels = batch["labels"][:, 1:]
    learned = labels != IGNORED
    return outputs.logits[:, :-1][learned], labels[learned]


def loss(outputs: Any, batch: Batch) -> tuple[torch.Tensor, int]:
    """Cross-entropy summed over the learned tokens, and their number."""
    from torch.nn.functional import cross_entropy

    logits, labels = _shifted(outputs, batch)
    return cross_entropy(full_precision(logits), labels, reduction="sum"), labels.numel()


def token_accuracy(outputs: Any, batch: Batch) -> tuple[Any, int]:
    """Learned tokens that are the most likely ones, and all learned tokens."""
    logits, labels = _shifted(outputs, batch)
    return (logits.argmax(-1) == labels).sum(), labels.numel()


def _loss_sums(outputs: Any, batch: Batch) -> dict[str, Any]:
    total, count = loss(outputs, batch)
    return {"loss": total.double(), "count": count}


PERPLEXITY = Metric(_loss_sums, lambda sums: float((sums["loss"] / sums["count"]).exp()))


def answer(
    model: Any, rows: Sequence[Mapping[str, Any]], encoder: Encoder, max_new_tokens: int
) -> list[Sample]:
    """Generate greedily from each row's prompt, left-padded, stopping at eos."""
    import torch

    tokenizer = encoder.tokenizer
    prompts, expected = [], []
    for row in rows:
        ids, end = np.asarray(row["input_ids"]), max(1, int(row["prompt_length"]))
        prompts.append(ids[:end])
        told = tokenizer.decode(ids[end:], skip_special_tokens=True).strip()
        expected.append(told if end < len(ids) else None)
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None:  # the oldest part of a prompt goes, so that the answer has room
        max_new_tokens = min(max_new_tokens, positions // 2)
        prompts = [ids[-(positions - max_new_tokens) :] for ids in prompts]
    longest = max(len(ids) for ids in prompts)
    device = next(model.parameters()).device
    ids = pad_stack(prompts, (longest,), "int64", pad_token_id(tokenizer), "left")
    mask = pad_stack([np.ones_like(p) for p in prompts], (longest,), "int64", 0, "left")
    with torch.no_grad():
        output = model.generate(
            input_ids=torch.from_numpy(ids).to(device),
            attention_mask=torch.from_numpy(mask).to(device),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=pad_token_id(tokenizer),
        )
    got = tokenizer.batch_decode(output[:, longest:], skip_special_tokens=True)
    asked = [tokenizer.decode(p, skip_special_tokens=True).strip() for p in prompts]
    return [
        Sample(prompt, wanted, made.strip())
        for prompt, wanted, made in zip(asked, expected, got, strict=True)
    ]


def can_generate(model: Any, encoder: Encoder) -> bool:
    """Whether text can be made at all: rows of bare ids have no tokenizer to read it with."""
    return encoder.tokenizer is not None and hasattr(model, "generate")


def scores(sample: Sample) -> dict[str, float]:
    """Word F1 and exact match of one generated answer."""
    expected = sample.expected or ""
    return {
        "token_f1": token_f1(expected, sample.got),
        "exact_match": exact_match(expected, sample.got),
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
    loss=loss,
    metrics={"perplexity": PERPLEXITY, "token_accuracy": token_accuracy},
    generate=Generate(answer, scores, ("token_f1", "exact_match"), can_generate),
    head=Head(auto_class="AutoModelForCausalLM"),
)
