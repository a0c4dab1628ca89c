"""Augmentation of images, series and vectors: drawn from (seed, epoch, row), anew in each epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import shape_rows
from tones import MODULES, tone_rows
from torch import nn

import surefit
from builders import MeanPool, feature_rows
from surefit.errors import UsageError
from surefit.inputs.augment.array_augment import LABELS, SHARE, SeriesChanges, mix
from surefit.inputs.image.image_changes import ImageChanges
from surefit.pipeline.pipeline import Job
from surefit.plan.plan import Plan
from surefit.report.examples import make_examples
from surefit.targets.row_target import CLASSES

EVERY = ["flip", "flip_vertical", "rotate", "crop", "shift", "brightness", "contrast", "saturation"]
IMAGE = np.random.default_rng(0).random((3, 6, 8), np.float32)
MASK = np.arange(48).reshape(6, 8)


class Pooled(nn.Module):
    """Three classes of images of any size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv2d(3, 6, 5, stride=2)
        self.head = nn.Linear(6, 3)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(pixel_values).relu().mean((2, 3)))


class OwnLoss(Pooled):
    """The same, with a loss of its own."""

    def forward(self, pixel_values: torch.Tensor, labels: Any = None) -> Any:
        logits = super().forward(pixel_values)
        if labels is None:
            return logits
        return {"loss": nn.functional.cross_entropy(logits, labels)}


def plan_images(changes: Any, **options: Any) -> Plan:
    given = {"data": shape_rows(30), "model": Pooled(), "task": "image-classification"}
    return surefit.check(**{**given, **options}, image={"augment": changes})


def job_of(plan: Plan) -> Job:
    assert plan.job is not None, plan.findings
    return plan.job


def changed(drawn: dict[str, Any], **changes: float) -> tuple[Any, Any]:
    row = ImageChanges(changes).apply({"pixel_values": IMAGE, "labels": MASK}, drawn)
    return row["pixel_values"], row["labels"]


@pytest.mark.parametrize(
    ("drawn", "place"),
    [
        ({"flip": True}, np.s_[..., ::-1]),
        ({"flip_vertical": True}, np.s_[..., ::-1, :]),
        ({"rotate": 180.0}, np.s_[..., ::-1, ::-1]),
        ({"shift": (0.0, 0.0)}, np.s_[...]),
    ],
)
def test_moves_of_whole_pixels_move_image_and_mask_alike(drawn: Any, place: Any) -> None:
    image, mask = changed(drawn)
    assert np.allclose(image, IMAGE[place], atol=1e-5)
    assert (mask == MASK[place]).all()
    assert mask.dtype == MASK.dtype


def test_shift_and_crop_go_where_they_say() -> None:
    image, mask = changed({"shift": (0.5, -0.25)})  # three rows down, two columns left
    assert np.allclose(image[:, 3:, :-2], IMAGE[:, :3, 2:], atol=1e-5)
    assert (mask[3:, :-2] == MASK[:3, 2:]).all()
    _, upper_left = changed({"crop": (0.5, 0.5, -0.25, -0.25)})
    assert set(np.unique(upper_left)) == set(MASK[:3, :4].ravel())


