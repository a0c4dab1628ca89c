"""What planning proved of a model on its data, kept in the cache and not proved again.

The key of a Proof stands for everything that its outcomes depend on: the content of the data and
of the model's files, the config, the code of the user, the versions, and the device. What is known
only once the model is built and the rows are encoded is its `state`, which is compared.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit import __version__
from surefit.core.foreign import read_json
from surefit.data.cache import entry_folder, fingerprint, lock_entry, new_entry
from surefit.data.cache_contents import limit_kind
from surefit.data.cache_entry import content_hashes, is_sound
from surefit.errors import RunFailedError, UsageError
from surefit.findings import Finding
from surefit.memory.trace_step import Traced
from surefit.pipeline.open_pipeline import Choices
from surefit.processes import num_processes
from surefit.user_code.named_code import code_names, is_code_name
from surefit.user_code.run_code import files_of

if TYPE_CHECKING:
    from torch import nn

    from surefit.plan.draft import Draft

KIND, FILE = "proofs", "proof.json"
MOST_PROOFS = 200
"""Proofs that the cache keeps; those not used for the longest time are removed."""
NOT_READ = {"output", "cache", "cache_limit_gb", "trackers"}
"""Keys of the config that no outcome depends on."""
LIBRARIES = ("torch", "transformers", "peft", "tokenizers", "safetensors", "numpy", "scikit-learn")
FROM_FILES = ("pretrained", "gguf")
"""Kinds of models that their files define."""


@dataclass(frozen=True)
class Outcome:
    """What some stages of the table found and decided."""

    findings: tuple[Finding, ...] = ()
    choices: Choices = field(default_factory=Choices)
    min_rows: tuple[int, str] | None = None
    unreached: tuple[str, ...] | None = None
    traced: Traced | None = None
    rate_tried: bool | None = None
    baselines: Mapping[str, Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Proof:
    """The outcomes that are known, by the name of their rows in the table."""

    key: str = ""
    """What they depend on; empty where that is not known, so that nothing is kept."""
    built: str = ""
    """Shapes of the model's weights, and what was found in building it."""
    state: str = ""
    """The encoded rows, the code, and the weights where no file defines them."""
    is_whole: bool = False
    """Whether there is an outcome for every row of the table that can be kept."""
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)

    def with_outcome(self, name: str, outcome: Outcome) -> Proof:
        """Return the Proof with a further outcome."""
        return replace(self, outcomes={**self.outcomes, name: outcome}) if self.key else self


class StaleProofError(Exception):
    """The model was built without weights, and they are needed after all."""


def find_proof(d: Draft) -> tuple[Proof, tuple[Finding, ...]]:
    """Return what the cache has for this data, model, config and versions."""
    key = _key(d)
    if key is None:
        return Proof(), ()
    folder = entry_folder(KIND, key)
    if is_sound(folder):
        with suppress(UsageError):  # of another form: it is written anew
            return read_json(folder / FILE, Proof), ()
    return Proof(key), ()


def confirm_proof(d: Draft) -> tuple[Proof, tuple[Finding, ...]]:
    """Return the Proof if the model and the encoded rows are those it was made with, else none."""
    found, state = d.proof, _state(d) if d.proof.key else None
    built = describe_built(d.pipeline.module, d.building)
    if state is not None and (built, state) == (found.built, found.state):
        return found, ()
    may_be_outline = d.request.shows_only and d.source.outline is not None
    if may_be_outline and any(weight.is_meta for weight in d.pipeline.module.parameters()):
        raise StaleProofError
    return (Proof() if state is None else Proof(found.key, built, state)), ()


