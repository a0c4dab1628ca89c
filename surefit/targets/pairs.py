"""Preferences as the target: of two answers the better one, or whether an answer is good.

Every method is a function of the log-probabilities of whole answers. A row has two sequences: the
chosen and the rejected answer; for KTO the row's answer, and that of another row, which estimates
how far the model is from the reference (its KL).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.branches import FIRST, PROMPT, SIDE, branch_bounds
from surefit.batches.field import IGNORE_INDEX, PER_ROW, Field
from surefit.core.float64 import to_float64
from surefit.data.cache import entry_folder, fingerprint, lock_entry
from surefit.data.cache_entry import is_sound
from surefit.errors import UsageError
from surefit.inputs.chat.pair_rows import GOOD
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import Preference
from surefit.inputs.store import Store, new_store
from surefit.targets import tokens
from surefit.targets.generation import Sample
from surefit.targets.metrics.token_metrics import LabelledLoss
from surefit.targets.task_spec import Batch, Loss, Metric, full_precision

if TYPE_CHECKING:
    import torch

REFERENCE = "reference"
"""The column of a batch with the log-probability of each answer under the reference."""
BETAS = {"simpo": 2.0}
USUAL_BETA = 0.1
WITH_REFERENCE = ("dpo", "ipo", "kto")
"""Methods that compare with the model as it was before training."""
FIELDS = {
    **tokens.FIELDS,
    PROMPT: Field((), "int64"),
    FIRST: Field((), "int64"),
}
BINS, LARGEST = 4096, 64.0
"""Of rewards of good and of bad answers, to count in how many pairs the good one is higher."""


def is_judged(encoder: Encoder) -> bool:
    """Return whether rows have one answer, which is good or bad."""
    settings = encoder.settings.preference
    return settings is not None and settings.method == "kto"


def pair_fields(encoder: Encoder) -> dict[str, Field]:
    """Return the tokens of both answers with their prompt, their labels and where they begin."""
    return {**FIELDS, **({GOOD: Field((), "int64")} if is_judged(encoder) else {})}


def count_first(columns: Mapping[str, Any]) -> int:
    """Labelled tokens of the first answer; a token that nothing is before is not predicted."""
    start = int(columns[PROMPT])
    labels = columns["labels"][max(start, 1) : start + int(columns[FIRST])]
    return int(np.count_nonzero(labels != IGNORE_INDEX))


@dataclass(frozen=True)
class Answers:
    """The two answers of each row (B,): summed log-probabilities, and labelled tokens."""

    first: torch.Tensor
    second: torch.Tensor
    first_length: torch.Tensor
    second_length: torch.Tensor
    first_reference: torch.Tensor
    """The log-probability under the reference; before training, the model is its reference."""
    second_reference: torch.Tensor

    @property
    def ratios(self) -> tuple[torch.Tensor, torch.Tensor]:
        """How much likelier each answer is than under the reference, as logarithms."""
        return self.first - self.first_reference, self.second - self.second_reference

    @property
    def means(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The log-probability per token of each answer."""
        lengths = self.first_length.clamp(min=1), self.second_length.clamp(min=1)
        return self.first / lengths[0], self.second / lengths[1]


def read_answers(outputs: Any, batch: Batch) -> Answers:
    """Return what a model makes of the answers of a batch."""
    import torch

    count = len(batch[SIDE])
    if isinstance(outputs, LabelledLoss):
        assert outputs.log_probs is not None
        of_tokens, rows = outputs.log_probs, batch["labelled_rows"]
    else:
        labels = batch["labels"][:, 1:]
        labelled = labels != IGNORE_INDEX
        logits = full_precision(outputs.logits[:, :-1][labelled])
        of_tokens = logits.log_softmax(-1).gather(1, labels[labelled][:, None])[:, 0]
        rows = labelled.nonzero()[:, 0]
    sums = of_tokens.new_zeros(count).index_add(0, rows, of_tokens)
    lengths = torch.bincount(rows, minlength=count)
    known = batch.get(REFERENCE)
    known = sums.detach() if known is None else known.to(sums.dtype)
    parts = (part[place::2] for part in (sums, lengths, known) for place in (0, 1))
    return Answers(*parts)


