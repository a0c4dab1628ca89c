"""Embeddings as the target: texts that belong together get vectors that are close.

A row has two or three texts, each a sequence of its own. Losses and files are those of
sentence-transformers. Vectors have length 1, so that their product is their cosine similarity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from surefit.batches.branches import LENGTHS, SIDE
from surefit.batches.field import Field
from surefit.data.data_rules import WRONG_TYPE
from surefit.data.table import Table
from surefit.errors import UsageError
from surefit.findings import Finding, note, rule
from surefit.inputs.encoded_row import Encoding, RowFaultError, drop_row
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import Embedding, FittedTarget, NumberScales
from surefit.inputs.store import Store
from surefit.inputs.text.text_reading import TOKENS, encode_several
from surefit.targets.metrics.own_metric import Collected, OwnMetric
from surefit.targets.sentence_folder import read_pooling
from surefit.targets.task_spec import Batch, Loss, full_precision

if TYPE_CHECKING:
    import torch

ROLES = ("anchor", "positive", "negative")
MOST_RANKED = 10_000
"""Rows whose vectors an evaluation keeps, to rank them among each other."""
CHUNK = 1024

EQUAL_NEGATIVE = rule(
    "SF259",
    "warning",
    "a negative that equals its positive",
    why="The same text would be right and wrong for one anchor, so the row teaches nothing.",
    fix="Correct the negatives; such rows are dropped.",
)
SHARED_TEXTS = rule(
    "SF260",
    "fixed",
    "rows that are not negatives of each other",
    why="In a batch, each row's negatives are the texts of the other rows. A row with the same "
    "anchor or the same positive would be a false negative, so it is left out of the loss there.",
    fix="Nothing to do; remove duplicates if there should be none.",
)
NO_NEGATIVES = rule(
    "SF261",
    "error",
    "no negatives in a batch of one row",
    why="The negatives of a pair are the other rows of its micro-batch; grad_accum adds none. With "
    "one row, the loss is always 0.",
    fix="Set batch_size to 8 or more.",
)


def is_scored(encoder: Encoder) -> bool:
    """Return whether pairs have a score, which says how similar they are."""
    return "score" in encoder.roles


def fields_of(encoder: Encoder) -> dict[str, Field]:
    """Return the tokens of all texts of a row, how many each has, and the score."""
    fields = {"input_ids": TOKENS, LENGTHS: Field(("sequences",), "int64")}
    return {**fields, **({"labels": Field()} if is_scored(encoder) else {})}


def settle_embedding(
    asked: Any, task: Any, roles: Mapping[str, str], model: str, batch_size: Any
) -> Embedding | None:
    """Return the loss and its numbers, for the task that has them; `asked` is from the config."""
    given = asked.model_dump(exclude_none=True)
    if task.name != "embedding":
        if given:
            raise UsageError(
                f"embedding.{next(iter(given))} has no effect on the task {task.name}.",
                "Use it with --task embedding, or leave it out.",
            )
        return None
    scored, triplets = "score" in roles, "negative" in roles
    loss = given.get("loss") or ("cosine" if scored else "ranking")
    if (loss == "cosine") != scored or (loss == "triplet" and not triplets):
        needs = {"cosine": "pairs with a score", "triplet": "a negative in each row"}
        raise UsageError(
            f"embedding.loss={loss} needs {needs.get(loss, 'pairs or triplets without a score')}; "
            f"the columns have the roles {', '.join(roles)}.",
            "Leave it out, or name the columns: --set columns.score=… or columns.negative=….",
        )
    used = {"scale": "ranking", "margin": "triplet"}
    unused = next((name for name in used if name in given and used[name] != loss), None)
    if unused is not None:
        raise UsageError(
            f"embedding.{unused} has no effect on the loss {loss}.",
            f"Use it with --set embedding.loss={used[unused]}, or leave it out.",
        )
    if loss == "ranking" and batch_size == 1 and not triplets:
        raise NO_NEGATIVES.error("batch_size is 1, and the rows have no negatives of their own.")
    pooling = given.get("pooling") or read_pooling(Path(model)) or "mean"
    return Embedding(**{**given, "loss": loss, "pooling": pooling})


def fit_scores(
    rows: Iterable[Mapping[str, Any]], encoder: Encoder
) -> tuple[Encoder, list[Finding]]:
    """Return the Encoder with the range of the scores, and what is compared with what."""
    settings = encoder.settings.embedding or Embedding()
    found = [note(f"The vector of a text is the {settings.pooling} of its tokens' vectors.")]
    if settings.loss == "ranking":
        found.append(
            note(
                "A row's negatives are the texts of the other rows in its micro-batch: a larger "
                "batch_size gives more, grad_accum does not. The loss depends on batch_size, in "
                "evaluation as well; retrieval_accuracy and mrr do not."
            )
        )
    if not is_scored(encoder):
        return encoder, found
    scores = [_score(row, encoder) for row in rows]
    low, high = min(scores, default=0.0), max(scores, default=1.0)
    if low >= -1 and high <= 1:
        return encoder, found
    low = min(low, 0.0)
    found.append(note(f"Scores from {low:g} to {high:g} are scaled to 0 … 1."))
    scales = NumberScales((low,), (high - low,))
    return replace(encoder, target=FittedTarget(numbers=scales)), found


def _score(row: Mapping[str, Any], encoder: Encoder) -> float:
    try:
        return float(row["score"])
    except (TypeError, ValueError):
        column = encoder.column_of("score")
        raise RowFaultError(WRONG_TYPE, f"{row['score']!r} is no score", column) from None


def encode_texts(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """Return the texts of a row; to predict, the one whose vector is asked for."""
    targets = {}
    if is_scored(encoder):
        scales = encoder.target.numbers or NumberScales((0.0,), (1.0,))
        targets["labels"] = (_score(row, encoder) - scales.mean[0]) / scales.scale[0]
    made = encode_several(row, [role for role in ROLES if role in encoder.roles], encoder, targets)

    def finish(tokens: list[Any]) -> Any:
        if len(tokens) == len(ROLES) and list(tokens[1].ids) == list(tokens[2].ids):
            what = "the negative has the same tokens as the positive"
            raise drop_row("with a negative that equals its positive", EQUAL_NEGATIVE, what)
        return made.finish(tokens)

    return replace(made, finish=finish)


def check_shared(store: Store, table: Table, encoder: Encoder) -> Iterator[Finding]:
    """Yield how many training rows have the anchor or the positive of another one."""
    settings = encoder.settings.embedding
    if settings is None or settings.loss != "ranking" or not len(store):
        return
    digests = np.empty((len(store), 2), np.uint64)
    for number in range(len(store)):
        first, second, *_ = np.cumsum(store.value(LENGTHS, number))
        ids = store.value("input_ids", number)
        for side, part in enumerate((ids[:first], ids[first:second])):
            digests[number, side] = xxhash.xxh3_64_intdigest(part.tobytes())
    shared = np.zeros(len(store), bool)
    for side in (0, 1):
        _, place, count = np.unique(digests[:, side], return_inverse=True, return_counts=True)
        shared |= count[place.reshape(-1)] > 1
    if shared.any():
        rows = [int(store.source_row[place]) for place in np.flatnonzero(shared)[:3]]
        message = (
            f"{int(shared.sum()):,} of {len(store):,} training rows have the anchor or the "
            f"positive of another row, such as rows {', '.join(map(str, rows))}."
        )
        yield SHARED_TEXTS.finding(message, table.where(rows[0]))


def pool(outputs: Any, batch: Batch, how: str) -> torch.Tensor:
    """Return a vector (N, H) for each sequence; a module of one's own may return them itself."""
    states: torch.Tensor = full_precision(outputs.logits)  # (N, T, H)
    if states.ndim == 2:
        return states
    mask = batch["attention_mask"].to(states.device)
    if how == "cls":
        return states[:, 0]
    if how == "last":
        return states[range(len(states)), mask.sum(1) - 1]
    weights = mask[:, :, None].to(states.dtype)
    pooled: torch.Tensor = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    return pooled


