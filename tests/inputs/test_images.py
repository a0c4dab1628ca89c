"""Pictures of every kind are read as the same picture; what is none is named."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import SHAPES, draw
from PIL import Image

import surefit
from surefit.data.cell_files import IMAGES, names_files, with_files
from surefit.data.open_data import open_table
from surefit.data.row_parts import RowParts
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.image.image_files import AS_THEY_ARE, decode, image_content, read_planes
from surefit.inputs.image.pixel_format import ImageHints, PixelFormat
from surefit.inputs.image.pixel_sample import PixelSample
from surefit.inputs.model_hints import from_processor

PICTURE = draw("disc", 3, 24, 20)
GREY = PICTURE[:, :, 0]


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    sink = io.BytesIO()
    image.save(sink, kind, **options)
    return sink.getvalue()


def pixels(value: Any, **options: Any) -> np.ndarray[Any, Any]:
    picture = decode(value, **options)
    assert picture.mode == "RGB"
    return np.asarray(picture)


def with_alpha() -> Image.Image:
    alpha = np.full(GREY.shape, 255, np.uint8)
    return Image.fromarray(np.dstack([PICTURE, alpha]))


@pytest.mark.parametrize(
    "value",
    [
        encoded(Image.fromarray(PICTURE), "PNG"),
        encoded(Image.fromarray(PICTURE), "BMP"),
        encoded(Image.fromarray(PICTURE), "TIFF"),
        encoded(Image.fromarray(PICTURE), "WEBP", lossless=True),
        encoded(Image.fromarray(PICTURE), "PPM"),
        encoded(with_alpha(), "PNG"),
        {"bytes": encoded(Image.fromarray(PICTURE), "PNG"), "path": "elsewhere.png"},
        PICTURE,
        PICTURE.transpose(2, 0, 1),
        PICTURE.astype(np.int64),
        PICTURE.tolist(),
        PICTURE / 255,
        (PICTURE / 255).astype(np.float32),
        PICTURE.astype(np.float32),
        PICTURE.astype(np.uint16) * 257,
        np.dstack([PICTURE, np.full(GREY.shape, 255, np.uint8)]),
    ],
)
def test_kinds_of_colour_pictures_are_the_same_picture(value: Any) -> None:
    assert np.array_equal(pixels(value), PICTURE)


@pytest.mark.parametrize(
    "value",
    [
        encoded(Image.fromarray(GREY), "PNG"),
        encoded(Image.fromarray(GREY).convert("P"), "PNG"),
        encoded(Image.fromarray(GREY).convert("LA"), "PNG"),
        encoded(Image.fromarray(GREY), "GIF"),
        encoded(Image.fromarray(GREY.astype(np.uint16) * 257), "PNG"),
        encoded(Image.fromarray(GREY.astype(np.uint16) * 257), "TIFF"),
        encoded(Image.fromarray(GREY.astype(np.int32) * 257), "TIFF"),
        encoded(Image.fromarray((GREY / 255).astype(np.float32)), "TIFF"),
        encoded(
            Image.fromarray(GREY), "GIF", save_all=True, append_images=[Image.fromarray(255 - GREY)]
        ),
        GREY,
        GREY[:, :, None],
        GREY[None],
        GREY / 255,
    ],
)
def test_kinds_of_grey_pictures_are_the_same_picture(value: Any) -> None:
    assert np.array_equal(pixels(value), np.dstack([GREY] * 3))


def test_cmyk_bilevel_and_palette_colours() -> None:
    flat = Image.new("RGB", (6, 4), (255, 0, 0))
    for value in (
        encoded(flat.convert("CMYK"), "TIFF"),
        encoded(flat.convert("P"), "PNG"),
        encoded(flat.quantize(4), "GIF"),
    ):
        assert np.array_equal(pixels(value), np.asarray(flat))
    jpeg = pixels(encoded(flat.convert("CMYK"), "JPEG", quality=95))
    assert np.abs(jpeg.astype(int) - np.asarray(flat)).max() < 8
    bits = (GREY > 100).astype(np.uint8) * 255
    assert np.array_equal(pixels(encoded(Image.fromarray(bits).convert("1"), "PNG"))[..., 0], bits)
    assert np.array_equal(pixels(bits > 0)[..., 0], bits)


def test_transparent_parts_are_white() -> None:
    image = with_alpha()
    clear = np.asarray(image).copy()
    clear[:5, :, 3] = 0
    expected = PICTURE.copy()
    expected[:5] = 255
    assert np.array_equal(pixels(encoded(Image.fromarray(clear), "PNG")), expected)
    assert np.array_equal(pixels(clear), expected)
    palette = Image.fromarray(np.array([[0, 1]], np.uint8)).convert("P")
    palette.putpalette([10, 20, 30, 40, 50, 60])
    keyed = encoded(palette, "PNG", transparency=1)
    assert pixels(keyed).tolist() == [[[10, 20, 30], [255, 255, 255]]]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_are_undone(orientation: int) -> None:
    back = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    image = Image.fromarray(PICTURE)
    stored = image.transpose(back[orientation]) if orientation > 1 else image
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert np.array_equal(pixels(encoded(stored, "PNG", exif=exif)), PICTURE)


PNG = encoded(Image.fromarray(PICTURE), "PNG")
JPEG = encoded(Image.fromarray(PICTURE), "JPEG")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "does not recognise an image format"),
        (b"not a picture", "does not recognise an image format"),
        (PNG[:60], "cannot be read"),
        (PNG[: len(PNG) // 2], "cannot be read"),
        (JPEG[: len(JPEG) // 2], "cannot be read"),
        (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            "does not recognise an image format",
        ),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "bad.png"
    path.write_bytes(content)
    for value, shown in ((str(path), "bad.png"), (content, "bytes")):
        with pytest.raises(RowFaultError, match=says) as caught:
            decode(value)
        assert caught.value.rule.code == "SF250"
        assert shown in caught.value.message


def test_decompression_bombs_are_refused() -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    with pytest.raises(RowFaultError, match="900000000 pixels") as caught:
        decode(bomb)
    assert caught.value.rule.code == "SF250"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([PNG, JPEG]), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255))))
def test_damaged_bytes_are_a_picture_or_a_fault(content: bytes, changes: Any) -> None:
    damaged = bytearray(content)
    for place, byte in changes:
        damaged[place % len(damaged)] = byte
    with contextlib.suppress(RowFaultError):
        assert decode(bytes(damaged)).mode == "RGB"


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros((5, 4, 7), np.uint8), r"shape \[5, 4, 7\]"),
        (np.zeros(9, np.uint8), r"shape \[9\]"),
        (np.full((4, 4), -1.0), "from -1 to -1"),
        (np.full((4, 4), 300), "300; expected 0 to 255"),
        ([[1, 2], [3]], "different lengths"),
        (np.array([["a"]]), "<U1"),
    ],
)
def test_arrays_that_are_no_picture(array: Any, says: str) -> None:
    with pytest.raises(RowFaultError, match=says) as caught:
        decode(array)
    assert caught.value.rule.code == "SF251"


def test_the_range_of_fractions_is_kept() -> None:
    dark = np.full((2, 2), 1.0)
    assert pixels(dark, float_range=255).max() == 1
    assert pixels(dark, float_range=1).max() == 255
    with pytest.raises(RowFaultError, match="2; expected 0 to 1"):
        decode(2 * dark, float_range=1)
    with pytest.raises(RowFaultError) as caught:
        decode(np.full((2, 2), np.nan))
    assert caught.value.rule.code == "SF207"


def test_pixel_values_are_those_of_transformers(tmp_path: Path) -> None:
    import json

    from transformers import AutoImageProcessor

    picture = Image.fromarray(draw("frame", 1, 61, 50))
    for edge in (None, 40):
        form = PixelFormat(32, 24, (0.1, 0.5, 0.6), (0.2, 0.3, 0.4), edge=edge, resample=3)
        folder = tmp_path / str(edge)
        folder.mkdir()
        (folder / "preprocessor_config.json").write_text(json.dumps(form.processor_config()))
        theirs = AutoImageProcessor.from_pretrained(folder)
        expected = theirs(picture, return_tensors="np")["pixel_values"][0]
        ours = form.pixel_values(encoded(picture, "PNG"))
        assert ours.shape == (3, 32, 24)
        assert ours.dtype == np.float32
        assert np.allclose(ours, expected, atol=1e-5)
        known = from_processor(theirs.to_dict())
        assert known["size"] == [32, 24]
        assert known["edge"] == edge
        assert known["mean"] == pytest.approx([0.1, 0.5, 0.6])
        assert known["scale"] == pytest.approx(1 / 255)


@pytest.mark.parametrize("kind", ["ConvNextImageProcessor", "MobileViTImageProcessor"])
def test_other_processors_of_transformers(kind: str) -> None:
    import transformers

    theirs = getattr(transformers, kind)()
    known = from_processor(theirs.to_dict())
    height, width = known.pop("size")
    form = PixelFormat(height=height, width=width, **known)
    picture = Image.fromarray(draw("frame", 1, 300, 280))
    expected = theirs(picture, return_tensors="np")["pixel_values"][0]
    assert np.abs(form.pixel_values(np.asarray(picture)) - expected).max() < 0.03


def test_sample_is_spread_over_all_rows_in_bounded_memory() -> None:
    rows = [{"image": np.full((4, 6), n % 256, np.uint8)} for n in range(5000)]
    sample = PixelSample()
    assert len(list(sample.watch(rows))) == 5000
    assert 512 <= len(sample._seen) < 1024
    fitted = sample.fitted(None, {})
    values = np.arange(5000) % 256 / 255
    assert fitted.mean == pytest.approx([values.mean()] * 3, abs=0.02)
    assert fitted.std == pytest.approx([values.std()] * 3, abs=0.02)
    assert (fitted.height, fitted.width) == (4, 6)
    assert sample.fitted(None, {"multiple_of": 32}).width == 32
    assert sample.fitted((9, 8), {"size": [3, 3], "edge": 5}).height == 9


def test_large_pictures_are_brought_to_a_moderate_size() -> None:
    sample = PixelSample()
    list(sample.watch([{"image": np.zeros((600, 800), np.uint8)}]))
    fitted = sample.fitted(None, {})
    assert (fitted.height, fitted.width) == (168, 224)


def test_paths_are_looked_for_beside_the_data_file_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("a", "b", "."):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "rows.csv").write_text("path,label\n1.png,x\nhere.png,y\n")
        (tmp_path / place / "1.png").write_bytes(PNG)
    (tmp_path / "here.png").write_bytes(PNG)
    table = with_files(open_table(["a/rows.csv", "b/rows.csv"]), {"image": "path"})
    paths = [str(row["path"]) for row in table.rows()]
    assert paths == ["a/1.png", "here.png", "b/1.png", "here.png"]
    assert [row["path"] for row in table.rows([2, 0])] == ["b/1.png", "a/1.png"]


def test_text_columns_that_name_pictures(tmp_path: Path) -> None:
    (tmp_path / "0a3f").write_bytes(PNG)
    (tmp_path / "rows.csv").write_text("path,other,name\n1.PNG,hello,0a3f\n")
    table = open_table(tmp_path / "rows.csv")
    assert names_files(table, "path", IMAGES)
    assert names_files(table, "name", IMAGES)
    assert not names_files(table, "other", IMAGES)


def test_images_of_equal_pixels_stay_in_one_set_whatever_their_format(tmp_path: Path) -> None:
    for number in range(12):
        pixels = Image.fromarray(draw(SHAPES[number % 3], number, 16, 16))
        folder = tmp_path / SHAPES[number % 3]
        folder.mkdir(exist_ok=True)
        pixels.save(folder / f"{number}.png", compress_level=9)
        pixels.save(folder / f"{number}-again.png", compress_level=1)
        pixels.save(folder / f"{number}.bmp")
    table = with_files(open_table(tmp_path), {"image": "image"})
    parts = RowParts({"image": "image", "label": "label"}, ("label",), content=image_content)
    inputs, _ = parts.hash_table(table)
    assert len({*inputs.tolist()}) == 12


def test_large_and_damaged_images_are_compared_by_their_bytes(tmp_path: Path) -> None:
    large = Image.new("RGB", (300, 300))
    large.save(tmp_path / "a.png", compress_level=9)
    large.save(tmp_path / "b.png", compress_level=0)
    (tmp_path / "c.png").write_bytes(b"no image")
    contents = {image_content(str(tmp_path / name)) for name in ("a.png", "b.png", "c.png")}
    assert len(contents) == 3


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


def fitted(images: Any, model: Any, **asked: Any) -> PixelFormat:
    sample = PixelSample((1, 3, 4))
    list(sample.watch({"image": image} for image in images))
    return sample.fitted(None, model, ImageHints(**asked))


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