def dpo(answers: Answers, batch: Batch, options: Preference) -> torch.Tensor:
    """−log σ(β (chosen − rejected)), each compared with the reference."""
    from torch.nn.functional import logsigmoid

    chosen, rejected = answers.ratios
    return -logsigmoid(options.beta * (chosen - rejected))


def ipo(answers: Answers, batch: Batch, options: Preference) -> torch.Tensor:
    """The squared distance of the margin per token from 1 / 2β."""
    chosen, rejected = answers.ratios
    lengths = answers.first_length.clamp(min=1), answers.second_length.clamp(min=1)
    margin = chosen / lengths[0] - rejected / lengths[1]
    return (margin - 1 / (2 * options.beta)).square()


def simpo(answers: Answers, batch: Batch, options: Preference) -> torch.Tensor:
    """−log σ(β (chosen − rejected) − γ) of log-probabilities per token, without a reference."""
    from torch.nn.functional import logsigmoid

    chosen, rejected = answers.means
    return -logsigmoid(options.beta * (chosen - rejected) - options.gamma)


def orpo(answers: Answers, batch: Batch, options: Preference) -> torch.Tensor:
    """β times −log σ of the log odds ratio of both answers, per token; without a reference.

    The likelihood of the chosen answer is a term of its own, see `preference_loss`.
    """
    from torch.nn.functional import logsigmoid

    chosen, rejected = answers.means
    odds = (chosen - rejected) - (_log_not(chosen) - _log_not(rejected))
    return -options.beta * logsigmoid(odds)


def _log_not(log_prob: torch.Tensor) -> torch.Tensor:
    """Return log(1 − p) of a log-probability; that of certainty is kept finite."""
    import torch

    made: torch.Tensor = torch.log1p(-torch.exp(log_prob.clamp(max=-1e-6)))
    return made


def kto(answers: Answers, batch: Batch, options: Preference) -> torch.Tensor:
    """1 − σ(β (ratio − KL)) of a good answer, 1 − σ(β (KL − ratio)) of a bad one.

    The KL is a mean over the micro-batch, so that its size is a part of this loss.
    """
    ratio, others = answers.ratios
    kl = others.detach().mean().clamp(min=0)
    sign = 2 * batch[GOOD][::2].to(ratio.dtype) - 1
    lost: torch.Tensor = 1 - (options.beta * sign * (ratio - kl)).sigmoid()
    return lost


METHODS: dict[str, Callable[[Answers, Batch, Preference], torch.Tensor]] = {
    "dpo": dpo,
    "ipo": ipo,
    "simpo": simpo,
    "orpo": orpo,
    "kto": kto,
}
"""The loss of each row, by method."""


def preference_loss(encoder: Encoder) -> Loss:
    """Return the loss of the method that was settled: a mean over rows.

    Its count are the labelled tokens of first answers, by which the likelihood of ORPO is divided;
    what is a mean over rows is therefore multiplied by their number per row in the step.
    """
    options = encoder.settings.preference or Preference()
    of_row = METHODS[options.method]

    def loss(outputs: Any, batch: Batch) -> tuple[torch.Tensor, Any]:
        answers = read_answers(outputs, batch)
        count = answers.first_length.sum()
        per_row = batch.get(PER_ROW, float(count) / len(answers.first))
        total = of_row(answers, batch, options).sum() * per_row
        if options.method == "orpo":
            total = total - answers.first.sum()
        return total, count

    return loss


def rewards(answers: Answers, options: Preference) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the reward that each answer has by the method, without gradient."""
    parts = answers.ratios if options.method in WITH_REFERENCE else answers.means
    first, second = (options.beta * to_float64(part.detach()) for part in parts)
    return first, second


def _with_answers(
    sums: Callable[[Answers, Batch, Preference], Mapping[str, Any]],
) -> Callable[..., Mapping[str, Any]]:
    def read(outputs: Any, batch: Batch, encoder: Encoder) -> Mapping[str, Any]:
        options = encoder.settings.preference or Preference()
        return sums(read_answers(outputs, batch), batch, options)

    return read


def _mean(value: Callable[..., Any]) -> Metric:
    """Return the metric that is the mean of a value of each row."""

    def sums(answers: Answers, batch: Batch, options: Preference) -> dict[str, Any]:
        values = value(answers, batch, options)
        return {"sum": to_float64(values).sum(), "count": len(values)}

    def figure(found: Mapping[str, Any]) -> float:
        return float(found["sum"]) / max(float(found["count"]), 1.0)

    return Metric(_with_answers(sums), figure, uses_encoder=True)


def _wins(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return 1 where a number is larger than the other, and ½ where both are equal."""
    return (one > other).double() + 0.5 * (one == other).double()


