"""A model on one small real batch and its variants: each pass is run once, and probes compare them.

A healthy model needs few passes. Only where something differs do further passes find the cause.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

from surefit.batches.field import Field
from surefit.findings import Finding, note, rule
from surefit.speed.numerics import largest_difference, preserved_state, tolerance_of

if TYPE_CHECKING:
    import torch
    from torch import nn

UNSTEADY = rule(
    "SF700",
    "warning",
    "outputs change from call to call",
    why="Metrics, the choice of the best step and predictions then depend on chance, or on the "
    "calls before.",
    fix="Draw random numbers in training mode only: functional.dropout(x, training=self.training); "
    "keep no state from one forward to the next.",
    accept="The model is trained as it is, without the probes that compare its outputs.",
)

HELPERS = (
    *("labels", "attention_mask", "token_type_ids", "position_ids", "decoder_input_ids"),
    *("decoder_attention_mask", "words", "num_words"),
)
"""Columns that may well have no effect on a batch."""
NO_CHANGE = 1e-7
SEVERAL = (tuple, list)

Batch = Mapping[str, Any]


@dataclass
class ModelProfile:
    """A model and a batch; `causal` where each label is predicted by what comes before it."""

    module: nn.Module
    batch: Batch
    forward: Callable[[Batch], Any]
    """The model's outputs, with `logits`, `loss` or both."""
    loss: Callable[[Any, Batch], tuple[Any, Any]]
    """The sum over targets, and their count."""
    fields: Mapping[str, Field] = field(default_factory=dict)
    causal: bool = False
    alone: tuple[Batch, ...] = ()
    """Each row of the batch as a batch of its own, without padding; may be empty."""
    inputs: tuple[str, ...] = ()
    """The columns that arguments of `forward` name."""
    more: Callable[[], Iterator[Batch]] = lambda: iter(())
    """Batches of further rows, where a few rows alone prove nothing: a ReLU may be off in them."""
    may_draw: bool = False
    """Whether outputs that change from call to call may be meant, as those of a VAE are."""
    shifts_labels: bool = True
    """Whether the loss shifts labels in code that is not surefit's own."""
    one_length: str = ""
    """What to do for rows of one length, where there is an option for that."""
    has_gradient: bool | None = None
    """Whether some weight gets a gradient other than 0 from the batch; None if not known."""
    _seeds: Iterator[int] = field(default_factory=count)
    _others: dict[str, torch.Tensor | None] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """Rows in the batch."""
        return len(next(iter(self.parts().values())))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the columns that have one entry per row."""
        return {name: value for name, value in self.batch.items() if hasattr(value, "shape")}

    def parts(self) -> dict[str, Any]:
        """Return what has one entry per row, also lists that a user's `collate_fn` makes."""
        sized = {n: v for n, v in self.batch.items() if hasattr(v, "shape") or type(v) in SEVERAL}
        count = len(next(iter(sized.values())))
        return {name: value for name, value in sized.items() if len(value) == count}

    def row(self, place: int) -> dict[str, Any]:
        """Return one row as a batch of its own, as long as it is in the batch."""
        return {name: value[place : place + 1] for name, value in self.parts().items()}

    def twice(self, batch: Batch) -> dict[str, Any]:
        """Return the rows of a batch two times."""
        import torch

        return {name: torch.cat([value, value]) for name, value in batch.items()}

    def run(self, batch: Batch) -> Any:
        """Return the outputs in evaluation mode; random numbers differ from call to call."""
        import torch

        with preserved_state(self.module), torch.no_grad():
            torch.manual_seed(next(self._seeds))
            return self.forward(batch)

    def loss_of(self, batch: Batch, outputs: Any = None) -> float:
        """Return the summed loss of a batch; of its outputs, where they are known."""
        import torch

        with torch.no_grad():
            return float(self.loss(self.run(batch) if outputs is None else outputs, batch)[0])

    def gradients(self, batch: Batch) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient of each trained weight."""
        import torch

        trained = [weight for weight in self.module.parameters() if weight.requires_grad]
        total = self.loss(self.forward(batch), batch)[0]
        return torch.autograd.grad(total, trained, allow_unused=True)

    @cached_property
    def together(self) -> Any:
        """The outputs for the whole batch."""
        return self.run(self.batch)

    @cached_property
    def whole_loss(self) -> float:
        """The summed loss of the whole batch."""
        return self.loss_of(self.parts(), self.together)

    def unpadded(self, place: int) -> dict[str, Any]:
        """One row as a batch of its own, without padding at its end as far as that is known."""
        if self.alone:
            named = self.alone[place].items()
            return {name: value for name, value in named if hasattr(value, "shape")}
        row, mask = self.row(place), self.batch.get("attention_mask")
        if mask is None or mask.ndim != 2 or not bool(mask[place, 0]):
            return row
        for name, spec in self.fields.items():
            if name in row and "time" in spec.axes:
                axis = spec.axes.index("time") + 1
                row[name] = row[name].narrow(axis, 0, int(mask[place].sum()))
        return row

    @cached_property
    def rows_apart(self) -> tuple[float, float]:
        """By how much the logits change if each row is alone, and the sum of the rows' losses.

        Rows are alone without padding: so one pass shows the effect of padding and of other rows.
        The change is infinite where there are no logits to compare.
        """
        logits, change, total = getattr(self.together, "logits", None), 0.0, 0.0
        for place in range(self.num_rows):
            batch = self.unpadded(place)
            outputs = self.run(batch)
            total += self.loss_of(batch, outputs)
            own = getattr(outputs, "logits", None)
            if own is None or logits is None or len(logits) != self.num_rows:
                return float("inf"), total
            change = max(change, _differ_unpadded(logits[place : place + 1], own, float("inf")))
        return change, total

    @cached_property
    def rows_agree(self) -> bool:
        """Whether each row alone gives what it gives among others; False where it cannot run."""
        try:
            return self.num_rows < 2 or self.rows_apart[0] <= tolerance(self.together.logits)
        except Exception:  # the probe that looks closer reports it
            return False

    @cached_property
    def padded_rows(self) -> list[int]:
        """The rows of the batch that have padding, as far as that is known."""
        mask = self.batch.get("attention_mask")
        if mask is not None and mask.ndim == 2:
            padded: list[int] = (mask.sum(1) < mask.shape[1]).nonzero().flatten().tolist()
            return padded
        together = self.tensors()
        return [
            place
            for place in range(len(self.alone) if mask is None else 0)
            if any(v.shape[1:] != together[n].shape[1:] for n, v in self.unpadded(place).items())
        ]

    @cached_property
    def padding_effect(self) -> float:
        """By how much the padding of a row changes its outputs; 0 where no row is padded."""
        change = 0.0
        for place in self.padded_rows if not self.rows_agree else ():
            padded, plain = (self.answer(b) for b in (self.row(place), self.unpadded(place)))
            change = max(change, _differ_unpadded(padded, plain, 0.0))
        return change

    @cached_property
    def padding_in_statistics(self) -> float:
        """By how much padding changes outputs while layers compute statistics of the batch.

        A row is given twice, so that there are two values where a layer sees one per row.
        """
        import torch
        from torch.nn.modules.batchnorm import _BatchNorm

        layers = [part for part in self.module.modules() if isinstance(part, _BatchNorm)]
        if not layers or not self.padded_rows:
            return 0.0
        place = self.padded_rows[0]
        answers = []
        for row in (self.row(place), self.unpadded(place)):
            twice = self.twice(row)
            with preserved_state(self.module), torch.no_grad():
                for layer in layers:
                    layer.train()
                made = self.answer(twice, self.forward(twice))
                answers.append(made[:1] if made.ndim else made)
        return _differ_unpadded(answers[0], answers[1], 0.0)

    def changed(self, batch: Batch, *names: str) -> dict[str, Any] | None:
        """Return the batch with other values in columns; None where there is no other value to
        take.

        Whole numbers are exchanged among those of the batch, so that they stay within the
        vocabulary; fractions get noise of the size of their spread. In a causal model, the first
        half of the tokens stays.
        """
        import torch

        generator, changed = torch.Generator().manual_seed(0), dict(batch)
        for name in names:
            value = batch.get(name)
            if name in HELPERS or not isinstance(value, torch.Tensor):
                continue
            if value.is_floating_point():
                size = float(value.double().std()) if value.numel() > 1 else 0.0
                noise = torch.randn(value.shape, generator=generator).to(value.device, value.dtype)
                changed[name] = value + noise * (size or 1.0)
                continue
            other = exchanged(value)
            if not torch.equal(other, value):
                changed[name] = other
                if name == "input_ids" and (start := self.first_changed):
                    other[:, :start] = value[:, :start]
        same = all(changed[name] is batch[name] for name in names if name in batch)
        return None if same else changed

    @cached_property
    def first_changed(self) -> int:
        """The first token that is changed in a causal model, which no earlier output may show."""
        ids, mask = self.batch.get("input_ids"), self.batch.get("attention_mask")
        if not self.causal or ids is None or ids.ndim != 2:
            return 0
        return (ids.shape[1] if mask is None else int(mask.sum(1).min())) // 2

    def answer(self, batch: Batch, outputs: Any = None) -> torch.Tensor:
        """Return the logits of a batch, or its loss where there are none."""
        import torch

        outputs = self.run(batch) if outputs is None else outputs
        logits = getattr(outputs, "logits", None)
        return logits if logits is not None else torch.as_tensor(self.loss_of(batch, outputs))

    def other_answer(self, name: str) -> torch.Tensor | None:
        """Return the answer with other values in a column; None where there are no others."""
        if name not in self._others:
            other = self.changed(self.batch, name)
            self._others[name] = None if other is None else self.answer(other)
        return self._others[name]

    @property
    def sees_earlier_tokens_only(self) -> bool:
        """Whether other tokens change the outputs from their own place on, and none before it."""
        start, usual = self.first_changed, self.answer(self.batch, self.together)
        other = self.other_answer("input_ids") if start else None
        if other is None or other.shape != usual.shape or usual.ndim != 3:
            return False
        if usual.shape[:2] != self.batch["input_ids"].shape:
            return False
        moved = (usual[:, start] - other[:, start]).abs().amax(-1)
        is_seen = bool((moved > NO_CHANGE * usual[:, start].abs().max()).all())
        return is_seen and differ(usual[:, :start], other[:, :start]) <= tolerance(usual)

    def is_unsteady(self) -> list[Finding]:
        """A finding where two equal calls give different outputs; nothing where they do not."""
        both = self.together, self.run(self.batch)
        values = [[getattr(each, name, None) for each in both] for name in ("logits", "loss")]
        values.append([self.loss(each, self.batch)[0] for each in both])  # may read other outputs
        for one, other in values:
            if one is not None and other is not None and differ(one, other) > tolerance(one):
                message = (
                    "The model gives other outputs each time it is called in evaluation mode, by "
                    f"{differ(one, other):.2g} of their size; it cannot be probed."
                )
                return [note(message) if self.may_draw else UNSTEADY.finding(message)]
        return []


def exchanged(values: torch.Tensor) -> torch.Tensor:
    """Each of the values replaced by another one of them, so that ids stay in the vocabulary."""
    import torch

    known, places = torch.unique(values, return_inverse=True)
    other: torch.Tensor = known.roll(1)[places]
    return other


def differ(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return how far two tensors are apart, as a share of their size; 0 where both are all zero."""
    apart, *sizes = largest_difference(one, other)
    return apart / max(*sizes, 1e-12)


