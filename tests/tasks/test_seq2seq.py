"""seq2seq: a mapping of words is learned and holds for unseen texts."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import surefit
from builders import write_jsonl
from surefit.cli import run as command
from surefit.tasks.metrics.text_scores import corpus_scores, rouge_l

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


def test_learns_to_translate_word_by_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "rows.jsonl", translation_rows(800))
    arguments = ["train", "--data", "rows.jsonl", "--model", "tiny:bart", "--output", "run"]
    arguments += ["--epochs", "6", "--batch-size", "16", "--lr", "1e-3"]
    arguments += ["--set", "generate.max_new_tokens=12", "--set", "eval_every=1000"]
    assert command(arguments) == 0
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["task"] == "seq2seq"
    assert plan["roles"] == {"source": "source", "target": "target"}
    metrics = surefit.evaluate("run")
    assert metrics["chrf"] > 80
    assert metrics["bleu"] > 80
    assert metrics["rouge_l"] > 0.8
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]))
    capsys.readouterr()
    assert command(["predict", "run", "--text", "two red cat"]) == 0
    assert json.loads(capsys.readouterr().out)["prediction"] == "zwei rot Katze"
    folder = tmp_path / "run" / "model"
    model, tokenizer = (
        AutoModelForSeq2SeqLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    with torch.no_grad():
        made = model.generate(**tokenizer("two red cat", return_tensors="pt"), max_new_tokens=12)
    assert tokenizer.decode(made[0], skip_special_tokens=True).strip() == "zwei rot Katze"


@pytest.mark.parametrize("arch", ["t5", "marian"])
def test_other_encoder_decoders_train_and_stop(tmp_path: Path, arch: str) -> None:
    run = surefit.train(
        data=translation_rows(30, names=("prompt", "completion")),
        model=f"tiny:{arch}",
        task="seq2seq",
        epochs=1,
        output=str(tmp_path / "run"),
    )
    assert {"loss", "bleu", "chrf", "rouge_l"} <= set(run.metrics)


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


def test_scores_are_those_of_the_corpus() -> None:
    pairs = [("the cat sat on the mat", "the cat is on the mat"), ("a dog", "a dog ran off")]
    wanted, made = [[pair[0] for pair in pairs]], [pair[1] for pair in pairs]
    assert corpus_scores(pairs) == {
        "bleu": sacrebleu.corpus_bleu(made, wanted).score,
        "chrf": sacrebleu.corpus_chrf(made, wanted).score,
    }
    assert rouge_l("a b c d", "a x c d") == pytest.approx(0.75)
    assert rouge_l("", "") == 0.0  # as rouge-score defines it


def test_one_text_file_is_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"source": f"say {n}", "target": f"{n}"} for n in range(12)]
    run = surefit.train(data=rows, model="tiny:t5", max_steps=1, output=str(tmp_path / "run"))
    (tmp_path / "new.txt").write_text("say 3\nsay 4\n")
    told = surefit.predict(run, str(tmp_path / "new.txt"))
    assert [answer["prompt"] for answer in told] == ["say 3", "say 4"]
