"""Each example of docs/examples.md gives the losses and metrics of a plain loop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"
TITLES = (
    *("Autoencoder", "VAE", "GAN", "SimCLR", "Triplet", "Siamese", "Distillation", "Forecasting"),
    *("Detection on synthetic shapes", "Graph classification"),
)


@pytest.fixture(scope="module")
def loops() -> Any:
    sys.path.insert(0, str(BENCH))
    try:
        import own_examples

        return own_examples, own_examples.examples()
    finally:
        sys.path.remove(str(BENCH))


def test_all_examples_are_compared(loops: Any) -> None:
    assert loops[1].keys() == {*TITLES}


@pytest.mark.slow
@pytest.mark.parametrize("title", TITLES)
def test_example_equals_a_plain_loop(loops: Any, title: str) -> None:
    module, examples = loops
    for metric, (plain, ours) in module.compare(title, examples[title]).items():
        assert ours == pytest.approx(plain, rel=1e-4), metric
