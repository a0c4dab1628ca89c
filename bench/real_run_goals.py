"""What a run on real data must reach, and how it is read off the finished run."""

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
class Goal:
    """One figure of a finished run, and the least it must be."""

    text: str
    least: float
    measure: Callable[[Finished], float]


def metric(name: str, least: float) -> Goal:
    """A metric of `surefit evaluate`."""
    return Goal(name, least, lambda done: float(done.evaluate()["metrics"][name]))


def falls(share: float) -> Goal:
    """The mean training loss of the last tenth of the steps, against the first tenth's."""
    return Goal("training loss falls by", share, _fall)


def _fall(done: Finished) -> float:
    losses = [event["loss"] for event in done.events("step")]
    part = max(1, len(losses) // 10)
    return 1 - sum(losses[-part:]) / sum(losses[:part])


def _perplexity_fall(done: Finished) -> float:
    found = [event["metrics"]["perplexity"] for event in done.events("eval")]
    return 1 - found[-1] / found[0]


def _evaluations(name: str) -> Callable[[Finished], tuple[float, float]]:
    def found(done: Finished) -> tuple[float, float]:
        figures = [float(event["metrics"][name]) for event in done.events("eval")]
        return figures[0], figures[-1]

    return found


_losses, _f1s = _evaluations("loss"), _evaluations("token_f1")
LOSS_BEFORE = Goal("evaluation loss before", 0, lambda done: _losses(done)[0])
LOSS_FALLS = Goal("evaluation loss falls by", 0, lambda done: _losses(done)[0] - _losses(done)[1])
F1_BEFORE = Goal("token F1 before", 0, lambda done: _f1s(done)[0])
F1_RISES = Goal("token F1 rises by", -1, lambda done: _f1s(done)[1] - _f1s(done)[0])
PERPLEXITY_FALLS = Goal("perplexity on test falls by", 0.3, _perplexity_fall)


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


BELOW_UNIGRAM = Goal("nats below the unigram loss on test", 0.2, _below_unigram)


def _flat_row(done: Finished) -> float:
    """1 if `inspect --row` shows question, context and first answer of a nested row."""
    source = json.loads(Path(done.shared / "data" / "xquad" / "xquad.en.json").read_text("utf-8"))
    paragraph = source["data"][0]["paragraphs"][1]
    asked = paragraph["qas"][0]
    number = len(source["data"][0]["paragraphs"][0]["qas"])
    shown = json.loads(done.surefit("inspect", *done.files("data"), "--row", str(number), "--json"))
    wanted = (paragraph["context"], asked["question"], asked["answers"][0]["text"])
    return float(all(text in shown.values() for text in wanted))


FLAT_ROW = Goal("nested row shown flat", 1, _flat_row)


def _same_again(done: Finished) -> float:
    """Share of new pictures that the reloaded module itself sees as `surefit predict` does."""
    import numpy as np
    import torch

    import surefit
    from surefit.data.open_data import open_table
    from surefit.encode.encoder import load_encoder
    from surefit.encode.images.pixel_format import read_format

    (new,) = done.files("new_data")
    lines = done.surefit("predict", "run", "--data", new).splitlines()
    encoder = load_encoder(done.run / "model")
    form = read_format(encoder.fitted["pixels"])
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


SAME_AGAIN = Goal("new rows predicted alike when loaded again", 1, _same_again)
