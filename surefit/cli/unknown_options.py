"""Options and commands that surefit does not have: the name here, if there is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

KEPT_COMMANDS = ("chat", "tune", "ui", "schema", "mcp")
"""Commands that are kept for later."""

RUN_COMMANDS = ("train", "check", "encode")
"""Commands that take config keys."""


def explain_usage(error: Any, arguments: list[str]) -> tuple[list[str], str]:
    """The lines of the message and the fix of what typer refuses."""
    message, fix = str(error.format_message()), "See surefit --help."
    command = arguments[0] if arguments else ""
    if command in KEPT_COMMANDS and "No such command" in message:
        return [f"surefit {command} is not available yet."], fix
    if getattr(error, "option_name", None) is None or command not in RUN_COMMANDS:
        return [message], fix
    return _explain_options(arguments[1:], _own_options(error)) or ([message], fix)


def _own_options(error: Any) -> set[str]:
    """The options of the command, in the spelling of config keys."""
    parameters = error.ctx.command.get_params(error.ctx)
    return {_as_key(option) for each in parameters for option in each.opts}


def _explain_options(arguments: list[str], own: set[str]) -> tuple[list[str], str] | None:
    """What all unknown options among the arguments are here; None where none is known."""
    from surefit.config.other_tool_keys import answer_key
    from surefit.config.settings import Fault, describe_faults, known_keys, parse_setting

    known = known_keys()
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
    """Each option and its value; `true` where it has none."""
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
