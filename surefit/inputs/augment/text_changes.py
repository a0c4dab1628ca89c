"""Changes of texts that keep the meaning: case, punctuation, spacing, typos, wording, synonyms.

A change gets the text, the words it must keep and a random generator. It returns the changed text,
or the same text if nothing can be changed.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from surefit.core.foreign import parse_json
from surefit.errors import UsageError

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
    """Return the words that may be changed: plain ones, outside code and quotations.

    Not changed are words in `kept` (lower case), anything with a digit, an underscore or a symbol
    (numbers, addresses, paths, formulas), single letters, and words with capitals inside.

    >>> [word.text for word in free_words("Add 3 to x in `sum.py`, see NASA's page", {"page"})]
    ['Add', 'to', 'in', 'see']
    """
    quoted = [match.span() for match in _QUOTED.finditer(text)]
    return [
        word
        for word in _plain_words(text, kept)
        if not any(word.start < end and start < word.end for start, end in quoted)
    ]


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


def put(text: str, changed: list[tuple[Word, str]]) -> str:
    """Return the text with some words replaced; they come in the order of the text."""
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


def change_case(text: str, kept: Collection[str], rng: np.random.Generator) -> str:
    """Return the first letter of sentences in the other case; names keep their capitals.

    Words in capitals are avoided: they take several times as many tokens.

    >>> change_case("Tell me who Ada was. Be brief!", (), np.random.default_rng(0))
    'tell me who Ada was. be brief!'
    """
    starts = [word for word in free_words(text, kept) if word.starts_sentence]
    ways = (
        put(text, [(word, word.text[0].lower() + word.text[1:]) for word in starts]),
        put(text, [(word, word.text[0].upper() + word.text[1:]) for word in starts]),
    )
    others = [way for way in ways if way != text]
    return others[rng.integers(len(others))] if others else text


_OTHER_ENDS = {"": (".",), ".": ("", " ."), "?": ("", " ?", "??"), "!": ("", ".", "!!")}


def change_punctuation(text: str, kept: Collection[str], rng: np.random.Generator) -> str:
    """Another final mark, if the text ends with a free word and at most one mark.

    >>> change_punctuation("Who was it?", (), np.random.default_rng(0))
    'Who was it??'
    """
    whole = text.rstrip()
    words = free_words(whole, kept)
    mark = whole[words[-1].end :] if words else None
    if mark is None or mark not in _OTHER_ENDS:
        return text
    others = _OTHER_ENDS[mark]
    return whole[: words[-1].end] + others[rng.integers(len(others))] + text[len(whole) :]


SHARE = 0.2
"""The share of gaps between free words that are doubled; at least one."""


def change_spacing(text: str, kept: Collection[str], rng: np.random.Generator) -> str:
    """Some single spaces between free words doubled; line breaks and indents are kept.

    >>> change_spacing("name the sea", (), np.random.default_rng(0))
    'name the  sea'
    """
    words = free_words(text, kept)
    gaps = [b.start for a, b in pairwise(words) if text[a.end : b.start] == " "]
    if not gaps:
        return text
    chosen = rng.choice(gaps, size=max(1, round(SHARE * len(gaps))), replace=False)
    for place in sorted(chosen.tolist(), reverse=True):
        text = f"{text[:place]} {text[place:]}"
    return text


SHORTEST = 4
_NEGATIONS = frozenset(
    ("never", "none", "nothing", "without", "except", "only", "less", "more", "least", "most")
)


def add_typos(text: str, kept: Collection[str], rng: np.random.Generator, rate: float) -> str:
    """Return a typing error in a `rate` of the words that may have one, and in at least one.

    These are free lower-case words of four letters or more. Their first and last letters are kept,
    so that they stay readable. Words that negate (never, without) are kept.

    >>> add_typos("please describe the weather", (), np.random.default_rng(1), rate=0.1)
    'please describe the weathher'
    """
    words = [word for word in free_words(text, kept) if _may_change(word)]
    if not words:
        return text
    hit = rng.random(len(words)) < rate
    hit[rng.integers(len(words))] = True
    changed = [(w, _misspell(w.text, rng)) for w, is_hit in zip(words, hit, strict=True) if is_hit]
    return put(text, changed)


def _may_change(word: Word) -> bool:
    letters = word.text
    has_case = letters.lower() != letters.upper()  # scripts without case have short words
    long_enough = len(letters) >= SHORTEST and letters.isalpha()
    return long_enough and has_case and letters.islower() and letters not in _NEGATIONS


def _misspell(word: str, rng: np.random.Generator) -> str:
    """Two neighbouring letters swapped, or one doubled; a missing letter would make other words."""
    place = int(rng.integers(1, len(word) - 2))
    swapped = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    doubled = word[: place + 1] + word[place:]
    return doubled if swapped == word or rng.random() < 0.5 else swapped


QUESTIONS = (
    "Question: {}",
    "Q: {}",
    "Please answer this question: {}",
    "I have a question. {}",
    "Answer the following question.\n{}",
    "{}\nPlease answer.",
)
REQUESTS = (
    "Please {}",
    "Could you {}",
    "I would like you to {}",
)
ANY = (
    "Task: {}",
    "Here is the task:\n{}",
    "Please answer the following.\n{}",
    "{}\nThank you.",
    "Instruction: {}",
)
_ASKS = re.compile(
    r"(who|whose|whom|what|when|where|which|why|how|is|are|was|were|do|does|did|can|could|will|"
    r"would|should|has|have|had|may|might)\b",
    re.IGNORECASE,
)
_VERBS = re.compile(
    r"(add|analy[sz]e|answer|arrange|calculate|change|choose|classify|compare|complete|compose|"
    r"compute|convert|correct|count|create|decide|define|describe|design|determine|discuss|edit|"
    r"estimate|evaluate|explain|extract|fill|find|fix|generate|give|identify|list|make|match|name|"
    r"order|outline|pick|predict|propose|provide|rank|recommend|replace|rephrase|respond|reverse|"
    r"rewrite|say|select|show|simplify|solve|sort|state|suggest|summari[sz]e|tell|translate|turn|"
    r"use|write)\s",
    re.IGNORECASE,
)


def change_wording(
    text: str, kept: Collection[str], rng: np.random.Generator, frames: Sequence[str] = ()
) -> str:
    """Return the text in one of the frames that fit it, or in one of the user's `frames`.

    >>> change_wording("Name a river.", (), np.random.default_rng(0), ())
    'Could you name a river?'
    """
    stripped = text.strip()
    suited = frames or _frames_for(stripped)
    frame = suited[int(rng.integers(len(suited)))]
    inside = stripped
    if not frames and frame in REQUESTS and free_words(stripped, kept)[:1]:
        inside = stripped[0].lower() + stripped[1:]
        if frame.startswith("Could"):
            inside = re.sub(r"\.\Z", "?", inside)
    return frame.replace("{}", inside, 1)


def _frames_for(text: str) -> tuple[str, ...]:
    if text.endswith("?") or _ASKS.match(text):
        return QUESTIONS
    return (*ANY, *REQUESTS) if _VERBS.match(text) else ANY


SYNONYM_SHARE = 0.5
"""The share of words with synonyms that are replaced; at least one."""


def replace_words(
    text: str, kept: Collection[str], rng: np.random.Generator, table: Mapping[str, tuple[str, ...]]
) -> str:
    """Some free words replaced by one of their synonyms; a capital letter is kept.

    >>> replace_words("Big cat", (), np.random.default_rng(0), {"big": ("large",)})
    'Large cat'
    """
    words = [word for word in free_words(text, kept) if word.text.lower() in table]
    if not words:
        return text
    chosen = rng.random(len(words)) < SYNONYM_SHARE
    chosen[rng.integers(len(words))] = True
    changed = []
    for word in [word for word, is_chosen in zip(words, chosen, strict=True) if is_chosen]:
        others = table[word.text.lower()]
        new = others[rng.integers(len(others))]
        changed.append((word, new[:1].upper() + new[1:] if word.text[0].isupper() else new))
    return put(text, changed)


CHANGES: dict[str, Callable[..., str]] = {
    "wording": change_wording,
    "synonyms": replace_words,
    "case": change_case,
    "spacing": change_spacing,
    "punctuation": change_punctuation,
    "typos": add_typos,
}
"""In the order of application; typos last, so that no other change gets a misspelt word."""


def read_synonyms(given: str | Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Words and their synonyms, from a mapping, or a JSON, CSV or TSV file with the word first."""
    where = given if isinstance(given, str) else "augment.synonyms"
    rows = _read_file(Path(given)) if isinstance(given, str) else _pairs(given)
    table: dict[str, tuple[str, ...]] = {}
    for row in rows:
        cells = [cell.strip() if isinstance(cell, str) else cell for cell in row]
        is_text = all(isinstance(cell, str) and cell for cell in cells)
        if len(cells) < 2 or not is_text or len(cells[0].split()) > 1:
            raise UsageError(
                f"{where}: expected a single word and its synonyms, found {str(row)[:80]!r}.",
                'Write one line per word: big,large,huge (or JSON: {"big": ["large"]}).',
            )
        word = cells[0].lower()
        table[word] = (*table.get(word, ()), *cells[1:])
    if not table:
        raise UsageError(
            f"{where} contains no synonyms.", "Write one line per word: big,large,huge"
        )
    return table


def _pairs(table: Mapping[str, Any]) -> list[list[Any]]:
    return [[word, *([new] if isinstance(new, str) else new)] for word, new in table.items()]


def _read_file(path: Path) -> list[list[Any]]:
    if not path.is_file():
        raise UsageError(f"There is no file {path} (augment.synonyms).", "Check the path.")
    fix = 'Write an object of words and their synonyms: {"big": ["large", "huge"]}.'
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".json":
            return _pairs(parse_json(text, dict[str, str | list[Any]], str(path), fix))
        lines = csv.reader(text.splitlines(), delimiter="\t" if path.suffix == ".tsv" else ",")
        return [[cell for cell in line if cell.strip()] for line in lines if any(line)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(
            f"{path} cannot be read: {error}.", "Save it as UTF-8 JSON, CSV or TSV."
        ) from None
