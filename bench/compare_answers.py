"""Compare the answers of a LoRA run with those of its base model, on the same rows.

    python bench/compare_answers.py RUN DATA ANSWERS [--max-new-tokens 256] [--cut 64 128 256]

Generates both answers to every row of DATA and writes them to ANSWERS as JSON lines; an ANSWERS
that exists is only scored. Each cut keeps that many tokens of every answer, as a lower
`generate.max_new_tokens` would. The standard error is that of the mean difference over the rows.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.targets.metrics.token_metrics import answer_tokens

if TYPE_CHECKING:
    from surefit.pipeline.pipeline import Pipeline
    from surefit.targets.generation import Sample

BATCH_ROWS = 16
SCORES = ("precision", "recall", "token_f1")


def write_answers(run: Path, data: str, answers: Path, max_new_tokens: int) -> None:
    """Write prompt, expected answer and both generated answers, one JSON object per row."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    from surefit.data.open_data import open_table
    from surefit.run.run_folder import open_run

    pipeline = open_run(run).open_pipeline()
    accepted = pipeline.accept(open_table(data))
    rows = [pipeline.encode_row(row)[0].columns for row in accepted.table.rows()]
    after = _generate(pipeline, rows, max_new_tokens)
    for layer in pipeline.module.modules():
        if isinstance(layer, BaseTunerLayer):
            layer.enable_adapters(False)
    before = _generate(pipeline, rows, max_new_tokens)
    with answers.open("w", encoding="utf-8") as file:
        for base, trained in zip(before, after, strict=True):
            line = {"prompt": base.prompt, "expected": base.expected}
            file.write(json.dumps({**line, "before": base.got, "after": trained.got}) + "\n")


def _generate(pipeline: Pipeline, rows: Sequence[Any], max_new_tokens: int) -> list[Sample]:
    assert pipeline.task.generate is not None
    pipeline.module.eval()
    made: list[Sample] = []
    for start in range(0, len(rows), BATCH_ROWS):
        batch = rows[start : start + BATCH_ROWS]
        made += pipeline.task.generate.answer(
            pipeline.module, batch, pipeline.encoder, max_new_tokens
        )
        print(f"generating: {len(made)} of {len(rows)}", file=sys.stderr, flush=True)
    return made


def word_scores(expected: str, got: str) -> tuple[float, float, float]:
    """Precision, recall and F1 of the words that two texts share, as `token_f1` counts them.

    >>> word_scores("the red house", "a house")
    (1.0, 0.5, 0.6666666666666666)
    """
    wanted, made = Counter(answer_tokens(expected)), Counter(answer_tokens(got))
    shared = (wanted & made).total()
    return (
        shared / max(1, made.total()),
        shared / max(1, wanted.total()),
        2 * shared / max(1, wanted.total() + made.total()),
    )


def last_number(text: str) -> str | None:
    """The number that a solution ends with.

    >>> last_number("She pays 2 * 9 = $1,800.")
    '1800'
    """
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return numbers[-1].replace(",", "").rstrip(".") if numbers else None


def report(rows: Sequence[dict[str, str]], tokenizer: Any, cuts: Sequence[int]) -> Iterator[str]:
    """Lengths, scores per cut, and how many answers end with the right number."""
    lengths = {
        name: np.array([len(_ids(tokenizer, row[name])) for row in rows])
        for name in ("expected", "before", "after")
    }
    yield f"{len(rows)} rows; median tokens: " + ", ".join(
        f"{name} {np.median(found):g}" for name, found in lengths.items()
    )
    for cut in cuts:
        scores = {
            name: np.array([_cut_scores(tokenizer, row, name, cut) for row in rows])
            for name in ("before", "after")
        }
        rise = scores["after"] - scores["before"]
        error = rise.std(axis=0, ddof=1) / np.sqrt(len(rows))
        reaching = ", ".join(f"{name} {np.mean(lengths[name] >= cut):.0%}" for name in scores)
        yield f"first {cut} tokens (answers as long or longer: {reaching})"
        for place, score in enumerate(SCORES):
            means = (scores[name][:, place].mean() for name in ("before", "after"))
            yield (
                f"  {score}: " + " -> ".join(f"{mean:.3f}" for mean in means) + f", rise "
                f"{rise[:, place].mean():+.3f} (standard error {error[place]:.3f})"
            )
    for name in ("before", "after"):
        right = sum(last_number(row["expected"]) == last_number(row[name]) for row in rows)
        yield f"last number right {name}: {right} of {len(rows)}"


def _ids(tokenizer: Any, text: str) -> list[int]:
    found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return found


def _cut_scores(
    tokenizer: Any, row: dict[str, str], name: str, cut: int
) -> tuple[float, float, float]:
    return word_scores(row["expected"], tokenizer.decode(_ids(tokenizer, row[name])[:cut]))


def main() -> None:
    """Generate what is missing, and print the scores."""
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a LoRA run")
    parser.add_argument("data", help="rows with their expected answers")
    parser.add_argument("answers", type=Path, help="JSON lines of the generated answers")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--cut", type=int, nargs="+", default=[64, 128, 256])
    args = parser.parse_args()
    if not args.answers.exists():
        write_answers(args.run, args.data, args.answers, args.max_new_tokens)
    lines = args.answers.read_text("utf-8").splitlines()
    tokenizer = AutoTokenizer.from_pretrained(args.run / "model")
    for line in report([json.loads(line) for line in lines], tokenizer, args.cut):
        print(line)


if __name__ == "__main__":
    main()
