"""seq2seq: a mapping of words is learned and holds for unseen texts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import surefit
from builders import learn

ENGLISH = ("red", "blue", "one", "two", "cat", "dog", "sun", "tree", "milk", "bread")
GERMAN = ("rot", "blau", "eins", "zwei", "Katze", "Hund", "Sonne", "Baum", "Milch", "Brot")
WORDS = dict(zip(ENGLISH, GERMAN, strict=True))


def translation_rows(count: int, seed: int = 0, names: tuple[str, str] = ("source", "target")):  # type: ignore[no-untyped-def]
    """Texts and the same texts word by word in another language."""
    choose = random.Random(seed)
    rows = []
    for _ in range(count):
        words = choose.sample(ENGLISH, k=choose.randint(2, 5))
        texts = " ".join(words), " ".join(WORDS[word] for word in words)
        rows.append(dict(zip(names, texts, strict=True)))
    return rows


@pytest.mark.slow
def test_learns_to_translate_word_by_word(tmp_path: Path) -> None:
    options = {"epochs": 6, "batch_size": 16, "lr": 1e-3, "generate": {"max_new_tokens": 12}}
    run = learn(tmp_path, translation_rows(800), "tiny:bart", **options)
    assert run.plan["task"] == "seq2seq"
    assert run.plan["roles"] == {"source": "source", "target": "target"}
    assert run.metrics["chrf"] > 80
    assert run.metrics["bleu"] > 80
    assert run.metrics["rouge_l"] > 0.8
    assert surefit.predict(run, [{"source": "two red cat"}])[0]["prediction"] == "zwei rot Katze"


def test_labels_end_with_eos_and_the_decoder_sees_them_one_later() -> None:
    plan = surefit.check(data=translation_rows(30), model="tiny:t5", eval_share=0.0)
    assert plan.job is not None
    assert plan.ledger is not None
    eos, store = plan.job.pipeline.encoder.tokenizer.eos_token_id, plan.job.train
    for place in range(len(store)):
        row = store.row(place)
        assert row["labels"][-1] == eos
        assert row["decoder_input_ids"].tolist() == [eos, *row["labels"][:-1].tolist()]
    sources, targets = len(store.values("input_ids")), len(store.values("labels"))
    assert plan.ledger.tokens == sources + targets
    assert plan.ledger.trained_tokens == targets
    assert plan.ledger.rows_learning_eos == len(store)


@pytest.mark.parametrize("long", ["source", "target"])
def test_overlong_sources_and_targets(long: str) -> None:
    rows = [*translation_rows(20), {"source": "red", "target": "rot", long: "one " * 100}]

    def check(overlong: str) -> surefit.Plan:
        return surefit.check(
            data=rows, model="tiny:t5", max_seq_length=40, overlong=overlong, eval_share=0.0
        )

    cut, dropped, refused = (check(policy) for policy in ("truncate", "drop", "error"))
    assert cut.ledger is not None
    assert dropped.ledger is not None
    assert cut.ledger.truncated_rows == 1
    assert cut.ledger.rows_learning_eos == (21 if long == "source" else 20)
    assert dropped.ledger.dropped_rows == {"overlong": 1}
    assert [found.code for found in refused.findings if found.severity == "error"] == ["SF212"]


def test_a_question_with_its_context_is_the_source() -> None:
    rows = [{"question": f"Who is {i}?", "context": "Kim is.", "answer": "Kim"} for i in range(20)]
    plan = surefit.check(data=rows, model="tiny:t5", eval_share=0.0)
    assert plan.job is not None
    row = plan.job.train.row(0)
    text = plan.job.pipeline.encoder.tokenizer.decode(row["input_ids"])
    assert text.startswith("Who is ")
    assert text.endswith("?\nKim is.<|end|>")


def test_one_text_file_is_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"source": f"say {n}", "target": f"{n}"} for n in range(12)]
    run = surefit.train(data=rows, model="tiny:t5", max_steps=1, output=str(tmp_path / "run"))
    (tmp_path / "new.txt").write_text("say 3\nsay 4\n")
    told = surefit.predict(run, str(tmp_path / "new.txt"))
    assert [answer["prompt"] for answer in told] == ["say 3", "say 4"]