def _ranked(value: Callable[[Answers, Preference], Any]) -> Metric:
    """How often the first answer has the larger value; for KTO, how often a good answer has a
    larger value than a bad one of any row."""

    def sums(answers: Answers, batch: Batch, options: Preference) -> dict[str, Any]:
        first, second = value(answers, options)
        if GOOD not in batch:
            return {"wins": _wins(first, second).sum(), "count": len(first)}
        return _histograms(first, batch[GOOD][::2] > 0)

    return Metric(_with_answers(sums), _share_won, uses_encoder=True)


def _histograms(values: torch.Tensor, good: torch.Tensor) -> dict[str, Any]:
    """Return how many good and bad answers have a value in each bin, which widen with its size."""
    import torch

    squashed = to_float64(values).sign() * torch.log1p(to_float64(values).abs() * 1e3)
    places = (squashed / LARGEST + 0.5).clamp(0, 1) * (BINS - 1)
    return {
        name: torch.bincount(places[chosen].round().long(), minlength=BINS)
        for name, chosen in (("good", good), ("bad", ~good))
    }


def _share_won(sums: Mapping[str, Any]) -> float:
    if "wins" in sums:
        return float(sums["wins"]) / max(float(sums["count"]), 1.0)
    good, bad = (sums[name].double() for name in ("good", "bad"))
    below = bad.cumsum(0) - bad
    pairs = float(good.sum() * bad.sum())
    return float((good * (below + 0.5 * bad)).sum()) / pairs if pairs else float("nan")


def _lengths(answers: Answers, options: Preference) -> tuple[Any, Any]:
    return answers.first_length, answers.second_length


def _margin(answers: Answers, batch: Batch, options: Preference) -> Any:
    first, second = rewards(answers, options)
    return first * (2 * batch[GOOD][::2] - 1) if GOOD in batch else first - second


def _kl(answers: Answers, batch: Batch, options: Preference) -> Any:
    ratios = answers.ratios
    return ratios[1] if GOOD in batch else (ratios[0] + ratios[1]) / 2


METRICS: dict[str, Any] = {
    "reward_accuracy": _ranked(lambda answers, options: rewards(answers, options)),
    "reward_margin": _mean(_margin),
    "length_accuracy": _ranked(_lengths),
    "chosen_log_prob": _mean(lambda answers, batch, options: answers.first),
    "rejected_log_prob": _mean(lambda answers, batch, options: answers.second),
    "log_ratio": _mean(_kl),
}


def length_baseline(
    train: Store | None, validation: Store, encoder: Encoder
) -> dict[str, dict[str, Any]]:
    """Return the reward accuracy of a predictor that goes by the length of answers alone."""
    if train is None or not len(train) or not len(validation):
        return {}
    longer = _length_accuracy(train) >= 0.5
    share = _length_accuracy(validation)
    name = "the longer answer" if longer else "the shorter answer"
    return {name: {"reward_accuracy": share if longer else 1 - share}}


def _length_accuracy(store: Store) -> float:
    """Return how often the chosen answer is the longer one, or a good one is longer than a bad."""
    import torch

    first = torch.from_numpy(np.array(store.values(FIRST)))
    if GOOD in store.fields:
        good = torch.from_numpy(np.array(store.values(GOOD)))
        return _share_won(_histograms(first, good > 0))
    lengths, prompts = np.array(store.lengths), np.array(store.values(PROMPT))
    second = torch.from_numpy(lengths - prompts) - first
    return float(_wins(first, second).mean())


