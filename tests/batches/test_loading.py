"""Batches as tensors: where their numbers lie in memory."""

from __future__ import annotations

import threading

import numpy as np
import torch

from surefit.batches.field import Field
from surefit.batches.loading import ALIGNMENT_BYTES, by_thread, to_batch

FIELDS = {
    "inputs_embeds": Field(("time", "width"), "float32"),
    "weight": Field((), "float64"),
    "labels": Field((), "int64"),
}


def test_numbers_to_compute_with_lie_as_torch_would_put_them() -> None:
    """The last bit of a matrix product depends on it, and so does an exact resume."""
    held = []
    for steps in range(1, 60):
        row = {
            "inputs_embeds": np.full((steps, 3), steps, np.float32),
            "weight": np.float64(steps),
            "labels": np.int64(steps),
        }
        batch = to_batch([row, row], FIELDS)
        assert batch["inputs_embeds"].shape == (2, steps, 3)
        assert (batch["inputs_embeds"] == steps).all()
        held.append(batch)
    places = [batch[name].data_ptr() for batch in held for name in ("inputs_embeds", "weight")]
    assert {place % ALIGNMENT_BYTES for place in places} == {0}
    assert torch.empty(3).data_ptr() % ALIGNMENT_BYTES == 0


def test_an_iterator_that_is_deleted_does_not_wait_for_its_thread() -> None:
    may_go_on = threading.Event()
    made = by_thread(range(9), lambda item: item if item == 0 else may_go_on.wait(), depth=1)
    assert next(made) == 0  # the second is being made, and waits
    deleting = threading.Thread(target=made.close, daemon=True)  # type: ignore[attr-defined]
    deleting.start()
    deleting.join(timeout=240)
    is_done = not deleting.is_alive()
    may_go_on.set()
    assert is_done
