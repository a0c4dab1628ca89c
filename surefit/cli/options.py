"""The options that `train` and `check` share, and how they become settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer


def _run_options(
    config: Annotated[
        Path | None, typer.Argument(help="A YAML file with any of the keys.", show_default=False)
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="File or folder with training data; repeatable.")
    ] = None,
    eval_data: Annotated[
        list[str] | None, typer.Option(help="File or folder to evaluate on; repeatable.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Folder, hub id, tiny:ARCH or module:function.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or hub id; the model's own if left out.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Worked out from the data if left out; see surefit tasks.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the rows (3).")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Stop after so many steps.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Rows per micro-batch per process (8).")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Padded positions per micro-batch, instead of rows.")
    ] = None,
    grad_accum: Annotated[
        int | None, typer.Option(help="Micro-batches per optimizer step (1).")
    ] = None,
    max_seq_length: Annotated[int | None, typer.Option(help="Longest row in tokens.")] = None,
    augmentation_factor: Annotated[
        int | None, typer.Option(help="Views of every training row (1).")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    lora_r: Annotated[
        int | None, typer.Option(help="Rank of LoRA adapters; 0 trains the whole model (0).")
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Fresh weights from the model's config.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Decides everything random (0).")] = None,
    output: Annotated[
        str | None, typer.Option(help="The run's folder; a new one under runs/ if left out.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="Go on exactly where this run stopped.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other key: --set key=value; repeatable."),
    ] = None,
) -> None: ...


def takes_run_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the shared options; it gets them as (settings, config path, resume)."""
    shared = list(inspect.signature(_run_options, eval_str=True).parameters.values())
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


def _settings(values: dict[str, Any], path: Path | None) -> dict[str, Any]:
    """The config file's keys, then those of --set and the options, which win."""
    from surefit.config import parse_setting, read_yaml, spell_out
    from surefit.errors import UsageError

    assigned = dict(parse_setting(text) for text in values.pop("set_") or [])
    given = {name: value for name, value in values.items() if value not in (None, [], False)}
    twice = next((name for name in given if name in assigned), None)
    if twice is not None:
        option = f"--{twice.replace('_', '-')}"
        raise UsageError(f"{option} and --set {twice}=… are both given.", "Give one of them.")
    settings = spell_out(read_yaml(path) if path is not None else {})
    return settings | spell_out(assigned | given)
