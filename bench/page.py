"""docs/speed.md and docs/speed.svg, from the results of bench/compare.py."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

Results = dict[str, Any]
AIMS: list[tuple[str, str, str, str, str, float]] = [
    # part, what, peer, figure, better (+ more, - less), aim as a ratio surefit : peer
    ("lora", "LoRA, real tokens/s", "HF Trainer", "tokens_per_second", "+", 2.0),
    ("lora", "LoRA, real tokens/s", "TRL", "tokens_per_second", "+", 2.0),
    ("lora", "LoRA, real tokens/s", "HF Trainer grouped", "tokens_per_second", "+", 1.4),
    ("lora", "LoRA, real tokens/s", "TRL grouped", "tokens_per_second", "+", 1.4),
    ("lora", "LoRA, real tokens/s", "TRL packed", "tokens_per_second", "+", 1.4),
    ("lora", "LoRA, peak memory", "HF Trainer", "peak_bytes", "-", 0.6),
    ("lora", "LoRA, peak memory", "TRL", "peak_bytes", "-", 0.9),
    ("full", "full fine-tune, real tokens/s", "HF Trainer", "tokens_per_second", "+", 2.5),
    ("full", "full fine-tune, peak memory", "HF Trainer", "peak_bytes", "-", 0.4),
    ("classification", "classification, rows/s", "HF Trainer", "rows_per_second", "+", 1.8),
    ("collating", "collating 4 rows, time", "stock collator", "seconds_4", "-", 1 / 20),
    ("collating", "collating 64 rows, time", "stock collator", "seconds_64", "-", 1 / 40),
    ("tokenising", "tokenizing, rows/s", "datasets.map", "rows_per_second", "+", 2.5),
    ("overhead", "loop without a model, s/step", "HF Trainer", "seconds_per_step", "-", 0.3),
]
MARKS = "<!-- from bench/compare.py -->", "<!-- end of compare -->"
SIZE = ("surefit", "surefit, 10 × the rows")
FIGURES = {"held_out_loss": "validation_loss"}
"""Figures that the page calls by another name than docs/speed.json."""
TITLES = {
    "gemm": "Matrix product (GEMM)",
    "collating": "Collating",
    "overhead": "Loop without a model",
    "classification": "Classification",
    "full": "Full fine-tune",
    "lora": "LoRA",
    "tokenising": "Tokenizing",
    "checkpointing": "LoRA with gradient checkpointing",
    "size": "Ten times the rows",
    "profile": "Share of time by operation",
}
BODY_PARAMETERS, HEAD_PARAMETERS = 106_203_456, 28_311_552  # SmolLM2-135M without, and its head


def write_page(results: Results, root: Path) -> None:
    """Write the page, its plot and the README's table; parts that were never run are left out."""
    folder = root / "docs"
    lines = [HEADER.rstrip(), "", *_machine_lines(results), "", *_aim_table(results)]
    lines += _unreached_lines(results)
    if "checkpointing" in results:
        lines += ["", *_checkpointing_lines(results)]
    if "size" in results:
        lines += ["", *_size_lines(results)]
    if "gemm" in results and "lora" in results:
        lines += ["", *_limit_lines(results)]
    for part, found in results.items():
        lines += ["", f"## {TITLES.get(part, part)}", "", *_part_table(found)]
    (folder / "speed.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "speed.svg").write_text(draw(_bars(results)), encoding="utf-8")
    _write_block(root / "README.md", [*_machine_lines(results), "", *_aim_table(results)])


def _write_block(path: Path, lines: list[str]) -> None:
    """Put lines between the marks of a page."""
    text = path.read_text(encoding="utf-8")
    head, rest = text.split(MARKS[0])
    inner = "\n".join(lines)
    path.write_text(f"{head}{MARKS[0]}\n{inner}\n{MARKS[1]}{rest.split(MARKS[1])[1]}", "utf-8")


def _unreached_lines(results: Results) -> list[str]:
    """Why figures were not reached, as far as it is known."""
    reasons = {
        ("lora", "HF Trainer", "tokens_per_second"): (
            "LoRA against the HF Trainer: most of a step is matrix products for real tokens, which "
            "both compute (their share of the machine's limit is below). surefit is faster because "
            "it computes neither padding nor logits at tokens without a label."
        ),
        ("full", "HF Trainer", "peak_bytes"): (
            f"Full fine-tune, memory: the peak is {_at_start(results, 'full')} GB before the first "
            "row is read (Python, torch, transformers, the weights). Gradients and two moments of "
            "43 million weights add 0.52 GB for every trainer. surefit saves the memory of the "
            "logits."
        ),
        ("overhead", "HF Trainer", "seconds_per_step"): _overhead_reason(results),
        ("tokenising", "datasets.map", "rows_per_second"): _tokenising_reason(results),
    }
    lines = []
    for part, what, peer, figure, better, aim in AIMS:
        medians = results.get(part, {}).get("medians", {})
        if "surefit" not in medians or peer not in medians:
            continue
        reached = _reaches(_ratio(medians, peer, figure), better, aim)
        if not reached and (part, peer, figure) in reasons:
            lines += ["", reasons[part, peer, figure] or f"{what}: not explained."]
    return lines


def _at_start(results: Results, part: str) -> str:
    return f"{results[part]['medians']['surefit']['peak_bytes_at_start'] / 1e9:.2f}"


def _tokenising_reason(results: Results) -> str:
    medians = results.get("tokenising", {}).get("medians", {})
    if "tokenizer alone" not in medians:
        return ""
    rates = {name: found["rows_per_second"] for name, found in medians.items()}
    alone = rates["tokenizer alone"]
    return (
        f"Tokenizing: the tokenizer alone, on all cores and with its results discarded, reaches "
        f"{alone:,.0f} rows/s, {alone / rates['datasets.map']:.2f}× `datasets.map`. That is the "
        f"limit. surefit also checks, counts and writes every row, and reaches "
        f"{rates['surefit'] / alone:.0%} of it."
    )


def _overhead_reason(results: Results) -> str:
    medians = results.get("overhead", {}).get("medians", {})
    if "torch alone" not in medians:
        return ""
    floor = medians["torch alone"]["seconds_per_step"] / medians["surefit"]["seconds_per_step"]
    return (
        f"Loop without a model: {floor:.0%} of surefit's time is spent in torch (one weight: "
        "forward, backward, norm, AdamW). The rest, largest first: making the batch from the "
        "Store, writing the event, sums over rows, setting the step's seed."
    )


def _reaches(ratio: float, better: str, aim: float) -> bool:
    return ratio >= aim if better == "+" else ratio <= aim


def _ratio(medians: dict[str, Any], peer: str, figure: str) -> float:
    return float(medians["surefit"][figure] / medians[peer][figure])


def _machine_lines(results: Results) -> list[str]:
    known = next(iter(results.values()))["machine"]
    threads = f", {known['threads']} thread(s)" if known["threads"] else ""
    packages = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
    versions = ", ".join(f"{name} {known[name]}" for name in packages)
    return [
        f"Machine: {known['processor']}, {known['cores']} cores{threads}, no GPU; "
        f"Python {known['python']}, {versions}; {known['date']}."
    ]


def _aim_table(results: Results) -> list[str]:
    rows = [
        "| measure | against | surefit | peer | ratio | aim | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for part, what, peer, figure, better, aim in AIMS:
        medians = results.get(part, {}).get("medians", {})
        if "surefit" not in medians or peer not in medians:
            continue
        ours, theirs = medians["surefit"][figure], medians[peer][figure]
        ratio = _ratio(medians, peer, figure)
        reached = _reaches(ratio, better, aim)
        sign = "≥" if better == "+" else "≤"
        shown = [_show(figure, ours), _show(figure, theirs), f"{ratio:.3g}×", f"{sign} {aim:.3g}×"]
        rows.append(f"| {what} | {peer} | {' | '.join(shown)} | {'yes' if reached else 'no'} |")
    return rows


def _checkpointing_lines(results: Results) -> list[str]:
    medians = results["checkpointing"]["medians"]
    ours = medians["surefit"]["peak_bytes"]
    name, peer = min(
        ((n, m["peak_bytes"]) for n, m in medians.items() if n != "surefit"), key=lambda p: p[1]
    )
    return [
        f"With gradient checkpointing (`checkpointing=true`): {ours / 1e9:.2f} GB; the lowest peer "
        f"({name}) {peer / 1e9:.2f} GB: {ours / peer:.2f}× (aim ≤ 0.5×), at "
        f"{medians['surefit']['tokens_per_second']:.0f} tokens/s. "
        f"The peak is {_at_start(results, 'checkpointing')} GB before the first row is read, for "
        "every trainer (Python, torch, transformers, reading the weights). Later, about a quarter "
        "GB is freed memory that malloc keeps."
    ]


def _size_lines(results: Results) -> list[str]:
    one, ten = (results["size"]["medians"][name] for name in SIZE)
    return [
        f"Ten times the rows: {ten['seconds_per_row'] / one['seconds_per_row']:.2f}× the time per "
        f"row and {ten['peak_bytes'] / one['peak_bytes']:.2f}× the memory (aim 0.9 to 1.1). Less "
        "time per row is expected: the cost of probes, the measured step and saving is fixed."
    ]


def _limit_lines(results: Results) -> list[str]:
    limit = results["gemm"]["medians"]["torch"]["flops_per_second"]
    ours = results["lora"]["medians"]["surefit"]
    # Forward and the gradient of inputs; frozen weights get none. Attention is not counted.
    work = 4 * (ours["tokens"] * BODY_PARAMETERS + ours["targets"] * HEAD_PARAMETERS)
    rate = work / ours["seconds"]
    lines = [
        f"The machine's fp32 matrix product reaches {limit / 1e9:.0f} GFLOP/s; the LoRA run's "
        f"useful work (real tokens through frozen weights, the head at labelled tokens) reaches "
        f"{rate / 1e9:.0f} GFLOP/s: {rate / limit:.0%} of the limit."
    ]
    if "profile" in results:
        shares = results["profile"]["medians"]["surefit"]
        shown = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        lines.append(f"Time by operation: {shown}.")
    return lines


def _part_table(found: Results) -> list[str]:
    figures = list(next(iter(found["medians"].values())))
    names = [FIGURES.get(figure, figure) for figure in figures]
    rows = [f"| | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    for name, medians in found["medians"].items():
        cells = []
        for figure in figures:
            each = [one[figure] for one in found["rounds"][name]]
            spread = f" ({_show(figure, min(each))} to {_show(figure, max(each))})"
            cells.append(_show(figure, medians[figure]) + (spread if len(set(each)) > 1 else ""))
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def _show(figure: str, value: float) -> str:
    if figure.startswith("peak_bytes"):
        return f"{value / 1e9:.2f} GB"
    if figure.startswith("seconds") and value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"


def _bars(results: Results) -> list[tuple[str, list[tuple[str, float, str]]]]:
    """Groups of bars: a title, and (contender, height from 0 to 1, label) for each bar."""
    shown: list[tuple[str, str, str]] = [
        ("lora", "tokens_per_second", "LoRA: real tokens per second"),
        ("lora", "peak_bytes", "LoRA: peak memory"),
        ("full", "tokens_per_second", "full fine-tune: real tokens per second"),
        ("full", "peak_bytes", "full fine-tune: peak memory"),
        ("classification", "rows_per_second", "classification: rows per second"),
    ]
    groups = []
    for part, figure, title in shown:
        if part in results:
            medians = results[part]["medians"]
            highest = max(m[figure] for m in medians.values())
            bars = [(n, m[figure] / highest, _show(figure, m[figure])) for n, m in medians.items()]
            groups.append((title, bars))
    return groups


def _text(x: float, y: float, words: str, more: str) -> str:
    return f'<text x="{x}" y="{y}" {more}>{escape(words)}</text>'


def draw(groups: list[tuple[str, list[tuple[str, float, str]]]]) -> str:
    """Horizontal bars as SVG, surefit's in another colour."""
    parts, y = [], 10.0
    for title, bars in groups:
        y += 26
        parts.append(_text(10, y, title, 'font-weight="bold"'))
        for name, height, label in bars:
            y += 22
            colour = "#2a6f97" if name.startswith("surefit") else "#b8c4cc"
            parts.append(_text(160, y, name, 'text-anchor="end"'))
            place = f'x="168" y="{y - 12}" width="{400 * height:.1f}" height="15"'
            parts.append(f'<rect {place} fill="{colour}"/>')
            parts.append(_text(176 + 400 * height, y, label, ""))
    size = f'width="680" height="{y + 20:.0f}"'
    style = 'font-family="sans-serif" font-size="13"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{body}\n</svg>\n'


HEADER = """# Speed

`python bench/compare.py` writes this page. It runs surefit and other trainers, each in a process of
its own, in turns. Figures are medians of all rounds, with the lowest and highest in parentheses.
All train on the same rows with the same model and optimizer for one pass; `validation_loss` is
measured afterwards, in the same way for all. Tokens per second count real tokens, not padding. Time
is measured from the start of the first step to the end of the last one. GPUs were not measured;
there, TRL's kernels also skip masked tokens.

surefit uses padding-free batches, and computes the loss of language models at labelled tokens only.
(The figures of classification are those of version 0.1.0, which padded rows of similar length
there.) "grouped" means that a peer also groups rows by length, "packed" that it packs them. `no` in
the last column means that the aim was missed; the reasons are below the table.

![Bar chart of the figures below](speed.svg)
"""
