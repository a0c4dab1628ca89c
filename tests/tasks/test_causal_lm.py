"""causal-lm: plain text, every token learned; long documents become blocks, and none is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import surefit
from builders import encode_one, learn, write_jsonl
from surefit.cli import run as command
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import Settings
from surefit.inputs.text.text_reading import block_bounds
from surefit.tasks.language_models import encode_text as encode

CYCLE = ["red", "green", "blue", "one", "two", "three", "cat"]


def cycle_rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Texts that go round the cycle from a random word on."""
    random = np.random.default_rng(seed)
    starts, lengths = random.integers(0, len(CYCLE), count), random.integers(6, 20, count)
    return [
        {"text": " ".join(CYCLE[(start + i) % len(CYCLE)] for i in range(length))}
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]


def test_learns_a_cycle_of_words(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", [*cycle_rows(150), {"text": " "}])
    options = {"epochs": 6, "lr": 3e-3, "generate": {"max_new_tokens": 4}}
    run = learn(tmp_path, str(data), "tiny:llama", **options)
    assert run.plan["task"] == "causal-lm"
    assert run.plan["ledger"]["dropped_rows"] == {"empty": 1}
    assert run.plan["ledger"]["rows_learning_eos"] == 150
    metrics = surefit.evaluate(run, cycle_rows(40, seed=5))
    # The end of a text cannot be foreseen, and its first word neither.
    assert metrics["perplexity"] < 1.5
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]))
    told = surefit.predict(run, [{"text": "red green blue one two"}])[0]
    assert told["prediction"].split()[:3] == ["three", "cat", "red"]


def test_rows_that_are_tokenised_already(tmp_path: Path) -> None:
    rows = [{"input_ids": [(i + j) % 7 for j in range(9)]} for i in range(80)]
    run = surefit.train(
        data=rows,
        eval_data=rows[:7],
        model="tiny:gpt2",
        task="causal-lm",
        epochs=4,
        lr=3e-3,
        output=str(tmp_path / "run"),
    )
    assert run.metrics["token_accuracy"] > 0.9
    assert run.plan["ledger"]["trained_tokens"] == run.plan["ledger"]["train_rows"] * 8


LIMIT = 128


def documents(count: int, words: int) -> list[dict[str, str]]:
    """Texts of random words of one letter, each of them one token of the tokenizer made of them."""
    draw = np.random.default_rng(0)
    letters = [chr(ord("a") + place) for place in range(26)]
    return [{"text": " ".join(draw.choice(letters, words))} for _ in range(count)]


def check(rows: Any, **options: Any) -> surefit.Plan:
    defaults = {"model": "tiny:llama", "task": "causal-lm", "max_seq_length": LIMIT}
    return surefit.check(data=rows, **{**defaults, "eval_share": 0.0, **options})


