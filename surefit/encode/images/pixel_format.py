"""Images to `pixel_values`: size, mean and scale, fitted once and saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.encode.encoded_row import RowFaultError
from surefit.encode.images.image_files import UNREADABLE_IMAGE, decode, float_range_of

if TYPE_CHECKING:
    from PIL import Image

LARGEST_DEFAULT = 224
SAMPLE_ROWS = 512
BILINEAR = 2


@dataclass(frozen=True)
class PixelFormat:
    """How an image becomes `pixel_values`: (pixel * scale - mean) / std, channels first.

    The image is resized to height × width. With `edge`, its shorter side is resized to that length,
    and the center is cropped.
    """

    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 1 / 255
    resample: int = BILINEAR
    edge: int | None = None
    reversed_channels: bool = False
    float_range: float = 0
    """The largest value of floating-point arrays: 1 or 255; 0 if there were none."""

    def pixel_values(self, value: Any) -> npt.NDArray[np.float32]:
        """Any value that `decode` reads, as float32 [3, height, width]."""
        pixels = np.asarray(self._resized(decode(value, self.float_range)), np.float32)
        if self.reversed_channels:
            pixels = pixels[:, :, ::-1]
        scaled = pixels * np.float32(self.scale)
        normal = (scaled - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return np.ascontiguousarray(normal.transpose(2, 0, 1))

    def _resized(self, image: Image.Image) -> Image.Image:
        from PIL import Image

        how = Image.Resampling(self.resample)
        if self.edge is None:
            return image.resize((self.width, self.height), how)
        width, height = image.size
        short = min(width, height)
        size = (int(self.edge * width / short), int(self.edge * height / short))
        left, top = (size[0] - self.width) // 2, (size[1] - self.height) // 2
        return image.resize(size, how).crop((left, top, left + self.width, top + self.height))

    def processor_config(self) -> dict[str, Any]:
        """The settings in the format of transformers' preprocessor_config.json."""
        exact = {"height": self.height, "width": self.width}
        cropped = self.edge is not None
        plain = "CLIPImageProcessor" if cropped else "ViTImageProcessor"
        return {
            "image_processor_type": "MobileViTImageProcessor" if self.reversed_channels else plain,
            "do_flip_channel_order": self.reversed_channels,
            "do_convert_rgb": True,
            "do_resize": True,
            "size": {"shortest_edge": self.edge} if cropped else exact,
            "do_center_crop": cropped,
            "crop_size": exact,
            "resample": self.resample,
            "do_rescale": True,
            "rescale_factor": self.scale,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }


def read_format(state: Mapping[str, Any]) -> PixelFormat:
    """A PixelFormat from the result of `asdict`."""
    return PixelFormat(**{**state, "mean": tuple(state["mean"]), "std": tuple(state["std"])})


def from_processor(processor: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a transformers image processor, as fields of a PixelFormat.

    >>> from_processor({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224},
    ...                 "do_center_crop": True, "do_normalize": False})["edge"]
    256
    """
    known: dict[str, Any] = {"scale": processor.get("rescale_factor") or 1 / 255}
    if processor.get("do_rescale") is False:
        known["scale"] = 1.0
    known["mean"], known["std"] = [0.0] * 3, [1.0] * 3
    if processor.get("do_normalize") and processor.get("image_mean"):
        known |= {"mean": processor["image_mean"], "std": processor["image_std"]}
    if processor.get("resample") is not None:
        known["resample"] = int(processor["resample"])
    known["reversed_channels"] = bool(processor.get("do_flip_channel_order"))
    size, edge = _two_sides(processor.get("size")), None
    crop = _two_sides(processor.get("crop_size")) if processor.get("do_center_crop") else None
    shortest = (processor.get("size") or {}).get("shortest_edge")
    if shortest and processor.get("crop_pct"):  # as ConvNeXt does, except for large images
        size, edge = (shortest, shortest), int(shortest / processor["crop_pct"])
        if shortest >= 384:
            edge = None
    elif shortest and crop:
        size, edge = crop, shortest
    elif shortest:
        size = (shortest, shortest)
    if size is not None:
        known |= {"size": list(size), "edge": edge}
    return known


def _two_sides(size: Any) -> tuple[int, int] | None:
    if isinstance(size, Mapping) and size.get("height") and size.get("width"):
        return int(size["height"]), int(size["width"])
    return None


class PixelSample:
    """Sizes and pixel statistics of a sample of images, spread evenly over the rows."""

    def __init__(self) -> None:
        self._stride = 1
        self._seen: list[tuple[tuple[int, int], Any, Any, float]] = []
        self._fault: RowFaultError | None = None

    def watch(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """The rows, unchanged; every n-th image is measured on the way.

        Unreadable images are reported later, by the encoding.
        """
        for place, row in enumerate(rows):
            if place % self._stride == 0 and row["image"] is not None:
                try:
                    self._add(row["image"])
                except RowFaultError as fault:
                    self._fault = self._fault or fault
            yield row

    def _add(self, value: Any) -> None:
        image = decode(value)
        pixels = np.asarray(image, np.float64) / 255
        means, squares = pixels.mean((0, 1)), np.square(pixels).mean((0, 1))
        self._seen.append((image.size, means, squares, float_range_of(value)))
        if len(self._seen) == 2 * SAMPLE_ROWS:
            self._seen, self._stride = self._seen[::2], 2 * self._stride

    def fitted(self, asked: tuple[int, int] | None, model: Mapping[str, Any]) -> dict[str, Any]:
        """A PixelFormat as JSON: set by the user, else by the model, else by the sample."""
        if not self._seen:
            fault = self._fault or RowFaultError(UNREADABLE_IMAGE, "the image column is empty")
            message = f"No training row has a readable image: {fault.message}"
            raise fault.rule.error(message, fix=fault.fix)
        _, means, squares, ranges = zip(*self._seen, strict=True)
        mean = np.mean(means, 0)
        std = np.sqrt(np.maximum(np.mean(squares, 0) - mean**2, 1e-4))
        known = {"mean": mean.tolist(), "std": std.tolist(), **model}
        of_model = known.pop("size", None)
        multiple = known.pop("multiple_of", None)
        size = asked or of_model or self._common_size(multiple)
        if asked:
            known["edge"] = None
        known |= {"height": int(size[0]), "width": int(size[1]), "float_range": max(ranges)}
        return asdict(read_format(known))

    def _common_size(self, multiple: int | None) -> tuple[int, int]:
        """The most common height and width, at most 224; square for models that need it."""
        (width, height), _ = Counter(size for size, *_ in self._seen).most_common(1)[0]
        shrink = min(1.0, LARGEST_DEFAULT / max(width, height))
        height, width = max(1, round(height * shrink)), max(1, round(width * shrink))
        if multiple is None:
            return height, width
        side = -(-max(height, width) // multiple) * multiple
        return side, side