def vectors_of(outputs: Any, batch: Batch, encoder: Encoder) -> list[torch.Tensor]:
    """Return the vectors of anchors, positives and negatives (B, H), each of length 1."""
    from torch.nn.functional import normalize

    settings = encoder.settings.embedding or Embedding()
    vectors = normalize(pool(outputs, batch, settings.pooling), dim=1)
    sides = batch.get(SIDE)
    count = 1 if sides is None else int(sides.max()) + 1
    return [vectors[side::count] for side in range(count)]


def sequence_loss(outputs: Any, batch: Batch) -> tuple[torch.Tensor, Any]:
    """Return a loss that judges each sequence alone, for probes of a model's rows."""
    vectors = pool(outputs, batch, "mean")
    return vectors.square().sum(), len(vectors)


def ranking(vectors: Sequence[torch.Tensor], batch: Batch, options: Embedding) -> torch.Tensor:
    """Cross-entropy of an anchor's positive among all positives and negatives of the batch.

    It is MultipleNegativesRankingLoss. Texts of rows with the same anchor or positive do not count.
    """
    import torch
    from torch.nn.functional import cross_entropy

    anchors, *others = vectors
    scores = options.scale * anchors @ torch.cat(others).T  # (B, B or 2B)
    ids, count = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -1), len(vectors)
    sides = [ids[side::count] for side in range(count)]
    equal = [(sides[1][:, None] == each[None]).all(2) for each in sides[1:]]
    equal[0] = equal[0] | (sides[0][:, None] == sides[0][None]).all(2)
    equal[0].fill_diagonal_(False)
    scores = scores.masked_fill(torch.cat(equal, 1), float("-inf"))
    return cross_entropy(scores, torch.arange(len(anchors), device=scores.device), reduction="sum")


