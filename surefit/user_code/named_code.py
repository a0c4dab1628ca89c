"""Code that this command names, as `module:object`; naming it is what allows it to run."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from surefit.config import RunConfig
from surefit.core.foreign import read_json
from surefit.errors import UsageError, describe_error
from surefit.findings import Finding, note

CODE_KEYS = ("model", "task", "optimizer", "loss.function", "generate.scorer", "augment.function")
"""The config keys that may name code, besides metrics."""
_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_code_name(name: str) -> bool:
    """Return whether a name is `module:object`, not `tiny:ARCH` or a path.

    >>> is_code_name("net:make"), is_code_name("tiny:llama"), is_code_name("sft")
    (True, False, False)
    """
    is_name = bool(_CODE.fullmatch(name)) and not name.startswith("tiny:")
    return is_name and not Path(name).exists()


def code_names(config: RunConfig) -> dict[str, str]:
    """Return the code that a config names, by key."""
    values = {key: attrgetter(key)(config) for key in CODE_KEYS}
    values |= {f"metrics.{name}": each.function for name, each in config.metrics.items()}
    return {key: name for key, name in values.items() if name and is_code_name(name)}


_IN_FILE = re.compile(r"(.*[/\\])?([A-Za-z_]\w*)\.py:([A-Za-z_]\w*)")


def find_files(config: RunConfig, beside: Path | None) -> tuple[RunConfig, tuple[Path, ...]]:
    """Return the config with `module:object` for each `folder/module.py:object`, and the folders.

    A relative path starts at the config file's folder or, if the file is not there, here.
    """
    folders = []
    for key in CODE_KEYS:
        found = _IN_FILE.fullmatch(attrgetter(key)(config) or "")
        if found is None:
            continue
        path = Path(found[1] or "").expanduser() / f"{found[2]}.py"
        places = [place / path for place in (beside, Path.cwd()) if place is not None]
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            raise UsageError(
                f"{key} is {found[0]}, and there is no file {path}.", "Check the path."
            )
        folders.append(file.resolve().parent)
        section, _, name = key.rpartition(".")
        update: dict[str, Any] = {name: f"{found[2]}:{found[3]}"}
        if section:
            update = {section: getattr(config, section).model_copy(update=update)}
        config = config.model_copy(update=update)
    return config, tuple(dict.fromkeys(folders))


def report_code(key: str, name: str) -> list[Finding]:
    """Return the file of the code that was imported for a config key; nothing for another name."""
    if not is_code_name(name):
        return []
    file = getattr(sys.modules.get(split_name(name)[0]), "__file__", None)
    return [note(f"{key}: {name} is run.", file=file)]


@dataclass(frozen=True)
class NamedCode:
    """Code named by this command or by the config file given to it, in the folder `beside`."""

    beside: Path | None = None
    trusted: frozenset[str] = frozenset()
    """Code that a model folder may name, because this command names it, too."""
    files_in: tuple[Path, ...] = ()
    """Folders of the files that this command names."""

    def find(self, name: str) -> Any:
        """Import `module:object`, from beside the config, the working folder or the Python path."""
        return import_object(name, self.folders())

    def folders(self) -> list[Path]:
        """Return where a module is searched before the Python path."""
        return [*self.files_in, *([self.beside.resolve()] if self.beside else []), Path.cwd()]

    def allows_remote(self, place: str, asked: bool) -> bool:
        """Whether a model folder or hub repository may run its own code: as the command says."""
        return asked


def split_name(name: str) -> tuple[str, str]:
    """Return the module and the object of `module:object`."""
    module, _, named = name.partition(":")
    return module, named


def locate(module_name: str, folders: Sequence[Path | str]) -> Path | None:
    """Return the file that would be imported, found without running any code."""
    relative = Path(*module_name.split("."))
    for folder in folders:
        package = Path(folder) / relative / "__init__.py"
        file = Path(folder) / relative.with_name(relative.name + ".py")
        for each in (package, file):
            if each.is_file():
                return each.resolve()
    return None


def top_folder(module_name: str, file: Path) -> Path:
    """Return the folder in which the top-level module or package of a module's file lies."""
    inside = file.parent if file.name == "__init__.py" else file
    return inside.parents[module_name.count(".")]


def import_object(name: str, folders: Sequence[Path]) -> Any:
    """Import `module:object`; `folders` are searched before the Python path."""
    module_name, _ = split_name(name)
    _forget_namesake(module_name, folders)
    with _search_path(folders):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name != module_name.split(".")[0] and error.name != module_name:
                raise UsageError(
                    f"{module_name} needs the module {error.name!r}, which is not installed.",
                    f"Install {error.name}.",
                ) from None
            places = [str(folder) for folder in folders]
            raise UsageError(
                f"There is no Python module {module_name!r} in {' or '.join(places)} "
                "or on the Python path.",
                "Write MODULE:FUNCTION with the file name without .py.",
            ) from None
        except (Exception, SystemExit) as error:
            raise import_failed(module_name, error) from error
    return object_of(module, name)


def import_failed(module_name: str, error: BaseException) -> UsageError:
    """Return the error of a module whose import raised one."""
    return UsageError(
        f"{module_name} could not be imported: {describe_error(error)}",
        "Repair the file; `python -c 'import …'` shows where it fails.",
    )


def object_of(module: Any, name: str) -> Any:
    """Return the object that `module:object` names, in the imported module."""
    _, object_name = split_name(name)
    if not hasattr(module, object_name):
        has = [n for n, v in vars(module).items() if n[0] != "_" and not isinstance(v, ModuleType)]
        near = difflib.get_close_matches(object_name, has, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        place = getattr(module, "__file__", None) or module.__name__  # sys has no file
        raise UsageError(
            f"{place} has no {object_name!r}.{hint}", f"It has: {', '.join(has) or 'nothing'}."
        )
    return getattr(module, object_name)


def source_file(named: Any) -> str | None:
    """Return file of a function or class; None for what has no Python source, such as os.system."""
    try:
        return inspect.getsourcefile(inspect.unwrap(named))
    except (TypeError, ValueError):
        return None


def _forget_namesake(module_name: str, folders: Sequence[Path]) -> None:
    """Drop a module of the same name that was imported from another folder before."""
    here = locate(module_name, folders)
    known = sys.modules.get(module_name)
    file = getattr(known, "__file__", None)
    if here is not None and known is not None and (not file or Path(file).resolve() != here):
        del sys.modules[module_name]


@contextmanager
def _search_path(folders: Sequence[Path]) -> Iterator[None]:
    before, wrote = list(sys.path), sys.dont_write_bytecode
    sys.path[:0] = [str(folder) for folder in folders]
    sys.dont_write_bytecode = True  # nothing is left beside the user's file
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = before, wrote


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
        return read_json(path, dict[str, Any])
    except UsageError:
        return {}  # whoever reads the file reports it
