"""The worst rows of a run, and what its predictions add up to: confusion, residuals, margins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from surefit.report.charts import confusion_table, histogram, known_number, line_chart
from surefit.report.drawn_rows import LEGEND, draw_images, draw_row, text_of

MOST_CLASSES = 30


def draw_judged(
    examples: Mapping[str, Any], metrics: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield the sections on the rows that were judged one by one."""
    judged = examples.get("judged") or {}
    rows: Sequence[Mapping[str, Any]] = judged.get("rows") or ()
    if judged.get("why"):
        yield "Worst rows", f"<p class=quiet>{text_of(judged['why'])}</p>"
    if not rows:
        return
    worst = judged["worst"]
    about = f"<p class=quiet>Of {len(rows):,} of {judged['total']:,} {text_of(judged['of'])} rows, "
    about += "those with the highest loss.</p>"
    has_tokens = any("sequences" in row for row in worst)
    drawn = draw_images(worst) or "".join(map(draw_row, worst))
    yield "Worst rows", about + (LEGEND if has_tokens else "") + drawn
    classes = [str(name) for name in examples.get("classes") or ()]
    cells = metrics.get("confusion") or _confusion(rows, classes)
    which = "validation rows" if metrics.get("confusion") else f"{len(rows):,} of the rows above"
    body = ""
    if cells and len(cells) <= len(classes) <= MOST_CLASSES:
        body = confusion_table(f"Classes of {which}", cells, classes) + _per_class(cells, classes)
    yield "Classes", body
    charts = [
        *_residuals(rows),
        histogram("loss per row", [row["loss"] for row in rows], "loss"),
        *(
            histogram(f"{name} per row", [row.get("metrics", {}).get(name) for row in rows], name)
            for name in ("reward_margin", "token_accuracy", "iou", "mae")
        ),
    ]
    yield "Predictions row by row", f"<div class=charts>{''.join(charts)}</div>"


def _confusion(rows: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> list[list[int]]:
    """Return how many rows of each class were taken for which."""
    pairs = Counter((row.get("target"), row.get("predicted")) for row in rows)
    cells = [[pairs[true, made] for made in classes] for true in classes]
    return cells if any(map(any, cells)) else []


def _per_class(cells: Sequence[Sequence[int]], classes: Sequence[str]) -> str:
    """Return precision, recall and F1 of each class."""
    head = "".join(f"<th>{name}</th>" for name in ("class", "rows", "precision", "recall", "F1"))
    lines = []
    for place, (name, line) in enumerate(zip(classes, cells, strict=False)):
        hits, true, made = line[place], sum(line), sum(other[place] for other in cells)
        shares = hits / made if made else 0.0, hits / true if true else 0.0
        both = 2 * hits / (true + made) if true + made else 0.0
        figures = "".join(f"<td>{share:.3f}</td>" for share in (*shares, both))
        lines.append(f"<tr><td>{text_of(name)}</td><td>{true:,}</td>{figures}</tr>")
    return f"<div class=wide><table><tr>{head}</tr>{''.join(lines)}</table></div>"


def _residuals(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return predictions against true numbers, and the histogram of their differences."""
    pairs = [(known_number(row.get("target")), known_number(row.get("predicted"))) for row in rows]
    known = [(true, made) for true, made in pairs if true is not None and made is not None]
    if not known:
        return []
    return [
        line_chart("predicted, by the true value", {"rows": known}, "true value", dots=True),
        histogram("residuals", [made - true for true, made in known], "predicted − true"),
    ]
