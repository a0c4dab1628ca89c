"""What is cheap to know of each row: a few numbers, and a vector for a cheap predictor.

The facts are what the making of a row leaves behind (its length, its size, silence, an offset);
the vector is what the row holds. Both are made of a keyed sample of the encoded rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.data.split import sample_rows
from surefit.data.table import Table
from surefit.findings import Place
from surefit.inputs.encoder import Encoder
from surefit.inputs.store import Store

Array = npt.NDArray[Any]
MOST_ROWS, MOST_MEDIA = 4_000, 400
MOST_NUMBERS = 40_000_000
"""Numbers of encoded rows that are read for a sample."""
HASHED = 1024
"""Places that words and pairs of words are hashed to."""
STEPS, MOST_CHANNELS = 16, 48
POOLED = 10
SECONDS = 10
ROUNDING = 1e-6
"""Of the spread of a row: a smaller mean is that of a row scaled to mean 0."""


@dataclass(frozen=True)
class Sample:
    """Some rows of a Store: where they are, their facts, their vectors and their labels."""

    table: Table
    rows: Array
    """The row of each in the Table."""
    vectors: Array
    facts: Mapping[str, Array]
    labels: Array | None
    """The class or number of each; None where a row has several."""
    channels: Mapping[str, tuple[Array, Array]]
    """For features: the numbers of each channel, and the place in the sample that each is from."""
    means: Array
    """For features: the mean of each of them in each row, (N, W)."""
    is_text: bool = False
    """Whether the vectors are hashed tokens, of length 1."""

    def where(self, row: int) -> Place:
        """Return where a row of the Table is."""
        return self.table.where(int(row))


def take_sample(store: Store, table: Table, encoder: Encoder, seed: int = 0) -> Sample | None:
    """Return a keyed sample of encoded rows; None where there is nothing to describe.

    Windows of one series resemble each other, so none is unlike the others.
    """
    own = encoder.extras  # of whatever shape and meaning
    known = (make for name, make in DESCRIBED.items() if name in store.fields and name not in own)
    describe = next(known, None)
    if describe is None or not len(store) or encoder.settings.windows is not None:
        return None
    per_row = sum(store.values(n).size for n in store.fields) / len(store)
    most = min(MOST_ROWS, max(50, int(MOST_NUMBERS / max(per_row, 1))))
    places = sample_rows(len(store), most, seed)
    places = places[(store.copy[places] == 0) if len(store.copy) else slice(None)]
    rows = np.asarray(store.source_row)[places]
    made = describe(store, places)
    facts = {**made.facts, **_media_facts(table, rows, encoder)}
    means = made.means if made.means is not None else np.empty((len(rows), 0))
    is_text = describe is _describe_tokens
    labels = _labels(store, places)
    return Sample(table, rows, made.vectors, facts, labels, made.channels, means, is_text)


def _labels(store: Store, places: Array) -> Array | None:
    spec = store.fields.get("labels")
    if spec is None or spec.rank:
        return None
    return np.asarray(store.values("labels"))[places]


@dataclass(frozen=True)
class Described:
    """What a modality says of a sample of rows; see Sample."""

    vectors: Array
    facts: Mapping[str, Array] = field(default_factory=dict)
    channels: Mapping[str, tuple[Array, Array]] = field(default_factory=dict)
    means: Array | None = None


def _describe_tokens(store: Store, places: Array) -> Described:
    """Hashed tokens and pairs of them, scaled to length 1."""
    vectors = np.zeros((len(places), HASHED), np.float32)
    for at, place in enumerate(places.tolist()):
        ids = store.value("input_ids", place).astype(np.int64)
        both = np.concatenate([ids * 2654435761, (ids[:-1] * 31 + ids[1:]) * 40503 + 7])
        vectors[at] = np.bincount((both >> 8) % HASHED, minlength=HASHED)
    vectors = np.log1p(vectors)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    sizes = np.array([len(store.value("input_ids", place)) for place in places.tolist()], float)
    return Described(vectors, {"number of tokens": sizes})


def _describe_vectors(store: Store, places: Array) -> Described:
    vectors = np.stack([store.value("features", place).ravel() for place in places.tolist()])
    width = vectors.shape[1]
    channels = {str(n): (vectors[:, n], np.arange(len(places))) for n in spread_places(width)}
    return Described(vectors[:, spread_places(width, HASHED)], {}, channels, vectors)


def spread_places(count: int, most: int = MOST_CHANNELS) -> Array:
    """Return at most so many of `count` places, spread evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))


