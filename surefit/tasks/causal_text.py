"""What tasks with a causal model share: reading text and ids, the length limit, generation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.batches.collate import pad_token_id
from surefit.batches.field import IGNORE_INDEX
from surefit.data.roles import get_role
from surefit.data.table import Table
from surefit.inputs.encoder import Encoder
from surefit.inputs.text.text_reading import labels_tokens
from surefit.targets.generation import generate_tokens, greedy, own_config
from surefit.targets.task_spec import Sample


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


def is_overlong(length: int, encoder: Encoder) -> bool:
    """Whether a row of so many tokens is over the limit."""
    return encoder.max_length is not None and length > encoder.max_length


def ends_with_eos(labels: Any, encoder: Encoder) -> bool:
    """Whether the last label is the end token."""
    eos = encoder.eos_id
    return eos is not None and len(labels) > 0 and bool(labels[-1] == eos)


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
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None:  # the oldest part of a prompt goes, so that the answer has room
        max_new_tokens = min(max_new_tokens, positions // 2)
        prompts = [ids[-(positions - max_new_tokens) :] for ids in prompts]
    longest = max(len(ids) for ids in prompts)
    settings = encoder.settings.generate or generation_settings(model, encoder)
    output = generate_tokens(model, prompts, settings, max_new_tokens, "left")
    got = tokenizer.batch_decode(output[:, longest:], skip_special_tokens=True)
    asked = [tokenizer.decode(p, skip_special_tokens=True).strip() for p in prompts]
    return [
        Sample(prompt, wanted, made.strip(), read_references(row))
        for prompt, wanted, made, row in zip(asked, expected, got, rows, strict=True)
    ]


def store_references(answers: Sequence[str | None] | None) -> Any:
    """Further right answers of a row as numbers, which a Store can hold."""
    texts = [text for text in answers or () if text]
    return np.frombuffer(json.dumps(texts).encode(), np.uint8)


def read_references(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts that `store_references` stored.

    >>> read_references({"references": store_references(["42", None, "forty-two"])})
    ('42', 'forty-two')
    """
    stored = row.get("references")
    return () if stored is None else tuple(json.loads(np.asarray(stored).tobytes()))


def generation_settings(model: Any, encoder: Encoder) -> dict[str, Any]:
    """Greedy search that ends at eos or the template's end token, else at the model's own eos."""
    ends = encoder.dialogues.template.end_ids
    return greedy(
        eos_token_id=ends or getattr(own_config(model), "eos_token_id", None),
        pad_token_id=pad_token_id(encoder.tokenizer),
    )


def can_generate(model: Any, encoder: Encoder) -> bool:
    """Whether text can be made at all: rows of bare ids have no tokenizer to read it with."""
    return encoder.tokenizer is not None and hasattr(model, "generate")
