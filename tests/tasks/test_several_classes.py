"""Several classes per row: in lists, arrays of 0 and 1, columns, or texts such as red|blue."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

import surefit
from builders import WORDS, MeanPool, feature_rows, learn, write_jsonl
from surefit.cli import run as command
from surefit.data.python.rows_to_arrow import open_rows
from surefit.data.several_columns import join_columns
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import ClassLabels, FittedTarget, LabelReading, Settings
from surefit.targets.classes import (
    class_id,
    class_list,
    find_separator,
    fit_classes,
    likely_separator,
)

PARTS = ["left", "right"]


def images(count: int) -> tuple[Any, Any]:
    """Images with a bright left half, right half, both or none, and which."""
    random = np.random.default_rng(0)
    made, lit = random.integers(0, 60, (count, 8, 8)), random.integers(0, 2, (count, 2))
    for image, (left, right) in zip(made, lit, strict=True):
        image[:, :4] += 180 * left
        image[:, 4:] += 180 * right
    return made.astype("uint8"), lit


def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64, 2))


def names(row: Any) -> list[str]:
    return [name for name, there in zip(PARTS, row, strict=True) if there]


FORMS: dict[str, Any] = {
    "lists of names": lambda lit: {"label": [names(row) for row in lit]},
    "arrays of 0 and 1": lambda lit: {"label": lit.astype("float32")},
    "columns of 0 and 1": lambda lit: dict(zip(PARTS, lit.T, strict=True)),
    "texts": lambda lit: {"label": ["|".join(names(row)) or None for row in lit]},
}


@pytest.mark.parametrize("form", FORMS)
def test_images_may_have_several_classes(form: str) -> None:
    made, lit = images(60)
    columns = {"columns": {"label": PARTS}} if form.startswith("columns") else {}
    plan = surefit.check(
        data={"image": [*made], **{n: [*v] for n, v in FORMS[form](lit).items()}},
        model=module(),
        **columns,
    )
    assert plan.job is not None, plan.findings
    assert plan.task is not None
    assert plan.task.name == "image-classification"
    encoder, train = plan.job.pipeline.encoder, plan.job.train
    assert [*map(str, encoder.classes)] == (["0", "1"] if form.startswith("arrays") else PARTS)
    for place in range(5):
        row = lit[int(train.source_row[place])]
        assert train.row(place)["labels"].tolist() == row.tolist()


@pytest.mark.parametrize("labels", [[0, 1] * 30, [*np.eye(2)[[0, 1] * 30]]], ids=["int", "one-hot"])
def test_a_named_column_of_classes_is_not_taken_for_masks(labels: list[Any]) -> None:
    data = {"image": [*images(60)[0]], "kind": labels}
    plan = surefit.check(data=data, model=module(), columns={"label": "kind"})
    assert plan.task is not None
    assert (plan.task.name, plan.ok) == ("image-classification", True)


def test_images_are_trained_and_predicted_with_several_classes(tmp_path: Path) -> None:
    made, lit = images(200)
    data = {"image": [*made], "label": [names(row) for row in lit]}
    run = surefit.train(data=data, model=module(), epochs=6, lr=0.02, output=str(tmp_path / "run"))
    assert run.metrics["macro_f1"] > 0.9
    assert {"top1", "top5"} <= run.metrics.keys()
    found = surefit.predict(run, {"image": [*made[:20]]})
    right = [each["prediction"] == names(row) for each, row in zip(found, lit, strict=False)]
    assert sum(right) > 15


def test_only_texts_whose_parts_recur_are_taken_apart() -> None:
    several = ["red", "blue", "red|blue", "green|red"]
    assert find_separator(several) == "|"
    assert find_separator([name.replace("|", ", ") for name in [*several, "green"]]) == ","
    for single in (
        ["Austin, TX", "Dallas, TX", "Reno, NV"],
        ["fruit", "fruit, dried", "nuts", "nuts, dried"],
        ["a|b", "c|d"],
        ["x;y", "x;z", "w;y", "w;z"],  # always two: a name with two parts
        ["plain", "names"],
    ):
        assert find_separator(single) is None, single


def fitted(labels: list[str], asked: str | None = None) -> Encoder:
    encoder = Encoder("t", {"label": "label"}, settings=Settings(labels=LabelReading(asked)))
    found = fit_classes(({"label": label} for label in labels), encoder)
    return Encoder("t", {"label": "label"}, target=FittedTarget(found))


def test_the_separator_can_be_named_or_refused() -> None:
    labels = ["red", "blue", "red|blue"] * 5
    assert class_id({"label": "blue | red"}, fitted(labels)).tolist() == [1, 1]
    assert class_id({"label": "red|blue"}, fitted(labels, "none")) == 2
    slashes = fitted(["a/b", "c/d", "a/d"] * 5, "/")
    assert class_id({"label": "d/b"}, slashes).tolist() == [0, 1, 0, 1]


def test_the_plan_reports_what_it_takes_apart() -> None:
    rows = [{"a": n % 7, "b": n % 5, "label": ["x", "y", "x;y"][n % 3]} for n in range(40)]
    plan = surefit.check(data=rows, model="tiny:mlp", eval_share=0)
    said = "column 'label': labels with ';' are several classes; there are 2."
    assert any(said in note for note in plan.notes)
    plan = surefit.check(data=rows, model="tiny:mlp", eval_share=0, label_separator="none")
    assert not any("several classes" in note for note in plan.notes)
    assert plan.job is not None
    assert plan.job.pipeline.encoder.classes == ["x", "x;y", "y"]


COLOURS = ["red", "blue", "gold"]


def coloured(path: Path, sign: str) -> str:
    """A table whose label names the columns above 0.5, which may be none of them."""
    random = np.random.default_rng(0)
    lines = ["a,b,c,kinds"]
    for values in random.uniform(size=(120, 3)):
        kinds = [name for name, value in zip(COLOURS, values, strict=True) if value > 0.5]
        lines.append(f"{','.join(map(str, values))},{sign.join(kinds)}")
    path.write_text("\n".join(lines))
    return str(path)


def planned(data: str, **options: Any) -> Any:
    columns = {"label": "kinds"}
    task = "tabular-classification"
    return surefit.check(data=data, model="tiny:mlp", task=task, columns=columns, **options)


def test_blank_labels_may_mean_no_class(tmp_path: Path) -> None:
    data = coloured(tmp_path / "rows.csv", ";")
    blank = sum(line.endswith(",") for line in Path(data).read_text().splitlines())
    plan = planned(data)
    (found,) = (found for found in plan.findings if found.code == "SF128")
    assert f"{blank} of 120 labels are blank" in found.message
    assert "accept=[SF128]" in found.fix
    assert plan.ledger.dropped_rows == {"no_label": blank}
    accepted = planned(data, accept=["SF128"])
    assert accepted.ledger.dropped_rows == {}
    encoder, train = accepted.job.pipeline.encoder, accepted.job.train
    assert encoder.classes == sorted(COLOURS)
    empty = [place for place in range(len(train)) if not train.value("labels", place).any()]
    assert 0 < len(empty) <= blank


def test_another_sign_between_classes_is_reported(tmp_path: Path) -> None:
    data = coloured(tmp_path / "rows.csv", " / ")
    (found,) = (found for found in planned(data).findings if found.code == "SF129")
    assert "label_separator=/" in found.fix
    for sign in ("/", "none"):
        plan = planned(data, label_separator=sign)
        assert "SF129" not in [found.code for found in plan.findings]


@pytest.mark.parametrize(
    "labels",
    [
        ["n/a", "km/h", "m/s"],
        ["km/h", "m/h", "km/s", "m/s", "km", "m"],
        ["Sci-fi / Fantasy", "Fantasy", "Drama", "Action / Adventure", "Comedy"],
        ["R&B", "Rock & Roll", "Rock", "Drum & Bass", "Pop"],
        ["TCP/IP", "UDP/IP", "TCP", "UDP", "IP"],
        ["A+", "A", "B+", "B", "C"],
        ["1/2", "1/3", "2/3", "1"],
        ["fruit", "fruit/apple", "fruit/pear", "veg/leek", "veg", "fruit/fig"],
    ],
)
def test_signs_within_names_are_no_separators(labels: list[str]) -> None:
    assert likely_separator(labels) is None


CLASSES = np.array([row["label"] for row in feature_rows(30)])


def check(tmp_path: Path, labels: Any) -> Any:
    numbers = np.random.default_rng(0).normal(size=(30, 5, 4)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=numbers, y=labels)
    return surefit.check(
        data=str(tmp_path / "rows.npz"), model=MeanPool(), task="feature-classification"
    )


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_one_column_of_labels_is_one_class_per_row(tmp_path: Path, dtype: str) -> None:
    plan = check(tmp_path, CLASSES[:, None].astype(dtype))
    assert plan.ok
    assert plan.job.pipeline.encoder.classes == [0, 1, 2]


def fit(*labels: Any) -> ClassLabels:
    encoder = Encoder("text-classification", {"text": "text", "label": "label"})
    return fit_classes(({"label": label} for label in labels), encoder)


def test_one_hot_lists_are_one_class() -> None:
    rows = [[int(n % 3 == place) for place in range(3)] for n in range(30)]
    fitted = fit(*rows)
    assert fitted == ClassLabels((0, 1, 2), (10, 10, 10), hot_size=3)
    encoder = Encoder("t", {"label": "label"}, target=FittedTarget(fitted))
    assert class_id({"label": [0, 0, 1]}, encoder) == 2
    with pytest.raises(RowFaultError, match="expected 3 values of 0 and 1"):
        class_id({"label": [0, 1]}, encoder)


@pytest.mark.parametrize("kind", [int, float, bool])
def test_lists_of_0_and_1_are_several_classes(kind: type) -> None:
    fitted = fit(*([kind(n % 2), kind(n % 3 > 0), kind(0)] for n in range(30)))
    assert fitted.several
    assert fitted.names == (0, 1)  # no row has the third
    encoder = Encoder("t", {"label": "label"}, target=FittedTarget(fitted))
    assert class_id({"label": [kind(0), kind(1), kind(0)]}, encoder).tolist() == [0, 1]
    assert class_id({"label": [kind(0)] * 3}, encoder).tolist() == [0, 0]


def test_class_numbers_0_and_1_in_lists_stay_class_numbers() -> None:
    fitted = fit(*[[0, 1], [1, 0], [2], [0]] * 5)
    assert fitted == ClassLabels((0, 1, 2), (15, 10, 5), several=True)


def test_a_list_of_another_length_is_at_fault() -> None:
    with pytest.raises(RowFaultError, match="the lists of 0 and 1 before it have 3 values"):
        fit([0, 1, 1], [1, 0, 0], [0, 1])


def test_a_class_twice_in_a_list_is_not_called_one_hot() -> None:
    with pytest.raises(RowFaultError, match="each of the row's classes once") as caught:
        fit(["a", "b"], ["a", "a"])
    assert "argmax" not in caught.value.fix


TOPICS = ["cat", "moon", "red"]


def topic_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The labels of a text are those of three words that it says."""
    choose = random.Random(seed)
    texts = [choose.choices(WORDS, k=choose.randint(2, 6)) for _ in range(count)]
    return [{"text": " ".join(t), "labels": [w for w in TOPICS if w in t]} for t in texts]


