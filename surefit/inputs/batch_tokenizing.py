"""The texts of many rows tokenized at once, so that fast tokenizers use every core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.core.foreign import first_line, is_library_failure
from surefit.errors import FindingError
from surefit.findings import rule

if TYPE_CHECKING:
    from surefit.inputs.encoded_row import Encoding

Text = str | tuple[str, str]
"""A text, or two that are tokenized as a pair."""

UNUSABLE_TOKENIZER = rule(
    "SF278",
    "error",
    "unusable tokenizer",
    why="The library of tokenizers aborts on its files or fails on a text (a word without a token, "
    "and no unknown token), or it takes more time, memory or tokens than any tokenizer needs. A "
    "tokenizer.json that is new on this machine is tried in a process of its own.",
    fix="Download the tokenizer again, or pass another one with --tokenizer.",
)


@contextmanager
def tokenizing(texts: Sequence[Text]) -> Iterator[None]:
    """Report a failure of the tokenizer on these texts as a Finding."""
    try:
        yield
    except BaseException as error:
        if not is_library_failure(error) or isinstance(error, MemoryError):
            raise
        where = f"the text {texts[0]!r:.60}" if len(texts) == 1 else f"one of {len(texts):,} texts"
        message = f"The tokenizer fails on {where}: {first_line(error)}."
        raise UNUSABLE_TOKENIZER.error(message) from error


@dataclass(frozen=True)
class Tokenized:
    """Tokens of one text; of a pair, also which of the two each belongs to."""

    ids: list[int]
    type_ids: list[int] = field(default_factory=list)
    ends: Sequence[int] | npt.NDArray[np.int64] | None = None
    """Where each token ends in a single text, if asked for and known."""


def plain_backend(tokenizer: Any) -> Any:
    """Return backend of a fast tokenizer, without the truncation and padding of its last call."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and backend.truncation is not None:  # asked first, as another
        backend.no_truncation()  # thread may be tokenizing
    if backend is not None and backend.padding is not None:
        backend.no_padding()
    return backend


def tokenize(
    tokenizer: Any,
    texts: Sequence[Text],
    special: bool,
    ends: bool = False,
    limit: int | None = None,
) -> list[Tokenized]:
    """Return the tokens of each text, as the tokenizer would return them one by one.

    With `limit`, they are truncated. To know where tokens end takes time, and only fast tokenizers
    can.
    """
    try:
        with tokenizing(texts):
            return _tokenize(tokenizer, texts, special, ends, limit)
    except FindingError:
        for text in texts if len(texts) > 1 else ():  # to name the one that it fails on
            tokenize(tokenizer, [text], special, ends, limit)
        raise


def _tokenize(
    tokenizer: Any, texts: Sequence[Text], special: bool, ends: bool, limit: int | None
) -> list[Tokenized]:
    backend = plain_backend(tokenizer)
    if backend is None or limit is not None:
        options = {"add_special_tokens": special, "verbose": False, "max_length": limit}
        options |= {"truncation": limit is not None, "return_offsets_mapping": backend and ends}
        made = []
        for text in texts:
            tokens = tokenizer(*((text,) if isinstance(text, str) else text), **options)
            ids, places = list(tokens["input_ids"]), tokens.get("offset_mapping")
            kinds = list(tokens.get("token_type_ids") or [0] * len(ids))
            made.append(Tokenized(ids, kinds, [end for _, end in places] if places else None))
        return made
    if ends:
        located = backend.encode_batch(list(texts), add_special_tokens=special)
        return [Tokenized(made.ids, ends=[end for _, end in made.offsets]) for made in located]
    encodings = backend.encode_batch_fast(list(texts), add_special_tokens=special)
    return [
        Tokenized(made.ids) if isinstance(text, str) else Tokenized(made.ids, made.type_ids)
        for text, made in zip(texts, encodings, strict=True)
    ]


def tokenize_rows(rows: Sequence[Encoding | None], tokenizer: Any) -> list[list[Tokenized]]:
    """Return the tokens of the texts of each row, all texts tokenized together."""
    tokens: list[list[Tokenized]] = [[] for _ in rows]
    for special, ends in ((True, False), (False, False), (False, True), (True, True)):
        mine = [
            (place, row.texts)
            for place, row in enumerate(rows)
            if row is not None and row.texts and (row.special, row.ends) == (special, ends)
        ]
        texts = [text for _, texts in mine for text in texts]
        made = iter(tokenize(tokenizer, texts, special, ends) if texts else ())
        for place, own in mine:
            tokens[place] = [next(made) for _ in own]
    return tokens


def token_sizes(tokenizer: Any) -> npt.NDArray[np.int64] | None:
    """Return number of bytes of each token of a byte-level tokenizer; None for other tokenizers."""
    backend = plain_backend(tokenizer)
    if backend is None or backend.normalizer is not None:
        return None
    if type(backend.decoder).__name__ != "ByteLevel":
        return None
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    vocabulary = backend.get_vocab(with_added_tokens=True)
    sizes = np.zeros(max(vocabulary.values(), default=0) + 1, np.int64)
    for token, number in vocabulary.items():  # a character of other tokens stands for a byte
        sizes[number] = len(token.encode()) if token in added else len(token)
    return sizes


def ends_by_size(
    text: str, ids: Sequence[int], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64] | None:
    """Return where each token ends in the text; None if the sizes do not add up to it.

    >>> ends_by_size("né", [0, 1, 2], np.array([1, 1, 1])).tolist()  # é is two bytes
    [1, 2, 2]
    """
    content = text.encode("utf-8", "surrogatepass")
    ends = sizes[np.array(ids, np.int64)].cumsum()
    if not len(ends) or ends[-1] != len(content):
        return None
    if len(content) == len(text):
        return ends
    starts = (np.frombuffer(content, np.uint8) & 0xC0) != 0x80  # where characters start
    by_character: npt.NDArray[np.int64] = starts.cumsum()[ends - 1]
    return by_character
