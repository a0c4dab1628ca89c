"""Rows and batches as HTML, from what `batch_view.py` made of them; all of it is shown as data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from html import escape
from typing import Any

from surefit.printable import printable
from surefit.report.charts import known_number, show_number, small_lines

Row = Mapping[str, Any]
_BASE64 = re.compile(r"[A-Za-z0-9+/=]*")
KINDS = ("labelled", "special", "padding", "truncated")
HOT = (0.5, 1.5, 3.0, 5.0)
"""Losses of a token from which it is drawn hotter."""
MOST_TEXT = 120
OUTSIDE = ("O", "0")
"""Tags of tokens that belong to no entity."""
LEGEND = (
    "<p class=cells><span>not labelled</span> <span class=labelled>labelled</span> "
    "<span class=special>special</span> <span class=padding>padding</span> "
    "<span class=truncated>truncated</span> "
    "<span class=l1>loss from 0.5</span> <span class=l2>1.5</span> <span class=l3>3</span> "
    "<span class=l4>5 on</span></p>"
)


def text_of(value: Any) -> str:
    """Return a value of the data as escaped text: control characters are visible."""
    if isinstance(value, float):
        value = show_number(value) if known_number(value) is not None else value
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return escape(printable(str(value)))


def draw_batch(batch: Row) -> str:
    """Return a batch: its size, then a row for each sample."""
    shapes = "; ".join(f"{name} {shape}" for name, shape in dict(batch["shapes"]).items())
    more = int(batch["size"]) - len(batch["rows"])
    parts = [f"{batch['size']} rows", batch["layout"], shapes]
    about = ", ".join(str(part) for part in parts if part)
    edge = " edge" if batch["layout"] == "padding-free" else ""
    rows = (draw_row(row, edge if number else "") for number, row in enumerate(batch["rows"]))
    left = f"<p class=quiet>and {more} more rows</p>" if more > 0 else ""
    body = draw_images(batch["rows"]) or "".join(rows)
    return f"<h3>{text_of(batch['title'])}</h3><p class=quiet>{text_of(about)}</p>{body}{left}"


def draw_images(rows: Sequence[Row]) -> str:
    """Return a grid of images or heat maps, and what belongs to each; nothing for other rows."""
    if not rows or not all("png" in row or "heat" in row for row in rows):
        return ""
    cells = []
    for row in rows:
        drawn = image(str(row.get("png") or row["heat"]))
        cells.append(f"<figure>{drawn}<small>{' · '.join(facts_of(row))}</small></figure>")
    return f"<div class=images>{''.join(cells)}</div>"


def draw_row(row: Row, edge: str = "") -> str:
    """Return one row: its facts, then tokens, image, line, heat map, or values."""
    parts = []
    for number, sequence in enumerate(row.get("sequences", ())):
        several = len(row["sequences"]) > 1
        name = "target" if sequence.get("target") else f"sequence {number + 1}" if several else ""
        parts.append(_draw_sequence(sequence, name))
    if "png" in row:
        parts.append(image(str(row["png"])))
    if "heat" in row:
        parts.append(image(str(row["heat"])))
    if "line" in row:
        parts.append(small_lines([row["line"]]))
    if "lines" in row:
        parts.append(small_lines(row["lines"]))
    return (
        f"<div class='row{edge}'><small>{' · '.join(facts_of(row))}</small>{''.join(parts)}</div>"
    )


def facts_of(row: Row) -> Iterator[str]:
    """Yield what is known of a row, escaped."""
    yield f"row {text_of(row['row'])}" + (f", copy {row['copy']}" if row.get("copy") else "")
    for name in ("loss", "target", "predicted", "prediction", "probability"):
        if row.get(name) is not None:
            text = text_of(row[name])
            yield f"{name} <b>{text if len(text) <= MOST_TEXT else f'{text[:MOST_TEXT]} …'}</b>"
    if entities := row.get("entities"):
        spans = (f"{each['type']} {each['start']}–{each['end']}" for each in entities)
        yield f"entities {text_of(list(spans))}"
    known = {**row.get("metrics", {}), **row.get("values", {})}
    if row.get("target") is not None:  # a class or a number, which says it all
        known = {n: v for n, v in row.get("values", {}).items() if n not in ("label", "labels")}
    for name, value in known.items():
        if value is not None:
            yield f"{text_of(name)} {text_of(value)}"


def _draw_sequence(sequence: Row, name: str) -> str:
    cells, left = sequence["cells"], sequence.get("left_out")
    drawn = [_cell(cell, place) for place, cell in enumerate(cells)]
    if left:
        drawn.insert(int(left[0]), f"<small> … {int(left[1]):,} more … </small>")
    if sequence.get("at_limit"):
        limit = f"the limit of {int(sequence['at_limit']):,} tokens: what is behind it is cut"
        drawn.append(f"<span class=truncated data-tip='{limit}'> ✂ </span>")
    if sequence["padding"]:
        padding = f"<span class=padding> padding × {int(sequence['padding']):,} </span>"
        drawn.insert(0 if sequence.get("left") else len(drawn), padding)
    about = f"{text_of(name)}{': ' if name else ''}{int(sequence['length']):,} tokens"
    return f"<small> · {about}</small><div class=cells>{''.join(drawn)}</div>"


def _cell(cell: Sequence[Any], place: int) -> str:
    text, token, label, loss, kind = cell
    known = known_number(loss)
    names = [name for name in KINDS if name in str(kind).split()]
    if known is not None:
        names.append(f"l{sum(known >= bound for bound in HOT)}")
    tip = [f"token {token}", *names[:1]]
    tip += [f"label {label}"] if label is not None else []
    tip += [f"loss {show_number(known)}"] if known is not None else []
    shown = escape(printable(str(text))).replace("\n", "⏎\n") or "∅"
    if isinstance(label, str) and label not in OUTSIDE and label[:1].isalpha():
        shown += f"<sub>{text_of(label)}</sub>"
    return (
        f'<span class="{" ".join(names)}" data-tip="{escape(printable(", ".join(tip)))}">'
        f"{shown}</span>"
    )


def image(png: str) -> str:
    """Return a PNG in base64 as an image; raise ValueError if it is something else."""
    if not _BASE64.fullmatch(png):
        raise ValueError("an example is not base64")
    return f'<img alt="" width=128 src="data:image/png;base64,{png}">'


def draw_examples(examples: Iterable[Row]) -> str:
    """Return examples as a table, with a row for each row of the data."""
    lines = ("".join(_example_cells(example["shown"])) for example in examples)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<div class=wide><table class=images>{body}</table></div>" if body else ""


def _example_cells(shown: Sequence[Row]) -> Iterator[str]:
    for each in shown:
        drawn = image(str(each["png"])) if "png" in each else small_lines(each["lines"])
        yield f"<td>{drawn}<br><small>{text_of(each['what'])}</small></td>"


def word_differences(expected: Any, got: Any) -> str:
    """Return an answer with the words it lacks struck out and those it adds marked, escaped.

    >>> word_differences("a red cat", "a black cat")
    'a <del>red</del> <ins>black</ins> cat'
    """
    if expected is None:
        return text_of(got)
    old, new = str(expected).split(), str(got).split()
    parts = []
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append(text_of(" ".join(new[c:d])))
            continue
        parts += [f"<del>{text_of(' '.join(old[a:b]))}</del>"] if b > a else []
        parts += [f"<ins>{text_of(' '.join(new[c:d]))}</ins>"] if d > c else []
    return " ".join(parts)
