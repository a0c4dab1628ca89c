"""Code that comes with a model folder or hub repository (`auto_map`), which transformers runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from surefit.errors import UsageError

_HUB_KERNEL = re.compile(r"[^/]+/[^/]+")


def names_of(place: str) -> dict[str, str]:
    """The code that a model folder brings: `module:class`, and the file or repository it is in."""
    folder, found = Path(place), {}
    if not folder.is_dir():
        return {}
    for path in sorted(folder.glob("*.json")):
        entries = _read(path).get("auto_map")
        values = list(entries.values()) if isinstance(entries, dict) else [entries]
        for value in (v for each in values for v in (each if isinstance(each, list) else [each])):
            if not isinstance(value, str) or "." not in value:
                continue
            repository, _, inside = value.rpartition("--")
            module, _, name = inside.rpartition(".")
            file = str(folder / f"{module.replace('.', '/')}.py")
            found[f"{module}:{name}"] = f"the hub repository {repository}" if repository else file
    return found


@contextmanager
def guard_remote(place: str, allowed: bool) -> Iterator[None]:
    """Report code that a model folder or hub repository needs, and that is not allowed to run."""
    if not allowed:
        _refuse_kernels(place)
    try:
        yield
    except (ValueError, KeyError) as error:  # also that the config has no architecture of its own
        if allowed or ("trust_remote_code" not in str(error) and not names_of(place)):
            raise
        raise _refusal(place) from None


def _refusal(place: str) -> UsageError:
    names = names_of(place)
    listed = ", ".join(f"{name} ({file})" for name, file in names.items())
    trust = " ".join(f"--trust-code {name}" for name in names)
    for_runs = f" Where a run is opened: {trust}." if trust else ""
    return UsageError(
        f"The model {place} needs code of its own, which runs only if this command allows it"
        f"{f': {listed}' if listed else ''}.",
        "Read the code. If you trust it, add --set trust_remote_code=true to train or check."
        + for_runs,
    )


def _refuse_kernels(place: str) -> None:
    """A model's config may name compiled code on the hub as its attention."""
    config = _read(Path(place) / "config.json")
    for key in ("attn_implementation", "_attn_implementation", "experts_implementation"):
        value = config.get(key)
        if isinstance(value, str) and _HUB_KERNEL.fullmatch(value):
            raise UsageError(
                f"{Path(place) / 'config.json'} asks for code from the hub repository {value} "
                f"({key}), which runs only if this command allows it.",
                f"Remove {key} from the file, or, if you trust the repository, add "
                "--set trust_remote_code=true.",
            )


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}  # whoever reads the file reports it
    return value if isinstance(value, dict) else {}