def _describe_series(store: Store, places: Array) -> Described:
    """Steps, mean and spread of some channels; facts about the end and the variation of rows."""
    rows = [store.value("inputs_embeds", place) for place in places.tolist()]
    chosen = spread_places(rows[0].shape[1])
    vectors = []
    for row in rows:
        kept = row[:, chosen]
        steps = kept[_some_steps(len(row))]
        vectors.append(np.concatenate([steps.ravel(), kept.mean(0), kept.std(0)]))
    sizes = np.array([len(row) for row in rows])
    owner = np.repeat(np.arange(len(rows)), sizes)
    every = np.concatenate([row[:, chosen] for row in rows])
    levels = [(row, row.mean()) for row in rows]
    facts = {
        "length": sizes.astype(float),
        "level": np.array(
            [mean if abs(mean) > ROUNDING * row.std() else 0.0 for row, mean in levels]
        ),
        "spread": np.array([row.std() for row in rows]),
        "constant end": np.array([_constant_end(row) for row in rows]),
    }
    channels = {str(n): (every[:, at], owner) for at, n in enumerate(chosen.tolist())}
    dead = [name for name, (values, _) in channels.items() if values.std() > 0]
    for name in dead if len(dead) > 1 else ():
        values = channels[name][0]
        firsts = np.cumsum(sizes) - sizes
        spans = np.maximum.reduceat(values, firsts) - np.minimum.reduceat(values, firsts)
        facts[f"spread of channel {name}"] = spans
    means = np.stack([row.mean(0, dtype=np.float64) for row in rows])
    return Described(np.stack(vectors), facts, channels, means)


def _some_steps(length: int) -> Array:
    return np.linspace(0, length - 1, STEPS).round().astype(int)


def _constant_end(row: Array) -> float:
    """Return the share of a row after which nothing changes."""
    changes = np.flatnonzero((row[1:] != row[:-1]).any(1))
    return 1.0 - (changes[-1] + 2) / len(row) if len(changes) else 1.0