def test_colours_stay_within_pixels_and_keep_gray_gray() -> None:
    kind = ImageChanges({}, (0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
    normal = kind.normalise(IMAGE)
    assert np.allclose(kind.as_pixels(normal), IMAGE, atol=1e-6)
    row = kind.apply({"pixel_values": normal}, {"brightness": 1.5, "contrast": 1.2})
    pixels = kind.as_pixels(row["pixel_values"])
    assert pixels.min() > -1e-6 < 1e-6 + 1 - pixels.max()
    row = kind.apply({"pixel_values": normal}, {"saturation": 0.0})
    gray = kind.as_pixels(row["pixel_values"])
    assert np.allclose(gray[0], gray[1], atol=1e-5)
    assert np.allclose(gray[0], (IMAGE * [[[0.299]], [[0.587]], [[0.114]]]).sum(0), atol=1e-5)


def test_masks_of_series_are_the_mean_and_scaling_is_about_it() -> None:
    kind = SeriesChanges({}, "inputs_embeds", mean=(1.0, 2.0), spread=(1.0, 1.0))
    steps = np.arange(8, dtype=np.float32).reshape(4, 2)
    row = {"inputs_embeds": steps}
    masked = kind.apply(row, {"time_mask": (1, 2), "channel_mask": (0, 1)})["inputs_embeds"]
    assert masked.tolist() == [[1, 1], [1, 2], [1, 2], [1, 7]]
    scaled = kind.apply(row, {"scale": 2.0})["inputs_embeds"]
    assert scaled.tolist() == [[-1, 0], [3, 4], [7, 8], [11, 12]]
    assert steps[0, 0] == 0


def test_a_row_depends_on_seed_epoch_and_row_alone() -> None:
    job = job_of(plan_images([*EVERY, "erase", "mixup", "cutmix"]))
    whole, reordered = job.batch(np.arange(12), 1), job.batch(np.array([7, 3, 11]), 1)
    alone = [job.batch(np.array([row]), 1) for row in (7, 3, 11)]
    for name in ("pixel_values", "labels", LABELS, SHARE):
        assert torch.equal(reordered[name], whole[name][[7, 3, 11]])
        assert torch.equal(reordered[name], torch.cat([batch[name] for batch in alone]))
    assert not torch.equal(job.batch(np.arange(12), 2)["pixel_values"], whole["pixel_values"])
    other = job_of(plan_images([*EVERY, "erase", "mixup", "cutmix"], seed=1))
    assert other.augment.drawn(0, 0) != job.augment.drawn(0, 0)
    partners = {job.augment.drawn(row, 0)["partner"] for row in range(len(job.train))}
    assert partners - {*range(8)}, "partners come from all rows, and not from a batch"


def test_what_is_stored_and_evaluated_is_not_augmented() -> None:
    plain, job = job_of(plan_images([])), job_of(plan_images(EVERY))
    assert plain.augment is None
    assert job.train.folder == plain.train.folder
    rows = np.arange(len(job.validation))
    for one, other in ((job.validation, plain.validation), (job.train, plain.train)):
        first, second = (p.pipeline.batch(s, rows) for p, s in ((job, one), (plain, other)))
        assert torch.equal(first["pixel_values"], second["pixel_values"])


def test_the_loss_of_mixed_rows_is_that_of_soft_labels() -> None:
    job = job_of(plan_images(["mixup"], loss={"label_smoothing": 0.1}))
    batch = job.batch(np.arange(9))
    logits = torch.linspace(-1, 1, 27).reshape(9, 3)
    own, its = (nn.functional.one_hot(batch[name], 3) for name in ("labels", LABELS))
    share = batch[SHARE][:, None]
    soft = share * own + (1 - share) * its
    outputs = type("Outputs", (), {"logits": logits, "loss": None})
    expected = nn.functional.cross_entropy(logits, soft, reduction="sum")
    assert torch.allclose(CLASSES.loss(outputs, batch)[0], expected)
    expected = nn.functional.cross_entropy(logits, soft, reduction="sum", label_smoothing=0.1)
    assert torch.allclose(job.pipeline.loss(outputs, batch)[0], expected)


def test_labels_that_are_numbers_are_mixed_and_masks_follow_their_pixels() -> None:
    row = {"pixel_values": IMAGE, "labels": np.float32(4)}
    other = {"pixel_values": IMAGE * 0, "labels": np.float32(0)}
    mixed = mix(row, other, "pixel_values", {"mixup": 0.25})
    assert mixed["labels"] == 1
    assert np.allclose(mixed["pixel_values"], IMAGE / 4)
    dense = mix(
        {**row, "labels": MASK},
        {**other, "labels": MASK * 0},
        "pixel_values",
        {"mixup": 0.5, "cutmix": (0, 0, 3, 8)},
    )
    assert (dense["labels"][:3] == 0).all()
    assert (dense["labels"][3:] == MASK[3:]).all()
    assert (dense["pixel_values"][:, :3] == 0).all()


def test_own_function_gets_pixels_and_must_draw_from_rng() -> None:
    seen: list[Any] = []

    def darker(image: Any, rng: Any) -> Any:
        seen.append((image.min() >= -1e-5, image.max() <= 1 + 1e-5, image.shape))
        return image * rng.uniform(0, 0.5)

    job = job_of(plan_images(["flip"], augment=darker))
    assert set(seen) == {(True, True, (3, 32, 32))}
    plain = job.pipeline.batch(job.train, [0])["pixel_values"]
    assert job.batch([0])["pixel_values"].mean() < plain.mean()
    for wrong, words in (
        (lambda image, rng: image * np.random.default_rng().random(), "same rng"),
        (lambda image, rng: image[:, :8], "returned shape [3, 8, 32]; expected [3, 32, 32]"),
        (lambda image, rng: image / 0, "NaN or infinite"),
        (lambda image, rng: image.nothing, "raised AttributeError"),
    ):
        with np.errstate(all="ignore"):
            plan = plan_images([], augment=wrong)
        (found,) = [found for found in plan.findings if found.severity == "error"]
        assert found.code == "SF286"
        assert words in found.message


SERIES = {"model": MeanPool(), "task": "feature-classification"}
VECTORS = [{"features": row["features"][0], "label": row["label"]} for row in feature_rows(40)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"features": {"augment": "mixup"}}, "different lengths (2 to 8)"),
        ({"image": {"augment": "flip"}}, "feature-classification has no images"),
        ({"features": {"augment": {"jitter": -1}}}, "greater than 0"),
        ({"features": {"augment": ["flip"]}}, "expected some of jitter"),
        ({"augmentation_factor": 2}, "augmented anew in each epoch"),
        ({"data": VECTORS, "features": {"augment": "time_mask"}}, "one vector, without time"),
    ],
)
def test_unsuitable_changes_are_refused(options: dict[str, Any], words: str) -> None:
    vectors = {"model": nn.Linear(4, 3)} if "data" in options else {}
    with pytest.raises(UsageError, match=words.replace("(", r"\(").replace(")", r"\)")):
        surefit.check(**{"data": feature_rows(40), **SERIES, **vectors, **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": {"class_weights": "balanced"}}, "a mixed row has two classes"),
        ({"loss_fn": lambda outputs, batch: outputs.sum()}, "your own loss_fn does not read"),
        ({"model": OwnLoss()}, "image.augment.mixup gives .* computes its own loss from labels"),
    ],
)
def test_mixing_is_refused_where_the_loss_would_not_know(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        plan_images("mixup", **options)


def test_vectors_and_series_train_and_are_shown(tmp_path: Path) -> None:
    changes = {"jitter": 0.1, "scale": 0.2, "time_mask": 0.3, "channel_mask": 0.3}
    run = surefit.train(
        **{"data": feature_rows(40), **SERIES},
        features={"augment": changes},
        epochs=1,
        output=str(tmp_path / "series"),
    )
    page = run.report_path.read_text("utf-8")
    shown = page[page.index("<h2>Augmented training rows</h2>") :].split("</section>")[0]
    assert shown.count("<polyline") == 4 * 4 * 3
    assert "jitter" in page
    assert run.plan["augment"] == {"changes": changes, "function": None}
    plan = surefit.check(
        data=VECTORS,
        model=nn.Linear(4, 3),
        task="feature-classification",
        features={"augment": ["jitter", "channel_mask", "mixup"]},
    )
    batch = job_of(plan).batch(np.arange(4))
    assert batch["features"].shape == (4, 4)
    assert LABELS in batch


def test_spectrograms_are_masked_over_time_and_mel_bands(tmp_path: Path) -> None:
    module = eval(MODULES["log-mel as an image"], {"nn": nn, "n": 3})
    changes = {"time_mask": 0.9, "channel_mask": 0.5}
    plan = surefit.check(data=tone_rows(24), model=module, audio={"augment": changes})
    job = job_of(plan)
    kind = job.augment.kind
    assert isinstance(kind, SeriesChanges)
    shape = job.train.value(kind.column, 0).shape  # channel, mel, time
    assert (kind.channel_axis, kind.time_axis, shape[1]) == (1, 2, 64)
    row = kind.apply(job.train.row(0), {"time_mask": (2, 3), "channel_mask": (10, 5)})[kind.column]
    assert (row[:, :, 2:5] == 0).all()
    assert (row[:, 10:15] == 0).all()
    assert not (row[:, :10, :2] == 0).any()
    assert make_examples(job)[0]["shown"][0]["lines"]
    waves = eval(MODULES["waveform"], {"nn": nn, "n": 3})
    with pytest.raises(UsageError, match="waveforms, of one channel"):
        surefit.check(data=tone_rows(24), model=waves, audio={"augment": "channel_mask"})
