"""Runs of one process: do they learn what is known, fit as predicted, and resume to the bit?"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from surefit.selftest.outcome import Figures, NotApplicableError, require
from surefit.selftest.small_data import write_instructions, write_labelled_texts

LEARNED_SHARE = 0.5
"""The last steps' loss must be below this share of the first steps'."""
PEAK_TOLERANCE = 0.25
"""How far the measured peak may be from the predicted one."""
DEVICE_BATCH: dict[str, Any] = {"most_words": 400, "batch_size": 128}
"""Rows and batch whose peak is measured on a device: about 0.6 GB, beside which the workspaces of
its libraries and the segments of its allocator, tens of megabytes, are small."""


def settings_for(folder: Path, most_words: int = 12, **changes: Any) -> dict[str, Any]:
    """The settings of a small instruction run; `changes` overrule them."""
    return {
        "data": str(write_instructions(folder, most_words=most_words)),
        "model": "tiny:llama",
        "task": "sft",
        "max_steps": 40,
        "batch_size": 16,
        "lr": 3e-3,
        "output": str(folder / "run"),
        **changes,
    }


def train_sft(device: str, folder: Path) -> Figures:
    """Instruction tuning of a small Llama."""
    import surefit

    run: Any = surefit.train(**settings_for(folder))
    losses = [event["loss"] for event in run.history if event["event"] == "step"]
    figures = {"first_loss": sum(losses[:5]) / 5, "last_loss": sum(losses[-5:]) / 5}
    learned = figures["last_loss"] < LEARNED_SHARE * figures["first_loss"]
    require(learned, "the loss did not fall as it must on this data", figures)
    return figures


def train_classifier(device: str, folder: Path) -> Figures:
    """Text classification with a small BERT; one word decides, so that all rows can be right."""
    import surefit

    run: Any = surefit.train(
        data=str(write_labelled_texts(folder)),
        model="tiny:bert",
        task="text-classification",
        epochs=6,
        batch_size=16,
        lr=1e-3,
        output=str(folder / "run"),
    )
    figures = {"accuracy": run.metrics["accuracy"]}
    require(figures["accuracy"] >= 0.95, "the validation accuracy is below 0.95", figures)
    return figures


def compare_peak(device: str, folder: Path) -> Figures:
    """The peak memory of a real step against the prediction."""
    import surefit

    size = {} if device == "cpu" else DEVICE_BATCH
    plan: Any = surefit.check(**settings_for(folder, fit="measured", **size))
    predicted, measured = plan.fit.peak_bytes, plan.fit.measured_bytes
    figures = {"predicted_bytes": predicted, "measured_bytes": measured}
    require(None not in (predicted, measured), "the peak is not known", figures)
    figures["measured_over_predicted"] = measured / predicted
    off = abs(measured / predicted - 1)
    require(off <= PEAK_TOLERANCE, "prediction and measurement differ too much", figures)
    return figures


def resume_exactly(device: str, folder: Path) -> Figures:
    """A run that is killed and resumed equals an undisturbed one, with deterministic kernels."""
    return _verify_resume(settings_for(folder, deterministic=True))


def train_qlora(device: str, folder: Path) -> Figures:
    """LoRA on weights in 4 bits, killed and resumed."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise NotApplicableError("bitsandbytes is not installed")
    import surefit

    base: Any = surefit.train(**settings_for(folder, output=str(folder / "base"), max_steps=20))
    lora = {"r": 8, "quantize": "4bit"}
    return _verify_resume(settings_for(folder, model=str(base.path / "model"), lora=lora))


def _verify_resume(settings: dict[str, Any]) -> Figures:
    import surefit

    run: Any = surefit.train(**{**settings, "verify_resume": True, "max_steps": 12})
    found = [each["message"] for each in run.plan["findings"] if each["code"] == "SF867"]
    figures: Figures = {"verified": found[0] if found else ""}
    require(bool(found) and "not verified" not in found[0], "resuming was not verified", figures)
    return figures
