"""What a column may hold, judged by its Arrow type."""

from __future__ import annotations

import pyarrow as pa

CHANNELS = (1, 3, 4)
"""Gray, RGB and RGBA: images of these numbers of channels can be converted into each other."""
IMAGE_ENDINGS = (
    *(".avif", ".bmp", ".gif", ".ico", ".jp2", ".jpeg", ".jpg", ".pcx", ".pgm", ".png", ".pnm"),
    *(".ppm", ".qoi", ".tga", ".tif", ".tiff", ".webp"),
)
AUDIO_ENDINGS = (".aac", ".aif", ".aiff", ".flac", ".m4a", ".mp3", ".ogg", ".opus", ".wav")


def is_list(kind: pa.DataType) -> bool:
    """Whether a column holds a list per row, of any length or of a fixed one."""
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def list_axes(kind: pa.DataType) -> tuple[tuple[int | None, ...], pa.DataType]:
    """The sizes of nested lists, None where they vary, and the type of their values.

    >>> list_axes(pa.list_(pa.list_(pa.float32(), 12)))
    ((None, 12), DataType(float))
    """
    sizes: list[int | None] = []
    while is_list(kind):
        sizes.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    return tuple(sizes), kind


def array_rank(kind: pa.DataType) -> int:
    """The number of axes in one row of an array column."""
    return len(list_axes(kind)[0])


def fixed_sizes(kind: pa.DataType) -> tuple[int, ...]:
    """The sizes of an array column's axes that are the same in all rows."""
    return tuple(size for size in list_axes(kind)[0] if size is not None)


def is_array(kind: pa.DataType) -> bool:
    """Whether a column holds a numeric array of one or more axes per row."""
    axes, value = list_axes(kind)
    return bool(axes) and is_number(value)


def is_number(kind: pa.DataType) -> bool:
    """Whether a column holds one number per row; true and false count as numbers."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    """Whether a column holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_text_list(kind: pa.DataType) -> bool:
    """Whether a column holds a list of texts per row."""
    return is_list(kind) and is_text(kind.value_type)


def is_integer_list(kind: pa.DataType) -> bool:
    """Whether a column holds a list of integers per row."""
    return is_list(kind) and bool(pa.types.is_integer(kind.value_type))


def is_object(kind: pa.DataType) -> bool:
    """Whether a column holds an object with named values per row."""
    return bool(pa.types.is_struct(kind))


def is_dialogue(kind: pa.DataType) -> bool:
    """Whether a column holds a list of objects per row, as dialogues are."""
    return is_list(kind) and bool(pa.types.is_struct(kind.value_type))


def may_hold_images(kind: pa.DataType, named: bool) -> bool:
    """Whether a column may hold images: bytes, `{bytes, path}` or arrays of pixels.

    A column `named` for images may also hold paths, and arrays of other types than uint8.
    """
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 or (named and kind.get_field_index("path") >= 0)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return True
    if not is_array(kind):
        return named and is_text(kind)
    axes, value = list_axes(kind)
    return len(axes) in (2, 3) and (named or value == pa.uint8())


def may_hold_audio(kind: pa.DataType, named: bool) -> bool:
    """Whether a column may hold audio: `{array, sampling_rate}`, `{bytes, path}`, bytes, arrays.

    Other than an array with its rate, which is audio by any name, it must be `named` for audio; it
    may then also hold paths.
    """
    if pa.types.is_struct(kind):
        fields = {*(kind.field(place).name for place in range(kind.num_fields))}
        return "sampling_rate" in fields or (named and bool(fields & {"bytes", "path"}))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return named
    return named and (is_text(kind) or (is_array(kind) and array_rank(kind) <= 2))


FLOAT_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""Arrow's names of floating-point types, and the usual ones."""


def describe_type(kind: pa.DataType) -> str:
    """An Arrow type in plain words.

    >>> describe_type(pa.list_(pa.list_(pa.float32(), 12)))
    'float32 array [*, 12]'
    """
    axes, value = list_axes(kind)
    name = "text" if is_text(value) else FLOAT_NAMES.get(str(value), str(value))
    shown = ", ".join("*" if size is None else str(size) for size in axes)
    return f"{name} array [{shown}]" if axes else name
