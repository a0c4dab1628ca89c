"""Scores of generated text against SQuAD's definition, rouge-score and sacrebleu."""

from __future__ import annotations

import json
import random
import re
import string
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
import sacrebleu
from rouge_score import rouge_scorer

import surefit
from surefit.targets.generation import Sample
from surefit.targets.metrics.token_metrics import (
    answer_tokens,
    corpus_scores,
    exact_match,
    rouge_l,
    token_f1,
)
from surefit.targets.tokens import answer_scores as scores

WORDS = [
    *("the", "a", "an", "The", "A", "cat", "cats", "mat", "sat.", "on,", "U.S.", "it's", "3.5"),
    *("don't", "--", "!", "...", "café", "naïve", "Straße", "“quoted”", "£5", "$5", "x-ray"),
    *("theatre", "an,", "(the)", "Ångström", "привет", "мир", "\u00a0", "\t", "\n", "İstanbul"),
]
EDGES = [
    *(
        "",
        " ",
        "\n",
        ".",
        "?!",
        "the",
        "a",
        "An the a",
        "the.",
        "the cat",
        "cat",
        "Cat.",
        "cat cat",
    ),
    *("a.b", "ab", "a b", "t.h.e", "the the cat", "_", "cat_mat", "1,000", "1000", "THE CAT SAT"),
]


def reference_normalize(text: str) -> str:
    """SQuAD: lower case, no ASCII punctuation, no articles, single spaces."""
    lowered = text.lower()
    kept = "".join(c for c in lowered if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def reference_exact(expected: str, got: str) -> int:
    return int(reference_normalize(expected) == reference_normalize(got))


def reference_f1(expected: str, got: str) -> float:
    """SQuAD 2.0: where one side has no tokens, both must have none."""
    gold, predicted = reference_normalize(expected).split(), reference_normalize(got).split()
    if len(gold) == 0 or len(predicted) == 0:
        return float(gold == predicted)
    left, same = list(gold), 0
    for token in predicted:
        if token in left:
            left.remove(token)
            same += 1
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def pairs(count: int = 2000) -> Iterator[tuple[str, str]]:
    choose = random.Random(0)
    for first in EDGES:
        for second in EDGES:
            yield first, second
    for _ in range(count):
        first = choose.choices(WORDS, k=choose.randint(0, 9))
        second = [w for w in first if choose.random() < 0.7] + choose.choices(WORDS, k=2)
        choose.shuffle(second)
        yield " ".join(first), " ".join(second)


def test_token_f1_and_exact_match_are_those_of_squad() -> None:
    for expected, got in pairs():
        assert exact_match(expected, got) == reference_exact(expected, got), (expected, got)
        assert token_f1(expected, got) == pytest.approx(reference_f1(expected, got)), (
            expected,
            got,
        )


def test_rouge_l_is_that_of_rouge_score() -> None:
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=False)
    for expected, got in [*pairs(), ("你好", "你好"), ("привет", "привет")]:
        reference = scorer.score(expected, got)["rougeL"].fmeasure
        assert rouge_l(expected, got) == pytest.approx(reference), (expected, got)


def test_the_best_of_several_references_counts() -> None:
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=False)
    choose, flat = random.Random(1), list(pairs(200))
    for _ in range(200):
        references = [choose.choice(flat)[0] for _ in range(choose.randint(1, 4))]
        got = choose.choice(flat)[1]
        assert exact_match(references, got) == max(reference_exact(r, got) for r in references)
        assert token_f1(references, got) == pytest.approx(
            max(reference_f1(r, got) for r in references)
        )
        best = scorer.score_multi(references, got)["rougeL"].fmeasure
        assert rouge_l(references, got) == pytest.approx(best)


