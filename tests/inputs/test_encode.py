"""Encoding: faults gathered with their rows, drops counted, done once, stored whole or not."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import surefit
from builders import echo_rows, sentiment_rows, write_jsonl
from opening import entry_files
from surefit.batches.field import Field
from surefit.data.open_data import open_table
from surefit.data.python.rows_to_arrow import open_rows
from surefit.data.table import CHUNK_ROWS, Table
from surefit.errors import FindingError
from surefit.inputs import encode_table
from surefit.inputs.audio.audio_format import AudioFormat
from surefit.inputs.encode_table import encode_rows
from surefit.inputs.encoded_row import (
    DropReason,
    Encoding,
    RowFaultError,
    describe_counts,
    drop_row,
    encoded,
)
from surefit.inputs.encoder import Encoder, load_encoder
from surefit.inputs.encoder_state import (
    ClassLabels,
    ClassLoss,
    FittedInput,
    FittedTarget,
    Settings,
    TablePart,
    TemplateState,
)
from surefit.inputs.features.feature_layout import FeatureLayout
from surefit.inputs.image.pixel_format import PixelFormat
from surefit.inputs.row_encoder import RowEncoder, cast_columns, count_labelled, row_length
from surefit.inputs.store import Store, new_store
from surefit.progress import silent

FIELDS = {
    "input_ids": Field(("time",), "int64"),
    "labels": Field(("time",), "int64", -100, "input_ids"),
}
ENCODER = Encoder("sft", {"input_ids": "input_ids", "labels": "labels"})


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """Rows as they are; those whose ids are empty are dropped."""
    if len(row["input_ids"]) == 0:
        raise drop_row("empty")
    columns = {"input_ids": row["input_ids"], "labels": row["labels"]}
    return encoded(columns, truncated=2 * (len(row["input_ids"]) == 3), learns_eos=True)


def refuse(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """An encode that must not be called."""
    raise AssertionError("encoded again")


def run(table: Table, rows: Any = None, **changes: Any) -> Store:
    progress = changes.pop("progress", silent)
    row_encoder = replace(RowEncoder(encode, ENCODER, FIELDS, count_labelled), **changes)
    rows = np.arange(table.num_rows) if rows is None else rows
    return encode_rows(table, rows, row_encoder, progress=progress, stage="encoding")


def tokens(*rows: tuple[list[Any], list[Any]]) -> Table:
    return open_rows([{"input_ids": ids, "labels": labels} for ids, labels in rows])


def test_rows_are_encoded_dropped_and_counted() -> None:
    table = tokens(
        ([5, 6], [-100, 6]),
        ([], []),
        ([7, 8, 9], [7, 8, 9]),
        ([4, 4], [-100, -100]),
        ([], []),
    )
    store = run(table)
    assert [row["input_ids"].tolist() for row in store.rows(range(2))] == [[5, 6], [7, 8, 9]]
    assert [row["labels"].tolist() for row in store.rows(range(2))] == [[-100, 6], [7, 8, 9]]
    assert store.source_row.tolist() == [0, 2]
    assert store.num_targets.tolist() == [1, 3]
    assert store.lengths.tolist() == [2, 3]
    assert store.notes == {
        "counts": {
            "rows": 2,
            "views": 2,
            "tokens": 5,
            "trained_tokens": 4,
            "truncated_rows": 1,
            "truncated_tokens": 2,
            "rows up to 5": 1,
            "rows up to 5 tokens": 5,
            "rows_learning_eos": 2,
        },
        "dropped": {"empty": 2, "nothing_to_learn": 1},
        "dropped_examples": {"empty": [1, 4], "nothing_to_learn": [3]},
        "dropped_copies": {},
        "remarks": [],
    }


def test_only_the_chosen_rows_are_encoded() -> None:
    table = tokens(*(([place, place], [place, place]) for place in range(5)))
    store = run(table, np.array([4, 1]))
    assert store.source_row.tolist() == [4, 1]
    assert store.row(0)["input_ids"].tolist() == [4, 4]


def test_faults_of_all_rows_are_gathered_by_kind(tmp_path: Path, cache: Path) -> None:
    good: dict[str, Any] = {"input_ids": [1.0, 2.0], "labels": [1, 2]}
    rows = [good] * (CHUNK_ROWS + 10)
    for place in (7, 900, CHUNK_ROWS + 2):
        rows[place] = {"input_ids": [1.0, 2.0], "labels": [1]}
    rows[CHUNK_ROWS + 1] = {"input_ids": [1.5], "labels": [1]}
    rows[CHUNK_ROWS + 5] = {"input_ids": [float("nan")], "labels": [1]}
    first = write_jsonl(tmp_path / "a.jsonl", rows[:5])
    second = write_jsonl(tmp_path / "b.jsonl", rows[5:])
    with pytest.raises(FindingError) as caught:
        run(open_table([first, second]))
    found = {finding.code: finding for finding in caught.value.findings}
    assert sorted(found) == ["SF201", "SF207", "SF213"]
    assert found["SF201"].where == {"file": str(second), "row": 2, "column": "labels"}
    assert found["SF201"].message == (
        "row 2: column 'labels' has length 1, but 'input_ids', which it is aligned with, "
        f"has length 2 (2 more rows like it: 895, {CHUNK_ROWS - 3})"
    )
    assert found["SF213"].where["row"] == CHUNK_ROWS + 1 - 5
    assert found["SF207"].where["row"] == CHUNK_ROWS + 5 - 5
    assert not list((cache / "encoded").iterdir()), "nothing is kept of a failed encoding"


def test_fault_names_the_users_column_not_the_batchs() -> None:
    encoder = Encoder("feature-classification", {"features": "X", "label": "y"})
    with pytest.raises(FindingError) as caught:
        run(
            open_rows([{"X": [[1.0, float("inf")]], "y": 0}]),
            encode=lambda row, encoder: {"inputs_embeds": row["features"]},
            fields={"inputs_embeds": Field(("time", "width"))},
            encoder=encoder,
        )
    (found,) = caught.value.findings
    assert found.message == "row 0: column 'X' contains inf at [0, 1]"
    assert found.where["column"] == "X"


CAST_FAULTS: dict[str, tuple[Any, Field, str, str]] = {
    "lists of two lengths": ([[1], [1, 2]], Field(("a", "b")), "SF208", "different lengths"),
    "text": (["a"], Field(("a",)), "SF213", "expected numbers"),
    "missing": (None, Field(("a",)), "SF213", "expected numbers"),
    "one axis too few": (1.0, Field(("a",)), "SF208", "has shape []; expected 1 axes (a)"),
    "one axis too many": ([1.0], Field(), "SF208", "expected 0 axes (a single value)"),
    "fractions": ([1.5], Field(("a",), "int64"), "SF213", "fractions"),
    "not a number among ids": ([1, np.nan], Field(("a",), "int64"), "SF207", "nan at [1]"),
    "infinity": ([[0.0, np.inf]], Field(("a", "b")), "SF207", "inf at [0, 1]"),
}


@pytest.mark.parametrize("name", CAST_FAULTS)
def test_value_that_does_not_fit_its_field(name: str) -> None:
    value, field, code, message = CAST_FAULTS[name]
    with pytest.raises(RowFaultError) as caught:
        cast_columns({"x": value}, {"x": field})
    assert (caught.value.rule.code, caught.value.column) == (code, "x")
    assert message in caught.value.message


def test_column_that_encode_forgot() -> None:
    with pytest.raises(RowFaultError, match="column 'x' is missing") as caught:
        cast_columns({}, {"x": Field()})
    assert caught.value.rule.code == "SF202"


def test_cast_gives_exactly_the_fields_in_their_dtypes() -> None:
    cast = cast_columns(
        {"a": [1.0, 2.0], "b": np.float64(0.5), "c": [[True]], "more": "text"},
        {"a": Field(("t",), "int64"), "b": Field(), "c": Field(("t", "w"), "float32")},
    )
    assert {name: (value.dtype.name, value.tolist()) for name, value in cast.items()} == {
        "a": ("int64", [1, 2]),
        "b": ("float32", 0.5),
        "c": ("float32", [[1.0]]),
    }


@pytest.mark.parametrize(
    ("columns", "length", "targets"),
    [
        ({"input_ids": np.zeros(3), "labels": np.array([-100, 1, 2])}, 3, 2),
        ({"inputs_embeds": np.zeros((4, 2)), "labels": np.array(1)}, 4, 1),
        ({"pixel_values": np.zeros((3, 8, 8))}, 1, 1),
        ({"labels": np.array([0.5, 1.5])}, 1, 1),
    ],
)
def test_length_and_targets_of_a_row(columns: dict[str, Any], length: int, targets: int) -> None:
    assert (row_length(columns, {}), count_labelled(columns)) == (length, targets)


def test_second_call_encodes_nothing_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tokens(([5, 6], [5, 6]))
    first = run(table)
    written = entry_files(cache)
    monkeypatch.setattr(refuse, "__qualname__", encode.__qualname__)
    second = run(table, encode=refuse)
    assert second.key == first.key
    assert entry_files(cache) == written


CHANGES: dict[str, dict[str, Any]] = {
    "other rows": {"rows": np.array([1])},
    "another order": {"rows": np.array([1, 0])},
    "another limit": {"encoder": replace(ENCODER, max_length=7)},
    "another setting": {"encoder": ENCODER.with_settings(overlong="drop")},
    "other classes": {"encoder": replace(ENCODER, target=FittedTarget(ClassLabels((1,))))},
    "another pad value": {"fields": {**FIELDS, "input_ids": Field(("time",), "int64", 9)}},
    "other code": {"encode": lambda row, encoder: encode(row, encoder)},
    "another count of targets": {"count_targets": lambda columns: 1},
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_changes_the_result_changes_the_key(name: str) -> None:
    table = tokens(([5, 6], [5, 6]), ([7], [7]))
    assert run(table).key != run(table, **CHANGES[name]).key


def test_value_that_encode_closes_over_changes_the_key() -> None:
    def shifted(by: int) -> Any:
        return lambda row, encoder: {"input_ids": [by], "labels": [by]}

    table = tokens(([5, 6], [5, 6]))
    stores = [run(table, encode=shifted(by)) for by in (1, 2, 1)]
    assert [store.row(0)["input_ids"].tolist() for store in stores] == [[1], [2], [1]]
    assert stores[0].key == stores[2].key


def test_encoder_comes_back_from_its_file(tmp_path: Path) -> None:
    encoder = Encoder(
        "text-classification",
        {"text": "body", "label": "stars"},
        max_length=12,
        settings=Settings("drop", missing={"body": ("na",)}, loss=ClassLoss((1.0, 2.0))),
        input=FittedInput(
            pixels=PixelFormat(4, 5, (0.5,), (1.0,)),
            audio=AudioFormat(8000, 1.0, axes=("time", "mel"), extractor={"rate": 8000}),
            layout=FeatureLayout(drop=(0,)),
            columns=(TablePart("a", "category", values=(1, 2.5, "x", True, None)),),
            template=TemplateState("plain", "{{ x }}", None),
            shapes={"x": (2, 3)},
        ),
        target=FittedTarget(ClassLabels((1, "two"), (3, 4))),
        extras={"age": Field((), "int64")},
    )
    encoder.save(tmp_path)
    loaded = load_encoder(tmp_path)
    assert loaded == encoder
    assert loaded.class_ids == {1: 0, "two": 1}
    assert loaded.read({"body": "x", "stars": 1, "age": 3, "other": 4}) == {
        "text": "x",
        "label": 1,
        "age": 3,
    }


DTYPES = ("int64", "int32", "uint8", "float32", "float64", "float16", "bool")


@st.composite
def stores(draw: st.DrawFn) -> tuple[dict[str, Field], list[dict[str, Any]]]:
    """Fields of any rank and dtype, and ragged rows of them, some without a single value."""
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True))
    fields = {
        name: Field(
            tuple(f"{name}{axis}" for axis in range(draw(st.integers(0, 3)))),
            draw(st.sampled_from(DTYPES)),
        )
        for name in names
    }
    rows = []
    for _ in range(draw(st.integers(0, 5))):
        shapes = {n: tuple(draw(st.integers(0, 3)) for _ in f.axes) for n, f in fields.items()}
        rows.append(
            {n: draw(arrays.arrays(f.numpy_dtype, shapes[n])) for n, f in fields.items()},
        )
    return fields, rows


def write(folder: Path, fields: dict[str, Field], rows: list[dict[str, Any]]) -> Store:
    with new_store(folder, fields, {"kept": [1, "x"]}) as writer:
        for place, row in enumerate(rows):
            writer.append(row, source_row=10 * place, num_targets=place + 1, length=place + 2)
    return Store(folder)


@settings(deadline=None)
@given(stores())
def test_rows_come_back_as_they_were_written(
    content: tuple[dict[str, Field], list[dict[str, Any]]],
) -> None:
    fields, rows = content
    with tempfile.TemporaryDirectory() as folder:
        store = write(Path(folder) / "store", fields, rows)
        assert len(store) == len(rows)
        assert store.fields == fields
        for got, row in zip(store.rows(range(len(rows))), rows, strict=True):
            assert list(got) == list(fields)
            for name, value in row.items():
                assert got[name].dtype == fields[name].numpy_dtype
                assert got[name].shape == value.shape
                assert got[name].tobytes() == value.tobytes()


def test_values_are_mapped_from_disk_not_held(tmp_path: Path) -> None:
    fields = {"x": Field(("time",), "int64")}
    store = write(tmp_path / "store", fields, [{"x": np.arange(5)}])
    value = store.row(0)["x"]
    assert isinstance(value.base.base, np.memmap)
    assert not value.flags.writeable


def test_failure_half_way_leaves_nothing(tmp_path: Path) -> None:
    fields = {"x": Field(("time",), "int64")}
    good, bad = {"x": np.arange(2)}, {"y": np.arange(2)}
    with pytest.raises(KeyError):
        write(tmp_path / "store", fields, [good, bad])
    assert list(tmp_path.iterdir()) == []


ROWS: list[dict[str, Any]] = echo_rows(700)
ROWS[5] = ROWS[300] = {"prompt": "", "completion": "x"}  # dropped, with a remark


class PowerCut(BaseException):
    """Neither an error nor a signal that anyone handles."""


def _check(cache: Path, **options: Any) -> Any:
    return surefit.check(data=ROWS, model="tiny:llama", eval_share=0.0, cache=str(cache), **options)


def _stores(cache: Path) -> dict[str, bytes]:
    files = (p for p in (cache / "encoded").rglob("*") if p.is_file() and p.name != ".surefit")
    return {str(path.relative_to(cache)): path.read_bytes() for path in files}


def test_it_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _check(tmp_path / "whole")
    monkeypatch.setattr(encode_table, "CHUNK_ROWS", 100)
    begin, count = RowEncoder.begin, 0

    def cut(*given: Any) -> Any:
        nonlocal count
        count += 1
        if count == 650:
            raise PowerCut
        return begin(*given)

    monkeypatch.setattr(RowEncoder, "begin", cut)
    with pytest.raises(PowerCut):
        _check(tmp_path / "cut")
    assert not any((tmp_path / "cut/encoded").iterdir())
    plan = _check(tmp_path / "cut")
    assert _stores(tmp_path / "cut") == _stores(tmp_path / "whole")
    assert plan.findings == whole.findings
    assert plan.ledger == whole.ledger


@pytest.mark.parametrize("reason", DropReason)
def test_every_reason_is_said_in_words_with_a_fix(reason: DropReason) -> None:
    assert describe_counts({reason.value: 1200}) == f"1,200 {reason.phrase}"
    assert "_" not in reason.phrase
    assert reason.fix.endswith(".")
    assert "Nothing to do" not in reason.fix


def dropped(plan: Any) -> str:
    (note,) = (note for note in plan.notes if "dropped: " in note)
    return str(note)


def test_lost_rows_have_a_fix_for_each_reason() -> None:
    rows: list[Any] = sentiment_rows(60)
    rows[4]["text"], rows[11]["label"] = "", None
    assert dropped(surefit.check(data=rows, model="tiny:bert")).startswith(
        "2 of 60 rows are dropped: 1 empty, 1 without a label. "
        "For example, row 4 (empty), row 11 (without a label). "
        f"{DropReason.EMPTY.fix} {DropReason.NO_LABEL.fix}"
    )


def test_own_task_may_give_its_own_reason_or_have_no_target() -> None:
    from surefit import Field, TaskSpec
    from surefit.targets.task_spec import Head

    def encode(row: Any, encoder: Any) -> Any:
        if row["text"].startswith("short"):
            raise drop_row("shorter than a sentence")
        ids = encoder.tokenizer(row["text"])["input_ids"]
        return {"input_ids": ids, "labels": float(row["label"])}

    def loss(outputs: Any, batch: Any) -> Any:
        wrong = outputs.logits[:, 0] - batch["labels"]
        return wrong.square().sum(), len(wrong)

    task = TaskSpec(
        name="scores",
        fields={"input_ids": Field(("time",), "int64"), "labels": Field()},
        encode=encode,
        loss=loss,
        needs=(("text", "label"),),
        head=Head("AutoModelForSequenceClassification", config=lambda _: {"num_labels": 1}),
        count_targets=lambda columns: int(columns["labels"] >= 0),
    )
    texts = ["short one", "unscored", *(f"a sentence of words {n}" for n in range(40))]
    rows = [{"text": text, "label": -1.0 if n == 1 else 0.5} for n, text in enumerate(texts)]
    plan = surefit.check(data=rows, model="tiny:bert", task=task)
    assert plan.ledger.dropped_rows == {"no_target": 1, "shorter than a sentence": 1}
    message = (
        "2 of 42 rows are dropped: 1 without a target, 1 shorter than a sentence. "
        "For example, row 1 (without a target), row 0 (shorter than a sentence)."
    )
    assert dropped(plan).startswith(message)
