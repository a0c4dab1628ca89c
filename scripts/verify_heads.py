"""Plan a tiny run of every architecture; write which kernels each supports to docs/heads.md.

python scripts/verify_heads.py [--only ARCH ...]        (without --only, docs/heads.md is written)
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
import surefit
from surefit.batches.collate import PADDING_FREE
from surefit.models.tiny import tiny_families

ROOT = Path(__file__).parent.parent

WORDS = ["the", "cat", "saw", "one", "red", "tree", "and", "two", "blue", "birds", "near", "hill"]
TEXTS = [" ".join(WORDS[k % 5 : 4 + k % 11] * (1 + k % 3)) for k in range(24)]
ROWS: dict[str, list[dict[str, str]]] = {
    "causal-lm": [{"text": text} for text in TEXTS],
    "masked-lm": [{"text": text} for text in TEXTS],
    "seq2seq": [{"source": text, "target": text[:20]} for text in TEXTS],
}


def main() -> None:
    """Plan them all, and print or write the choices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="architectures to try; all if left out")
    only = parser.parse_args().only
    sections = []
    for task, rows in ROWS.items():
        names = [arch for arch in tiny_families()[task] if not only or arch in only]
        chosen = {arch: choices(task, arch, rows) for arch in names}
        for arch, choice in chosen.items():
            print(task, arch, choice, flush=True)
        sections.append(section(task, chosen))
    if not only:
        (ROOT / "docs" / "heads.md").write_text(HEADER + "\n".join(sections), encoding="utf-8")


def choices(task: str, arch: str, rows: list[dict[str, str]]) -> dict[str, Any]:
    """The choices of the plan for an architecture, or the reason why there is no plan."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            plan = surefit.check(data=rows, model=f"tiny:{arch}", task=task, padding_free="on")
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"[:120]}
    if not plan.ok:
        return {"failed": "; ".join(f.message for f in plan.findings if f.severity == "error")}
    return dict(plan.choices)


def section(task: str, chosen: dict[str, dict[str, Any]]) -> str:
    """The part of the page about one task."""
    planned = {arch: choice for arch, choice in chosen.items() if "head" in choice}
    chunked = [a for a, c in planned.items() if "chunk" in c["head"]]
    gathered = [a for a, c in planned.items() if c["head"] == {"positions": "labelled"}]
    everywhere = [a for a, c in planned.items() if c["head"]["positions"] == "all"]
    padding_free = [a for a, c in planned.items() if c["rows"] == PADDING_FREE]
    lines = [
        f"## {task}",
        f"Sparse head, in chunks ({len(chunked)} of {len(chosen)}): {' '.join(chunked)}",
        f"Sparse head, at once ({len(gathered)}): {' '.join(gathered) or 'none'}",
        f"Full head ({len(everywhere)}): {' '.join(everywhere) or 'none'}",
        f"Padding-free batches ({len(padding_free)}): {' '.join(padding_free) or 'none'}",
    ]
    wrapped = [textwrap.fill(line, 98, break_on_hyphens=False) for line in lines]
    return "\n\n".join(wrapped) + "\n"


HEADER = """# Sparse heads and padding-free batches, by architecture

`scripts/verify_heads.py` writes this page. It plans a run of a tiny model of every architecture
that `tiny:` builds. An architecture is listed where planning verified on real tokens that a sparse
head (loss computed at labelled tokens only) gives the loss and gradients of the full head, or that
padding-free (varlen) batches give the logits of padded ones. Every run verifies its own model
again and uses only what passed.

"""

if __name__ == "__main__":
    main()
