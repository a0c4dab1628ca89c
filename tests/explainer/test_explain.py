"""`explain` on the seeds, on messages in prose, on chains and logs, and on unrelated texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import surefit
from surefit.explainer.cause import Cause
from surefit.explainer.causes import CAUSES
from surefit.explainer.message_values import explain_product

HERE = Path(__file__).parent
EXPLAINED = [
    (*about.split(" | "), text.removesuffix("\n"))
    for about, text in (
        part.split("\n", 1)
        for part in (HERE / "explained.txt").read_bytes().decode().split("=== ")[1:]
    )
]
"""The code, what must be derived, and the text."""
UNRELATED = (HERE / "unrelated.txt").read_text(encoding="utf-8")
CASES = {
    name: text for name, _, text in (part.partition("\n") for part in UNRELATED.split("=== ")[1:])
}
SEEDS = {
    "000": "ValueError: expected sequence of length 434 at dim 1 (got 512)",
    "001": "ValueError: expected sequence of length 432 at dim 1 (got 512)",
    "002": "ValueError: expected sequence of length 512 at dim 1 (got 468)",
    "003": "RuntimeError: mat1 and mat2 shapes cannot be multiplied (255744x4000 and 271x256)",
    "004": "RuntimeError: stack expects each tensor to be equal size, but got [0] at entry 0 and "
    "[198] at entry 2",
}
CODES = {"000": "SF601", "001": "SF601", "002": "SF601", "003": "SF610", "004": "SF603"}


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_are_explained_from_their_line_and_from_the_whole_document(
    seed: str, shared: Path
) -> None:
    (path,) = (shared / "seeds").glob(f"{seed}_*.txt")
    for text in (SEEDS[seed], path.read_text(encoding="utf-8", errors="replace")):
        found = surefit.explain(text)
        assert found.code == CODES[seed]
        assert SEEDS[seed] in found.evidence.line


@pytest.mark.parametrize("seed", ["000", "001", "002"])
def test_a_missing_pad_is_not_blamed_on_copies(seed: str) -> None:
    found = surefit.explain(SEEDS[seed])
    assert found.evidence.values["expected"] == int(SEEDS[seed].split()[5])
    assert "pad" in (found.fix or "")
    assert "deepcopy" not in (found.fix or "") + (found.cause or "")
    assert any("deepcopy" in line for line in found.does_not_help)
    assert any("BatchEncoding" in line for line in found.does_not_help)


def test_seed_003_has_another_feature_size_and_sequence_length(shared: Path) -> None:
    (path,) = (shared / "seeds").glob("003_*.txt")
    said = str(surefit.explain(path.read_text(encoding="utf-8")))
    joined = " ".join(said.split())
    assert "255744 = 256 × 999" in joined
    assert "[256, 999, 4000]" in joined
    assert "feature size 4000 instead of 271, and sequence length 999 instead of 20" in joined
    assert "4.1 GB" in joined
    assert "flattened" not in joined


def test_an_empty_row_is_seen_in_the_shapes() -> None:
    found = surefit.explain(SEEDS["004"])
    assert any("Entry 0 is empty" in line for line in found.derived)


@pytest.mark.parametrize(
    ("sizes", "batches", "expected"),
    [
        ((32, 5420, 271, 256), [32], "length 20 with feature size 271 was flattened"),
        ((640, 271, 5420, 256), [32], "expects a flattened sequence of length 20"),
        ((8672, 20, 271, 256), [32], "8672 = 32 × 271"),
        ((8672, 20, 271, 256), [32], "The last two axes are swapped"),
        ((271, 40, 271, 256), [], "271 equals in_features"),
        ((64, 100, 30, 100), [], "100 equals out_features"),
        ((0, 100, 30, 20), [0], "no rows or no features"),
        ((8, 0, 0, 0), [], "no rows or no features"),
        ((8, 5, 0, 0), [8], "The input has two axes: [8, 5]"),
        ((255744, 4000, 271, 256), [], "256 × 999"),
        ((255744, 4000, 271, 256), [1, 256], "[256, 999, 4000]"),
    ],
)
def test_products(sizes: tuple[int, int, int, int], batches: list[int], expected: str) -> None:
    assert expected in " ".join(explain_product(*sizes, batches))


def test_an_exception_gives_the_shapes_of_its_frames_and_no_values() -> None:
    with pytest.raises(RuntimeError) as caught:
        nn.Linear(271, 256)(torch.full((4, 9, 40), 7.25))
    found = surefit.explain(caught.value)
    assert "[4, 9, 40]" in found.derived[0]
    assert found.shapes["input"] == (4, 9, 40)
    assert "7.25" not in str(found)


TRACE = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\n'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.parametrize(("code", "derived", "text"), EXPLAINED, ids=lambda part: part[:40])
def test_texts_of_all_kinds_are_explained(code: str, derived: str, text: str) -> None:
    """Dtypes in every wording, chains, ranks, notebooks, prose; see explained.txt."""
    found = surefit.explain(text)
    assert found.code == code
    assert derived in " ".join(found.derived)


def test_details_come_from_the_whole_text() -> None:
    lines = (
        "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: "
        "[0,0,0], thread: [0,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
        f"{TRACE}RuntimeError: CUDA error: device-side assert triggered\n"
    )
    found = surefit.explain(lines)
    assert found.code == "SF622"
    assert any("checks a label: it is negative" in line for line in found.derived)
    memory = (
        f"{TRACE}{OOM} GPU 0 has a total capacity of 23.65 GiB of which 1.06 GiB is free. Of the "
        "allocated memory 22.90 GiB is allocated by PyTorch, and 4.84 GiB is reserved by PyTorch "
        "but unallocated."
    )
    said = " ".join(surefit.explain(memory).derived)
    assert "The request was 2.00 GiB; 1.06 GiB of 23.65 GiB were free." in said
    assert "fragmented" in said


@pytest.mark.parametrize("name", CASES)
def test_unrelated_texts_are_unknown(name: str) -> None:
    found = surefit.explain(CASES[name])
    assert not found.known, f"taken for {found.code}: {found.evidence.line}"
    assert "does not know" in str(found)
    assert "the last 40 lines" in str(found)


@pytest.mark.parametrize("cause", CAUSES.values(), ids=lambda cause: cause.code)
def test_every_cause_is_complete(cause: Cause) -> None:
    assert re.fullmatch(r"SF[689]\d\d", cause.code)
    assert cause.messages
    assert cause.title[-1] not in ".:;"
    sentences = (cause.why, cause.fix, *([cause.in_surefit] if cause.in_surefit else []))
    for sentence in (*sentences, *cause.does_not_help):
        assert sentence.endswith("."), sentence
        assert "  " not in sentence