def tolerance(value: torch.Tensor) -> float:
    """Return share by which equal results may differ: kernels choose other orders of summing."""
    return tolerance_of(value).values


def _differ_unpadded(padded: torch.Tensor, plain: torch.Tensor, otherwise: float) -> float:
    """How far the answers of a padded row and of the row alone differ, at its real positions."""
    if plain.ndim > 2 and padded.ndim == plain.ndim:  # (1, T, V)
        padded = padded[:, : plain.shape[1]]
    return differ(padded, plain) if padded.shape == plain.shape else otherwise


VECTOR_NOISE = 0.1
"""Standard deviation of the noise on biases, norms and other vectors."""


@contextmanager
def perturbed_copy(module: nn.Module, call: Any) -> Iterator[tuple[Any, Any] | None]:
    """A copy of the module with noise on every weight, and its Call; None if it cannot be copied.

    Fresh weights are small: attention is nearly uniform, gates are nearly closed, and a fault in
    what a position sees hardly changes the outputs. Noise makes such faults visible. The weights of
    the copy are freed at the end of the block.
    """
    try:
        copied, its_call = copy.deepcopy((module, call))
    except Exception:  # the module's own code may refuse in any way
        yield None
        return
    try:
        perturb(copied)
        yield copied, its_call
    finally:
        for weight in copied.parameters():  # cycles may keep the copy alive for long
            weight.data = weight.data.new_empty(0)


def perturb(module: nn.Module, seed: int = 0) -> None:
    """Add noise that keeps the size of activations: 1/√(inputs) per weight of a matrix."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in module.modules():
            for weight in part.parameters(recurse=False):
                if not weight.is_floating_point():
                    continue
                noise = torch.randn(weight.shape, generator=generator) * _noise_size(part, weight)
                weight.add_(noise.to(weight.device, weight.dtype))


def _noise_size(part: nn.Module, weight: torch.Tensor) -> float:
    from torch import nn

    if weight.ndim < 2:
        return VECTOR_NOISE
    convolution = isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    inputs = weight[0].numel() if convolution else weight.shape[-1]
    return 1.0 / math.sqrt(max(inputs, 1))
