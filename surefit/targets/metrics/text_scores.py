"""How alike a generated text and the expected one are; docs/metrics.md has the definitions.

`expected` is one reference or several. Of several, the best score counts, as SQuAD and rouge-score
define it.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u0f00-\u0fff"  # Tibetan
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Myanmar
    "\u1780-\u17ff\u19e0-\u19ff"  # Khmer
    "\u1950-\u19df\u1a20-\u1aaf\uaa80-\uaadf"  # Tai Le, New Tai Lue, Tai Tham, Tai Viet
    "\u1b00-\u1b7f\ua980-\ua9df"  # Balinese, Javanese
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b"  # radicals and numerals of Han
    "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # Hiragana, Katakana
    "\u3100-\u312f\u31a0-\u31bf"  # Bopomofo
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    "\ua000-\ua4cf"  # Yi
    "\U0001aff0-\U0001b16f\U00020000-\U0003ffff"  # Kana and Han beyond the first plane
)
"""Scripts that are written without spaces between words: each character is a token."""
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^{_UNSPACED}\s]+")
_OTHER_PUNCTUATION = "".join(
    character
    for first, last in ((0xE00, 0x1B80), (0x3000, 0x3100), (0xA980, 0xAAE0), (0xFF00, 0xFFF0))
    for character in map(chr, range(first, last))
    if unicodedata.category(character).startswith("P")
)
"""Punctuation of these scripts, and full-width forms such as the Chinese comma."""
_PUNCTUATION = str.maketrans("", "", string.punctuation + _OTHER_PUNCTUATION)
_NOT_ROUGE = re.compile(r"[^a-z0-9]+")


def best_score(
    score: Callable[[str, str], float], expected: str | Sequence[str], got: str
) -> float:
    """Return the score against the reference that it is highest for."""
    references = [expected] if isinstance(expected, str) else expected
    return max((score(reference, got) for reference in references), default=0.0)


def normalize(text: str) -> str:
    """Return the text as SQuAD compares it: lower case, without punctuation, articles and extra
    spaces.

    >>> normalize("The  U.S., a country.")
    'us country'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def answer_tokens(text: str) -> list[str]:
    """Return the words of a normalized text; the characters of scripts without spaces.

    >>> answer_tokens("The answer: 東京 Tower.")
    ['answer', '東', '京', 'tower']
    """
    return _TOKEN.findall(normalize(text))


def token_f1(expected: str | Sequence[str], got: str) -> float:
    """F1 of the tokens that two texts share, each counted as often as it occurs.

    A text without tokens equals another one without tokens, and nothing else, as in SQuAD 2.0.

    >>> round(token_f1("the red house", "a house"), 3)
    0.667
    """
    return best_score(_token_f1, expected, got)


def _token_f1(expected: str, got: str) -> float:
    wanted, made = Counter(answer_tokens(expected)), Counter(answer_tokens(got))
    if not wanted or not made:
        return float(wanted == made)
    shared = (wanted & made).total()
    return 2 * shared / (wanted.total() + made.total())


def exact_match(expected: str | Sequence[str], got: str) -> float:
    """1 if the normalized texts are equal, else 0.

    >>> exact_match("The red house.", "red house")
    1.0
    """
    return best_score(lambda a, b: float(normalize(a) == normalize(b)), expected, got)


def rouge_l(expected: str | Sequence[str], got: str) -> float:
    """F1 of the longest common subsequence of words, by rouge-score's tokenizer, unstemmed.

    Words are runs of a-z and 0-9: a text in another alphabet has none, and scores 0.

    >>> round(rouge_l("the cat sat on the mat", "the cat on a mat"), 3)
    0.727
    """
    return best_score(_rouge_l, expected, got)


def _rouge_l(expected: str, got: str) -> float:
    wanted, made = (_NOT_ROUGE.sub(" ", text.lower()).split() for text in (expected, got))
    if not wanted or not made:
        return 0.0
    longest = [0] * (len(made) + 1)  # per beginning of `made`, for the words of `wanted` so far
    for word in wanted:
        before = 0
        for place, other in enumerate(made, start=1):
            here = before + 1 if word == other else max(longest[place], longest[place - 1])
            before, longest[place] = longest[place], here
    return 2 * longest[-1] / (len(wanted) + len(made))


def corpus_scores(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """BLEU and chrF, 0 to 100, of (expected, got) texts as one corpus: of summed counts."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    expected, got = [wanted for wanted, _ in pairs], [made for _, made in pairs]
    scorers = {"bleu": BLEU(), "chrf": CHRF()}
    return {
        name: float(scorer.corpus_score(got, [expected]).score) for name, scorer in scorers.items()
    }
