"""How alike a generated text and the expected one are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence


def words(text: str) -> list[str]:
    """Lower-case words and numbers, punctuation left out.

    >>> words("It's 3.5 km.")
    ["it's", '3.5', 'km']
    """
    return re.findall(r"\w+(?:['.,]\w+)*", text.lower())


def token_f1(expected: str, got: str) -> float:
    """F1 of the words two texts share, each counted as often as it occurs.

    >>> round(token_f1("the red house", "the house"), 3)
    0.8
    """
    wanted, made = Counter(words(expected)), Counter(words(got))
    if not wanted or not made:
        return float(wanted == made and expected.strip() == got.strip())
    shared = (wanted & made).total()
    return 2 * shared / (wanted.total() + made.total())


def exact_match(expected: str, got: str) -> float:
    """1 if the texts are equal but for the white space around them, else 0."""
    return float(expected.strip() == got.strip())


def rouge_l(expected: str, got: str) -> float:
    """F1 of the longest run of words, gaps allowed, that two texts have in the same order.

    >>> round(rouge_l("the cat sat on the mat", "the cat on a mat"), 3)
    0.727
    """
    wanted, made = words(expected), words(got)
    if not wanted or not made:
        return float(wanted == made and expected.strip() == got.strip())
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
