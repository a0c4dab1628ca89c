"""The options that `train` and `check` share, and how they become config settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from surefit.config import SHORT_KEYS, config_fields, parse_setting, read_yaml, spell_out
from surefit.config.other_tools import answer_key
from surefit.config.settings import Fault, describe_faults
from surefit.errors import UsageError

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


SetGenerate = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="How text is generated, as generate.key=value, such as generate.top_p=0.9."
    ),
]


def generation_settings(assigned: list[str] | None) -> dict[str, Any]:
    """Return the settings of generation that --set has, by their names in the section.

    >>> generation_settings(["generate.top_p=0.9"])
    {'top_p': 0.9}
    """
    settings = dict(parse_setting(text) for text in assigned or [])
    wrong = next((key for key in settings if not key.startswith("generate.")), None)
    if wrong is not None:
        raise UsageError(
            f"--set {wrong}=… is a setting of training; this command has a trained model.",
            "Settings of generation can be set here, such as --set generate.temperature=0.7.",
        )
    return {key.removeprefix("generate."): value for key, value in settings.items()}


Quiet = Annotated[bool, typer.Option("--quiet", help="Print only errors and the result.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print all notes of the plan.")]


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
    wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__
    return wrapper


def _option(name: str, kind: Any) -> inspect.Parameter:
    """Return the option of a config key, with the help of the key."""
    field = config_fields()[SHORT_KEYS.get(name, name)]
    is_flag = kind is bool
    shown = "" if field.default in (None, False, (), "") else str(field.default)
    text = " ".join((field.description or "").split())
    option = typer.Option(f"--{name.replace('_', '-')}", help=text, show_default=shown or False)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if is_flag else None,
        annotation=Annotated[kind if is_flag else kind | None, option],
    )


def _settings(values: dict[str, Any], path: Path | None) -> dict[str, Any]:
    """Return the config file's keys, then those of --set and the options, which win."""
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


KEPT_COMMANDS = ("tune", "mcp")
"""Commands that are kept for later."""

RUN_COMMANDS = ("train", "check", "encode")
"""Commands that take config keys."""


def explain_usage(error: Any, arguments: list[str]) -> tuple[list[str], str]:
    """Return the lines of the message and the fix of what typer refuses."""
    message, fix = str(error.format_message()), "See surefit --help."
    command = arguments[0] if arguments else ""
    if command in KEPT_COMMANDS and "No such command" in message:
        return [f"surefit {command} is not available yet."], fix
    if getattr(error, "option_name", None) is None or command not in RUN_COMMANDS:
        return [message], fix
    return _explain_options(arguments[1:], _own_options(error)) or ([message], fix)


def _own_options(error: Any) -> set[str]:
    """Return the options of the command, in the spelling of config keys."""
    parameters = error.ctx.command.get_params(error.ctx)
    return {_as_key(option) for each in parameters for option in each.opts}


def _explain_options(arguments: list[str], own: set[str]) -> tuple[list[str], str] | None:
    """Return what all unknown options among the arguments are here; None where none is known."""
    known = config_fields()
    settings, faults, others = {}, [], []
    for name, text in _given(arguments):
        value = parse_setting(f"{name}={text}")[1]
        if name in own:
            continue
        if name in known:
            settings[name] = value
        elif answer_key(name, value, known) is not None:
            faults.append(Fault(name, value))
        else:
            others.append(f"No such option: --{name}")
    if not faults and not settings:
        return None
    described = describe_faults(faults, settings)
    lines = [f"{key} is a config key, without an option of its own." for key in settings]
    return [*lines, *described.lines, *others], described.fix


def _given(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each option and its value; `true` where it has none."""
    for place, argument in enumerate(arguments):
        if not argument.startswith("--"):
            continue
        name, equals, value = argument.partition("=")
        after = arguments[place + 1 : place + 2]
        if not equals:
            value = after[0] if after and not after[0].startswith("--") else "true"
        yield _as_key(name), value


def _as_key(option: str) -> str:
    return option.lstrip("-").replace("-", "_")