def test_nearly_all_tokens_of_long_documents_are_labelled() -> None:
    rows = documents(20, 1285)
    plan = check(rows)
    assert plan.ok
    assert plan.ledger is not None
    assert plan.job is not None
    store, tokenizer = plan.job.train, plan.job.pipeline.encoder.tokenizer
    whole = [
        [*tokenizer(row["text"], add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        for row in rows
    ]
    for number, ids in enumerate(whole):
        mine = np.flatnonzero(store.source_row == number)
        blocks = [store.row(int(block))["input_ids"].tolist() for block in mine]
        assert [token for block in blocks for token in block] == ids
        assert all(len(block) <= LIMIT for block in blocks)
        assert ids.count(tokenizer.eos_token_id) == 1
    num_tokens = sum(map(len, whole))
    ledger = plan.ledger
    assert ledger.tokens == num_tokens > 20 * 1285
    assert ledger.trained_tokens == num_tokens - len(store)  # all but the first of each block
    assert ledger.trained_tokens > 0.99 * num_tokens
    assert (ledger.rows, ledger.train_rows, ledger.split_rows) == (20, 20, 20)
    assert (ledger.train_views, ledger.train_blocks, ledger.truncated_rows) == (20, len(store), 0)
    assert ledger.rows_learning_eos == 20
    said = "20 of 20 rows are longer than the maximum sequence length and are split into "
    assert any(f"{said}{len(store)} blocks" in note for note in plan.notes)
    assert f"20 rows in {len(store)} blocks" in ledger.per_epoch


@pytest.mark.parametrize("limit", [2, 3, 4, 7])
@pytest.mark.parametrize("length", range(2, 30))
def test_blocks_are_consecutive_and_have_something_to_predict(length: int, limit: int) -> None:
    bounds = block_bounds(length, limit)
    assert [a for a, _ in bounds] == [0, *(b for _, b in bounds[:-1])]
    assert bounds[-1][1] == length
    sizes = [b - a for a, b in bounds]
    assert max(sizes) <= limit
    assert len(sizes) == -(-length // limit)
    # A maximum of 2 leaves the first of an odd number of tokens alone; it is never predicted.
    assert all(size >= 2 for size in sizes[1:])
    assert sizes[0] >= 2 or limit == 2


class Letters:
    """A tokenizer of letters: a is 1, b is 2; eos is 0, bos is 99."""

    eos_token_id, bos_token_id = 0, 99

    def __init__(self, adds_bos: bool) -> None:
        self.adds_bos = adds_bos

    def __call__(self, text: str, add_special_tokens: bool = True, **_: Any) -> dict[str, Any]:
        ids = [0 if letter == "$" else ord(letter) - ord("a") + 1 for letter in text]
        return {"input_ids": [*([99] if add_special_tokens and self.adds_bos else []), *ids]}


def blocks_of(text: str, limit: int, adds_bos: bool = False, **settings: Any) -> list[list[int]]:
    chosen = Settings(**{"overlong": "split", **settings})
    encoder = Encoder("causal-lm", {"text": "text"}, Letters(adds_bos), limit, chosen)
    made = encode_one(encode, {"text": text}, encoder)
    return [
        list(map(int, b.columns["input_ids"])) for b in (made if isinstance(made, list) else [made])
    ]


def test_known_blocks() -> None:
    assert blocks_of("abc", 4) == [[1, 2, 3, 0]]  # exactly full
    assert blocks_of("abcd", 4) == [[1, 2, 3], [4, 0]]  # not a block of eos alone
    assert blocks_of("abcde", 4) == [[1, 2, 3, 4], [5, 0]]
    assert blocks_of("abcdefg", 4) == [[1, 2, 3, 4], [5, 6, 7, 0]]
    assert blocks_of("abcdefgh", 4) == [[1, 2, 3], [4, 5, 6, 7], [8, 0]]
    assert blocks_of("abcd", 4, adds_bos=True) == [[99, 1, 2, 3], [4, 0]]
    assert blocks_of("ab$", 4) == [[1, 2, 0]]  # a text that ends with eos gets no second one
    assert blocks_of("abcdefgh", 4, overlong="truncate") == [[1, 2, 3, 4]]
    assert blocks_of("abcdefgh", 4, predicting=True) == [[5, 6, 7, 8]]


def test_empty_and_short_documents_beside_long_ones() -> None:
    rows = [{"text": ""}, {"text": "a"}, *documents(3, 300), {"text": None}, {"text": "b c"}]
    plan = check(rows)
    assert plan.ledger is not None
    assert plan.job is not None
    assert plan.ledger.dropped_rows == {"empty": 2}
    assert (plan.ledger.train_rows, plan.ledger.split_rows) == (5, 3)
    sources = plan.job.train.source_row.tolist()
    assert sources == sorted(sources)
    assert {*sources} == {1, 2, 3, 4, 6}
    assert sources.count(1) == sources.count(6) == 1
    assert int(plan.job.train.num_targets.min()) >= 1


def test_tokenized_rows_are_split_with_their_labels() -> None:
    ids = [*range(1, 11)]
    rows = [{"input_ids": ids, "labels": [-100] * 4 + ids[4:8] + [-100] * 2}] * 3
    plan = check(rows, max_seq_length=4, model="tiny:gpt2")
    assert plan.ledger is not None
    assert plan.job is not None
    assert [row["labels"].tolist() for row in plan.job.train.rows(range(3))] == [[5, 6, 7, 8]] * 3
    # Blocks without a label are dropped, and counted.
    assert (plan.ledger.train_blocks, plan.ledger.dropped_blocks) == (3, 6)
    assert any("6 more have no labelled token and are dropped" in note for note in plan.notes)


def test_token_outside_the_vocabulary_is_named_by_its_place_in_the_row() -> None:
    rows = [{"input_ids": [1, 2, 3, 4, 5]}, {"input_ids": [1, 2, 3, 4, 5, 6, 9_999_999, 7]}]
    plan = check(rows, max_seq_length=4, model="tiny:gpt2")
    found = next(found for found in plan.findings if found.code == "SF302")
    assert found.message.startswith("row 1: input_ids[6] is 9999999")


def test_evaluation_predicts_every_token_but_the_first_of_each_block_once(tmp_path: Path) -> None:
    evaluated = documents(4, 300)[1:]
    run = surefit.train(
        data=documents(12, 200),
        eval_data=evaluated,
        model="tiny:llama",
        task="causal-lm",
        max_seq_length=32,
        max_steps=2,
        output=str(tmp_path / "run"),
    )
    assert run.plan["ledger"]["eval_rows"] == 3
    folder = tmp_path / "run" / "model"
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    total, count, num_blocks = 0.0, 0, 0
    for row in evaluated:
        ids = [*tokenizer(row["text"])["input_ids"], tokenizer.eos_token_id]
        assert len(ids) % 32 != 1
        for start in range(0, len(ids), 32):
            block = torch.tensor([ids[start : start + 32]])
            with torch.no_grad():
                logits = model(block).logits[0, :-1]
            total += float(torch.nn.functional.cross_entropy(logits, block[0, 1:], reduction="sum"))
            count += block.shape[1] - 1
            num_blocks += 1
    assert run.plan["ledger"]["eval_blocks"] == num_blocks
    assert run.metrics["loss"] == pytest.approx(total / count, abs=1e-5)
    assert surefit.evaluate(run, evaluated)["loss"] == pytest.approx(total / count, abs=1e-5)
    assert len(list(surefit.predict(run, [{"text": "a b " * 100}]))) == 1
    assert "overlong: split" in (tmp_path / "run" / "config.yaml").read_text()


def test_inspect_shows_all_blocks_of_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", documents(4, 70))
    options = ["inspect", str(path), "--model", "tiny:llama", "--row", "1"]
    options += ["--set", "max_seq_length=32"]
    assert command([*options, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert sum(shown["blocks"]) == len(shown["input_ids"]) == len(shown["tokens"])
    assert shown["targets"] == len(shown["input_ids"]) - len(shown["blocks"])
    assert command(options) == 0
    text = capsys.readouterr().out
    assert f"{len(shown['blocks'])} blocks" in text
    assert "⟨block 2⟩" in text


def test_other_tasks_cannot_split() -> None:
    rows = [{"prompt": "a", "completion": "b"}] * 4
    with pytest.raises(surefit.SurefitError, match="sft cannot split"):
        surefit.check(data=rows, model="tiny:llama", overlong="split")


@pytest.mark.parametrize(
    "task", ["causal-lm", "masked-lm", "text-classification", "sft", "seq2seq"]
)
def test_truncation_states_how_many_tokens_are_lost(task: str) -> None:
    long, short = "a b " * 60, "a b"
    rows: list[dict[str, str]] = [{"text": long}, *[{"text": f"{short} {n}"} for n in range(5)]]
    model = {"masked-lm": "tiny:bert", "text-classification": "tiny:bert", "seq2seq": "tiny:t5"}
    if task == "text-classification":
        rows = [{**row, "label": "xy"[place % 2]} for place, row in enumerate(rows)]
    if task in ("sft", "seq2seq"):
        rows = [{"prompt": row["text"], "completion": "c"} for row in rows]
    options = {"model": model.get(task, "tiny:llama"), "task": task, "overlong": "truncate"}
    plan = check(rows, max_seq_length=32, **options)
    whole = check(rows, max_seq_length=500, **options)
    assert plan.ledger is not None
    assert whole.ledger is not None
    total, lost = whole.ledger.tokens, whole.ledger.tokens - plan.ledger.tokens
    assert (plan.ledger.truncated_rows, plan.ledger.truncated_tokens) == (1, lost)
    said = (*plan.notes, *(found.message for found in plan.findings if found.code == "SF215"))
    assert any(f"{lost:,} of {total:,} tokens ({lost / total:.1%}) are lost" in s for s in said)