def pair_rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Both texts say good or bad; what the second one says is the label."""
    choose = random.Random(seed)
    rows = []
    for _ in range(count):
        said = choose.choices(["good", "bad"], k=2)
        texts = [" ".join([*choose.choices(WORDS, k=2), word]) for word in said]
        rows.append({"sentence1": texts[0], "sentence2": texts[1], "label": said[1]})
    return rows


def test_every_topic_of_a_text(tmp_path: Path) -> None:
    run = learn(tmp_path, topic_rows(300), "tiny:bert", epochs=3, batch_size=8, lr=2e-3)
    assert run.plan["task"] == "text-classification"
    assert set(run.metrics) == {"loss", "accuracy", "macro_f1"}
    assert run.metrics["accuracy"] > 0.9
    assert run.metrics["macro_f1"] > 0.9
    both, none = surefit.predict(run, [{"text": "moon tree red"}, {"text": "dog tree"}])
    assert both["prediction"] == ["moon", "red"]
    assert all(chance > 0.5 for chance in both["probabilities"])
    assert none["prediction"] == []
    plain = AutoModelForSequenceClassification.from_pretrained(run.path / "model")
    assert plain.config.problem_type == "multi_label_classification"
    assert plain.config.id2label == dict(enumerate(TOPICS))


def test_numbers_and_texts_of_lists_are_several_labels_too() -> None:
    for value in ([0, 2], "[0, 2]"):
        rows = [{"text": f"word {n}", "label": value} for n in range(20)]
        rows += [{"text": f"other {n}", "label": [1] if value == [0, 2] else "[1]"} for n in (1, 2)]
        plan = surefit.check(data=rows, model="tiny:bert", eval_share=0)
        assert plan.job is not None, plan.findings
        assert plan.job.pipeline.encoder.classes == [0, 1, 2]
        assert plan.job.train.row(0)["labels"].tolist() == [1, 0, 1]
    assert class_list("[not a list") is None
    assert class_list("[red]") is None


def test_pairs_of_texts(tmp_path: Path) -> None:
    run = learn(tmp_path, pair_rows(300), "tiny:bert", epochs=3, batch_size=8, lr=2e-3)
    assert run.plan["roles"]["text_pair"] == "sentence2"
    assert run.metrics["accuracy"] > 0.95
    row = {"sentence1": "red dog good", "sentence2": "tree sun bad"}
    assert surefit.predict(run, [row])[0]["prediction"] == "bad"


@pytest.fixture
def wordpiece(tmp_path: Path) -> str:
    """A BERT tokenizer of a few words, which marks the two texts of a pair."""
    from transformers import BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    tokenizer = BertTokenizerFast(vocab={word: place for place, word in enumerate(words)})
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


def test_segments_reach_models_that_know_them(wordpiece: str, tmp_path: Path) -> None:
    run = surefit.train(
        data=pair_rows(40),
        model="tiny:bert",
        tokenizer=wordpiece,
        max_steps=2,
        output=str(tmp_path / "run"),
    )
    assert run.plan["model"]["columns"]["token_type_ids"] == "token_type_ids"
    assert len(surefit.predict(run, pair_rows(3))) == 3


LABEL = "[cat, moon, red]"


def column_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Texts with a column for each of three words: whether it is in the text."""
    return [
        {"text": row["text"], **{w: int(w in row["labels"]) for w in TOPICS}, "id": n}
        for n, row in enumerate(topic_rows(count, seed))
    ]


