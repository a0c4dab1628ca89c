"""The saved tokenizer reads in plain transformers what the Encoder read."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tokenizer_kinds import KINDS, TEXTS, WORDS
from transformers import AutoTokenizer

from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import Settings
from surefit.inputs.row_encoder import RowEncoder
from surefit.inputs.tokenizer import load_again, read_words_as_text
from surefit.tasks import TASKS

MODEL_TYPES = [
    *("llama", "qwen2"),
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("bert", "gpt2", "qwen3", "t5", "modernbert", None)
    ),
]
"""qwen2 is one of those whose tokenizer class builds its own steps whatever the files say."""
LIMIT = 12

ROWS: dict[str, list[dict[str, Any]]] = {
    "text-classification": [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(TEXTS)],
    "regression": [
        {"text": text, "text_pair": TEXTS[-n], "label": float(n)} for n, text in enumerate(TEXTS)
    ],
    "token-classification": [
        {"tokens": WORDS[n:], "tags": ["O", "B-X"][n % 2 :][:1] * (len(WORDS) - n)}
        for n in range(len(WORDS))
    ],
    "causal-lm": [{"text": text[:12]} for text in TEXTS],
    "seq2seq": [{"source": text, "target": text[:9]} for text in TEXTS],
}


def reader(task: str, tokenizer: Any, model_type: str | None) -> RowEncoder:
    """How rows are read after planning."""
    spec, rows = TASKS[task], ROWS[task]
    roles = {name: name for name in rows[0]}
    reload = partial(load_again, model_type=model_type)
    adapted = spec.text.adapt_tokenizer(reload(tokenizer), roles, reload)
    encoder = Encoder(spec.name, roles, adapted, LIMIT)
    if spec.fit is not None:
        encoder, _ = spec.fit(rows, encoder)
    encoder = spec.for_prediction(encoder)
    return RowEncoder(spec.encode, encoder, spec.fields_for(encoder), spec.count_targets, False)


def plain(tokenizer: Any, row: dict[str, Any]) -> list[int]:
    """The tokens in plain transformers, with its usual calls."""
    texts = [row[name] for name in ("text", "text_pair", "tokens", "source") if name in row]
    split = "tokens" in row
    read = tokenizer(*texts, is_split_into_words=split, truncation=True, max_length=LIMIT)
    return list(read["input_ids"])


@pytest.mark.parametrize("task", ROWS)
@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_plain_transformers_reads_the_same_tokens(
    kind: str, model_type: str | None, task: str, tmp_path: Path
) -> None:
    encode = reader(task, KINDS[kind](), model_type)
    if model_type is not None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    encode.encoder.save(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for row in ROWS[task]:
        assert encode(row)[0].columns["input_ids"].tolist() == plain(tokenizer, row)


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_a_list_are_read_as_in_running_text(kind: str) -> None:
    reload = partial(load_again, model_type=None)
    tokenizer = read_words_as_text(KINDS[kind](), reload)
    assert (
        tokenizer(WORDS, is_split_into_words=True)["input_ids"]
        == (tokenizer(" ".join(WORDS))["input_ids"])
    )


@pytest.mark.parametrize("kind", ["made here", "gpt2", "byte-level after split"])
def test_a_pair_has_a_mark_between_its_texts(kind: str) -> None:
    tokenizer = reader("regression", KINDS[kind](), None).encoder.tokenizer
    texts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS[:2]]
    read = tokenizer(*TEXTS[:2])["input_ids"]
    assert read[: len(texts[0])] == texts[0]
    assert read[len(texts[0])] == tokenizer.eos_token_id
    assert read[len(texts[0]) + 1 :][: len(texts[1])] == texts[1]


def test_the_limit_of_rows_is_the_limit_of_the_saved_tokenizer(tmp_path: Path) -> None:
    import surefit

    rows = [{"text": text * 9, "label": "ab"[n % 2]} for n, text in enumerate(TEXTS)]
    plan = surefit.check(data=rows, model="tiny:bert", max_seq_length=LIMIT)
    plan.job.pipeline.encoder.save(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer(rows[0]["text"], truncation=True)["input_ids"]) == LIMIT


TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Anna doesn't like cats"},
    {"role": "assistant", "content": "naïve"},
]
DATED = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}[{{ m.content }}]{% endfor %}"


@pytest.mark.parametrize("template", ["plain", "chatml", "alpaca", DATED])
@pytest.mark.parametrize("bos", [True, False])
def test_plain_chat_template_writes_the_same_prompt(
    template: str, bos: bool, tmp_path: Path
) -> None:
    spec, tokenizer = TASKS["sft"], KINDS["gpt2"]()
    if bos:
        tokenizer.add_bos_token = True
    settings = Settings(template=template)
    encoder = Encoder("sft", {"messages": "messages"}, tokenizer, None, settings)
    encoder, _ = spec.fit([{"messages": TURNS}], encoder)
    encoder.save(tmp_path)
    encoder = spec.for_prediction(encoder)
    encode = RowEncoder(spec.encode, encoder, spec.fields_for(encoder), spec.count_targets, False)
    plain = AutoTokenizer.from_pretrained(tmp_path)
    made = plain.apply_chat_template(TURNS[:-1], add_generation_prompt=True)
    made = made["input_ids"] if hasattr(made, "keys") else made
    assert encode({"messages": TURNS})[0].columns["input_ids"].tolist() == list(made)
    assert tokenizer.chat_template is None