def cosine(vectors: Sequence[torch.Tensor], batch: Batch, options: Embedding) -> torch.Tensor:
    """The squared difference of cosine similarity and score, as CosineSimilarityLoss has it."""
    similarity = (vectors[0] * vectors[1]).sum(1)
    lost: torch.Tensor = (similarity - batch["labels"][::2].to(similarity.dtype)).square().sum()
    return lost


def triplet(vectors: Sequence[torch.Tensor], batch: Batch, options: Embedding) -> torch.Tensor:
    """By how much the positive is not nearer than the negative by a margin: TripletLoss."""
    from torch.nn.functional import pairwise_distance, relu

    anchor, positive, negative = vectors
    apart = pairwise_distance(anchor, positive) - pairwise_distance(anchor, negative)
    lost: torch.Tensor = relu(apart + options.margin).sum()
    return lost


LOSSES: dict[str, Callable[[Sequence[torch.Tensor], Batch, Embedding], torch.Tensor]] = {
    "ranking": ranking,
    "cosine": cosine,
    "triplet": triplet,
}
"""The loss of a batch, by the name of `embedding.loss`."""


def embedding_loss(encoder: Encoder) -> Loss:
    """Return the loss that was settled; its count are the rows."""
    options = encoder.settings.embedding or Embedding()

    def loss(outputs: Any, batch: Batch) -> tuple[torch.Tensor, Any]:
        vectors = vectors_of(outputs, batch, encoder)
        return LOSSES[options.loss](vectors, batch, options), len(vectors[0])

    return loss


def compared(outputs: Any, batch: Batch, encoder: Encoder) -> tuple[torch.Tensor, torch.Tensor]:
    """Return similarities and scores (B,), else anchors (B, H) and the other texts (B, 1-2, H)."""
    import torch

    anchors, *others = vectors_of(outputs, batch, encoder)
    if is_scored(encoder):
        return (anchors * others[0]).sum(1), batch["labels"][::2]
    return anchors, torch.stack(others, 1)


@dataclass(frozen=True)
class AmongRows(OwnMetric):
    """A figure of vectors among all validation rows, up to a number of them."""

    def keeps(self, num_processes: int) -> bool:
        """Return False: what is kept is bounded."""
        return False

    def start(self, num_processes: int = 1) -> Collected:
        """Begin an evaluation."""
        return _Kept(self, updates=False)


@dataclass
class _Kept(Collected):
    num_rows: int = field(default=0)

    def add(self, predictions: torch.Tensor, labels: torch.Tensor) -> None:
        """Take in a batch, as far as there is room; pairs of numbers always have it."""
        if predictions.ndim == 1 or self.num_rows < MOST_RANKED:
            self.kept.append((predictions.detach().cpu(), labels.detach().cpu()))
            self.num_rows += len(predictions)

    def figure(self, gather: Any = lambda kept: kept) -> Any:
        """Return the figure; None where the rows have no such one."""
        import torch

        first, second = (torch.cat(parts) for parts in zip(*gather(self.kept), strict=True))
        return self.metric.measure(first, second)


def _ranks(anchors: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the place of each anchor's positive among the texts of all rows, from 1."""
    import torch

    texts = others.reshape(-1, others.shape[-1])  # (B × 1-2, H)
    ranks = []
    for start in range(0, len(anchors), CHUNK):
        some = anchors[start : start + CHUNK]
        own = (some * others[start : start + CHUNK, 0]).sum(1, keepdim=True)
        ranks.append(1 + (some @ texts.T > own + 1e-6).sum(1))
    return torch.cat(ranks)


def retrieval_accuracy(anchors: torch.Tensor, others: torch.Tensor) -> float | None:
    """Return how often no text is nearer to an anchor than its positive."""
    return None if anchors.ndim == 1 else float((_ranks(anchors, others) == 1).double().mean())


def reciprocal_rank(anchors: torch.Tensor, others: torch.Tensor) -> float | None:
    """Return the mean of 1 / rank of the positives."""
    return None if anchors.ndim == 1 else float((1 / _ranks(anchors, others).double()).mean())


def spearman(similarities: torch.Tensor, scores: torch.Tensor) -> float | None:
    """Return the correlation of the ranks of similarities and scores; ties share their rank."""
    if similarities.ndim > 1:
        return None

    def ranks(values: Any) -> Any:
        _, place, count = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(count) - (count - 1) / 2)[place.reshape(-1)]

    both = [ranks(each.double().numpy()) for each in (similarities, scores)]
    if any(each.std() == 0 for each in both):
        return float("nan")
    return float(np.corrcoef(*both)[0, 1])


MEASURES = {"retrieval_accuracy": retrieval_accuracy, "mrr": reciprocal_rank, "spearman": spearman}
METRICS = {name: AmongRows(name, measure) for name, measure in MEASURES.items()}


def decode(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """Return the vector of each text."""
    return [{"prediction": each} for each in vectors_of(outputs, batch, encoder)[0].tolist()]
