"""A case of the fault suite: files, a command, and what must come of it."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from surefit.findings import load_rules


@dataclass(frozen=True)
class Chat:
    """Stands for a folder with a tokenizer in the manner of a known model; see tests/chats.py."""

    style: str


@dataclass(frozen=True)
class Bert:
    """Stands for a folder with a BERT of some vocabulary, without a head, and a tokenizer."""

    vocab_size: int


@dataclass(frozen=True)
class Latin:
    """Stands for a folder with a tokenizer that knows Latin letters only, in BERT's manner."""


_TITLE = re.compile(r"(?:(?P<code>SF\d{3}) |not (?P<codes>[SF\d ]+): )?(?P<name>.*)")


@dataclass(frozen=True)
class Case:
    """What is wrong (or only looks it), the files, the options of `check`, and what is found.

    `title` begins with the code of what is found. Without one, neither error nor warning may come,
    but a note may have to; "not SF234: " names faults that the data only look like. `files` are
    written by the kind of their content, see `write`; rows alone are those of a.jsonl. `--data` is
    the first file unless `data` says otherwise. `module` is the source of a Python file with a
    function `make`. `exits` follows from the severity of the code.
    """

    title: str
    files: Any = field(default_factory=dict)
    model: str = "tiny:llama"
    options: str = ""
    module: str = ""
    row: int | None = None
    line: int | None = None
    column: str | None = None
    exits: int = -1
    note: str = ""
    """Words of the note that is expected, and no finding."""
    also: tuple[str, ...] = ()
    """Codes of repairs, or words of notes, that are said besides."""
    data: str | None = None
    tokenizer: Chat | Latin | None = None
    """The tokenizer that the rows are read with, in the folder tok."""
    template: str = ""
    """The chat template that the rows are rendered with, in the file t.jinja."""
    needs: str | None = None
    """The half precision that the CPU must compute for the fault to be reached."""

    def __post_init__(self) -> None:
        if not isinstance(self.files, Mapping):
            object.__setattr__(self, "files", {"a.jsonl": self.files})
        self._add("tok", self.tokenizer, "--tokenizer tok")
        self._add("t.jinja", self.template, "--set template=t.jinja")
        if self.exits < 0:
            rule = load_rules().get(self.code or "")
            object.__setattr__(self, "exits", int(rule is not None and rule.severity == "error"))

    def _add(self, name: str, content: Any, option: str) -> None:
        """Add a file and the option that names it, once."""
        if content and name not in self.files:
            object.__setattr__(self, "files", {**self.files, name: content})
            object.__setattr__(self, "options", f"{self.options} {option}")

    @property
    def code(self) -> str | None:
        """The code of what must be found."""
        return _TITLE.fullmatch(self.title)["code"]  # type: ignore[index]

    @property
    def resembles(self) -> list[str]:
        """The codes of faults that healthy data look like."""
        return (_TITLE.fullmatch(self.title)["codes"] or "").split()  # type: ignore[index]

    @property
    def expected(self) -> str:
        """The code, or the words of the note; empty for healthy data."""
        return self.code or self.note

    @property
    def name(self) -> str:
        """What is wrong, without the code: the key of its record."""
        return _TITLE.fullmatch(self.title)["name"]  # type: ignore[index]

    @property
    def slug(self) -> str:
        """The name as a Python name; Python imports a module once per name."""
        return re.sub(r"\W+", "_", self.name.lower())

    def arguments(self) -> list[str]:
        """What follows `surefit check --json`."""
        data = next(iter(self.files)) if self.data is None else self.data
        model = f"case_{self.slug}:make" if self.module else self.model
        return [*_given("--data", data), *_given("--model", model), *shlex.split(self.options)]

    def write(self, folder: Path) -> None:
        """The files of the case, in a folder that becomes the working folder."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, content)
        if self.module:
            (folder / f"case_{self.slug}.py").write_text(self.module, encoding="utf-8")


def for_bert(title: str, files: Any, options: str = "", **more: Any) -> Case:
    """A case whose model is a tiny BERT."""
    return Case(title, files, "tiny:bert", options, **more)


def for_vit(title: str, files: Any, options: str = "", **more: Any) -> Case:
    """A case whose model is a tiny ViT."""
    return Case(title, files, "tiny:vit", options, **more)


def for_mlp(title: str, files: Any, options: str = "", **more: Any) -> Case:
    """A case whose model is a tiny MLP."""
    return Case(title, files, "tiny:mlp", options, **more)


def evaluated(title: str, train: Any, validation: Any, **more: Any) -> Case:
    """Texts with classes, and a file of validation rows."""
    files = {"a.jsonl": train, "e.jsonl": validation}
    return for_bert(title, files, "--eval-data e.jsonl", **more)


def _given(option: str, value: str) -> list[str]:
    return [part for one in value.split() for part in (option, one)]


def write(path: Path, content: Any) -> None:
    """Text, bytes, JSON lines of a list, arrays of a dict, an array, a picture or a tokenizer."""
    if isinstance(content, Chat):
        from chats import chat_tokenizer

        chat_tokenizer(content.style).save_pretrained(path)
    elif isinstance(content, Latin):
        from chats import latin_tokenizer

        latin_tokenizer().save_pretrained(path)
    elif isinstance(content, Bert):
        from transformers import BertConfig, BertModel

        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
        config = BertConfig(vocab_size=content.vocab_size, num_hidden_layers=1, **sizes)
        BertModel(config).save_pretrained(path)
        write(path, Chat("chatml"))
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, list):
        content = "".join(json.dumps(row) + "\n" for row in content)
        write(path, gzip.compress(content.encode()) if path.suffix == ".gz" else content)
    elif isinstance(content, str):
        path.write_text(content, encoding="utf-8", newline="")
    elif isinstance(content, dict):
        np.savez(path, **content)
    elif path.suffix == ".png":
        from pictures import write_png

        write_png(path, content)
    else:
        np.save(path, content)


@dataclass(frozen=True)
class Outcome:
    """What `surefit check --json` made of a case."""

    exit_code: int
    answer: Mapping[str, Any]
    stderr: str

    @property
    def findings(self) -> list[dict[str, Any]]:
        return list(self.answer.get("findings", ()))

    def found(self, case: Case) -> dict[str, Any] | None:
        """The finding that the case is about."""
        return next((each for each in self.findings if each["code"] == case.code), None)

    def says(self, code: str, *more: str) -> bool:
        """Whether a finding has the code, or a note all of the words."""
        codes = [each["code"] for each in self.findings]
        notes = self.answer.get("notes", ())
        return code in codes or any(all(w in note for w in (code, *more)) for note in notes)

    def complaint(self, case: Case) -> str:
        """What is not as the case expects it; empty where all is."""
        if "Traceback" in self.stderr:
            return "a traceback"
        missing = [code for code in case.also if not self.says(code)]
        if case.note:
            row = [f"row {case.row}"] if case.row is not None else []
            missing += [] if self.says(case.note, *row) else [case.note]
        if missing:
            return f"{missing} expected, found {self.answer}"
        if case.note:
            return "" if self.exit_code == 0 else f"exit {self.exit_code}"
        if case.code is None and case.exits == 0:
            loud = [f for f in self.findings if f["severity"] in ("error", "warning")]
            return f"not healthy: {self.exit_code} {loud or self.answer.get('error', '')}" * bool(
                loud or self.exit_code
            )
        found = self.found(case)
        if self.exit_code != case.exits or (found is None and case.exits != 2):
            codes = [f"{f['code']} {f['severity']}: {f['message']}" for f in self.findings]
            return f"exit {self.exit_code}, found {codes or self.answer}"
        errors = [each["code"] for each in self.findings if each["severity"] == "error"]
        if case.exits == 1 and errors[0] != case.code:
            return f"the first error is {errors[0]}"
        for key in ("row", "line", "column"):
            expected = getattr(case, key)
            if found is not None and expected is not None and found["where"].get(key) != expected:
                return f"{key} {expected} expected, found at {found['where']}: {found['message']}"
        return ""


def run(case: Case, folder: Path) -> Outcome:
    """`check` of the case, in this process, with `folder` to work in."""
    case.write(folder)
    return _run("check", case, folder)


def run_quickly(case: Case, folder: Path) -> Outcome:
    """`encode` of the case, which plans as `check` does up to the model, if that finds it."""
    case.write(folder)
    outcome = _run("encode", case, folder)
    return outcome if not outcome.complaint(case) else _run("check", case, folder)


def _run(name: str, case: Case, folder: Path) -> Outcome:
    """A command with the options of the case, through the command line's entry."""
    from surefit.cli import run as command

    out, err, before = io.StringIO(), io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            exit_code = command([name, "--json", *case.arguments()])
    finally:
        os.chdir(before)
    return Outcome(exit_code, json.loads(out.getvalue()), err.getvalue())
