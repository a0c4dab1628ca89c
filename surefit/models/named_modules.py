"""Modules by name, each trained by an optimizer of its name: what a `training_step` is given."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from surefit.errors import UsageError
from surefit.models.learning_rate import NAMES, Schedule
from surefit.models.optimizer import JointOptimizer, OptimizerSettings, find_kind

ALONE = "model"
"""The name of a module that is passed without one."""
KEYS = ("optimizer", "lr", "weight_decay", "schedule", "warmup", "clip", "modules")
FIX = (
    "Pass optimizer={'g': 'adamw', 'd': {'optimizer': 'sgd', 'lr': 0.1}}, with a name, a function "
    f"of the parameters or an Optimizer for each; the keys of a dict are {', '.join(KEYS)}."
)


class NamedModules(nn.ModuleDict):
    """Modules by name; forward returns them, for a loss_fn, metrics and a predict_fn.

    Those without trainable weights that are passed in evaluation mode stay in it, as a teacher
    whose dropout and batch norms are not to change.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__(modules)
        self.stay = {
            name
            for name, module in modules.items()
            if not module.training and not any(w.requires_grad for w in module.parameters())
        }

    def forward(self, **columns: Any) -> dict[str, nn.Module]:
        """Return the modules by name; what they are called with is up to the training_step."""
        return dict(self.items())

    def train(self, mode: bool = True) -> NamedModules:
        """Set the mode of all modules but those that stay in evaluation mode."""
        super().train(mode)
        for name in self.stay:
            self[name].eval()
        return self


def as_modules(given: Any) -> Any:
    """Return modules by name of a dict of them, or of a single module; other things as they are."""
    if isinstance(given, NamedModules):
        return given
    if isinstance(given, nn.Module):
        return NamedModules({ALONE: given})
    if not isinstance(given, Mapping):
        return given
    for name, module in given.items():
        if not isinstance(module, nn.Module):
            raise UsageError(
                f"model[{name!r}] is a {type(module).__name__}; expected a torch.nn.Module.",
                "Pass model={'g': G(), 'd': D()}.",
            )
    return NamedModules(dict(given))


@dataclass(frozen=True)
class Part:
    """What one of several optimizers trains, and how."""

    name: str
    modules: tuple[str, ...]
    settings: OptimizerSettings
    schedule: Schedule
    clip: float

    def make(self, every: NamedModules) -> torch.optim.Optimizer:
        """Make the optimizer; one that was passed in is copied, without a state."""
        passed = self.settings.passed
        if isinstance(passed, torch.optim.Optimizer):
            own = copy.copy(passed)
            own.param_groups = [dict(group) for group in passed.param_groups]
            own.state = defaultdict(dict)
            passed = own
        trained = nn.ModuleDict({name: every[name] for name in self.modules})
        made: torch.optim.Optimizer = replace(self.settings, passed=passed).make(trained)
        return made


class NamedOptimizers(JointOptimizer):
    """Optimizers by name, saved as one; the training loop steps each of them."""

    def __init__(self, parts: Mapping[str, torch.optim.Optimizer]) -> None:
        self.names = tuple(parts)
        super().__init__(*parts.values())

    def part(self, name: str) -> torch.optim.Optimizer:
        """Return the optimizer of that name."""
        return self.parts[self.names.index(name)]


@dataclass(frozen=True)
class MakeNamed:
    """Makes the optimizers of all parts, in place of a function of the parameters."""

    modules: Any  # NamedModules, which a Pipeline holds as a module
    parts: Mapping[str, Part]

    def __call__(self, parameters: Sequence[nn.Parameter]) -> NamedOptimizers:
        """Return the optimizers by name."""
        return NamedOptimizers({name: p.make(self.modules) for name, p in self.parts.items()})

    @property
    def is_fresh(self) -> bool:
        """Return whether surefit makes all of them, so that a step at rate 0 changes no weight."""
        return all(part.settings.passed is None for part in self.parts.values())


def parse_parts(given: Any, modules: NamedModules, usual: Part) -> dict[str, Part]:
    """Return the optimizers that a user asks for, by name; `usual` has the settings of the run.

    Without a dict, each module with trained weights has one of its own.
    """
    trained = [n for n, m in modules.items() if any(p.requires_grad for p in m.parameters())]
    if isinstance(given, torch.optim.Optimizer) and len(trained) != 1:
        message = f"optimizer is one object, and {len(trained)} modules are trained."
        raise UsageError(message, FIX)
    named = given if isinstance(given, Mapping) else dict.fromkeys(trained, given)
    parts = {str(name): _part(str(name), each, modules, usual) for name, each in named.items()}
    held = [name for part in parts.values() for name in part.modules]
    twice = next((name for name in held if held.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"Two optimizers train the module {twice!r}.", "Give it one.")
    alone = next((name for name in trained if name not in held), None)
    if alone is not None:
        raise UsageError(
            f"The module {alone!r} has trainable weights, and no optimizer trains it.",
            f"Name it in optimizer, or freeze it: {alone}.requires_grad_(False).",
        )
    return parts


def _part(name: str, given: Any, modules: NamedModules, usual: Part) -> Part:
    chosen = dict(given) if isinstance(given, Mapping) else {"optimizer": given}
    unknown = next((key for key in chosen if key not in KEYS), None)
    if unknown is not None:
        raise UsageError(f"optimizer[{name!r}] has an unknown key {unknown!r}.", FIX)
    if chosen.get("schedule", usual.schedule.shape) not in NAMES:
        message = f"optimizer[{name!r}]: schedule is {chosen['schedule']!r}."
        raise UsageError(message, f"Choose one of: {', '.join(NAMES)}.")
    held = tuple(chosen.get("modules", (name,)))
    missing = next((each for each in held if each not in modules), None)
    if missing is not None:
        raise UsageError(
            f"optimizer[{name!r}] trains the module {missing!r}; there are {', '.join(modules)}.",
            "Name an optimizer after its module, or list several: "
            f"optimizer={{{name!r}: {{'modules': [{', '.join(map(repr, modules))}]}}}}.",
        )
    settings, asked = usual.settings, chosen.get("optimizer")
    settings = replace(
        settings,
        lr=float(chosen.get("lr", settings.lr)),
        weight_decay=float(chosen.get("weight_decay", settings.weight_decay)),
        kind=find_kind(asked) if isinstance(asked, str) else settings.kind,
        passed=None if isinstance(asked, str) else asked,
    )
    if settings.passed is not None and not callable(getattr(settings.passed, "step", asked)):
        message = f"optimizer[{name!r}] is a {type(asked).__name__}."
        raise UsageError(message, FIX)
    schedule = replace(
        usual.schedule,
        shape=str(chosen.get("schedule", usual.schedule.shape)),
        warmup=float(chosen.get("warmup", usual.schedule.warmup)),
    )
    return Part(
        name,
        held,
        settings,
        schedule,
        float(chosen.get("clip", usual.clip)),
    )
