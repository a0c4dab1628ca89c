"""What identifies an image: its pixels, whatever the format and the compression of its file."""

from __future__ import annotations

import hashlib
import io
from typing import Any

from surefit.data.cell_files import unwrapped
from surefit.data.row_parts import file_content
from surefit.encode.encoded_row import RowFaultError
from surefit.encode.images.image_files import decode, readable_formats, source_of

MOST_PIXELS = 1 << 16
"""Larger images are compared by the bytes of their files: to decode each one takes long."""


def image_content(value: Any) -> Any:
    """A hash of the pixels of a small image, else of its file; an array is its own content."""
    inner = unwrapped(value)
    if not isinstance(inner, str | bytes) or not _is_small(inner):
        return file_content(value)
    try:
        image = decode(inner)
    except RowFaultError:  # which encoding reports
        return file_content(value)
    digest = hashlib.blake2b(repr(image.size).encode(), digest_size=16)
    digest.update(image.tobytes())
    return digest.hexdigest()


def _is_small(source: str | bytes) -> bool:
    """Whether the header of the image names few pixels."""
    from PIL import Image

    try:
        opened = io.BytesIO(source) if isinstance(source, bytes) else source_of(source)
        with Image.open(opened, formats=readable_formats()) as image:
            return image.width * image.height <= MOST_PIXELS
    except Exception:  # decoders raise all kinds of errors on damaged bytes
        return False
