"""The dtypes that messages of torch name, in every spelling: `Long`, `long int`, `torch.int64` …"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
        """Whether it is one of the two 16-bit floating-point dtypes."""
        return self.name in ("torch.float16", "torch.bfloat16")


def read_dtype(spelling: str) -> Dtype | None:
    """The dtype that a message spells; None if it spells none.

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
