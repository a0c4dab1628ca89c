"""The words of a text that may be changed without changing its meaning."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

# Code, quotations, tags and placeholders carry the meaning of a prompt.
_QUOTED = re.compile(
    r"""```[\s\S]*?(?:```|\Z)|`[^`\n]*`|^(?:[ ]{4}|\t|>>>).*$"""
    r"""|"[^"\n]*"|“[^”\n]*”|«[^»\n]*»|(?<!\w)'[^'\n]+'(?!\w)"""
    r"""|<[^>\n]*>|\{[^}\n]*\}|\[[^\]\n]*\]""",
    re.MULTILINE,
)
_CHUNK = re.compile(r"\S+")
_PLAIN = re.compile(r"\(?(?P<word>[^\W\d_]+(?:['’-][^\W\d_]+)*)[.,;:!?…)]*")
_SENTENCE_END = re.compile(r"(?:^|[.!?…]\s+|\n\s*)\Z")


@dataclass(frozen=True)
class Word:
    """A word that may be changed, and its position."""

    text: str
    start: int
    end: int
    starts_sentence: bool


def free_words(text: str, kept: Collection[str]) -> list[Word]:
    """The words that may be changed: plain ones, outside code and quotations.

    Not changed are words in `kept` (lower case), anything with a digit, an underscore or a symbol
    (numbers, addresses, paths, formulas), single letters, and words with capitals inside.

    >>> [word.text for word in free_words("Add 3 to x in `sum.py`, see NASA's page", {"page"})]
    ['Add', 'to', 'in', 'see']
    """
    quoted = [match.span() for match in _QUOTED.finditer(text)]
    return [word for word in _plain_words(text, kept) if not _overlaps(word, quoted)]


def _plain_words(text: str, kept: Collection[str]) -> Iterator[Word]:
    for chunk in _CHUNK.finditer(text):
        plain = _PLAIN.fullmatch(chunk.group())
        if plain is None:
            continue
        word = plain["word"]
        capitals_inside = word[1:] != word[1:].lower()
        if len(word) == 1 or capitals_inside or word.lower() in kept:
            continue
        start = chunk.start() + plain.start("word")
        before = text[max(0, start - 8) : start].rstrip("(")
        starts = start == 0 or _SENTENCE_END.search(before) is not None
        yield Word(word, start, start + len(word), starts)


def _overlaps(word: Word, spans: list[tuple[int, int]]) -> bool:
    return any(word.start < end and start < word.end for start, end in spans)


def put(text: str, changed: list[tuple[Word, str]]) -> str:
    """The text with some words replaced; they come in the order of the text."""
    parts, at = [], 0
    for word, new in changed:
        parts += [text[at : word.start], new]
        at = word.end
    return "".join([*parts, text[at:]])


def words_of(text: str) -> set[str]:
    """Lower-case words of a text, for `kept`.

    >>> sorted(words_of("The answer: Blue-green, don't!"))
    ['answer', 'blue', 'blue-green', "don't", 'green', 'the']
    """
    found = re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", text.lower())
    return {part for word in found for part in (word, *word.split("-"))}
