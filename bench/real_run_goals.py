"""What is measured on a finished run on real data, and what it must reach."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from real_runs import Finished


@dataclass(frozen=True)
class Figure:
    """One figure of a finished run. It is a goal if it has a least value that it must reach."""

    text: str
    measure: Callable[[Finished], float]
    least: float | None = None
    """The run fails below it; None for a figure that is reported without a goal."""

    def reached(self, value: float) -> bool:
        """Whether a measured value reaches the goal; a figure without a goal always does."""
        return self.least is None or value >= self.least


def metric(name: str, least: float | None = None) -> Figure:
    """A metric of `surefit evaluate` on the test data, else on the validation rows."""
    return Figure(name, lambda done: float(done.evaluate()["metrics"][name]), least)


def known(name: str) -> Figure:
    """A metric of `surefit evaluate` without a goal, to compare with that of another run."""
    return Figure(name, lambda done: float(done.evaluate()["metrics"][name]))


def training_loss_falls(share: float) -> Figure:
    """The mean training loss of the last tenth of the steps, against the first tenth's."""
    return Figure("training loss falls by (share)", _fall, share)


def _fall(done: Finished) -> float:
    losses = [event["loss"] for event in done.events("step")]
    part = max(1, len(losses) // 10)
    return 1 - sum(losses[-part:]) / sum(losses[:part])


def _evaluations(done: Finished, name: str) -> tuple[float, float]:
    """A metric on the validation rows before the first step and after the last one."""
    events = done.events("eval")
    if events[0]["step"] != 0:
        raise ValueError(f"{done.spec.name}: no evaluation at step 0; set eval_at_start=true")
    return float(events[0]["metrics"][name]), float(events[-1]["metrics"][name])


def before(name: str) -> Figure:
    """A metric on the validation rows before the first step; no goal."""
    return Figure(f"{name} before", lambda done: _evaluations(done, name)[0])


def rises(name: str, least: float | None = None) -> Figure:
    """How much higher a metric is on the same validation rows after training."""

    def rise(done: Finished) -> float:
        first, last = _evaluations(done, name)
        return last - first

    return Figure(f"{name} rises by", rise, least)


def falls(name: str, least: float) -> Figure:
    """How much lower a metric is on the same validation rows after training."""

    def fall(done: Finished) -> float:
        first, last = _evaluations(done, name)
        return first - last

    return Figure(f"{name} falls by", fall, least)


def _perplexity_fall(done: Finished) -> float:
    first, last = _evaluations(done, "perplexity")
    return 1 - last / first


PERPLEXITY_FALLS = Figure("perplexity on test falls by (share)", _perplexity_fall, 0.3)


def _below_unigram(done: Finished) -> float:
    """Nats between the run's loss and that of guessing every token by its frequency alone."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(done.run / "model")
    seen, asked = (_token_counts(tokenizer, done.files(data)) for data in ("data", "test_data"))
    smoothed = {token: (seen[token] + 1) / (seen.total() + len(tokenizer)) for token in asked}
    unigram = -sum(count * log(smoothed[token]) for token, count in asked.items()) / asked.total()
    return unigram - float(done.evaluate()["metrics"]["loss"])


def _token_counts(tokenizer: Any, files: list[str]) -> Counter[int]:
    from surefit.data.open_data import open_table

    counts: Counter[int] = Counter()
    for row in open_table(files).rows():
        text = next(iter(row.values()))
        counts.update(tokenizer(text)["input_ids"][:128])
    return counts


BELOW_UNIGRAM = Figure("nats below the unigram loss on test", _below_unigram, 0.2)


def _flat_row(done: Finished) -> float:
    """1 if `inspect --row` shows question, context and first answer of a nested row."""
    source = json.loads(Path(done.shared / "data" / "xquad" / "xquad.en.json").read_text("utf-8"))
    paragraph = source["data"][0]["paragraphs"][1]
    asked = paragraph["qas"][0]
    number = len(source["data"][0]["paragraphs"][0]["qas"])
    shown = json.loads(done.surefit("inspect", *done.files("data"), "--row", str(number), "--json"))
    wanted = (paragraph["context"], asked["question"], asked["answers"][0]["text"])
    return float(all(text in shown.values() for text in wanted))


FLAT_ROW = Figure("nested row shown flat", _flat_row, 1)


def _same_again(done: Finished) -> float:
    """Share of new images for which the reloaded module agrees with `surefit predict`."""
    import numpy as np
    import torch

    import surefit
    from surefit.data.open_data import open_table
    from surefit.inputs.encoder import load_encoder
    from surefit.inputs.encoder_state import as_fitted

    (new,) = done.files("new_data")
    lines = done.surefit("predict", "run", "--data", new).splitlines()
    encoder = load_encoder(done.run / "model")
    form = as_fitted(encoder.input.pixels)
    pixels = np.stack(
        [form.pixel_values(row[encoder.roles["image"]]) for row in open_table(new).rows()]
    )
    with torch.no_grad():
        chances = surefit.load(done.run)(torch.from_numpy(pixels)).softmax(-1).tolist()
    alike = [
        abs(row[encoder.classes.index(told["prediction"])] - told["probability"]) < 1e-4
        and max(row) - told["probability"] < 1e-4
        for told, row in zip(map(json.loads, lines), chances, strict=True)
    ]
    return sum(alike) / len(alike)


SAME_AGAIN = Figure("share of new rows predicted alike after loading", _same_again, 1)


def _predictions(done: Finished) -> tuple[list[Any], list[dict[str, Any]]]:
    """What `surefit predict` gives for the test data, and the rows themselves."""
    from surefit.data.open_data import open_table

    files = done.files("test_data")
    named = [word for file in files for word in ("--data", file)]
    lines = done.surefit("predict", "run", *named).splitlines()
    return [json.loads(line)["prediction"] for line in lines], [*open_table(files).rows()]


def _encoder(done: Finished) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((done.run / "model" / "encoder.json").read_text("utf-8"))
    return found


def _same_numbers(done: Finished) -> float:
    """1 if r2, mae and rmse of several numbers per row are scikit-learn's, to 1e-6."""
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    names = _encoder(done)["target"]["numbers"]["names"]
    predicted, rows = _predictions(done)
    made = [[row[name] for name in names] for row in predicted]
    true = [[row[name] for name in names] for row in rows]
    expected = {
        "r2": r2_score(true, made),
        "mae": mean_absolute_error(true, made),
        "rmse": root_mean_squared_error(true, made),
    }
    return _are_equal(done, expected)


def _same_labels(done: Finished) -> float:
    """1 if accuracy and macro F1 of several labels per row are scikit-learn's, to 1e-6."""
    import numpy as np
    from sklearn.metrics import accuracy_score, f1_score

    state = _encoder(done)
    classes, label = state["target"]["classes"]["names"], state["roles"]["label"]
    predicted, rows = _predictions(done)
    made, true = (
        np.array([[name in labels for name in classes] for labels in each])
        for each in (predicted, [row[label] for row in rows])
    )
    expected = {
        "accuracy": accuracy_score(true, made),
        "macro_f1": f1_score(true, made, average="macro", zero_division=0),
    }
    return _are_equal(done, expected)


def _same_steps(done: Finished) -> float:
    """1 if accuracy and macro F1 of a class per time step are scikit-learn's, to 1e-6."""
    from sklearn.metrics import accuracy_score, f1_score

    label = _encoder(done)["roles"]["label"]
    predicted, rows = _predictions(done)
    made = [name for row in predicted for name in row]
    true = [name for row in rows for name in row[label]]
    expected = {
        "accuracy": accuracy_score(true, made),
        "macro_f1": f1_score(true, made, average="macro", zero_division=0),
    }
    return _are_equal(done, expected)


def _are_equal(done: Finished, expected: dict[str, Any]) -> float:
    found = done.evaluate()["metrics"]
    return float(all(abs(found[n] - v) <= 1e-6 * max(1, abs(v)) for n, v in expected.items()))


SAME_NUMBERS = Figure("r2, mae and rmse are scikit-learn's", _same_numbers, 1)
SAME_LABELS = Figure("accuracy and macro_f1 are scikit-learn's", _same_labels, 1)


def _above_always(done: Finished) -> float:
    """Macro F1 above that of predicting every label for every row."""
    import numpy as np
    from sklearn.metrics import f1_score

    from surefit.data.open_data import open_table

    state = _encoder(done)
    classes, label = state["target"]["classes"]["names"], state["roles"]["label"]
    labels = [row[label] for row in open_table(done.files("test_data")).rows()]
    true = np.array([[name in each for name in classes] for each in labels])
    always = f1_score(true, np.ones_like(true), average="macro", zero_division=0)
    return float(done.evaluate()["metrics"]["macro_f1"]) - float(always)


ABOVE_ALWAYS = Figure("macro_f1 above predicting every label always", _above_always, 0.05)
SAME_STEPS = Figure("accuracy and macro_f1 of steps are scikit-learn's", _same_steps, 1)
