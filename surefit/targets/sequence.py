"""A sequence as the target: an encoder reads the source, a decoder writes the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefit.batches.collate import pad_token_id
from surefit.batches.field import IGNORE_INDEX, Field
from surefit.inputs.batch_tokenizing import tokenizing
from surefit.inputs.encoded_row import (
    DropReason,
    Encoding,
    drop_row,
    encoded,
    is_overlong,
    refuse_overlong,
)
from surefit.inputs.encoder import Encoder
from surefit.inputs.text.text_reading import read_text
from surefit.targets.generation import (
    Sample,
    as_sample,
    generate_answers,
    greedy,
    own_config,
)
from surefit.targets.metrics.token_metrics import corpus_scores, rouge_l

FIELDS = {
    "input_ids": Field(("time",), "int64", 0),
    "labels": Field(("target_time",), "int64", IGNORE_INDEX),
    "decoder_input_ids": Field(("target_time",), "int64", 0, "labels"),
}


def encode_sequences(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """Source and target with the tokenizer's own special tokens; the target ends with eos.

    The decoder is given the target moved right by one, behind the token it starts with. A target
    over the limit loses its end, and with it eos: it would teach to stop in the middle.
    """
    source, target = read_source(row, encoder), _read(row, ("target", "answer"), encoder)
    predicting = encoder.predicting
    if not (source or "").strip() or not (predicting or (target or "").strip()):
        raise drop_row(DropReason.EMPTY)
    tokenizer, limit = encoder.tokenizer, encoder.max_length
    ids = _ids(tokenizer, source or "")
    overlong = is_overlong(len(ids), encoder)
    labels: list[int] = []
    if not predicting:
        with tokenizing([target or ""]):
            labels = list(tokenizer(text_target=target, verbose=False)["input_ids"])
        if labels[-1:] != [tokenizer.eos_token_id]:
            labels.append(tokenizer.eos_token_id)
        longest = max(len(ids), len(labels))
        if is_overlong(longest, encoder):
            refuse_overlong(longest, encoder)
    length = len(ids)
    if overlong:
        ids = _ids(tokenizer, source or "", truncation=True, max_length=limit)
    if predicting:
        return encoded({"input_ids": ids})
    lost = len(labels) - len(labels[:limit])
    labels = labels[:limit]
    columns = {
        "input_ids": ids,
        "labels": labels,
        "decoder_input_ids": [start_token(encoder), *labels[:-1]],
    }
    return encoded(columns, truncated=length - len(ids) + lost, learns_eos=lost == 0)


def _ids(tokenizer: Any, text: str, **options: Any) -> list[int]:
    with tokenizing([text]):
        return list(tokenizer(text, verbose=False, **options)["input_ids"])


def read_source(row: Mapping[str, Any], encoder: Encoder) -> str | None:
    """Return the source; of a question with a context, or an instruction with an input, both."""
    source, context = _read(row, ("source", "prompt"), encoder), read_text(row, "input", encoder)
    return f"{source}\n{context}" if source and context else source


def _read(row: Mapping[str, Any], roles: Sequence[str], encoder: Encoder) -> str | None:
    return next((read_text(row, role, encoder) for role in roles if role in row), None)


def start_token(encoder: Encoder) -> int:
    """Return what the decoder begins with: the model's own token, else the one that pads."""
    known = encoder.settings.tokens.decoder_start
    return int(known) if known is not None else pad_token_id(encoder.tokenizer)


def sequence_settings(model: Any, encoder: Encoder) -> dict[str, Any]:
    """Greedy search from the token that the decoder starts with in training to eos."""
    return greedy(
        decoder_start_token_id=start_token(encoder),
        forced_bos_token_id=forced_first_token(encoder.tokenizer, own_config(model)),
        eos_token_id=encoder.tokenizer.eos_token_id,
        pad_token_id=pad_token_id(encoder.tokenizer),
    )


def forced_first_token(tokenizer: Any, config: Any) -> int | None:
    """Return the token that every target begins with, if it is not for the model to choose.

    It is a language code, as mBART-50, M2M100 and NLLB have: the tokenizer begins every target with
    it, and it is not bos. Or the model's generation config forces the same token, as BART's does.
    """
    ids = list(tokenizer(text_target="")["input_ids"])
    if ids[-1:] == [tokenizer.eos_token_id]:
        ids.pop()
    if len(ids) != 1:
        return None
    usual = {getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "cls", "unk")}
    is_code = ids[0] in tokenizer.all_special_ids and ids[0] not in usual
    forced = getattr(config, "forced_bos_token_id", None)
    return int(ids[0]) if is_code or forced == ids[0] else None


def write(
    model: Any, rows: Sequence[Mapping[str, Any]], encoder: Encoder, max_new_tokens: int
) -> list[Sample]:
    """Generate from each row's source, stopping at eos."""
    tokenizer, sources = encoder.tokenizer, [np.asarray(row["input_ids"]) for row in rows]
    settings = encoder.settings.generate or sequence_settings(model, encoder)
    made = generate_answers(model, sources, settings, max_new_tokens, encoder)
    samples = []
    for row, answers in zip(rows, made, strict=True):
        read = [row["input_ids"], *([row["labels"]] if "labels" in row else [])]
        texts = [tokenizer.decode(part, skip_special_tokens=True).strip() for part in read]
        samples.append(as_sample(texts[0], texts[1] if "labels" in row else None, answers))
    return samples


def sequence_scores(sample: Sample) -> dict[str, float]:
    """ROUGE-L of one generated text."""
    return {"rouge_l": rouge_l(sample.expected or "", sample.got)}


def together(samples: Sequence[Sample]) -> dict[str, float]:
    """BLEU and chrF of all generated texts."""
    return corpus_scores([(sample.expected or "", sample.got) for sample in samples])
