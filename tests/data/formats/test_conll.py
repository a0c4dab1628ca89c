"""CoNLL columns: sentences as lists of tokens and tags; faults named by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from opening import fault_of, rows_of, written

SENTENCES = [
    {"tokens": ["New", "York", "#", "#tag"], "tags": ["B-loc", "I-loc", "O", "O"]},
    {"tokens": ["Yes"], "tags": ["O"]},
]


@pytest.mark.parametrize("blank", ["\n", "\t\n", "\r\n", "\n\n \n"])
@pytest.mark.parametrize("delimiter", ["\t", " ", "   "])
def test_tokens_and_tags(tmp_path: Path, delimiter: str, blank: str) -> None:
    lines = ["-DOCSTART- O\n\n"]
    for sentence in SENTENCES:
        pairs = zip(sentence["tokens"], sentence["tags"], strict=True)
        lines += [f"{token}{delimiter}{tag}\n" for token, tag in pairs] + [blank]
    lines.insert(1, "# a comment of several words\n")
    assert rows_of(written(tmp_path / "a.conll", "".join(lines))) == SENTENCES
    assert rows_of(written(tmp_path / "b.conll.gz", "".join(lines).rstrip())) == SENTENCES


def test_further_columns_are_kept(tmp_path: Path) -> None:
    path = written(tmp_path / "a.conll", "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n")
    (row,) = rows_of(path)
    assert row == {
        "tokens": ["EU", "rejects"],
        "column_1": ["NNP", "VBZ"],
        "column_2": ["B-NP", "B-VP"],
        "tags": ["B-ORG", "O"],
    }
    assert list(rows_of(path, names=("words", "pos", "chunk", "ner"))[0])[-1] == "ner"


def test_universal_dependencies(tmp_path: Path) -> None:
    rest = "\t_\t_\t0\troot\t_\t_\n"
    text = f"# text = im Haus\n1-2\tim\t_\t_{rest}1\tin\tin\tADP{rest}2\tdem\tder\tDET{rest}"
    (row,) = rows_of(written(tmp_path / "a.conllu", text))
    assert (row["tokens"], row["tags"]) == (["in", "dem"], ["ADP", "DET"])


def test_tokens_with_spaces_in_a_table_of_tabs(tmp_path: Path) -> None:
    (row,) = rows_of(written(tmp_path / "a.conll", "New York\tB-loc\nyes\tO\n"))
    assert row["tokens"] == ["New York", "yes"]


@pytest.mark.parametrize("line", ["alone", "#alone", "too\tmany\tcells"])
def test_other_number_of_columns_is_named_by_line(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "a.conll", f"a\tO\nb\tO\n\n{line}\nc\tO\n")
    found = fault_of(path)
    assert (found.code, found.where) == ("SF102", {"file": str(path), "line": 4})
    assert "but 2 in other lines (tokens, tags)" in found.message


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n\n", "-DOCSTART- O\n"])
def test_file_without_sentences(tmp_path: Path, text: str) -> None:
    assert fault_of(written(tmp_path / "a.conll", text)).code == "SF101"
