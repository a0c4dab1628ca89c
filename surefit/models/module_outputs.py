"""Unifies what a module returns: which of its outputs are the logits, and which is its loss.

A module that returns one logit z for each target, as `BCEWithLogitsLoss` is trained with, is read
as one that returns [0, z]: the softmax of these is the sigmoid of z, and their cross-entropy is the
binary cross-entropy of z. Loss, metrics and predictions see two scores and need not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch

from surefit.errors import FindingError, UsageError
from surefit.findings import Finding, note
from surefit.models.transformers_models import MODEL_FAILED, UNSUITABLE_MODEL

Key = str | int
SCORES = ("logits", "scores", "score", "output", "outputs", "prediction", "predictions", "preds")
"""What a module may call the output that the loss is computed from."""


@dataclass(frozen=True)
class OutputChoice:
    """Which of several outputs of a module is used, how it was chosen, and all of them by shape."""

    by: str
    returned: dict[str, list[int]]
    used: Key | None = None


@dataclass(frozen=True)
class Picked:
    """The output that the loss, the metrics and the predictions are computed from.

    `tensors` are all outputs with a batch axis: by name, or numbered from 0. `key` is None where
    the module returns none to compute a loss from.
    """

    key: Key | None
    how: Literal["asked", "name", "size"]
    tensors: Mapping[Key, torch.Tensor]

    @property
    def others(self) -> dict[Key, torch.Tensor]:
        """The outputs that are not used."""
        return {key: value for key, value in self.tensors.items() if key != self.key}

    def as_choice(self) -> OutputChoice:
        """Return what the plan stores of it."""
        shapes = {str(key): list(value.shape[1:]) for key, value in self.tensors.items()}
        return OutputChoice(self.how, shapes, self.key)


def pick_output(raw: Any, sizes: Sequence[int | None] = (), asked: Key | None = None) -> Picked:
    """Find the logits in what a module returned: as asked for, by their name, or by their size.

    Numbers count the outputs with a batch axis, so that a loss before them changes none.

    >>> import torch
    >>> hidden, scores = torch.zeros(4, 8), torch.zeros(4, 3)
    >>> pick_output((hidden, scores), [3]).key
    1
    >>> pick_output({"hidden": hidden, "scores": scores}, asked="hidden").key
    'hidden'
    """
    parts, named = _parts(raw)
    arrays = {k: v for k, v in parts.items() if isinstance(v, torch.Tensor) and v.ndim > 0}
    numbers: dict[Key, torch.Tensor] = dict(enumerate(arrays.values()))
    tensors = arrays if named else numbers
    if asked is not None:
        return Picked(_find(asked, tensors) if tensors else None, "asked", tensors)
    by_name = next((name for name in SCORES if named and name in tensors), None)
    if by_name is not None:
        return Picked(by_name, "name", tensors)
    has_loss = named and isinstance(parts.get("loss"), torch.Tensor)
    return Picked(None if has_loss else _by_size(tensors, sizes), "size", tensors)


def _parts(raw: Any) -> tuple[dict[Key, Any], bool]:
    """Return what a module returned, part by part, and whether the parts have names."""
    if isinstance(raw, torch.Tensor):
        return {0: raw}, False
    if is_dataclass(raw) and not isinstance(raw, type):
        return {each.name: getattr(raw, each.name) for each in fields(raw)}, True
    if isinstance(raw, Mapping):
        return dict(raw), True
    if isinstance(raw, tuple | list):
        as_named = getattr(raw, "_asdict", None)
        return (dict(enumerate(raw)), False) if as_named is None else (as_named(), True)
    if hasattr(raw, "logits"):
        return {"logits": raw.logits, "loss": getattr(raw, "loss", None)}, True
    raise UNSUITABLE_MODEL.error(
        f"The model returned a {type(raw).__name__}; expected a tensor, tuple, dict, "
        "dataclass or ModelOutput.",
        fix="Return the logits.",
    )


def _find(asked: Key, tensors: Mapping[Key, torch.Tensor]) -> Key:
    """Return the output of this name or, counted from 0, of this number."""
    keys = list(tensors)
    for key in keys:
        if str(key) == str(asked):
            return key
    if str(asked).isdecimal() and int(asked) < len(keys):
        return keys[int(asked)]
    shown = ", ".join(f"{key} {list(value.shape)}" for key, value in tensors.items())
    raise UsageError(
        f"outputs is {asked!r}, which forward does not return. It returns: {shown}.",
        f"Write one of: {', '.join(f'outputs={key}' for key in keys)}.",
    )


def _by_size(tensors: Mapping[Key, torch.Tensor], sizes: Sequence[int | None]) -> Key | None:
    """The first output with so many scores on its last axis, or on the second; else the first."""

    def found(output: torch.Tensor) -> tuple[int, ...]:
        return (output.shape[-1], output.shape[1]) if output.ndim > 1 else (1,)

    fitting = (key for size in sizes for key in tensors if size in found(tensors[key]))
    return next(fitting, next(iter(tensors), None))


@dataclass(frozen=True)
class SingleLogit:
    """Where scores of two classes have the classes; an own module may leave that axis out."""

    rank: int = 2
    """Axes of the scores, that of the classes included: 2 for rows, 3 for time steps."""
    axis: int = -1

    def is_alone(self, scores: torch.Tensor) -> bool:
        """Return whether there is one score for each target, with or without an axis for it."""
        return scores.ndim == self.rank - 1 or (
            scores.ndim == self.rank and scores.shape[self.axis] == 1
        )

    def with_axis(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores with an axis of classes, which may have a single place."""
        return scores.unsqueeze(self.axis) if scores.ndim == self.rank - 1 else scores

    def of_both(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores of both classes.

        >>> import torch
        >>> SingleLogit().of_both(torch.tensor([[2.0], [-1.0]])).tolist()
        [[0.0, 2.0], [0.0, -1.0]]
        """
        if not self.is_alone(scores):
            return scores
        second = self.with_axis(scores)
        return torch.cat([torch.zeros_like(second), second], self.axis)


@dataclass(frozen=True)
class StepScores:
    """Where a module has the time, and how many time steps share one of its outputs."""

    classes_second: bool = False
    """Whether scores are (B, C, T)."""
    stride: int = 1
    reads_time_last: bool = False
    """Whether forward takes (B, W, T), as nn.Conv1d does."""

    def inputs(self, given: dict[str, Any], arguments: Mapping[str, str]) -> dict[str, Any]:
        """Return the arguments of `forward`, the features with the axes that it reads."""
        if not self.reads_time_last:
            return given
        turned = [arg for arg, column in arguments.items() if column == "inputs_embeds"]
        return {**given, **{arg: given[arg].transpose(1, 2) for arg in turned if arg in given}}

    def __call__(self, scores: torch.Tensor, num_steps: int) -> torch.Tensor:
        """Scores (B, T, C), one for each time step.

        >>> import torch
        >>> StepScores(True, 2)(torch.tensor([[[1, 2, 3]]]), 5).tolist()
        [[[1], [1], [2], [2], [3]]]
        """
        scores = scores.transpose(1, 2) if self.classes_second else scores
        if self.stride == 1:
            return scores
        places = torch.arange(num_steps, device=scores.device) // self.stride
        return scores[:, places.clamp(max=scores.shape[1] - 1)]


def covers(found: int, num_steps: int, stride: int) -> bool:
    """Return whether so many outputs are one for each `stride` steps, the last one of fewer or
    more.

    >>> covers(3, 5, 2), covers(2, 5, 2), covers(4, 5, 2)
    (True, True, False)
    """
    return found in (num_steps // stride, -(-num_steps // stride))


Run = Callable[[Mapping[str, Any]], torch.Tensor | None]


def find_step_scores(run: Run, batch: Mapping[str, Any], stride: int) -> StepScores | None:
    """Return how the scores that `run` gives for a batch become (B, T, C).

    None where it returns no scores (B, ·, ·); the probe of the first batch reports these.
    """
    num_rows, num_steps = batch["inputs_embeds"].shape[:2]
    scores = run(batch)
    if scores is None or scores.ndim != 3 or scores.shape[0] != num_rows:
        return None
    fits = [covers(size, num_steps, stride) for size in scores.shape[1:]]
    if not any(fits):
        raise _other_length(list(scores.shape), num_steps, stride)
    first, second = fits if not all(fits) else _told_apart(run, batch, scores, stride)
    if first == second:
        raise MODEL_FAILED.error(
            f"The model returned logits of shape {list(scores.shape)} for {num_steps} time steps, "
            "and it runs on no other sequence length: time and classes cannot be told apart.",
            fix="Give the module's last layer one more output than there are time steps: "
            f"{scores.shape[1] + 1}, the last one is ignored.",
        )
    return StepScores(second, stride)


def describe_axes(found: StepScores) -> Finding:
    """Return what was found out about the module's axes."""
    parts = [
        "takes features (B, W, T)" if found.reads_time_last else "",
        "returns scores (B, C, T)" if found.classes_second else "",
        f"returns one output for {found.stride} time steps" if found.stride > 1 else "",
    ]
    return note(f"The module {' and '.join(filter(None, parts))}.")


def _told_apart(
    run: Run, batch: Mapping[str, Any], scores: torch.Tensor, stride: int
) -> tuple[bool, bool]:
    """Which of two axes of one size is the time: the one that follows the length of the input."""
    num_steps = batch["inputs_embeds"].shape[1]
    shorter = {
        name: value[:, :-stride] if getattr(value, "shape", ())[1:2] == (num_steps,) else value
        for name, value in batch.items()
    }
    found = run(shorter) if num_steps > stride else None
    if found is not None and found.ndim == 3:
        sizes = zip(found.shape[1:], scores.shape[1:], strict=True)
        follows = [size != full for size, full in sizes]
        if follows[0] != follows[1]:
            return follows[0], follows[1]
    return True, True


def _other_length(shape: list[int], num_steps: int, stride: int) -> FindingError:
    expected = f"one vector of scores for each of the {num_steps} time steps"
    if stride > 1:
        expected = f"one for every {stride} of the {num_steps} time steps (features.stride)"
    found = next((size for size in sorted(shape[1:], reverse=True) if size < num_steps), 0)
    factor = round(num_steps / found) if found else 0
    fix = "Let forward return (B, T, C) or (B, C, T), with T as in its input."
    if factor > 1 and covers(found, num_steps, factor):
        fix += f" If {found} outputs stand for {factor} steps each: --set features.stride={factor}."
    return MODEL_FAILED.error(
        f"The model returned logits of shape {shape}; expected {expected}.", fix=fix
    )


@dataclass(frozen=True)
class OutputReader:
    """How what a module returns is read: which output has the scores, and what their axes are.

    >>> import torch
    >>> hidden, scores = torch.zeros(4, 8), torch.zeros(4, 3)
    >>> OutputReader(num_outputs=3)((hidden, scores)).logits.shape
    torch.Size([4, 3])
    """

    asked: Key | None = None
    """The output that the user names, of several."""
    usual: Key | None = None
    """The output that the task reads of a model of transformers which has no scores."""
    num_outputs: int | None = None
    """Scores per row that the task needs: which of several unnamed outputs they are."""
    single_logit: SingleLogit | None = None
    """How one score for two classes becomes two; None where the task needs each score."""
    step_scores: StepScores | None = None
    """Where the module has the time axis, if not second, in scores per time step (B, T, C)."""

    def pick(self, raw: Any) -> Picked:
        """Return the output that has the scores."""
        sizes = (self.num_outputs, None if self.single_logit is None else 1)
        return pick_output(raw, sizes, self.asked)

    def __call__(self, raw: Any, batch: Mapping[str, Any] | None = None) -> Any:
        """Return the outputs with attributes `logits` and `loss`, either of which may be None.

        There is a score for each class, and for each time step of the batch.
        """
        outputs = raw if self.asked is None and hasattr(raw, "logits") else self._named(raw)
        found = logits = outputs.logits
        if logits is None:
            return outputs
        if self.single_logit is not None:
            logits = self.single_logit.with_axis(logits)
        if self.step_scores is not None and batch is not None:
            logits = self.step_scores(logits, batch["inputs_embeds"].shape[1])
        if self.single_logit is not None:
            logits = self.single_logit.of_both(logits)
        if logits is found:
            return outputs
        single_logit = self.single_logit is not None and self.single_logit.is_alone(found)
        loss = getattr(outputs, "loss", None)
        return SimpleNamespace(logits=logits, loss=loss, raw=raw, single_logit=single_logit)

    def _named(self, raw: Any) -> SimpleNamespace:
        """Return parts of what a module returned, with the names that the rest of surefit reads."""
        picked, (parts, named) = self.pick(raw), _parts(raw)
        scalars = {k: v for k, v in parts.items() if isinstance(v, torch.Tensor) and v.ndim == 0}
        loss = parts.get("loss") if named else next(iter(scalars.values()), None)
        texts = {str(name): part for name, part in parts.items()} if named else {}
        found = {
            "logits": None if picked.key is None else picked.tensors[picked.key],
            "loss": loss if isinstance(loss, torch.Tensor) else None,
            "raw": raw,
        }
        return SimpleNamespace(**{**texts, **found})