@pytest.mark.parametrize(
    ("expected", "got", "f1"),
    [
        ("東京タワー", "東京", 2 * 2 / (5 + 2)),
        ("北京大学", "北京大學", 2 * 3 / 8),
        ("你好。", "「你好」", 1.0),
        ("สวัสดี", "สวัส", 2 * 4 / (6 + 4)),
        ("ភាសាខ្មែរ", "ភាសា", 2 * 4 / (len("ភាសាខ្មែរ") + 4)),
        ("မြန်မာ", "မြန်မာ", 1.0),
        ("the 東京 tower", "東京 Tower!", 1.0),
        ("서울 특별시", "서울", 2 * 1 / (2 + 1)),  # Korean has spaces: words
        ("今天天气", "完全不同", 0.0),
        ("。", "", 1.0),
    ],
)
def test_scripts_without_spaces_are_compared_by_character(
    expected: str, got: str, f1: float
) -> None:
    assert token_f1(expected, got) == pytest.approx(f1)
    assert exact_match(expected, got) == (f1 == 1.0)


def test_every_letter_of_a_script_without_spaces_is_a_token() -> None:
    """Unicode's names decide, not the ranges of the code under test."""
    scripts = ("CJK UNIFIED", "HIRAGANA LETTER", "KATAKANA LETTER", "THAI CHARACTER", "LAO LETTER")
    scripts += ("KHMER LETTER", "MYANMAR LETTER", "TIBETAN LETTER", "JAVANESE LETTER")
    for code in range(0x20, 0x323B0):
        letter = chr(code)
        if unicodedata.category(letter) not in ("Lo", "Lm"):
            continue
        alone = len(answer_tokens(letter * 2)) == 2
        if unicodedata.name(letter, "").startswith(scripts):
            assert alone, (hex(code), letter)
    for spaced in ("ab", "щи", "αβ", "مر", "नम", "한글", "ከተ", "ქა"):
        assert len(answer_tokens(spaced)) == 1


def test_bleu_and_chrf_are_those_of_sacrebleu() -> None:
    for seed in range(5):
        chosen = random.Random(seed).sample(list(pairs(300)), 40)
        wanted, made = [pair[0] for pair in chosen], [pair[1] for pair in chosen]
        assert corpus_scores(chosen) == {
            "bleu": sacrebleu.corpus_bleu(made, [wanted]).score,
            "chrf": sacrebleu.corpus_chrf(made, [wanted]).score,
        }


def squad_file(path: Path, count: int) -> str:
    """Questions with several right answers, of which the model can learn only the first."""
    asked = [
        {
            "id": str(n),
            "question": f"Which number is {n}?",
            "answers": [{"text": f"no {n}", "answer_start": 0}, {"text": "six", "answer_start": 1}],
        }
        for n in range(count)
    ]
    paragraphs = [{"context": "Numbers, such as six.", "qas": asked}]
    path.write_text(json.dumps({"data": [{"title": "T", "paragraphs": paragraphs}]}))
    return str(path)


def test_every_answer_of_squad_data_is_a_reference(tmp_path: Path) -> None:
    run = surefit.train(
        data=squad_file(tmp_path / "squad.json", 40),
        model="tiny:llama",
        task="sft",
        max_steps=2,
        generate={"rows": 4, "max_new_tokens": 6},
        output=str(tmp_path / "run"),
    )
    assert run.plan["roles"]["references"] == "references"
    (event,) = [event for event in run.history if event["event"] == "eval"]
    assert all(sample["references"][1] == "six" for sample in event["samples"])
    for name, reference in (("token_f1", reference_f1), ("exact_match", reference_exact)):
        best = [
            max(reference(text, sample["got"]) for text in sample["references"])
            for sample in event["samples"]
        ]
        assert event["metrics"][name] == pytest.approx(sum(best) / len(best))
    assert surefit.evaluate(str(run.path)) == run.metrics
    sample = Sample("?", "no 1", "It is six", ("no 1", "six"))
    assert scores(sample)["token_f1"] == pytest.approx(0.5)
    assert (
        surefit.predict(run, [{"question": "Which?", "context": "six"}])[0]["prediction"]
        is not None
    )


def test_choices_of_a_question_are_no_references() -> None:
    rows = [{"question": f"{n}?", "answer": "B", "answers": ["A", "B", "C"]} for n in range(30)]
    plan = surefit.check(data=rows, model="tiny:llama", task="sft")
    assert "references" not in plan.roles
