"""Write what is made from the code: findings.md, config.md, causes.md, support.md, and the roles in
using.md.

With --check nothing is written; the exit code says whether they are up to date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from support_matrix import support_page

from surefit.config import config_fields
from surefit.data.roles import ROLES
from surefit.explainer.causes import AREAS
from surefit.findings import load_rules
from surefit.tasks import TASKS

DOCS = Path(__file__).resolve().parents[1] / "docs"
TESTS = DOCS.parent / "tests"
GROUPS = {
    "1": "Reading the data",
    "2": "Rows and columns",
    "3": "Data against model",
    "4": "What will be learned, and whether it fits",
    "5": "Speed",
    "7": "Probes, and other people's runs",
    "8": "Run folders: resume and verify, cache and disk",
}

ROLES_START = "<!-- from surefit/data/roles.py -->"
ROLES_END = "<!-- end of roles -->"
KINDS = (pa.string(), pa.int64(), pa.list_(pa.string()), pa.list_(pa.float64()))
"""Types of columns, one of which every role that is recognised by name accepts."""


def findings_page() -> str:
    """Every code with its severity, why it matters and the usual fix."""
    lines = [
        "# Findings",
        "",
        "Made from the rules beside the checks by `scripts/make_docs.py`.",
        "",
    ]
    lines += [
        "Each example is a case of `tests/faults/` by its name, or the test that has one.",
        "",
    ]
    group, examples = "", find_examples()
    for code, rule in load_rules().items():
        if code[2] != group:
            group = code[2]
            lines += [f"## {GROUPS[group]}", ""]
        lines += [f"### {code}: {rule.title}", "", f"{rule.severity}. {rule.why}", ""]
        lines += [f"Fix: {rule.fix}", ""]
        if rule.accept:
            lines += [f"`accept: [{rule.code}]`: {rule.accept}", ""]
        lines += [f"Example: {examples[code]}", ""]
    return "\n".join(lines)


def find_examples() -> dict[str, str]:
    """For each code the case of tests/faults that triggers it, else the test that names it."""
    sys.path[:0] = [str(TESTS.parent), str(TESTS)]
    from faults.every import FAULTS, HEALTHY

    found: dict[str, str] = {}
    paths = [*TESTS.rglob("test_*.py"), TESTS / "checks" / "trainers.py"]
    for path in sorted(paths, reverse=True):
        for code in re.findall(r'"(SF\d{3})\b', path.read_text("utf-8")):
            found[code] = f"see `{path.relative_to(TESTS.parent).as_posix()}`."
    cases = [case for cases in FAULTS.values() for case in cases]
    for case in reversed([*cases, *HEALTHY]):
        found |= {code: f"{case.name}." for code in (*case.also, case.expected) if code}
    return found


def config_page() -> str:
    """Every key with its default and its meaning."""
    lines = [
        "# Config keys",
        "",
        "Made from `surefit/config/run_config.py` by `scripts/make_docs.py`.",
        "",
    ]
    lines += ["Keys of a YAML file; on the command line as `--set key=value`, the most used ones"]
    lines += ["also as options (`surefit train --help`).", ""]
    lines += ["| key | default | meaning |", "| --- | --- | --- |", *_keys(), ""]
    return "\n".join(lines)


def causes_page() -> str:
    """Every cause that `surefit explain` knows, with its fix and what does not help."""
    lines = [
        "# Causes",
        "",
        "What `surefit explain` knows. Made from `surefit/explainer/` by",
    ]
    lines += [
        "`scripts/make_docs.py`. Each wording of a message is raised by a test, or seen in the"
    ]
    lines += ["issue named with it.", ""]
    for area, causes in AREAS.items():
        lines += [f"## {area}", ""]
        for cause in sorted(causes, key=lambda cause: cause.code):
            warning = " This is a warning: the run continues." if cause.is_warning else ""
            lines += [f"### {cause.code}: {cause.title}", "", cause.why + warning, ""]
            lines += [f"Fix: {cause.fix}", ""]
            lines += [f"In surefit: {cause.in_surefit}", ""] if cause.in_surefit else []
            if cause.does_not_help:
                lines += ["Does not help:", "", *(f"- {line}" for line in cause.does_not_help), ""]
            seen = sorted({message.seen for message in cause.messages if "#" in message.seen})
            lines += [f"Seen in: {', '.join(seen)}", ""] if seen else []
    return "\n".join(lines)


def using_page() -> str:
    """The page as it is, with the table of roles made anew."""
    page = (DOCS / "using.md").read_text("utf-8")
    before, rest = page.split(ROLES_START)
    return f"{before}{ROLES_START}\n{roles_table()}{ROLES_END}{rest.split(ROLES_END)[1]}"


def roles_table() -> str:
    """Every role of a task with the column names it is recognised by."""
    used = {name: task.role(name) for task in TASKS.values() for name in task.role_names}
    lines = ["| role | column names |", "| --- | --- |"]
    for name in sorted(used, key=[*ROLES, *used].index):
        role = used[name]
        optional = " (optional)" if role.may_be_missing else ""
        recognised = any(role.accepts(kind, True) for kind in KINDS)
        names = ", ".join(role.names) if recognised else "none: only `columns.{name}` names it"
        lines.append(f"| `{name}`{optional} | {names.format(name=name)} |")
    return "\n".join([*lines, ""])


def _keys() -> list[str]:
    rows = []
    for key, field in config_fields().items():
        meaning = (field.description or "").replace("\n", " ")
        rows.append(f"| `{key}` | `{_shown(field.default)}` | {meaning} |")
    return rows


def _shown(default: Any) -> str:
    return "" if default in (None, "", (), {}) else str(default)


def main() -> int:
    """Write or check the pages."""
    pages = {
        DOCS / "findings.md": findings_page(),
        DOCS / "config.md": config_page(),
        DOCS / "causes.md": causes_page(),
        DOCS / "using.md": using_page(),
        DOCS / "support.md": support_page(),
    }
    stale = [p for p, text in pages.items() if not p.is_file() or p.read_text("utf-8") != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.name} is out of date: run scripts/make_docs.py")
        return 1 if stale else 0
    for path, text in pages.items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
