"""Every architecture that `tiny:` lists is built and stepped."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import transformers

from surefit.models.tiny_config import TinySizes, tiny_config, tiny_families

pytestmark = pytest.mark.slow

AUTO = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "image-classification": "AutoModelForImageClassification",
}
AT_LEAST = {"causal-lm": 120, "masked-lm": 35, "seq2seq": 15, "image-classification": 10}
VOCAB_SIZE, NUM_LABELS, MAX_PARAMETERS, TIMEOUT_SECONDS = 512, 3, 8_000_000, 60


@pytest.mark.parametrize("family", AT_LEAST)
def test_listed_architectures_are_built_and_stepped(family: str) -> None:
    reasons = try_all(family, tiny_families()[family], TinySizes(VOCAB_SIZE))
    assert {arch: reason for arch, reason in reasons.items() if reason} == {}
    assert len(reasons) >= AT_LEAST[family]


def try_all(family: str, archs: Sequence[str], sizes: TinySizes) -> dict[str, str]:
    """Try every architecture, a share of them per core; return why each failed, or nothing."""
    context = multiprocessing.get_context("fork")
    receivers = []
    for place in range(num_workers := os.cpu_count() or 1):
        receiver, sender = context.Pipe(duplex=False)
        share = archs[place::num_workers]
        context.Process(target=try_share, args=(family, share, sizes, sender)).start()
        sender.close()
        receivers.append(receiver)
    reasons: dict[str, str] = {}
    for receiver in receivers:
        reasons |= receiver.recv()
    return {arch: reasons[arch] for arch in archs}


def try_share(family: str, archs: Sequence[str], sizes: TinySizes, sender: Connection) -> None:
    """Try some architectures one after another and send why each failed."""
    sender.send({arch: try_apart(family, arch, sizes) for arch in archs})


def try_apart(family: str, arch: str, sizes: TinySizes) -> str:
    """Try one architecture in a forked process; return why it failed, or nothing."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=report, args=(family, arch, sizes, sender))
    process.start()
    sender.close()
    try:
        reason: str = receiver.recv() if receiver.poll(TIMEOUT_SECONDS) else "timeout"
    except EOFError:
        reason = "the process died"
    process.kill()
    process.join()
    return reason


def report(family: str, arch: str, sizes: TinySizes, sender: Connection) -> None:
    """Send the reason why an architecture failed, or nothing, in silence otherwise."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        try_one(family, arch, sizes)
        sender.send("")
    except Exception as error:
        sender.send(f"{type(error).__name__}: {' '.join(str(error).split())[:140]}")


def try_one(family: str, arch: str, sizes: TinySizes) -> None:
    """Build the model; step it on ragged, single and longest rows; raise if anything is off."""
    labels = NUM_LABELS if "classification" in family else None
    config = tiny_config(arch, sizes, family=family, num_labels=labels)
    for place, name in enumerate(("pad_token_id", "bos_token_id", "eos_token_id")):
        setattr(config, name, place)
    auto = getattr(transformers, AUTO[family])
    with torch.device("meta"):
        num_parameters = sum(p.numel() for p in auto.from_config(config).parameters())
    assert num_parameters <= MAX_PARAMETERS, f"{num_parameters / 1e6:.1f}M parameters"
    model = auto.from_config(config).train()
    for rows, length in ((3, 13), (1, 21)):
        model.zero_grad()
        loss = model(**make_batch(family, rows, length, sizes.image_size)).loss
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(x.isfinite().all() for x in (loss, *grads)), "not finite"
        assert any(g.any() for g in grads), "no gradient"
    with torch.no_grad():
        longest = make_batch(family, 1, sizes.max_positions, sizes.image_size)
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