def settle_preference(
    asked: Any, task: Any, roles: Mapping[str, str], live: Any = None
) -> Preference | None:
    """Return the method and its numbers, for the task that has them; `asked` is from the config.

    Rows of a `live` source are encoded anew, so a reference cannot be computed once for each.
    """
    given = asked.model_dump(exclude_none=True)
    if task.name != "preference":
        if given:
            raise UsageError(
                f"preference.{next(iter(given))} has no effect on the task {task.name}.",
                "Use it with --task preference, or leave it out.",
            )
        return None
    judged = "chosen" not in roles
    method = given.get("method") or ("kto" if judged else "dpo")
    if judged and method != "kto":
        raise UsageError(
            f"preference.method is {method}, which compares a chosen with a rejected answer; the "
            "rows have one answer each, which is good or bad.",
            "Use --set preference.method=kto, or name the columns: --set columns.chosen=… "
            "--set columns.rejected=….",
        )
    if live is not None and method in WITH_REFERENCE:
        raise UsageError(
            f"preference.method {method} compares each row with the model before training, and the "
            f"rows of {live.name} are drawn anew.",
            "Pass rows that stay the same, such as list(dataset)"
            + ("" if judged else ", or choose a method without a reference: simpo or orpo")
            + ".",
        )
    beta = given.get("beta") or BETAS.get(method, USUAL_BETA)
    return Preference(method, beta, given.get("gamma", beta / 2 if method == "simpo" else 0.0))


def link_others(store: Store, encoder: Encoder) -> Store:
    """Return rows with the answer of the row before them as their second one, for KTO's KL.

    It is cut where the row would exceed the limit. Other methods keep their rows.
    """
    if not is_judged(encoder) or not len(store):
        return store
    key = fingerprint("linked", 1, store.key, encoder.max_length)
    folder = entry_folder("encoded", fingerprint(key, store.folder.name))
    if not is_sound(folder):
        with lock_entry(folder):
            if not is_sound(folder):
                _write_linked(store, folder, key, encoder.max_length)
    return Store(folder)


def _write_linked(store: Store, folder: Any, key: str, limit: int | None) -> None:
    with new_store(folder, store.fields, dict(store.notes), key) as writer:
        for number in range(len(store)):
            row, other = store.row(number), store.row(number - 1 if number else len(store) - 1)
            start, end = int(other[PROMPT]), int(other[PROMPT]) + int(other[FIRST])
            prompt = int(row[PROMPT])
            if limit is not None:
                end = min(end, start + max(limit - prompt, 1))
            joined = {
                name: np.concatenate([row[name], other[name][start:end]])
                for name in ("input_ids", "labels")
            }
            writer.append(
                {**row, **joined},
                source_row=int(store.source_row[number]),
                num_targets=int(store.num_targets[number]),
                length=len(joined["input_ids"]),
                copy=int(store.copy[number]),
            )


def answer_pairs(
    model: Any, rows: Sequence[Mapping[str, Any]], encoder: Encoder, max_new_tokens: int
) -> list[Sample]:
    """Generate from each row's prompt; the chosen answer is what is expected."""
    asked = []
    for row in rows:
        if FIRST in row:
            prompt, first, _ = branch_bounds(int(row[PROMPT]), int(row[FIRST]), 0)
            is_good = GOOD not in row or int(row[GOOD]) > 0
            ids = row["input_ids"][: first.stop if is_good else prompt.stop]
            row = {"input_ids": ids, PROMPT: row[PROMPT]}
        asked.append(row)
    return tokens.answer(model, asked, encoder, max_new_tokens)


def reward_loss(outputs: Any, batch: Batch) -> tuple[torch.Tensor, int]:
    """−log σ(chosen − rejected) of the scores, summed over pairs, and their number."""
    from torch.nn.functional import logsigmoid

    chosen, rejected = _scores(outputs)
    return -logsigmoid(chosen - rejected).sum(), len(chosen)


def _scores(outputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    scores = full_precision(outputs.logits).reshape(-1)
    return scores[::2], scores[1::2]


def _reward_accuracy(outputs: Any, batch: Batch) -> tuple[Any, int]:
    chosen, rejected = _scores(outputs)
    return _wins(chosen, rejected).sum(), len(chosen)


def _reward_margin(outputs: Any, batch: Batch) -> tuple[Any, int]:
    chosen, rejected = (to_float64(part) for part in _scores(outputs))
    return (chosen - rejected).sum(), len(chosen)


def _longer(outputs: Any, batch: Batch) -> tuple[Any, int]:
    lengths = batch["attention_mask"].sum(1)
    return _wins(lengths[::2], lengths[1::2]).sum(), len(lengths[::2])


REWARD_METRICS: dict[str, Any] = {
    "reward_accuracy": _reward_accuracy,
    "reward_margin": _reward_margin,
    "length_accuracy": _longer,
}
