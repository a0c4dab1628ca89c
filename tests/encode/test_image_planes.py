"""Images as a module wants them: channels, ranges and depths, without rounding."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

import surefit
from surefit.encode.encoded_row import RowFaultError
from surefit.encode.images.image_planes import AS_THEY_ARE, read_planes
from surefit.encode.images.pixel_format import PixelFormat, read_format
from surefit.encode.images.pixel_sample import PixelSample

GRAY = np.random.default_rng(0).integers(0, 256, (5, 7)).astype(np.uint8)
RGB = np.random.default_rng(1).integers(0, 256, (5, 7, 3)).astype(np.uint8)


def png(pixels: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("value", [GRAY, GRAY[:, :, None], GRAY[None], png(GRAY)])
def test_gray_images_of_every_form(value: Any) -> None:
    assert (read_planes(value, 1, 0)[:, :, 0] == GRAY).all()
    assert (read_planes(value, 3, 0) == GRAY[:, :, None]).all()


@pytest.mark.parametrize("value", [RGB, RGB.transpose(2, 0, 1), png(RGB)])
def test_color_images_of_every_form(value: Any) -> None:
    assert (read_planes(value, 3, 0) == RGB).all()
    gray = np.asarray(Image.fromarray(RGB).convert("L"), np.float32)
    assert np.abs(read_planes(value, 1, 0)[:, :, 0] - gray).max() <= 1
    assert (read_planes(value, 4, 0)[:, :, 3] == 255).all()


def test_16_bits_and_floats_keep_their_values() -> None:
    deep = np.array([[0, 1, 300], [65535, 257, 2]], np.uint16)
    for value in (deep, png(deep)):
        assert np.allclose(read_planes(value, 1, 0)[:, :, 0], deep / 257)
    small = np.array([[0.0, 0.001], [0.5, 1.0]], np.float32)
    assert np.allclose(read_planes(small, 1, 1)[:, :, 0], small * 255)
    normal = np.array([[-2.0, 0.001], [0.5, 2.5]], np.float32)
    assert (read_planes(normal, 1, AS_THEY_ARE)[:, :, 0] == normal).all()
    with pytest.raises(RowFaultError, match=r"values from -2 to 2\.5; expected 0 to 1"):
        read_planes(normal, 1, 1)


def test_transparent_pixels_become_white_unless_four_channels_are_read() -> None:
    clear = np.dstack([RGB, np.zeros((5, 7), np.uint8)])
    assert (read_planes(clear, 3, 0) == 255).all()
    assert (read_planes(clear, 4, 0)[:, :, :3] == RGB).all()


def fitted(images: Any, model: Any, **asked: Any) -> PixelFormat:
    sample = PixelSample((1, 3, 4))
    list(sample.watch({"image": image} for image in images))
    return read_format(sample.fitted(None, model, asked))


CONV1, ANY = {"channels": 1, "inputs": None}, {"channels": None, "inputs": None}


def test_channels_are_those_of_the_first_layer_else_of_the_images() -> None:
    assert fitted([RGB], CONV1).channels == 1
    assert fitted([GRAY], {"channels": 3, "inputs": None}).channels == 3
    assert fitted([GRAY], ANY).channels == 1
    assert fitted([RGB], {"channels": None, "inputs": 35}).channels == 1  # a Linear of 5 × 7
    assert fitted([RGB], CONV1, channels=3).channels == 3
    assert fitted([RGB], {}).channels == 3
    with pytest.raises(RowFaultError) as caught:
        fitted([None, RGB], {"channels": 2, "inputs": None})
    assert (caught.value.rule.code, caught.value.place) == ("SF256", 1)


def test_mean_and_std_are_those_of_the_images_or_asked_for() -> None:
    form = fitted([GRAY], CONV1)
    assert np.allclose(form.mean, GRAY.mean() / 255)
    assert np.allclose(form.std, GRAY.std() / 255)
    values = form.pixel_values(GRAY)
    assert values.shape == (1, 5, 7)
    assert abs(values.mean()) < 1e-5
    asked = fitted([RGB], ANY, mean=[0.5], std=[0.1, 0.2, 0.4])
    assert asked.mean == (0.5, 0.5, 0.5)
    assert asked.std == (0.1, 0.2, 0.4)
    with pytest.raises(surefit.UsageError, match=r"image\.std has 3 values"):
        fitted([GRAY], CONV1, std=[1.0, 1.0, 1.0])


def test_normalised_images_are_used_as_they_are() -> None:
    normal = np.random.default_rng(0).normal(size=(20, 1, 6, 6)).astype(np.float32)
    form = fitted(normal, CONV1)
    assert form.float_range == AS_THEY_ARE
    assert (form.pixel_values(normal[3]) == normal[3]).all()
    deep = np.abs(normal) * 1000  # neither 0 to 1 nor 0 to 255, and not normalised
    form = fitted(deep, CONV1)
    assert abs(np.mean([form.pixel_values(image) for image in deep])) < 1e-4
    odd = [np.abs(normal[0]) / 9] * 19 + [normal[1]]  # one image is at fault, not all others
    assert fitted(odd, CONV1).float_range == 1


def test_images_are_resized_plane_by_plane() -> None:
    form = PixelFormat(10, 14, (0.0,), (1.0,), 1.0, channels=1, float_range=AS_THEY_ARE, exact=True)
    ramp = np.linspace(-1, 1, 35, dtype=np.float32).reshape(5, 7)
    assert form.pixel_values(ramp).shape == (1, 10, 14)
    assert -1 <= form.pixel_values(ramp).min() < -0.9
