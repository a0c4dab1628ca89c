"""What a column may hold, judged by its Arrow type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

CHANNELS = (1, 3, 4)
"""Gray, RGB and RGBA: images of these numbers of channels can be converted into each other."""
IMAGE_ENDINGS = (
    *(".avif", ".bmp", ".gif", ".ico", ".jp2", ".jpeg", ".jpg", ".pcx", ".pgm", ".png", ".pnm"),
    *(".ppm", ".qoi", ".tga", ".tif", ".tiff", ".webp"),
)
AUDIO_ENDINGS = (".aac", ".aif", ".aiff", ".flac", ".m4a", ".mp3", ".ogg", ".opus", ".wav")


def is_list(kind: pa.DataType) -> bool:
    """Return whether a column holds a list per row, of any length or of a fixed one."""
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def list_axes(kind: pa.DataType) -> tuple[tuple[int | None, ...], pa.DataType]:
    """Return the sizes of nested lists, None where they vary, and the type of their values.

    >>> list_axes(pa.list_(pa.list_(pa.float32(), 12)))
    ((None, 12), DataType(float))
    """
    sizes: list[int | None] = []
    while is_list(kind):
        sizes.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    return tuple(sizes), kind


def array_rank(kind: pa.DataType) -> int:
    """Return the number of axes in one row of an array column."""
    return len(list_axes(kind)[0])


def is_array(kind: pa.DataType) -> bool:
    """Return whether a column holds a numeric array of one or more axes per row."""
    axes, value = list_axes(kind)
    return bool(axes) and is_number(value)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column holds one number per row; true and false count as numbers."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_text_list(kind: pa.DataType) -> bool:
    """Return whether a column holds a list of texts per row."""
    return is_list(kind) and is_text(kind.value_type)


def is_integer_list(kind: pa.DataType) -> bool:
    """Return whether a column holds a list of integers per row."""
    return is_list(kind) and bool(pa.types.is_integer(kind.value_type))


def is_object(kind: pa.DataType) -> bool:
    """Return whether a column holds an object with named values per row."""
    return bool(pa.types.is_struct(kind))


def fields_of(kind: pa.DataType) -> dict[str, pa.DataType]:
    """Return the types of the named values that an object has; none for other types."""
    places = range(kind.num_fields) if is_object(kind) else ()
    return {kind.field(place).name: kind.field(place).type for place in places}


def is_dialogue(kind: pa.DataType) -> bool:
    """Return whether a column holds a list of objects per row, as dialogues are."""
    return is_list(kind) and bool(pa.types.is_struct(kind.value_type))


def may_hold_images(kind: pa.DataType, named: bool) -> bool:
    """Return whether a column may hold images: bytes, `{bytes, path}` or arrays of pixels.

    A column `named` for images may also hold paths, and arrays of other types than uint8.
    """
    if pa.types.is_struct(kind):
        return "bytes" in fields_of(kind) or (named and "path" in fields_of(kind))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return True
    if not is_array(kind):
        return named and is_text(kind)
    axes, value = list_axes(kind)
    return len(axes) in (2, 3) and (named or value == pa.uint8())


def may_hold_audio(kind: pa.DataType, named: bool) -> bool:
    """Return whether a column may hold audio: `{array, sampling_rate}`, `{bytes, path}`, bytes,
    arrays.

    Other than an array with its rate, which is audio by any name, it must be `named` for audio; it
    may then also hold paths.
    """
    if pa.types.is_struct(kind):
        fields = fields_of(kind)
        return "sampling_rate" in fields or (
            named and not fields.keys().isdisjoint(("bytes", "path"))
        )
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return named
    return named and (is_text(kind) or (is_array(kind) and array_rank(kind) <= 2))


FLOAT_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""Arrow's names of floating-point types, and the usual ones."""


def describe_type(kind: pa.DataType) -> str:
    """Return an Arrow type in plain words.

    >>> describe_type(pa.list_(pa.list_(pa.float32(), 12)))
    'float32 array [*, 12]'
    """
    axes, value = list_axes(kind)
    name = "text" if is_text(value) else FLOAT_NAMES.get(str(value), str(value))
    shown = ", ".join("*" if size is None else str(size) for size in axes)
    return f"{name} array [{shown}]" if axes else name


def merge_types(known: pa.DataType, found: pa.DataType) -> pa.DataType:
    """Return the type that holds both; raises ArrowException if there is none.

    >>> str(merge_types(pa.list_(pa.float32(), 3), pa.list_(pa.float32(), 4)))
    'list<item: float>'
    """
    pair = [pa.schema([pa.field("x", kind)]) for kind in (known, found)]
    return pa.unify_schemas(pair, promote_options="permissive").field("x").type


def nested_list(sizes: tuple[int | None, ...], value: pa.DataType) -> pa.DataType:
    """Return type of nested lists with these sizes, None where they vary, and this value type."""
    for size in reversed(sizes):
        value = pa.large_list(value) if size is None else pa.list_(value, size)
    return value


KEPT_ROWS = 4
UNSTORABLE = (pa.ArrowException, OverflowError, UnicodeEncodeError)
_SCALARS = (str, int, float, bool)


@dataclass(frozen=True)
class OddValues:
    """The values of a column that have another type than most, with the first few rows."""

    rows: tuple[int, ...]
    count: int
    what: str
    """The message: what the first of these rows holds, and what most rows hold."""


def find_odd_values(values: Iterable[Any]) -> OddValues | None:
    """Return the values that have another type than most; None if one type holds all of them.

    >>> find_odd_values([1.5, 2, "12,5", None, 3]).what
    "holds text ('12,5'), but numbers in 3 other rows"
    """
    kinds: list[pa.DataType] = []
    counts, first, known = Counter[int](), dict[int, list[tuple[int, Any]]](), dict[type, int]()
    for row, value in enumerate(values):
        group = known[type(value)] if type(value) in known else _add_kind(value, kinds)
        if group is None:
            continue
        counts[group] += 1
        if counts[group] <= KEPT_ROWS:
            first.setdefault(group, []).append((row, value))
        if type(value) in _SCALARS:
            known[type(value)] = group
    if len(counts) < 2:
        return None
    most, count = counts.most_common(1)[0]
    odd = {row: value for group, found in first.items() if group != most for row, value in found}
    row = min(odd)
    what = f"holds {_one(odd[row])} ({str(odd[row])[:40]!r}), but {_many(kinds[most])} in {count}"
    what += f" other row{'s' if count > 1 else ''}"
    return OddValues(tuple(sorted(odd)[:KEPT_ROWS]), counts.total() - count, what)


def _add_kind(value: Any, kinds: list[pa.DataType]) -> int | None:
    """Return the place of a type that can hold the value, which may be new; None for no value."""
    try:
        kind = None if value is None else pa.array([value]).type
    except UNSTORABLE:
        kind = None
    if kind is None:
        return None
    for place, other in enumerate(kinds):
        try:
            kinds[place] = merge_types(other, kind)
        except pa.ArrowException:
            continue
        return place
    kinds.append(kind)
    return len(kinds) - 1


def _one(value: Any) -> str:
    names = {str: "text", bool: "true/false", int: "a number", float: "a number", dict: "an object"}
    return names.get(type(value), f"a {type(value).__name__}")


def _many(kind: pa.DataType) -> str:
    if is_text(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "true/false"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "numbers"
    return "objects" if pa.types.is_struct(kind) else describe_type(kind)
