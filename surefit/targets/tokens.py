"""Next tokens as the target: labels of a causal model, their number, generated answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.batches.collate import pad_token_id
from surefit.batches.field import IGNORE_INDEX, Field
from surefit.data.column_types import is_text_list
from surefit.data.roles import Role, get_role
from surefit.data.table import Table
from surefit.inputs.encoded_row import Encoded, TokenSequence
from surefit.inputs.encoder import Encoder
from surefit.inputs.text.text_reading import TOKENS, labels_tokens
from surefit.targets.generation import (
    Sample,
    as_sample,
    generate_answers,
    greedy,
    own_config,
)
from surefit.targets.metrics.token_metrics import exact_match, rouge_l, token_f1


def takes_answers(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether answers are texts to write, rather than classes: true and false, labels of ids."""
    if "input_ids" in roles:
        if "labels" in roles and not labels_tokens(table, roles["input_ids"], roles["labels"]):
            return False
        tags, label = get_role("tags"), get_role("label")
        named = (c for c in table.columns if c.lower() in label.names and c not in roles.values())
        tagged = (c for c in table.columns if c.lower() in {*tags.names} - {*label.names})
        return not any(
            [
                *(label.accepts(table.column_type(c), False) for c in named),
                *(tags.accepts(table.column_type(c), True) for c in tagged),
            ]
        )
    column = roles.get("answer")
    return column is None or not pa.types.is_boolean(table.column_type(column))


REFERENCES = Role(
    "references",
    accepts=lambda kind, named: is_text_list(kind),
    may_be_missing=True,
)
"""All answers that are right, as SQuAD's files have them; the best match is scored. A column
`answers` is not recognised: it may be the choices of a question."""
FIELDS = {"input_ids": TOKENS, "labels": Field(("time",), "int64", IGNORE_INDEX, "input_ids")}


def answer_fields(encoder: Encoder) -> dict[str, Field]:
    """Tokens, labels and the length of the prompt; further answers where the data has them."""
    further = {REFERENCES.name: Field(("reference_time",), "uint8")}
    own = {**FIELDS, "prompt_length": Field((), "int64")}
    return {**own, **(further if REFERENCES.name in encoder.roles else {})}


def label_next_tokens(tokens: TokenSequence, row: Mapping[str, Any], encoder: Encoder) -> Encoded:
    """Return the tokens with their labels: those of the data, else the tokens that are learned."""
    ids, labels = tokens.ids, tokens.labels
    if encoder.predicting or labels is None:
        labels = np.full_like(ids, IGNORE_INDEX)
    if not encoder.predicting and tokens.labels is None:
        loss_on = encoder.settings.loss_on
        learned = None if loss_on == "all" else tokens.answers
        if learned is not None and loss_on == "last":
            learned = learned[-1:]
        for start, stop in [(0, len(ids))] if learned is None else learned:
            labels[start:stop] = ids[start:stop]
    columns: dict[str, Any] = {"input_ids": ids, "labels": labels}
    if tokens.prompt_length is not None:
        columns["prompt_length"] = tokens.prompt_length
    if REFERENCES.name in encoder.roles:
        columns[REFERENCES.name] = store_references(row.get(REFERENCES.name))
    learns_eos = int(labels[-1]) in encoder.end_ids
    return Encoded(columns, tokens.truncated, learns_eos, tokens.faults)


def count_targets(columns: Mapping[str, Any]) -> int:
    """Labels a causal model can learn: each is predicted from the position before it."""
    return int(np.count_nonzero(columns["labels"][1:] != IGNORE_INDEX))


def answer(
    model: Any, rows: Sequence[Mapping[str, Any]], encoder: Encoder, max_new_tokens: int
) -> list[Sample]:
    """Generate from each row's prompt, left-padded, stopping at eos or the turn's end."""
    tokenizer = encoder.tokenizer
    prompts, expected = [], []
    for row in rows:
        ids = np.asarray(row["input_ids"])
        end = max(1, int(row["prompt_length"])) if "prompt_length" in row else len(ids)
        prompts.append(ids[:end])
        reference = tokenizer.decode(ids[end:], skip_special_tokens=True).strip()
        expected.append(reference if end < len(ids) else None)
    prompts, max_new_tokens = within_positions(model, prompts, max_new_tokens)
    settings = encoder.settings.generate or generation_settings(model, encoder)
    made = generate_answers(model, prompts, settings, max_new_tokens, encoder, "left")
    asked = [tokenizer.decode(p, skip_special_tokens=True).strip() for p in prompts]
    return [
        as_sample(prompt, wanted, answers, read_references(row))
        for prompt, wanted, answers, row in zip(asked, expected, made, rows, strict=True)
    ]


def within_positions(
    model: Any, prompts: list[npt.NDArray[np.int64]], max_new_tokens: int
) -> tuple[list[npt.NDArray[np.int64]], int]:
    """Return the prompts without their oldest part where an answer would have no room."""
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is None:
        return prompts, max_new_tokens
    max_new_tokens = min(max_new_tokens, positions // 2)
    return [ids[-(positions - max_new_tokens) :] for ids in prompts], max_new_tokens


def store_references(answers: Sequence[str | None] | None) -> Any:
    """Return further right answers of a row as numbers, which a Store can hold."""
    texts = [text for text in answers or () if text]
    return np.frombuffer(json.dumps(texts).encode(), np.uint8)


def read_references(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the texts that `store_references` stored.

    >>> read_references({"references": store_references(["42", None, "forty-two"])})
    ('42', 'forty-two')
    """
    stored = row.get("references")
    return () if stored is None else tuple(json.loads(np.asarray(stored).tobytes()))


def generation_settings(model: Any, encoder: Encoder) -> dict[str, Any]:
    """Greedy search that ends at eos or the template's end token, else at the model's own eos."""
    return greedy(
        eos_token_id=encoder.end_ids or getattr(own_config(model), "eos_token_id", None),
        pad_token_id=pad_token_id(encoder.tokenizer),
    )


def answer_scores(sample: Sample) -> dict[str, float]:
    """Token F1, exact match and ROUGE-L of one generated answer; of several, the best match."""
    expected = [sample.expected or "", *sample.references]
    return {
        "token_f1": token_f1(expected, sample.got),
        "exact_match": exact_match(expected, sample.got),
        "rouge_l": rouge_l(expected, sample.got),
    }


def can_generate(model: Any, encoder: Encoder) -> bool:
    """Whether text can be made at all: rows of bare ids have no tokenizer to read it with."""
    return encoder.tokenizer is not None and hasattr(model, "generate")
