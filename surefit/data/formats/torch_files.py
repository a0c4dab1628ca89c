"""Files of torch tensors (`.safetensors`, `.pt`) to Arrow columns, memory-mapped."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from surefit.config import Reading
from surefit.data.cache import fingerprint
from surefit.data.cache_entry import file_fingerprint
from surefit.data.data_rules import DTYPE_CONVERTED, NO_DATA, PICKLED_DATA, WRONG_TYPE
from surefit.data.formats.numpy_files import Array, arrays_to_arrow, join_rows
from surefit.data.formats.opened import Opened, bad_file, cached_rows
from surefit.errors import FindingError
from surefit.findings import Finding

if TYPE_CHECKING:
    import torch

ONLY_TENSORS = "Save a tensor, a dict or a list of tensors with torch.save, or use .safetensors."


def open_safetensors(path: Path, reading: Reading) -> Opened:
    """Return the tensors of a `.safetensors` file as columns."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError, MemoryError) as error:
        raise bad_file(path, f" is not a readable .safetensors file: {error}") from None
    return _opened(path, tensors)


def open_pt(path: Path, reading: Reading) -> Opened:
    """Return the tensors of a `.pt` file as columns; a file with anything else is refused."""
    import torch

    if not _is_zip(path):
        raise _not_a_zip(path)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        what = f" contains pickled objects, which are not loaded: {_reason(error)}"
        raise bad_file(path, what, ONLY_TENSORS, PICKLED_DATA) from None
    except Exception as error:  # torch raises all kinds of errors on damaged files
        raise bad_file(path, f" is not a readable .pt file: {_reason(error)}") from None
    if isinstance(loaded, list):
        return _open_list(path, loaded)
    return _opened(path, _named(loaded, path))


def _is_zip(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # one that spans several disks, for example
        return False


def _open_list(path: Path, rows: list[Any]) -> Opened:
    """Return one tensor per row; rows may differ in length."""
    for row, value in enumerate(rows):
        if not hasattr(value, "detach") or value.ndim == 0 or not is_numeric(value):
            what = f", row {row} is a {type(value).__name__}; expected an array."
            raise bad_file(path, what, ONLY_TENSORS, WRONG_TYPE, row=row)
    if not rows:
        raise NO_DATA.error(f"{path.name} contains an empty list.", file=str(path))
    return Opened(pa.table({"features": join_rows([as_numpy(row) for row in rows], str(path))}))


def _not_a_zip(path: Path) -> FindingError:
    with path.open("rb") as file:
        head = file.read(2)
    if head[:1] == b"\x80":
        what = " is a plain pickle (torch before 1.6), which is not loaded."
        fix = "Load it yourself if you trust it, and save it with torch.save or safetensors."
        return bad_file(path, what, fix, PICKLED_DATA)
    what = (
        "is empty" if not head else "is truncated" if head == b"PK" else "is not a torch.save file"
    )
    return bad_file(path, f" is not a readable .pt file: it {what}.")


def _reason(error: Exception) -> str:
    """Return the line of torch's long message that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = next((line for line in lines if "GLOBAL" in line or "nsupported" in line), None)
    return (telling or (lines[0] if lines else type(error).__name__))[:160]


def _named(loaded: Any, path: Path) -> dict[str, torch.Tensor]:
    """Return the columns in a `.pt` file: a tensor, (x, y), or a dict."""
    import torch

    if isinstance(loaded, torch.Tensor):
        loaded = {"features": loaded}
    elif isinstance(loaded, tuple) and len(loaded) == 2:
        loaded = dict(zip(("features", "label"), loaded, strict=True))
    if not isinstance(loaded, Mapping):
        loaded = {type(loaded).__name__: loaded}
    for name, value in loaded.items():
        if not isinstance(value, torch.Tensor):
            what = f": {name!r} is a {type(value).__name__}; expected a tensor."
            raise bad_file(path, what, ONLY_TENSORS, WRONG_TYPE, column=str(name))
    return {str(name): value for name, value in loaded.items()}


def _opened(path: Path, tensors: Mapping[str, torch.Tensor]) -> Opened:
    if not tensors:
        raise NO_DATA.error(f"{path.name} contains no tensors.", file=str(path))
    key = file_fingerprint(path)
    columns = {name: _mapped(path, name, tensor, key) for name, tensor in tensors.items()}
    return Opened(arrays_to_arrow(columns, str(path)), tuple(_casts(path, tensors)))


def _casts(path: Path, tensors: Mapping[str, torch.Tensor]) -> Iterator[Finding]:
    """Yield a finding for each tensor of a type that NumPy does not have."""
    import torch

    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dtype not in (
            *(torch.float16, torch.float32, torch.float64),
        ):
            kind = str(tensor.dtype).removeprefix("torch.")
            message = f"{path.name}: {name!r} is {kind}; it is converted to float32."
            yield DTYPE_CONVERTED.finding(message, file=str(path), column=name)


def _mapped(path: Path, name: str, tensor: torch.Tensor, key: str) -> Array:
    """Return a tensor as an array on disk: mapped in place, or converted once into the cache."""
    if tensor.ndim == 0 or not is_numeric(tensor):
        what = "a single value" if tensor.ndim == 0 else f"a {tensor.dtype} tensor"
        what = f": {name!r} is {what}; expected rows of numbers."
        raise bad_file(path, what, ONLY_TENSORS, WRONG_TYPE, column=name)
    if tensor.is_contiguous() and as_numpy(tensor[:1]).itemsize == tensor.element_size():
        array = tensor.detach().numpy()
        if array.flags.aligned:
            return array
    own, kind = fingerprint("tensor", key, name), as_numpy(tensor[:1]).dtype
    return cached_rows(own, tuple(tensor.shape), kind, lambda part: as_numpy(tensor[part]))


def is_numeric(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is dense and holds real numbers."""
    import torch

    return tensor.layout == torch.strided and not (tensor.is_complex() or tensor.is_quantized)


def as_numpy(tensor: torch.Tensor) -> Array:
    """A tensor as an array; types that NumPy does not have (bfloat16, float8) become float32."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        return np.asarray(tensor.numpy())
    except TypeError:
        return np.asarray(tensor.float().numpy())
