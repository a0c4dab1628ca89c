"""The documents are followed: Python blocks run, commands are parsed, those marked are run.

A page is walked from top to bottom in one folder, so later blocks may use what earlier ones made.
A block whose first line is `# NAME.py` or `# NAME.yaml` is also written to that file. The comment
`<!-- runs -->` before a console block has its commands run; `exit N` in it names their exit code,
and `output as shown` requires the output that the page quotes.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from builders import echo_rows, feature_rows, save_ragged, sentiment_rows, write_jsonl
from surefit.cli import app
from surefit.cli import run as command

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LONG = (
    *("examples.md", "options.md", "own-modules.md", "using.md"),
    *("own-tasks.md", "features.md", "augmenting.md"),
)
"""Pages that train many models; .ci/run follows them, too."""
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
BLOCK = re.compile(
    r"(?:<!-- runs(?P<mark>[^>]*) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```", re.M | re.S
)
FILE = re.compile(r"# (\w+\.(?:py|yaml))\n")


@dataclass(frozen=True)
class Block:
    """One fenced block; `mark` is None where the page does not ask to run it."""

    mark: str | None
    kind: str
    text: str

    @property
    def exit_code(self) -> int:
        """What its commands must exit with."""
        asked = re.search(r"exit (\d+)", self.mark or "")
        return int(asked[1]) if asked else 0

    def commands(self) -> Iterator[tuple[list[str], str]]:
        """The arguments of each `$ surefit …` line, and the output quoted below it."""
        joined = self.text.replace("\\\n", " ")
        for part in re.split(r"^\$ ", joined, flags=re.M)[1:]:
            line, _, output = part.partition("\n")
            words = shlex.split(line)
            if words[0] == "surefit":
                yield words[1:], output


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(m["mark"], m["kind"], m["text"]) for m in BLOCK.finditer(text)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder of a page, with the data that the pages name."""
    rows = echo_rows(60)
    for row in rows:
        row["prompt"] = f"Say the last word: {row['prompt']}"
    write_jsonl(tmp_path / "train.jsonl", rows)
    reviews = [f"{row['text']},{row['label']}" for row in sentiment_rows(60)]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *reviews]) + "\n")
    save_ragged(tmp_path / "motions.npz", feature_rows(60))
    words = [("sun", "tree"), ("red", "cat"), ("dog", "sea"), ("sky", "map")] * 5
    feedback = [
        {"prompt": f"Say the last word: {one} {two} {n}", "completion": (two, one)[n % 2],
         "label": n % 2 == 0}
        for n, (one, two) in enumerate(words)
    ]  # fmt: skip
    write_jsonl(tmp_path / "feedback.jsonl", feedback)
    failure = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (255744x4000 and 271x256)"
    (tmp_path / "error.txt").write_text(f"batch_size=256\n{failure}\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("pooling", "wrong"):
        sys.modules.pop(name, None)


WALKED = [pytest.param(p, marks=[pytest.mark.slow] * (p.name in LONG)) for p in PAGES]


@pytest.mark.parametrize("page", WALKED, ids=lambda page: page.name)
def test_page_is_true(page: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    state = {"__name__": page.stem}
    for block in blocks(page):
        named = FILE.match(block.text)
        if named is not None:
            (folder / named[1]).write_text(block.text, encoding="utf-8")
        if named is not None and named[1] == "pooling.py":
            wrong = block.text.replace("nn.Linear(32, num_classes)", "nn.Linear(16, num_classes)")
            (folder / "wrong.py").write_text(wrong, encoding="utf-8")
        if block.kind == "python":
            exec(compile(block.text, f"{page.name}: {block.text[:40]!r}", "exec"), state)
        elif block.kind == "console" and block.mark is not None:
            run_commands(block, capfd)


def run_commands(block: Block, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in block.commands():
        capfd.readouterr()
        code = command(arguments)
        got = capfd.readouterr()
        assert code == block.exit_code, f"surefit {shlex.join(arguments)}\n{got.err}"
        assert "Traceback" not in got.err
        if "--json" in arguments:
            json.loads(got.out)
        if "output as shown" in (block.mark or ""):
            assert got.out == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse(page: Path) -> None:
    group = typer.main.get_command(app)
    for block in blocks(page):
        if block.kind not in ("console", "bash"):
            continue
        for arguments, _ in block.commands():
            context = group.make_context("surefit", list(arguments))
            name, subcommand, rest = group.resolve_command(context, list(arguments))
            assert subcommand is not None
            subcommand.make_context(name, rest, parent=context)


def prose(page: Path) -> str:
    """A page without its fenced blocks, in which `#` is a comment and `](` is code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: Counter[str] = Counter()
    for heading in re.findall(r"^#+ (.+)$", prose(page), flags=re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        found[slug] += 1
    return {f"{slug}-{n}" if n else slug for slug in found for n in range(found[slug])}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)[^)]*\)", prose(page)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name} links to {link}: there is no such file"
        if anchor:
            known = anchors(target)
            assert anchor in known, f"{page.name} links to {link}; anchors: {sorted(known)}"


def test_every_page_is_on_the_site() -> None:
    on_site = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} == on_site - {"index.md"}