def number_rows(count: int) -> list[dict[str, Any]]:
    """Two numbers, and whether each is above zero."""
    choose = random.Random(1)
    pairs = [(choose.gauss(0, 1), choose.gauss(0, 1)) for _ in range(count)]
    return [{"x": x, "y": y, "right": x + y > 0.3, "up": x - y > 0} for x, y in pairs]


def test_columns_become_lists_and_missing_values_no_label() -> None:
    rows = [{"a": 1, "b": 0, "t": "x"}, {"a": None, "b": 1, "t": "y"}, {"a": 1, "b": 1, "t": "z"}]
    table = join_columns(open_rows(rows), ["[a, b]", "t"])
    assert table.columns == ("t", "[a, b]")
    assert table.arrow["[a, b]"].to_pylist() == [[1, 0], None, [1, 1]]
    new = open_rows([{"t": "x"}])
    assert join_columns(new, ["[a, b]"]) is new


def test_rows_of_a_table_may_have_several_classes(tmp_path: Path) -> None:
    run = surefit.train(
        data=number_rows(200),
        model="tiny:mlp",
        columns={"label": ["right", "up"]},
        epochs=4,
        lr=0.01,
        output=str(tmp_path / "run"),
    )
    assert run.plan["columns"] == {
        "x": "features",
        "y": "features",
        "right": "label",
        "up": "label",
    }
    assert surefit.evaluate(run, number_rows(50))["macro_f1"] > 0.8
    (found,) = surefit.predict(run, [{"x": 3.0, "y": 0.0}])
    assert found["prediction"] == ["right", "up"]


@pytest.mark.parametrize(
    ("columns", "code"),
    [("[cat, moon, none]", "SF202"), ("[cat, id]", "SF205"), ("[cat, text]", "SF213")],
)
def test_columns_that_do_not_suit_are_refused(
    columns: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{**r, "more": "x y"} for r in column_rows(60)])
    task = ["--task", "text-classification", "--set", "columns.text=text"]
    if "text" in columns:
        task = ["--task", "tabular-classification"]
    options = ["--data", str(path), "--model", "tiny:bert", "--set", f"columns.label={columns}"]
    assert command(["check", "--json", *options, *task]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [f["code"] for f in answer["findings"] if f["severity"] == "error"] == [code]


def test_several_binary_columns_are_offered_together() -> None:
    rows = column_rows(60)
    (found,) = [
        f for f in surefit.check(data=rows, model="tiny:bert").findings if f.severity == "error"
    ]
    assert found.code == "SF143"
    assert f"--set 'columns.label={LABEL}'" in found.fix