def _describe_pixels(store: Store, places: Array) -> Described:
    """Mean colours of a grid; facts about whole images and their corners."""
    images = [store.value("pixel_values", place) for place in places.tolist()]
    vectors, corners = [], []
    for image in images:
        height, width = image.shape[1:]
        lines, columns = (np.linspace(0, n, POOLED + 1).astype(int) for n in (height, width))
        sums = np.add.reduceat(np.add.reduceat(image, lines[:-1], 1), columns[:-1], 2)
        tall, wide = (np.diff(each).clip(1) for each in (lines, columns))  # of small images, one
        vectors.append((sums / (tall[:, None] * wide)).ravel())
        a, b = max(1, height // 12), max(1, width // 12)
        grey = image.mean(0)
        corners.append([grey[:a, :b], grey[:a, -b:], grey[-a:, :b], grey[-a:, -b:]])
    names = ("upper left", "upper right", "lower left", "lower right")
    facts = {
        "brightness": np.array([image.mean() for image in images]),
        "contrast": np.array([image.std() for image in images]),
        "roughness": np.array([np.abs(np.diff(image, axis=2)).mean() for image in images]),
        "highest value": np.array([image.max() for image in images]),
        **{
            f"{name} corner": np.array([each[at].mean() for each in corners])
            for at, name in enumerate(names)
        },
    }
    return Described(np.stack(vectors), facts)


def _describe_sound(name: str) -> Callable[[Store, Array], Described]:
    """Return what describes sound: means over quarters, and the spread, of each frequency."""

    def describe(store: Store, places: Array) -> Described:
        vectors, axes = [], store.fields[name].axes
        for place in places.tolist():
            row = np.asarray(store.value(name, place), np.float32)
            if row.ndim == 1:
                frames = row[: len(row) // 256 * 256].reshape(-1, 256)
                row = np.log1p(np.abs(np.fft.rfft(frames, axis=1)))
            elif "time" in axes:
                row = np.moveaxis(row, axes.index("time"), 0).reshape(
                    row.shape[axes.index("time")], -1
                )
            row = row if len(row) else np.zeros((1, row.shape[1]), np.float32)
            parts = [part.mean(0) for part in np.array_split(row, 4) if len(part)]
            parts += [parts[-1]] * (4 - len(parts))
            vectors.append(np.concatenate([*parts, row.std(0)]))
        return Described(np.stack(vectors))

    return describe


DESCRIBED: Mapping[str, Callable[[Store, Array], Described]] = {
    "inputs_embeds": _describe_series,
    "features": _describe_vectors,
    "pixel_values": _describe_pixels,
    "input_values": _describe_sound("input_values"),
    "input_features": _describe_sound("input_features"),
    "input_ids": _describe_tokens,
}
"""How rows are described, by the column that has them."""


def scaled(vectors: Array, by: Array) -> Array:
    """Return columns with mean 0 and spread 1 in the rows `by`, and far values cut off."""
    vectors, by = (
        np.nan_to_num(np.asarray(v, np.float32), posinf=0, neginf=0) for v in (vectors, by)
    )
    low, high = np.percentile(by, (1, 99), axis=0)
    vectors, by = np.clip(vectors, low, high), np.clip(by, low, high)
    spread = by.std(0)
    kept = spread > 1e-6 * (1e-6 + np.abs(by).max(0))
    return np.asarray((vectors[:, kept] - by[:, kept].mean(0)) / spread[kept])


def _media_facts(table: Table, rows: Array, encoder: Encoder) -> dict[str, Array]:
    """Return what files say of themselves; NaN for rows beyond the first of the sample."""
    for role, look in (("image", _picture_facts), ("audio", _sound_facts)):
        column = encoder.roles.get(role)
        if column is not None:
            some = sample_rows(len(rows), MOST_MEDIA, 0)
            made = [look(row[column]) for row in table.rows(rows[some].tolist())]
            names = dict.fromkeys(name for facts in made for name in facts)
            known = {name: np.full(len(rows), np.nan) for name in names}
            for name, values in known.items():
                values[some] = [facts.get(name, np.nan) for facts in made]
            return known
    return {}


def _picture_facts(value: Any) -> dict[str, float]:
    """Return width and height, from the header of a file."""
    if not isinstance(value, str):
        return {}
    from PIL import Image

    try:
        with Image.open(value) as image:
            return {"width": float(image.width), "height": float(image.height)}
    except OSError:  # reported where it is decoded
        return {}


def _sound_facts(value: Any) -> dict[str, float]:
    """Return length, loudness, offset, and the shares of silence and of clipped samples."""
    from surefit.inputs.audio.audio_format import look_at, read_waveform
    from surefit.inputs.encoded_row import RowFaultError

    try:
        about = look_at(value)
        rate = about.rate or 16_000
        samples, _ = read_waveform(value, rate, SECONDS * rate)
    except RowFaultError:  # reported where it is decoded
        return {}
    if not len(samples):
        return {}
    peak = float(np.abs(samples).max())
    at_peak = np.abs(samples) >= 0.9999 * peak if peak else np.zeros(len(samples), bool)
    return {
        "sampling rate": float(rate),
        "seconds": about.samples / rate,
        "loudness": float(samples.std()),
        "offset": float(samples.mean()),
        "roughness": float(np.abs(np.diff(samples)).mean() / max(samples.std(), 1e-9)),
        "clipped share": float((at_peak[1:] & at_peak[:-1]).mean()) if len(samples) > 1 else 0.0,
        "constant end": _constant_end(samples[:, None]),
    }
