"""One's own nn.Module: given as `module:function`, or as an object from Python."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.data.encoder import Encoder
from surefit.errors import UsageError
from surefit.findings import fail
from surefit.models.source import Built, ModelSource
from surefit.tasks.spec import Head

if TYPE_CHECKING:
    from torch import nn

SIZE_NAMES = frozenset(
    {"num_classes", "num_labels", "n_classes", "classes", "num_outputs", "output_size"}
)


def open_object(module: Any) -> ModelSource:
    """A source that gives back the module it was made from."""
    from torch import nn

    if not isinstance(module, nn.Module):
        raise UsageError(
            f"model is a {type(module).__name__}; expected a name or a torch.nn.Module.",
            "Pass a folder, hub id, tiny:ARCH, module:function or an nn.Module object.",
        )
    name = type(module).__name__
    return ModelSource(name, "object", lambda head, encoder: Built(module), recipe={"class": name})


def open_function(name: str, beside: Path | None = None) -> ModelSource:
    """A source that calls `module:function`, with the class count if it takes one."""
    module_name, function_name = name.split(":")
    function = _find(module_name, function_name, beside)
    file = inspect.getsourcefile(function)

    def build(head: Head | None, encoder: Encoder) -> Built:
        size = head.size(encoder) if head is not None and head.size is not None else None
        return Built(call_factory(function, name, size))

    code = str(Path(file).resolve()) if file else None
    return ModelSource(
        name, "function", build, code=code, untrained=True, recipe={"function": name}
    )


def call_factory(function: Callable[..., Any], name: str, size: int | None) -> nn.Module:
    """Call the user's function; an error of its own is shown with the place it came from."""
    from torch import nn

    arguments = _size_argument(function, size)
    try:
        module = function(*arguments[0], **arguments[1])
    except Exception as error:
        place = _innermost(error, inspect.getsourcefile(function))
        raise fail(
            "SF305", f"{name} raised {type(error).__name__}: {error}{place}", fix="Repair it."
        ) from error
    if not isinstance(module, nn.Module):
        raise fail(
            "SF301",
            f"{name} returned a {type(module).__name__}; expected a torch.nn.Module.",
            fix="Return the module from the function.",
        )
    return module


def _size_argument(
    function: Callable[..., Any], size: int | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    parameters = inspect.signature(function).parameters
    named = next((name for name in parameters if name in SIZE_NAMES), None)
    if size is None:
        return (), {}
    if named is not None:
        return (), {named: size}
    required = [
        p
        for p in parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return ((size,), {}) if required else ((), {})


def _innermost(error: BaseException, file: str | None) -> str:
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" ({file}, line {line})" if line is not None else ""


def _find(module_name: str, function_name: str, beside: Path | None) -> Callable[..., Any]:
    with _search_path(beside):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name != module_name.split(".")[0] and error.name != module_name:
                raise UsageError(
                    f"{module_name} needs the module {error.name!r}, which is not installed.",
                    f"Install {error.name}.",
                ) from None
            places = [str(folder) for folder in _folders(beside)]
            raise UsageError(
                f"There is no Python module {module_name!r} in {' or '.join(places)} "
                "or on the Python path.",
                "Write MODULE:FUNCTION with the file name without .py.",
            ) from None
        except Exception as error:
            raise UsageError(
                f"{module_name} could not be imported: {type(error).__name__}: {error}",
                "Repair the file; `python -c 'import …'` shows where it fails.",
            ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        found = ", ".join(n for n, v in vars(module).items() if callable(v) and n[0] != "_")
        raise UsageError(
            f"{module.__file__} has no function {function_name!r}.", f"It has: {found or 'none'}."
        )
    return function  # type: ignore[no-any-return]


def _folders(beside: Path | None) -> list[Path]:
    return [*([beside.resolve()] if beside else []), Path.cwd()]


@contextmanager
def _search_path(beside: Path | None) -> Iterator[None]:
    before = list(sys.path)
    sys.path[:0] = [str(folder) for folder in _folders(beside)]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
