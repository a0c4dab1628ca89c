"""The plan of a run: made by one process, or agreed on by several.

Of several processes, the first one of each host plans, so that data is encoded once per host. What
was chosen by trying or measuring is what process 0 chose. Then all compare what must be the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from surefit import __version__
from surefit.data.cache import fingerprint
from surefit.errors import UsageError
from surefit.findings import Finding
from surefit.memory.limit import Limit, find_limit
from surefit.pipeline.open_pipeline import Choices
from surefit.plan.plan import Plan
from surefit.plan.stages import run_stages
from surefit.processes import (
    OtherProcessError,
    gather,
    host_name,
    is_first_on_host,
    limit_waiting,
    name_process,
    num_processes,
    process_index,
    together,
)
from surefit.progress import Progress, silent
from surefit.request import Request
from surefit.speed.numerics import prepare_deterministic
from surefit.speed.precision import resolve_precision

OWN_TO_A_HOST = {"cache", "output", "data", "eval_data"}
"""Keys of the config that name files, which may lie elsewhere on each host."""


@dataclass(frozen=True)
class Decided:
    """What one process decided for all, or the findings that keep it from training."""

    choices: Choices
    sizes: Mapping[str, int]
    refusal: tuple[Finding, ...] = ()

    def taken_over(self, request: Request) -> Request:
        """Return the request with these decisions instead of `auto` and of trials."""
        config = request.config.model_copy(update=dict(self.sizes))
        return replace(request, config=config, choices=self.choices)


def make_plan(request: Request, progress: Progress = silent) -> Plan:
    """Return the plan of a run; of several processes, the one they agree on."""
    prepare_deterministic(request.config.deterministic)
    if num_processes() == 1:
        return run_stages(request, progress)
    limit_waiting(request.config.stall_seconds)
    return _plan_together(request, partial(run_stages, progress=progress))


def _plan_together(request: Request, make: Callable[..., Plan]) -> Plan:
    """Return the plan of this process, which all processes agree on."""
    limit = _least_limit(request)
    own: Plan | None = None
    with together("planning"):
        if is_first_on_host():
            own = make(request, limit=limit)
    decided = gather(_decided(own))
    refused = {rank: each for rank, each in enumerate(decided) if each and each.refusal}
    if refused:
        return own if own is not None and not own.ok else _refused(request, refused)
    first = decided[0]
    assert first is not None  # process 0 is the first of its host
    with together("planning"):
        if own is None or _decided(own) != first:
            own = make(first.taken_over(request), limit=limit)
    compare_facts(gather((host_name(), _facts(own))))
    return own


def _least_limit(request: Request) -> Limit:
    """Return the least memory limit of all processes, which train the same micro-batches."""
    config = request.config
    own = find_limit(config.max_memory_gb, config.device_memory_gb)
    limits = gather(own)
    rank, least = min(enumerate(limits), key=lambda pair: pair[1].bytes)
    if least.bytes == own.bytes or rank == process_index():
        return own
    return replace(least, source=f"process {rank}: {least.source}")


def _decided(plan: Plan | None) -> Decided | None:
    if plan is None:
        return None
    if not plan.ok:
        return Decided(Choices(), {}, plan.findings)
    sizes = {name: getattr(plan.config, name) for name in ("batch_size", "grad_accum")}
    return Decided(plan.choices, sizes)


def _refused(request: Request, refused: Mapping[int, Decided]) -> Plan:
    """Return a plan that cannot be trained, because of what other processes found."""
    rank, decided = next(iter(refused.items()))
    named = (
        replace(found, message=f"{name_process(rank)}: {found.message}")
        for found in decided.refusal
        if found.severity == "error"
    )
    return Plan(request, findings=tuple(named))


def _facts(plan: Plan) -> dict[str, str]:
    """Return what must be the same in all processes, by what a message calls it."""
    import torch

    job, model, config = plan.job, plan.model, plan.config
    if job is None or model is None:  # it was refused, and says so itself
        return {}
    shapes = [
        (name, list(weight.shape), weight.requires_grad)
        for name, weight in job.pipeline.module.named_parameters()
    ]
    batches = job.batches
    order = (batches.batch_size, batches.grad_accum, batches.max_tokens, batches.chosen_order)
    source = model.source.code
    return {  # what comes first causes differences in what comes after it
        "version of surefit or torch": f"{__version__}, {torch.__version__}",
        "config": json.dumps(config.model_dump(mode="json", exclude=OWN_TO_A_HOST)),
        "precision": resolve_precision(config.precision),
        "code of the model": fingerprint(Path(source).read_bytes()) if source else "",
        "data": fingerprint(plan.data_key, job.validation.key),
        "model": fingerprint(repr(shapes)),
        "choice of layout": fingerprint(repr(plan.choices)),
        "order of the rows": fingerprint(repr((order, batches.padding_free, job.num_steps))),
    }


def compare_facts(facts_of: list[tuple[str, dict[str, str]]]) -> None:
    """Refuse to train where a process differs from the first.

    >>> compare_facts([("a", {"data": "1"}), ("b", {"data": "2"})])
    Traceback (most recent call last):
    ...
    surefit.processes.OtherProcessError: Process 1 of host b has other data than process 0 of ...
    """
    host, expected = facts_of[0]
    for rank, (other, facts) in enumerate(facts_of):
        different = [name for name in expected if name in facts and facts[name] != expected[name]]
        if different:
            name = different[0]
            shown = _show_keys(facts[name], expected[name]) if name == "config" else ""
            raise OtherProcessError(
                f"{name_process(rank, other)} has other {name} than process 0 of host {host}"
                f"{shown}.",
                "Give all processes the same files, config and versions: copy them to each host, "
                "or use a folder that all hosts share.",
                UsageError.exit_code,
            )


def _show_keys(one: str, other: str) -> str:
    """Return the keys in which two configs differ.

    >>> _show_keys('{"seed": 1, "epochs": 3}', '{"seed": 2, "epochs": 3}')
    ' (seed: 1, not 2)'
    """
    here, there = json.loads(one), json.loads(other)
    keys = [key for key in here if here[key] != there.get(key)]
    return " (" + "; ".join(f"{key}: {here[key]}, not {there.get(key)}" for key in keys) + ")"
