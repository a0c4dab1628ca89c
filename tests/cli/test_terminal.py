"""What data brings is shown escaped wherever text leaves for a terminal or pipe."""

from __future__ import annotations

import ast
import io
import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer

import surefit
from builders import mostly_slow, write_jsonl
from surefit.cli import app
from surefit.cli import run as run_in_process
from surefit.cli.display import show_findings
from surefit.cli.terminal import GuardedConsole, GuardedStream
from surefit.findings import Finding
from surefit.printable import one_line, printable
from surefit.processes import CURRENT

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp\u2028\r\x08\x7f\udc80\U000e0041"
HARMLESS = "Grüße ☃ 👩‍👩‍👧 میخواهم\ttab"


def run(*arguments: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "surefit", *arguments]
    return subprocess.run(command, check=False, timeout=280, **more)


def run_on_terminal(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Exit code and output of a command whose streams are a terminal."""
    master, terminal = pty.openpty()
    command = [sys.executable, "-m", "surefit", *arguments]
    with subprocess.Popen(command, cwd=cwd, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        shown = b""
        with suppress(OSError):  # which ends the output of a terminal
            while part := os.read(master, 1 << 16):
                shown += part
    os.close(master)
    return process.returncode, shown.decode().replace("\r\n", "\n")


def is_clean(text: str) -> bool:
    return printable(text) == text


def without_own_codes(shown: str) -> str:
    """The text without the colours, bars and cursor movements of rich."""
    return re.sub(r"\x1b\[(\d+;?)*m|\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A|\r", "", shown)


def test_only_control_characters_are_escaped() -> None:
    assert is_clean(HARMLESS)
    assert json.loads(f'"{printable(HOSTILE)}"') == HOSTILE  # valid JSON, and the same text
    assert is_clean(printable(HOSTILE))
    assert one_line("a\nb") == "a\\nb"


def test_json_stays_json_in_a_guarded_stream() -> None:
    inner = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")
    stream: Any = GuardedStream(inner)
    print(json.dumps({HOSTILE: HARMLESS}, ensure_ascii=False), file=stream, flush=True)
    written = inner.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert is_clean(written)
    assert json.loads(written) == {HOSTILE: HARMLESS}


@pytest.mark.parametrize("is_terminal", [False, True])
def test_findings_take_two_lines_whatever_they_quote(is_terminal: bool) -> None:
    file = io.StringIO()
    console = GuardedConsole(file=file, force_terminal=is_terminal, soft_wrap=True)
    text = f"{HOSTILE}\nerror   SF000  spoofed"
    show_findings([Finding("SF101", "error", text, {"file": text}, fix=text)], console)
    shown = file.getvalue()
    assert shown.count("\n") == 2
    assert is_clean(without_own_codes(shown))


def test_inspect_of_hostile_names_and_values_is_clean_on_a_terminal(tmp_path: Path) -> None:
    name = "\x1b[31m\n\u202e.jsonl"
    hostile = HOSTILE.replace("\udc80", "")
    write_jsonl(tmp_path / name, [{f"te\nxt{hostile}": f"{hostile}\n{n}"} for n in range(4)])
    for more in ([], ["--row", "1"]):
        code, shown = run_on_terminal("inspect", name, *more, cwd=tmp_path)
        assert code == 0, shown
        assert is_clean(without_own_codes(shown))
        assert "te\\nxt\\u001b]0;owned\\u0007" in shown


def test_errors_are_escaped(tmp_path: Path) -> None:
    done = run(
        "inspect", f"nowhere{HOSTILE.replace(chr(0), '')}\nfix: spoofed", capture_output=True
    )
    shown = done.stderr.decode()
    assert done.returncode == 2
    assert is_clean(shown)
    assert shown.count("\n") == 2


def test_a_reader_that_is_gone_ends_the_command_without_a_word() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run("tasks", stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_closed_stderr_does_not_stop_a_command(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run("inspect", str(tmp_path / "nothing"), stderr=writing, stdout=subprocess.PIPE)
    os.close(writing)
    assert done.returncode == 2


FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")


@needs_full
def test_results_that_cannot_be_written_are_an_error() -> None:
    with FULL.open("wb") as full:
        done = run("tasks", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert b"cannot be written: stdout: No space left" in done.stderr


@pytest.mark.parametrize("closed", ["1", "2", "1 2"])
def test_no_file_takes_the_number_of_a_closed_stream(tmp_path: Path, closed: str) -> None:
    """What is printed to it must not go into that file."""
    script = (
        "import os, sys; from surefit.cli.terminal import guard_streams; guard_streams(False); "
        "f = open('file', 'wb'); print('out'); print('err', file=sys.stderr, flush=True); "
        "os.write(3, b''); print(f.fileno(), file=open('number', 'w')); sys.stdout.flush()"
    )
    redirections = " ".join(f"{number}>&-" for number in closed.split())
    shell = f'exec "{sys.executable}" -c "{script}" 3>/dev/null {redirections}'
    assert subprocess.run(["sh", "-c", shell], cwd=tmp_path, check=False).returncode == 0
    assert int((tmp_path / "number").read_text()) > 2
    assert (tmp_path / "file").read_bytes() == b""


def gone_terminal() -> int:
    master, terminal = pty.openpty()
    os.close(master)
    return terminal


def full_pipe() -> int:
    _, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 65536)
    return writing


def broken_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def full_disk() -> int:
    return os.open(FULL, os.O_WRONLY)


@pytest.mark.parametrize(
    "opened", [gone_terminal, full_pipe, broken_pipe, pytest.param(full_disk, marks=needs_full)]
)
def test_what_cannot_be_written_is_dropped(opened: Any) -> None:
    """By prints, logging and rich alike."""
    descriptor = opened()
    script = (
        "import logging, os, sys, warnings; from surefit.cli.terminal import guard_streams\n"
        "guard_streams(False)\n"
        "from surefit.cli.terminal import to_stderr\n"
        "from rich.progress import track\n"
        "for n in track(range(3), console=to_stderr()): print(n, 'x' * 9000, file=sys.stderr)\n"
        "print('x' * 9000); warnings.warn('odd'); logging.error('odd'); sys.stderr.flush()\n"
        "open(sys.argv[1], 'w').write('done')\n"
    )
    reading, writing = os.pipe()
    done = subprocess.run(
        [sys.executable, "-c", script, f"/dev/fd/{writing}"],
        stdout=descriptor,
        stderr=descriptor,
        pass_fds=[writing],
        check=False,
        timeout=280,
    )
    os.close(writing)
    os.close(descriptor)
    assert (done.returncode, os.read(reading, 10)) == (0, b"done")
    os.close(reading)


@needs_full
@pytest.mark.slow
def test_a_log_that_cannot_be_written_does_not_end_training(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [{"text": f"row {n}", "label": n % 2} for n in range(40)])
    options = ["--data", "rows.jsonl", "--model", "tiny:bert", "--max-steps", "1"]
    with FULL.open("wb") as full:
        done = run("train", *options, "--output", "run", cwd=tmp_path, stdout=full, stderr=full)
    assert done.returncode == 0
    assert (tmp_path / "run" / "model").is_dir()


def test_no_other_way_leads_to_the_terminal() -> None:
    """Consoles are made in one place, and nobody takes the streams below the guarded ones."""
    package = Path(surefit.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            made = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Console")
            below = isinstance(node, ast.Attribute) and ast.unparse(node) in (
                *("sys.stdout.buffer", "sys.stderr.buffer", "sys.__stdout__", "sys.__stderr__"),
            )
            assert not (made or below) or path.name == "terminal.py", path


def test_ctrl_c_before_training_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    for name, said in (("train", "Stopped before training started"), ("tasks", "Stopped.")):
        command = next(each for each in app.registered_commands if each.name == name)
        monkeypatch.setattr(command, "callback", interrupted)
        monkeypatch.setattr("surefit.cli._commands", lambda: typer.main.get_command(app))
        CURRENT.run = "runs/earlier"  # of a run that this process has had before
        assert run_in_process([name]) == 130
        assert f"stopped: {said}" in capsys.readouterr().err


def test_ctrl_c_names_no_run_that_was_taken_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = tmp_path / "my run"

    def interrupted() -> None:
        CURRENT.run = str(run)
        raise KeyboardInterrupt

    command = next(each for each in app.registered_commands if each.name == "train")
    monkeypatch.setattr(command, "callback", interrupted)
    monkeypatch.setattr("surefit.cli._commands", lambda: typer.main.get_command(app))
    assert run_in_process(["train"]) == 130
    assert "my run" not in capsys.readouterr().err
    run.mkdir()
    (run / "plan.json").write_text("{}")
    assert run_in_process(["train"]) == 130
    assert f"surefit train --resume '{run}'" in capsys.readouterr().err


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


@pytest.mark.parametrize(
    "arguments", mostly_slow([["--row", "3"], ["--row", "3", "--json"], []], every=3)
)
def test_text_that_the_locale_cannot_write_is_written_as_utf8(
    tmp_path: Path, arguments: list[str]
) -> None:
    rows = [{"prompt": f"Grüße {'a ' * n}", "completion": "☃"} for n in range(20)]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    environment = {"cwd": tmp_path, "env": {**os.environ, **ASCII}, "capture_output": True}
    done = run("inspect", "rows.jsonl", *arguments, **environment)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode("utf-8")
    if "--json" in arguments:
        assert json.loads(shown) == rows[3]
    elif arguments:
        assert "Grüße" in shown
        assert "☃" in shown
