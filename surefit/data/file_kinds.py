"""What a file that is one row holds, by its ending: an image, audio, an array or a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from surefit.data.column_types import AUDIO_ENDINGS, IMAGE_ENDINGS


@dataclass(frozen=True)
class FileKind:
    """One kind of file: the role of its content, its noun in messages, and its endings."""

    role: str
    noun: str
    endings: tuple[str, ...]
    decoded: bool = False
    """Whether a table holds the paths, and the files are decoded when rows are encoded."""

    def has(self, path: str | Path) -> bool:
        """Whether a path has one of the endings; a hidden file has none."""
        name = Path(path).name.lower()
        return name.endswith(self.endings) and not name.startswith(".")


IMAGES = FileKind("image", "image", IMAGE_ENDINGS, decoded=True)
AUDIO = FileKind("audio", "audio file", AUDIO_ENDINGS, decoded=True)
ARRAYS = FileKind("features", "array", (".npy",))
TEXTS = FileKind("text", "text", (".txt",))
KINDS = (IMAGES, AUDIO, ARRAYS, TEXTS)
DECODED = tuple(kind for kind in KINDS if kind.decoded)


def kind_of(path: str | Path) -> FileKind | None:
    """What a file holds, by its ending; None for other endings.

    >>> kind_of("a/B.WAV").role, kind_of("rows.csv")
    ('audio', None)
    """
    return next((kind for kind in KINDS if kind.has(path)), None)


def common_kind(paths: Iterable[str | Path]) -> FileKind | None:
    """What files hold: the more frequent of images and audio, else arrays, else texts.

    Texts may lie beside the files that they describe.
    """
    found = Counter(kind for kind in map(kind_of, paths) if kind is not None)
    media = max(DECODED, key=lambda kind: found[kind])
    return next((kind for kind in (media, *KINDS) if found[kind]), None)
