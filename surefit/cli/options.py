"""The options that `train` and `check` share, and how they become config settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from surefit.cli.option_help import read_help

OPTIONS: dict[str, Any] = {
    "data": list[str],
    "eval_data": list[str],
    "model": str,
    "tokenizer": str,
    "task": str,
    "epochs": int,
    "max_steps": int,
    "batch_size": str,
    "max_tokens": int,
    "grad_accum": int,
    "max_seq_length": int,
    "augmentation_factor": int,
    "lr": float,
    "lora_r": int,
    "from_scratch": bool,
    "max_memory_gb": float,
    "seed": int,
    "output": str,
}
"""Config keys that are also options, and the type on the command line."""


TrustCode = Annotated[
    list[str] | None,
    typer.Option(
        "--trust-code",
        help="Code that the run or model names and may run, as module:function; repeatable.",
    ),
]


def _further_options(
    config: Annotated[
        Path | None,
        typer.Argument(help="A YAML file with any of the config keys.", show_default=False),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="Resume this run exactly where it stopped.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other config key, as key=value; may be repeated."),
    ] = None,
) -> None: ...


def takes_run_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the shared options; it gets them as (settings, config path, resume)."""
    config, resume, set_ = inspect.signature(_further_options, eval_str=True).parameters.values()
    shared = [config, *(_option(name, kind) for name, kind in OPTIONS.items()), resume, set_]
    own = list(inspect.signature(command, eval_str=True).parameters.values())[3:]

    def wrapper(**values: Any) -> int:
        mine = {parameter.name: values.pop(parameter.name) for parameter in own}
        path, resume = values.pop("config"), values.pop("resume")
        return command(_settings(values, path), path, resume, **mine)

    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*shared, *own)]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    wrapper.__doc__, wrapper.__module__ = command.__doc__, command.__module__
    return wrapper


def _option(name: str, kind: Any) -> inspect.Parameter:
    """The option of a config key, with the help of the key."""
    about = read_help()[name]
    is_flag = kind is bool
    option = typer.Option(
        f"--{name.replace('_', '-')}", help=about.text, show_default=about.default or False
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if is_flag else None,
        annotation=Annotated[kind if is_flag else kind | None, option],
    )


def _settings(values: dict[str, Any], path: Path | None) -> dict[str, Any]:
    """The config file's keys, then those of --set and the options, which win."""
    from surefit.config import parse_setting, read_yaml, spell_out
    from surefit.errors import UsageError

    assigned = dict(parse_setting(text) for text in values.pop("set_") or [])
    left_out = {name for name, value in values.items() if value is None or value is False}
    given = {name: value for name, value in values.items() if name not in left_out and value != []}
    empty = next((name for name, value in given.items() if value == "" or value == [""]), None)
    if empty is not None:
        option = f"--{empty.replace('_', '-')}"
        raise UsageError(f"{option} is empty.", "Give it a value, or leave it out.")
    if str(given.get("batch_size", "")).isdecimal():  # or auto
        given["batch_size"] = int(given["batch_size"])
    twice = next((name for name in given if name in assigned), None)
    if twice is not None:
        option = f"--{twice.replace('_', '-')}"
        raise UsageError(f"{option} and --set {twice}=… are both given.", "Give one of them.")
    settings = spell_out(read_yaml(path) if path is not None else {})
    return settings | spell_out(assigned | given)
