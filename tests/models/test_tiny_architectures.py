"""Every architecture that `tiny:` lists is built and stepped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from surefit.models.tiny import TinySizes, tiny_config, tiny_families
from surefit.models.transformers_models import FAMILY_OF

pytestmark = pytest.mark.slow

AUTO = {family: auto for auto, family in FAMILY_OF.items()}
AT_LEAST = {"causal-lm": 45, "masked-lm": 20, "seq2seq": 12, "image-classification": 9}
VOCAB_SIZE, NUM_LABELS, MAX_PARAMETERS = 512, 3, 8_000_000


LISTED = [(family, arch) for family in AT_LEAST for arch in tiny_families()[family]]
SIZES = TinySizes(VOCAB_SIZE)


@pytest.mark.parametrize("family", AT_LEAST)
def test_many_architectures_are_listed(family: str) -> None:
    assert len(tiny_families()[family]) >= AT_LEAST[family]


@pytest.mark.parametrize(("family", "arch"), LISTED)
def test_a_listed_architecture_is_built_and_stepped(family: str, arch: str) -> None:
    """On ragged, single and longest rows."""
    labels = NUM_LABELS if "classification" in family else None
    config = tiny_config(arch, SIZES, family=family, num_labels=labels)
    for place, name in enumerate(("pad_token_id", "bos_token_id", "eos_token_id")):
        setattr(config, name, place)
    auto = getattr(transformers, AUTO[family])
    with torch.device("meta"):
        num_parameters = sum(p.numel() for p in auto.from_config(config).parameters())
    assert num_parameters <= MAX_PARAMETERS, f"{num_parameters / 1e6:.1f}M parameters"
    model = auto.from_config(config).train()
    for rows, length in ((3, 13), (1, 21)):
        model.zero_grad()
        loss = model(**make_batch(family, rows, length, SIZES.image_size)).loss
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(x.isfinite().all() for x in (loss, *grads)), "not finite"
        assert any(g.any() for g in grads), "no gradient"
    with torch.no_grad():
        longest = make_batch(family, 1, SIZES.max_positions, SIZES.image_size)
        assert model(**longest).loss.isfinite(), "not finite on the longest rows"
        if family == "causal-lm":
            check_causal(model.eval())


def make_batch(family: str, rows: int, length: int, image_size: int) -> dict[str, Any]:
    """Return random inputs and labels; of several rows the last is padded."""
    if family == "image-classification":
        pixels = torch.randn(rows, 3, image_size, image_size)
        return {"pixel_values": pixels, "labels": torch.arange(rows) % NUM_LABELS}
    ids = torch.randint(10, VOCAB_SIZE, (rows, length))
    mask = torch.ones_like(ids)
    if rows > 1:
        mask[-1, length // 2 :] = 0
    ids = ids * mask  # the pad token is 0
    labels = ids.masked_fill(mask == 0, -100)
    if family == "seq2seq":
        # A model that merely shifts its input cannot take labels of another length.
        labels = labels[:, :-4].contiguous()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def check_causal(model: Any) -> None:
    """Raise if a later token changes the logits of an earlier one."""
    ids = torch.randint(10, VOCAB_SIZE, (1, 12))
    other = torch.cat([ids[:, :8], ids[:, 8:].flip(1) // 2], dim=1)
    before, after = (model(input_ids=x).logits[:, :8] for x in (ids, other))
    assert torch.allclose(before, after, atol=1e-4), "looks ahead: not causal"
