"""Near-copies: found by content, compared word by word, with what they share."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from surefit.checks.copies import (
    Side,
    check_near_copies,
    shared_words,
)
from surefit.data.cache import fingerprint
from surefit.data.row_parts import RowParts
from surefit.data.table import Source, Table
from surefit.data.text_sketches import common_pairs, sketch

VOCABULARY = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in ("lm", "rs", "nt", "sh")]
PARTS = RowParts({"text": "text", "label": "label"}, ("label",))


def texts(count: int, seed: int = 0) -> list[str]:
    choose = random.Random(seed)
    return [" ".join(choose.choices(VOCABULARY, k=20)) for _ in range(count)]


def side(rows: list[str]) -> Side:
    values = pa.table({"text": rows, "label": ["a"] * len(rows)})
    table = Table(values, (Source("f", 0),), fingerprint(rows))
    return Side(table, np.arange(len(rows)), PARTS)


def changed(text: str, seed: int) -> str:
    words = text.split()
    words[seed % len(words)] = "replaced"
    return " ".join(words)


def test_every_changed_copy_is_found_and_nothing_else() -> None:
    originals = texts(400)
    copies = [changed(text, n) for n, text in enumerate(originals[:30])]
    (found,) = check_near_copies(side(originals), side([*texts(70, 1), *copies]), 0)
    assert (found.code, found.where["row"]) == ("SF180", 70)
    assert found.message.startswith("30 of 100 validation rows are near-copies")
    assert "replaced" in found.message


def test_the_same_rows_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    originals = texts(40)
    copies = [changed(text, n) for n, text in enumerate(originals[:10])]
    first = check_near_copies(side(originals), side(copies), 0)
    with monkeypatch.context() as patched:
        patched.setattr("surefit.checks.copies.sketch", None)
        assert check_near_copies(side(originals), side(copies), 0) == first
    assert check_near_copies(side(originals), side(texts(10, 1)), 0) == []


def test_texts_of_their_own_are_not_copies() -> None:
    assert check_near_copies(side(texts(400)), side(texts(100, 1)), 0) == []


@pytest.mark.parametrize("language", ["東京都は日本の首都であり人口が最も多い都市です", "ein Haus"])
def test_sketches_are_equal_where_texts_differ_in_case_and_signs_only(language: str) -> None:
    text = f"{language} with several further words after it, and more"
    both = side([text, text.upper().replace(",", " ;")])
    common = common_pairs(both.table, ["text"], both.rows)
    made = sketch(both.table, ["text"], both.rows, common)
    assert (made.values[0] == made.values[1]).all()
    assert made.values.nbytes == 2 * 64


def words(text: str, target: str = "yes") -> tuple[list[str], list[str]]:
    return text.split(), [target]


BASE = "the committee will meet again in the large hall after the long break"
NOT_COPIES = {
    "another number": (words(f"{BASE} at 3"), words(f"{BASE} at 4")),
    "another target": (words(BASE), words(f"today {BASE}", "no")),
    "short": (words("turn the light on"), words("turn the lights on")),
    "two slots": (words(BASE), words(BASE.replace("hall", "tent").replace("long", "first"))),
    "the same": (words(BASE), words(BASE)),
}


@pytest.mark.parametrize("pair", NOT_COPIES.values(), ids=NOT_COPIES)
def test_what_is_no_copy(pair: tuple[tuple[list[str], list[str]], ...]) -> None:
    assert shared_words(*pair) is None


def test_what_is_a_copy() -> None:
    for other in (f"please {BASE}", BASE.replace("large", "larger"), BASE.replace("again", "soon")):
        share = shared_words(words(BASE), words(other))
        assert share is not None
        assert share > 0.9
