"""`surefit chat`: talk to a trained language model in the terminal, or through a pipe."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefit.cli.options import SetGenerate, TrustCode, generation_settings
from surefit.cli.run_commands import RunFolder

if TYPE_CHECKING:
    from surefit.pipeline.conversation import Talk

HELP = """/reset          forget the conversation
/system TEXT    begin again with this system prompt; without a text, with none
/help           these commands
/exit           end (or Ctrl-D); Ctrl-C stops an answer"""


def chat(
    run: RunFolder,
    base: Annotated[
        bool, typer.Option("--base", help="Also show the answers of the model before training.")
    ] = False,
    set_: SetGenerate = None,
    trust_code: TrustCode = None,
) -> int:
    """Talk to a language model; lines from a pipe get one line each.

    Commands: /reset, /system TEXT, /help, /exit.
    """
    from surefit.api import generating
    from surefit.cli.terminal import user_output_to_stderr
    from surefit.pipeline.conversation import open_talk
    from surefit.run.exported_model import open_trained

    out, is_terminal = sys.stdout, sys.stdin.isatty()
    opened = generating(open_trained(run, trust_code or ()), generation_settings(set_))
    with user_output_to_stderr(), ExitStack() as stack:
        talk = open_talk(opened.open_pipeline(), opened.config.generate)
        before = _before_training(opened, talk) if base else None
        if is_terminal:
            for number in (signal.SIGTERM, signal.SIGHUP):  # these end it; Ctrl-C does not
                stack.callback(signal.signal, number, signal.signal(number, signal.SIG_DFL))
            print(HELP, file=sys.stderr)
        for line in _lines(is_terminal):
            if line in ("/exit", "/quit"):
                break
            if line.startswith("/"):
                talk = _command(line, talk)
                continue
            if not line:
                continue
            talk = talk.asked(line)
            said = _answers(talk, before, out) if is_terminal else _line(talk, before, out)
            talk = talk.answered(said)
    return 0


def _before_training(opened: Any, talk: Talk) -> Any:
    """Return a function from a conversation to its like with the model before training."""
    from surefit.models.lora import adapted_part, is_adapted, without_adapters
    from surefit.training.reference import open_beginning

    module = talk.pipeline.module
    if is_adapted(module):
        part = adapted_part(module)
        return lambda asked: (asked, without_adapters(part))
    begun = open_beginning(opened, talk.pipeline)
    begun.to(talk.pipeline.device)
    return lambda asked: (asked.of(begun), nullcontext())


def _lines(is_terminal: bool) -> Iterator[str]:
    """Yield what is typed, or the lines of a pipe."""
    if not is_terminal:
        yield from (line.strip() for line in sys.stdin)
        return
    import readline  # noqa: F401 - input() then has arrow keys and a history

    while True:
        try:
            print("\n> ", end="", file=sys.stderr, flush=True)
            yield input().strip()
        except KeyboardInterrupt:
            print("\n/exit or Ctrl-D ends.", file=sys.stderr)
        except EOFError:
            print(file=sys.stderr)
            return


def _command(line: str, talk: Talk) -> Talk:
    from surefit.errors import UsageError

    name, _, text = line.partition(" ")
    if name == "/reset":
        print("The conversation begins again.", file=sys.stderr)
        return replace(talk, history=())
    if name == "/system":
        try:
            talk = talk.with_system(text.strip())
            print("The conversation begins again.", file=sys.stderr)
        except UsageError as error:
            print(error.message, file=sys.stderr)
        return talk
    unknown = "" if name == "/help" else f"There is no command {name}.\n"
    print(f"{unknown}{HELP}", file=sys.stderr)
    return talk


def _answers(talk: Talk, before: Any, out: Any) -> str:
    """Write the answers as they are made; return that of the trained model."""
    name = "trained: " if before is not None else ""
    said, stopped = _stream(talk, name, out)
    if before is not None and not stopped:
        asked, without = before(talk)
        with without:
            _stream(asked, "base:    ", out)
    return said


def _stream(talk: Talk, name: str, out: Any) -> tuple[str, bool]:
    """Write one answer; Ctrl-C stops it, and what was written stays."""
    parts: list[str] = []

    def write(text: str) -> None:
        parts.append(text)
        print(text, end="", file=out, flush=True)

    print(name, end="", file=out, flush=True)
    try:
        made = talk.answer(write)
    except KeyboardInterrupt:
        print(" (stopped)", file=out, flush=True)
        return "".join(parts), True
    print(" (cut off)" if made.cut_off else "", file=out, flush=True)
    return made.text, False


def _line(talk: Talk, before: Any, out: Any) -> str:
    """Write the answer as one line; with the base model's, behind a tab."""
    from surefit.printable import one_line

    texts = [talk.answer().text]
    if before is not None:
        asked, without = before(talk)
        with without:
            texts.append(asked.answer().text)
    print("\t".join(one_line(text) for text in texts), file=out, flush=True)
    return texts[0]
