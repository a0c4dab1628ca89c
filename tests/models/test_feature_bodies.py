"""Encoders of text that take feature sequences in place of embedded tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import feature_rows
from surefit import check
from surefit.batches.loading import load_batch

pytestmark = pytest.mark.slow

ENCODERS = (
    *("albert", "bert", "camembert", "convbert", "deberta", "deberta-v2", "distilbert"),
    *("electra", "ernie", "esm", "megatron-bert", "mobilebert", "modernbert", "mpnet"),
    *("roberta", "xlm-roberta"),
)


@pytest.mark.parametrize("arch", ENCODERS)
def test_encoders_take_features(arch: str) -> None:
    rows = feature_rows(20, width=5)
    plan = check(data=rows, model=f"tiny:{arch}", task="feature-classification", eval_share=0.0)
    assert plan.ok, [found.message for found in plan.findings]
    assert plan.job is not None
    module: Any = plan.job.pipeline.module
    assert module.projection.width == 5
    batch = load_batch(plan.job.train, np.arange(4), plan.job.pipeline.fields)
    total, count = plan.job.pipeline.loss(plan.job.pipeline.call(module, batch), batch)
    (total / count).backward()
    moved = module.projection.linear.weight.grad
    assert moved is not None
    assert moved.abs().sum() > 0
