"""Numbers, dtypes and matrix sizes that a message contains; no text makes reading fail."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from surefit.explainer.cause import Context

MAX_DIGITS = 15
"""Numbers with more digits are no sizes of tensors. Below it, products and quotients are exact."""

WHOLE = re.compile(rf"-?\d{{1,{MAX_DIGITS}}}")
DECIMAL = re.compile(r"\d{1,15}(?:\.\d{0,15})?(?:[eE][-+]?\d{1,2})?|nan|inf", re.IGNORECASE)


def remarks(text: str, sentences: Mapping[str, str], most: int | None = None) -> list[str]:
    """Return the sentences whose pattern is in a text, or the first `most` of them."""
    return [each for pattern, each in sentences.items() if re.search(pattern, text)][:most]


def read_whole(text: str) -> int | None:
    """Read a whole number.

    >>> read_whole("512"), read_whole("-1"), read_whole("1.5"), read_whole("9" * 5000)
    (512, -1, None, None)
    """
    return int(text) if WHOLE.fullmatch(text) else None


def read_decimal(text: str) -> float | None:
    """Read a number with or without a fraction, NaN and infinity included.

    >>> read_decimal("1.5"), read_decimal("2e-3"), read_decimal("1.2.3")
    (1.5, 0.002, None)
    """
    return float(text) if DECIMAL.fullmatch(text) else None


def factor(whole: int, part: int) -> int | None:
    """Return how many times `part` goes into `whole`, or None unless it does exactly, twice or
    more.

    >>> factor(640, 32), factor(640, 33), factor(640, 640), factor(640, 0)
    (20, None, None, None)
    """
    if part <= 0 or whole <= part or whole % part:
        return None
    return whole // part


SPELLED = r"(?:(?:struct |class |long |short |unsigned |signed ){0,2}[\w.:<>]{1,40})"
"""The pattern of a dtype in a message."""

_CXX = r"(?:struct |class )?(?:c10::|at::|torch\.)?"
_TENSOR = r"(?P<device>cuda\.|mps\.|CPU|CUDA|MPS)?(?P<name>[\w<> ]+?)(?:Tensor|Type)?"
_PARTS = re.compile(_CXX + _TENSOR)

_SPELLINGS = {
    "float64": ("floating-point", "double float64"),
    "float32": ("floating-point", "float float32"),
    "float16": ("floating-point", "half float16"),
    "bfloat16": ("floating-point", "bfloat16"),
    "int64": ("integer", "long long_int long_long int64 int64_t __int64"),
    "int32": ("integer", "int int32 int32_t"),
    "int16": ("integer", "short short_int int16 int16_t"),
    "int8": ("integer", "char signed_char int8 int8_t"),
    "uint8": ("integer", "byte unsigned_char uint8 uint8_t"),
    "bool": ("boolean", "bool"),
    "complex64": ("complex", "complexfloat complex<float> complex64"),
    "complex128": ("complex", "complexdouble complex<double> complex128"),
}
_BY_SPELLING = {
    spelling: (name, kind)
    for name, (kind, spellings) in _SPELLINGS.items()
    for spelling in spellings.split()
}


@dataclass(frozen=True)
class Dtype:
    """A dtype, its kind (floating-point, integer, boolean or complex), and its device if named."""

    name: str
    kind: str
    device: str = ""

    @property
    def is_half(self) -> bool:
        """Return whether it is one of the two 16-bit floating-point dtypes."""
        return self.name in ("torch.float16", "torch.bfloat16")


def read_dtype(spelling: str) -> Dtype | None:
    """Return the dtype that a message spells; None if it spells none.

    >>> read_dtype("c10::BFloat16")
    Dtype(name='torch.bfloat16', kind='floating-point', device='')
    >>> read_dtype("torch.cuda.LongTensor")
    Dtype(name='torch.int64', kind='integer', device='GPU')
    """
    parts = _PARTS.fullmatch(spelling)
    if parts is None:
        return None
    known = _BY_SPELLING.get(parts["name"].lower().replace(" ", "_"))
    if known is None:
        return None
    name, kind = known
    device = "" if parts["device"] is None else "CPU" if parts["device"] == "CPU" else "GPU"
    if not device and spelling.endswith("Tensor"):
        device = "CPU"  # torch.FloatTensor, as opposed to torch.cuda.FloatTensor
    return Dtype(f"torch.{name}", kind, device)


BATCH_SIZE = re.compile(r"(?i)batch[_\s-]?size[\s=:\"']{0,4}(?:of\s{1,4})?(\d{1,9})(?!\d)")
INPUT_SHAPE = re.compile(r"\[ ?(?:[A-Za-z_]\w{0,40}|\d{1,9}) ?, ?(\d{1,9}) ?, ?(\d{1,9}) ?\]")
"""A shape such as [batch_size, 20, 271] in the text: sequence length and feature size."""
USUAL_BATCH_SIZES = tuple(2**power for power in range(10, 0, -1))


def conclusions(context: Context) -> list[str]:
    """Conclude from `(rows×features and in_features×out_features)` and the rest of the text."""
    rows, features = context.number("rows"), context.number("features")
    in_features, out_features = context.number("in_features"), context.number("out_features")
    if rows is None or features is None or in_features is None or out_features is None:
        return []  # a wording without sizes, or sizes that are no numbers
    shape = _known_input(context, rows, features)
    if shape is not None:
        return [
            f"The tensor in the failing frame has shape {list(shape)}. The layer expects "
            f"{in_features} features on the last axis, but the tensor has {features}.",
            *_relation(rows, features, in_features, out_features, []),
        ]
    named = {read_whole(size) or 0 for size in BATCH_SIZE.findall(context.text)}
    lengths = [
        read_whole(length) or 0
        for length, size in INPUT_SHAPE.findall(context.text)
        if read_whole(size) == in_features
    ]
    return explain_product(
        rows, features, in_features, out_features, sorted(named, reverse=True), lengths
    )


def explain_product(
    rows: int,
    features: int,
    in_features: int,
    out_features: int,
    batch_sizes: Sequence[int] = (),
    lengths: Sequence[int] = (),
) -> list[str]:
    """Explain `(rows×features) @ (in_features×out_features)`, the most likely cause first.

    `batch_sizes` and `lengths` (of sequences) are those that the text names. nn.Linear flattens all
    leading axes, so `rows` is a batch size times a sequence length.

    >>> explain_product(255744, 4000, 271, 256, [256], [20])[1]
    '255744 = 256 × 999. With the batch size 256, the input has shape [256, 999, 4000].'
    """
    lines = [
        f"The layer is Linear({in_features}, {out_features}). nn.Linear flattens all leading axes: "
        f"{rows} is batch size × sequence length, and {features} is the feature size of the input."
    ]
    if not rows or not features:
        return [*lines, "A size of the input is 0: the batch has no rows or no features."]
    relation = _relation(rows, features, in_features, out_features, batch_sizes)
    batch_size = next((size for size in batch_sizes if size > 1 and factor(rows, size)), None)
    if batch_size is not None:
        length = rows // batch_size
        lines.append(
            f"{rows} = {batch_size} × {length}. With the batch size {batch_size}, the input has "
            f"shape [{batch_size}, {length}, {features}]."
        )
        if not relation:
            lines.append(_other_data(length, features, in_features, lengths))
    elif rows in batch_sizes:
        lines.append(f"{rows} is the batch size. The input has two axes: [{rows}, {features}].")
    elif not relation:
        lines += _guess(rows, features)
    return [*lines, *relation, *_memory(rows, features)]


def _relation(
    rows: int, features: int, in_features: int, out_features: int, batch_sizes: Sequence[int]
) -> list[str]:
    """Return how the feature size of the input and that of the layer are related, if they are."""
    length = factor(features, in_features)
    if length is not None:
        return [
            f"{features} = {length} × {in_features}. A sequence of length {length} with feature "
            f"size {in_features} was flattened into one axis. Use view(batch, {length}, "
            f"{in_features}), or build Linear({features}, {out_features})."
        ]
    length = factor(in_features, features)
    if length is not None:
        return [
            f"{in_features} = {length} × {features}. The layer expects a flattened sequence of "
            f"length {length} with feature size {features}, but the input is not flattened. Call "
            "flatten(1) first."
        ]
    if features == out_features:
        return [
            f"{features} equals out_features. The weight is transposed, or the layer receives the "
            "output of a later layer."
        ]
    batch_size = next((size for size in batch_sizes if size * in_features == rows), None)
    if batch_size is not None:
        return [
            f"{rows} = {batch_size} × {in_features}: the expected feature size is on the sequence "
            "axis. The last two axes are swapped. Call transpose(-1, -2)."
        ]
    if rows == in_features:
        return [f"{rows} equals in_features: the two axes are swapped. Call transpose(-1, -2)."]
    return []


def _other_data(length: int, features: int, in_features: int, lengths: Sequence[int]) -> str:
    expected = next((known for known in lengths if known != length), None)
    also = "" if expected is None else f", and sequence length {length} instead of {expected}"
    return (
        f"{features} is not a multiple of {in_features}. The layer was built for other data: the "
        f"input has feature size {features} instead of {in_features}{also}."
    )


def _guess(rows: int, features: int) -> list[str]:
    size = next((size for size in USUAL_BATCH_SIZES if factor(rows, size)), None)
    if size is None:
        return []
    return [
        f"The text names no batch size. If it is {size}, then {rows} = {size} × {rows // size}, "
        f"and the input has shape [{size}, {rows // size}, {features}]."
    ]


def _memory(rows: int, features: int) -> list[str]:
    size_bytes = rows * features * 4
    if size_bytes < 10**8:
        return []
    return [f"One batch of {rows} × {features} float32 values takes {size_bytes / 1e9:.1f} GB."]


def _known_input(context: Context, rows: int, features: int) -> tuple[int, ...] | None:
    """Return a tensor of the frames with that feature size and that product of leading axes."""
    for shape in context.shapes.values():
        if len(shape) >= 2 and shape[-1] == features and prod(shape[:-1]) == rows:
            return shape
    return None