def write_proof(d: Draft, names: frozenset[str]) -> None:
    """Keep what was proved; `names` are the rows of the table that can be kept."""
    proof = d.proof
    if not proof.key or proof.is_whole:
        return
    folder = entry_folder(KIND, proof.key)
    proof = replace(proof, is_whole=names <= {*proof.outcomes})
    with suppress(OSError, RunFailedError), lock_entry(folder):  # without room, it is proved again
        with new_entry(folder) as temporary:
            (temporary / FILE).write_text(json.dumps(asdict(proof)), encoding="utf-8")
        limit_kind(KIND, MOST_PROOFS)


def _key(d: Draft) -> str | None:
    """Return what is known before the model is built; None where something cannot be known."""
    objects, config, tables = d.objects, d.config, d.tables
    passed = {each.name for each in fields(objects) if getattr(objects, each.name) is not None}
    if passed - {"data", "eval_data", "callbacks"} or num_processes() > 1:
        return None
    if d.source.trust_remote_code or any(each is not None and each.live for each in tables):
        return None
    model = _content(d.source.name) if d.source.kind in FROM_FILES else ""
    tokenizer = _content(config.tokenizer) if config.tokenizer else ""
    if model is None or tokenizer is None:
        return None
    request = d.request
    return fingerprint(
        [None if table is None else table.place_key for table in tables],
        config.model_dump(mode="json", exclude=NOT_READ),
        [request.choices and request.choices.as_dict(), request.processes, request.device],
        [model, tokenizer, d.source.kind, d.source.weightless],
        _versions(),
    )


def _content(name: str) -> str | None:
    """Return a digest of a file or of all files in a folder; None where it is no such place."""
    place = Path(name).expanduser()
    paths = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
    hashes = content_hashes([str(path) for path in paths])
    if not paths or None in hashes:
        return None
    return fingerprint([str(path.relative_to(place.parent)) for path in paths], hashes)


@cache
def _versions() -> tuple[str, ...]:
    """Return versions of all that computes, files of this package, and the device."""
    import torch

    known = [__version__, platform.python_version(), platform.machine()]
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            known.append(f"{name} {version(name)}")
    stats = [path.stat() for path in sorted(Path(__file__).parents[1].rglob("*.py"))]
    known.append(fingerprint([[stat.st_size, stat.st_mtime_ns] for stat in stats]))
    known.append(torch.backends.cpu.get_cpu_capability())
    if torch.cuda.is_available():
        known.append(torch.cuda.get_device_name())
    return tuple(known)


def _state(d: Draft) -> str | None:
    """Return what is known once the model is built and the rows are encoded; None if it is not."""
    code = set(code_names(d.config).values())
    code |= {d.config.optimizer} if is_code_name(d.config.optimizer) else set()
    files = {name: files_of(name) for name in code}
    if not all(files.values()):
        return None
    content = ""
    if d.source.kind not in FROM_FILES or d.source.untrained:
        found = _module_content(d.pipeline.module)
        if found is None:
            return None
        content = found
    return fingerprint(d.train.key, d.validation.key, files, content)


def describe_built(module: nn.Module, found: tuple[Finding, ...]) -> str:
    """Return a digest of names, shapes and dtypes of all weights, and of findings."""
    from torch.nn.parameter import is_lazy

    shapes = [
        (
            name,
            None if is_lazy(weight) else [*weight.shape],
            str(weight.dtype),
            weight.requires_grad,
        )
        for name, weight in module.named_parameters()
    ]
    return fingerprint(shapes, [each.as_dict() for each in found])


def _module_content(module: nn.Module) -> str | None:
    """Return a digest of all tensors, and of plain attributes; None of lazy parameters."""
    import torch
    from torch.nn.parameter import is_lazy

    digest = hashlib.blake2b(repr(module).encode(), digest_size=16)
    for name, part in module.named_modules():
        plain = {k: v for k, v in vars(part).items() if isinstance(v, bool | int | float | str)}
        digest.update(f"{name}{type(part).__qualname__}{sorted(plain.items())}".encode())
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(value) or value.is_meta:
            return None
        values = value.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(name.encode())
        digest.update(values.numpy().data)
    return digest.hexdigest()
