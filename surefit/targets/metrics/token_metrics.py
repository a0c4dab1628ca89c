"""The loss and the metrics of tasks that predict tokens: sums over the labelled tokens; and how
alike a generated text and the expected one are. docs/metrics.md has the definitions.

`expected` is one reference or several. Of several, the best score counts, as SQuAD and rouge-score
define it.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from surefit.batches.field import IGNORE_INDEX
from surefit.core.float64 import to_float64
from surefit.targets.baselines import token_baselines
from surefit.targets.task_spec import Batch, Figures, Loss, Metric, SumAndCount, full_precision

if TYPE_CHECKING:
    import torch

Select = Callable[[Any, Batch], "tuple[torch.Tensor, torch.Tensor]"]
"""Logits (N, V) and labels (N,) of the labelled tokens."""


@dataclass(frozen=True)
class LabelledLoss:
    """What a model gave at the labelled tokens alone, already compared with their labels.

    `total` is the summed cross-entropy, `hits` how often the label was the most likely token
    (None in training), `count` the number of positions, `auxiliary_loss` the terms that the model
    adds to its token loss. With label smoothing, `plain` is the total without it (None in
    training). `log_probs` (N,) are those of the labels, where the loss needs each of them.
    """

    total: torch.Tensor
    hits: torch.Tensor | None
    count: int
    auxiliary_loss: torch.Tensor | None = None
    plain: torch.Tensor | None = None
    log_probs: torch.Tensor | None = None


def same_token(outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each label is predicted at its own position."""
    labelled = batch["labels"] != IGNORE_INDEX
    return outputs.logits[labelled], batch["labels"][labelled]


def next_token(outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each label is predicted at the position before it, as causal models do."""
    labels = batch["labels"][:, 1:]
    labelled = labels != IGNORE_INDEX
    return outputs.logits[:, :-1][labelled], labels[labelled]


def token_loss(select: Select, smoothing: float = 0.0) -> Loss:
    """Cross-entropy summed over the labelled tokens, and their number."""

    def loss(outputs: Any, batch: Batch) -> tuple[torch.Tensor, int]:
        from torch.nn.functional import cross_entropy

        if isinstance(outputs, LabelledLoss):
            if outputs.plain is not None and not smoothing:
                return outputs.plain, outputs.count
            return outputs.total, outputs.count
        logits, labels = select(outputs, batch)
        total = cross_entropy(
            full_precision(logits), labels, reduction="sum", label_smoothing=smoothing
        )
        return total, labels.numel()

    return loss


def smoothed_sums(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return summed loss; and without label smoothing, where it is smoothed and not trained on."""
    import torch
    from torch.nn.functional import cross_entropy

    total = cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
    if not smoothing or torch.is_grad_enabled():
        return total, None
    return total, cross_entropy(logits, labels, reduction="sum")


def token_metrics(select: Select) -> dict[str, SumAndCount | Metric]:
    """Perplexity, without label smoothing, and the share of labelled tokens that are the most
    likely ones."""
    loss = token_loss(select)

    def loss_sums(outputs: Any, batch: Batch) -> dict[str, Any]:
        total, count = loss(outputs, batch)
        return {"loss": to_float64(total), "count": count}

    def token_accuracy(outputs: Any, batch: Batch) -> tuple[Any, int]:
        if isinstance(outputs, LabelledLoss):
            return outputs.hits, outputs.count
        logits, labels = select(outputs, batch)
        return (logits.argmax(-1) == labels).sum(), labels.numel()

    perplexity = Metric(loss_sums, lambda sums: float((sums["loss"] / sums["count"]).exp()))
    return {"perplexity": perplexity, "token_accuracy": token_accuracy}


def learned_tokens(select: Select) -> dict[str, Any]:
    """What the TaskSpec of a task that predicts tokens has: its loss, metrics and baselines."""
    return {
        "loss": token_loss(select),
        "metrics": token_metrics(select),
        "figures": Figures(smoothed_loss=partial(token_loss, select), baselines=token_baselines),
    }


OUTSIDE = ("O", 0, None)
"""Tags of words that belong to no entity; 0 where tags are numbers."""

MARKS = "BISUEL"
"""How a tag begins: the first word of an entity, a further one, a single one (S, U), or the last
(E, L)."""
_MARKED = re.compile(rf"([{MARKS}])(?:[-_:](.+))?")
ONLY_TYPE = "entity"
"""The type of all entities where tags are bare marks: B, I and O."""

Entity = tuple[str, int, int]
"""Its type, its first word, and the word after its last."""


def entity_tags(classes: Sequence[Any]) -> list[Any]:
    """Return the tag of each class to find entities by, with "-" between mark and type.

    Bare marks (B, I, O) and other separators (B_LOC) are read as seqeval does. They are marks only
    if all classes begin so, with O and a B among them: a letter may be a class as well.

    >>> entity_tags(["O", "B", "I"]), entity_tags(["O", "B_LOC"]), entity_tags(["O", "B", "H"])
    (['O', 'B-entity', 'I-entity'], ['O', 'B-LOC'], ['O', 'B', 'H'])
    """
    read = {name: _MARKED.fullmatch(str(name)) for name in classes if name != "O"}
    marks = {found[1] if found is not None else None for found in read.values()}
    if "O" not in classes or "B" not in marks or None in marks:
        return list(classes)
    tags = {name: f"{found[1]}-{found[2] or ONLY_TYPE}" for name, found in read.items() if found}
    return [tags.get(name, name) for name in classes]


def find_entities(tags: Sequence[Any]) -> list[Entity]:
    """Return the entities of a row, read as conlleval does: I- without its B- begins one, too.

    B-, I- and O, also with S- or U- for single words and E- or L- for last ones; tags without
    such a beginning join into one entity while they are equal.

    >>> find_entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    """
    entities: list[Entity] = []
    start, kind = 0, None
    for place, tag in enumerate([*tags, "O"]):
        mark, this = _parts(tag)
        begins = this is not None and (mark in "BSU" or this != kind)
        if kind is not None and (begins or this is None):
            entities.append((kind, start, place))
            kind = None
        if begins:
            start, kind = place, this
        if mark in ("S", "U", "E", "L") and kind is not None:
            entities.append((kind, start, place + 1))
            kind = None
    return entities


def _parts(tag: Any) -> tuple[str, str | None]:
    if tag in OUTSIDE:
        return "O", None
    text = str(tag)
    mark, dash, kind = text.partition("-")
    if dash and mark in (*MARKS,):
        return mark, kind
    return "I", text


def match_entities(true: Sequence[Any], made: Sequence[Any]) -> dict[str, int]:
    """Entities found with the right type and words, found wrongly, and missed."""
    wanted, got = set(find_entities(true)), set(find_entities(made))
    return {
        "found": len(wanted & got),
        "false": len(got - wanted),
        "missed": len(wanted - got),
    }


def entity_f1_of(sums: Mapping[str, Any]) -> float:
    """Micro F1 over all entities; 0 where there are none.

    >>> entity_f1_of({"found": 2, "false": 1, "missed": 1})
    0.666...
    """
    found, wrong = float(sums["found"]), float(sums["false"]) + float(sums["missed"])
    return 2 * found / (2 * found + wrong) if found + wrong else 0.0


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
