"""Text files: one row per line, labels at the front, patterns, and texts side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from opening import fault_of, notes_of, rows_of, written
from surefit.data.open_data import open_table
from surefit.errors import UsageError


def test_every_line_is_a_row(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "one\r\n\n three \nfour")
    assert [row["text"] for row in rows_of(path)] == ["one", "", " three ", "four"]
    assert notes_of(path) == []


def test_text_under_another_ending_is_read_with_a_note(tmp_path: Path) -> None:
    path = written(tmp_path / "corpus.old", "one\ntwo\n")
    assert rows_of(path) == [{"text": "one"}, {"text": "two"}]
    assert notes_of(path) == [("SF113", "corpus.old is read as text, one row per line.")]


def test_other_files_are_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has the ending '.xlsx'; expected .jsonl, "):
        rows_of(written(tmp_path / "a.xlsx", b"PK\x03\x04\x14\x00\x06\x00"))


TREC = "DESC:manner How so ?\nENTY:animal What is it ?\nDESC:def What 's a def ?\nENTY:food Eat ?\n"


def test_label_and_finer_label_at_the_front(tmp_path: Path) -> None:
    path = written(tmp_path / "TREC.train", TREC)
    assert rows_of(path)[1] == {"label": "ENTY", "fine": "animal", "text": "What is it ?"}
    ((code, message),) = notes_of(path)
    assert (code, "label, fine, text" in message) == ("SF113", True)


def test_line_without_the_label_of_the_others_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", TREC * 300 + "no label here\n")
    found = fault_of(path)
    assert (found.code, found.where) == ("SF102", {"file": str(path), "line": 1201})
    assert "'LABEL:fine text'" in found.message


@pytest.mark.parametrize(
    "text",
    [
        "First Citizen:\nSpeak.\nAll:\nSpeak, speak.\n",
        "see http://a.b c\nx:y z\nu:v w\na:b c\n",
        "one:a x\ntwo:b x\nthree:c x\nfour:d x\n",
    ],
)
def test_text_with_colons_stays_text(tmp_path: Path, text: str) -> None:
    assert list(rows_of(written(tmp_path / "a.txt", text))[0]) == ["text"]


def test_fasttext_lines(tmp_path: Path) -> None:
    one = "__label__a good thing\n__label__b bad\n__label__a fine\n\n__label__b\n"
    rows = rows_of(written(tmp_path / "one.txt", one))
    assert [row["label"] for row in rows] == ["a", "b", "a", "b"]
    assert [row["text"] for row in rows] == ["good thing", "bad", "fine", None]
    several = one * 400 + "__label__a __label__b both\n"
    rows = rows_of(written(tmp_path / "several.txt", several))
    assert (rows[0]["label"], rows[-1]["label"]) == (["a"], ["a", "b"])


def test_pattern_overrules(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "3 stars: good\n1 stars: bad\n\nno stars\n")
    pattern = r"(?P<stars>\d) stars: (?P<text>.*)"
    found = fault_of(path, pattern=pattern)
    assert (found.code, found.where["line"]) == ("SF102", 4)
    path.write_text("3 stars: good\n1 stars: bad\n")
    assert rows_of(path, pattern=pattern)[1] == {"stars": "1", "text": "bad"}
    assert rows_of(written(tmp_path / "t", TREC), pattern="(?P<text>.*)")[0] == {
        "text": "DESC:manner How so ?"
    }
    for wrong in ("(", "no groups"):
        with pytest.raises(UsageError, match=r"read\.pattern is"):
            rows_of(path, pattern=wrong)


def test_two_texts_of_equal_length_are_source_and_target(tmp_path: Path) -> None:
    english = written(tmp_path / "train.en.gz", "a dog\n\ntwo dogs\n")
    german = written(tmp_path / "train.de", "ein Hund\nleer\nzwei Hunde")
    assert rows_of([english, german])[2] == {"source": "two dogs", "target": "zwei Hunde"}
    ((code, message),) = notes_of([english, german])
    assert code == "SF116"
    assert "train.en.gz has 3 lines, train.de has 3" in message


def test_pair_of_different_length_is_refused_with_both_counts(tmp_path: Path) -> None:
    files = [written(tmp_path / "a.en", "1\n2\n3\n"), written(tmp_path / "a.de", "1\n2\n")]
    found = fault_of(files)
    assert (found.code, found.where) == ("SF106", {"file": str(files[1]), "line": 3})
    assert "a.en has 3 lines, a.de has 2" in found.message


def test_two_texts_of_different_length_are_read_with_a_warning(tmp_path: Path) -> None:
    files = [written(tmp_path / "a.txt", "1\n2\n3\n"), written(tmp_path / "b.txt", "4\n5\n")]
    assert [row["text"] for row in rows_of(files)] == list("12345")
    assert notes_of(files)[0][0] == "SF117"
    assert open_table(files).where(3) == {"file": str(files[1]), "row": 0}


def test_texts_of_a_folder_are_parts_of_one_text(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "README.txt", "settings.yaml"):
        written(tmp_path / name, f"{name}\n")
    assert [row["text"] for row in rows_of(tmp_path)] == ["a.txt", "b.txt"]


def test_folder_prefers_data_to_what_lies_beside_it(tmp_path: Path) -> None:
    written(tmp_path / "notes.txt", "a note")
    written(tmp_path / "info.json", '{"name": "x"}')
    written(tmp_path / "LICENSE", "free")
    assert rows_of(tmp_path) == [{"name": "x"}]
    written(tmp_path / "train.csv", "x\n1\n")
    assert rows_of(tmp_path) == [{"x": 1}]


def test_trec_and_multi30k(shared: Path) -> None:
    rows = rows_of(shared / "data" / "trec" / "TREC.train")
    assert len(rows) == 5452
    assert {row["label"] for row in rows} == {"ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"}
    assert "sisterðcity" in rows[65]["text"]
    folder = shared / "data" / "multi30k"
    table = open_table([folder / "val.en.gz", folder / "val.de.gz"])
    assert (table.num_rows, table.columns) == (1014, ("source", "target"))
