"""Healthy data that looks odd: neither error nor warning may come."""

from __future__ import annotations

import gzip
import json
from typing import Any

from builders import echo_rows, sentiment_rows
from chats import said
from faults.case import Case, Chat, evaluated, for_bert, for_mlp
from faults.dialogues import chats
from faults.files import CSV, GOOD
from faults.labels import tagged, texts
from faults.tokens import tokens

TEXTS = [row["text"] for row in sentiment_rows(30)]


def pairs(texts: Any, labels: Any) -> list[dict[str, Any]]:
    """Rows of text and label."""
    return [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]


def named(first: str, second: str) -> list[dict[str, Any]]:
    """Texts and classes under other names."""
    return [{first: row["text"], second: row["label"]} for row in sentiment_rows(30)]


TABLE = [
    {"size": n * 13 % 29, "kind": "ab"[n % 2], "price": n * 3.5 % 17 + n % 2} for n in range(60)
]
CONLL = "".join(f"w{n} B-X\nb O\n\n" for n in range(20))
CASES = [
    for_bert(
        "most rows dropped, which is accepted",
        [{**r, "text": "" if n % 3 else r["text"]} for n, r in enumerate(texts())],
        "--set eval_share=0.3 --set accept=[SF204]",
        also=("SF204",),
    ),
    for_mlp(
        "target given away, which is accepted",
        [{**row, "total": row["price"] * 2} for row in TABLE],
        "--set columns.label=price --set accept=[SF232]",
        also=("SF232",),
    ),
    Case(
        "not SF243: emoji and many scripts",
        [{"prompt": f"日本 {n} 🙂 שלום", "completion": "مرحبا"} for n in range(20)],
        also=("The template is",),
    ),
    Case(
        "texts of punctuation", [{"prompt": "?!" * (n + 1), "completion": "…"} for n in range(20)]
    ),
    Case(
        "texts that look like JSON",
        [{"prompt": '{"a": [' * (n + 1), "completion": "]}"} for n in range(20)],
    ),
    Case(
        "texts named null and None",
        [{"prompt": f"nan {n}", "completion": ("null", "None")[n % 2]} for n in range(20)],
    ),
    Case("lines that end as on Windows", GOOD.replace("\n", "\r\n")),
    for_bert("table that ends lines as on Windows", {"a.csv": CSV.replace("\n", "\r\n")}),
    for_bert("table with a byte order mark", {"a.csv": "\ufeff" + CSV}),
    Case("lines with a byte order mark", "\ufeff" + GOOD),
    for_bert("text in UTF-16 with a mark", {"a.csv": CSV.encode("utf-16")}),
    Case("no end of the last line", GOOD.rstrip("\n")),
    Case("blank lines between", GOOD.replace("\n", "\n\n")),
    Case(
        "answers that are numbers but for one",
        {"a.csv": "prompt,answer\n" + "".join(f"{n} + 1,{n + 1}\n" for n in range(30)) + "x,y\n"},
    ),
    for_mlp(
        "codes with leading zeros in a table",
        {
            "a.csv": "code,size,label\n"
            + "".join(f"{n * 371 % 10000:04d},{n * 13 % 29},{'ab'[n % 2]}\n" for n in range(60))
        },
    ),
    Case("gzip", {"a.jsonl.gz": echo_rows(20)}),
    Case(
        "gzip in two parts",
        {"a.jsonl.gz": gzip.compress(GOOD.encode()) * 2},
        also=("equal another row",),
    ),
    Case("plain text named as gzip", {"a.jsonl.gz": GOOD}),
    for_bert("table parted by semicolons", {"a.csv": CSV.replace(",", ";")}, also=("a.csv",)),
    for_bert(
        "table without a header",
        {"a.tsv": "".join(f"{r['text']}\t{n % 2}\n" for n, r in enumerate(texts()))},
        also=("a.tsv has no header line",),
    ),
    for_bert(
        "line breaks in cells",
        {"a.csv": "text,label\n" + "".join(f'"a\nb {n}",{"xy"[n % 2]}\n' for n in range(20))},
    ),
    for_bert(
        "quotes in cells",
        {
            "a.csv": "text,label\n"
            + "".join(f'"say ""{n}"" now",{"xy"[n % 2]}\n' for n in range(20))
        },
    ),
    Case(
        "column of commas parted by tabs",
        {"a.csv": "text\n" + "".join(f"a, b, {n}\n" for n in range(20))},
        options="--set read.delimiter=tab",
    ),
    Case("one list of objects", {"a.json": json.dumps(echo_rows(20))}),
    for_bert(
        "one object of columns",
        {"a.json": json.dumps({"text": TEXTS, "label": [n % 2 for n in range(30)]})},
    ),
    Case("rows below a key", {"a.json": json.dumps({"version": 1, "data": echo_rows(20)})}),
    Case(
        "two files of rows",
        {"a.jsonl": echo_rows(20), "b.jsonl": echo_rows(9, seed=1)},
        data="a.jsonl b.jsonl",
    ),
    Case(
        "two texts line by line",
        {
            "a.txt": "".join(f"one {n}\n" for n in range(20)),
            "b.txt": "".join(f"un {n}\n" for n in range(20)),
        },
        "tiny:t5",
        data="a.txt b.txt",
    ),
    for_bert(
        "names with spaces",
        named("My text", "Its class"),
        "--set columns.text='My text' --set columns.label='Its class'",
    ),
    for_bert("names in capitals", named("TEXT", "Label")),
    for_bert(
        "names in another script", named("文", "類"), "--set columns.text=文 --set columns.label=類"
    ),
    for_bert(
        "further columns that nobody reads",
        [{**r, "id": n, "meta": {"a": [n]}, "when": None} for n, r in enumerate(texts())],
    ),
    for_bert("class numbers", pairs(TEXTS, [n % 3 for n in range(30)])),
    for_bert(
        "not SF238: classes whose names say their order",
        pairs(TEXTS, [("low", "medium", "high")[n % 3] for n in range(30)]),
        "--task ordinal",
    ),
    for_bert("class numbers from 100", pairs(TEXTS, [100 + n % 3 for n in range(30)])),
    for_bert("class numbers below zero", pairs(TEXTS, [n % 2 * 2 - 1 for n in range(30)])),
    for_bert("classes true and false", pairs(TEXTS, [n % 2 == 0 for n in range(30)])),
    for_bert("class numbers with a point", pairs(TEXTS, [float(n % 2) for n in range(30)])),
    for_bert("class numbers as text", pairs(TEXTS, [str(n % 2) for n in range(30)])),
    for_bert("several classes per row", pairs(TEXTS, [["a"], ["b"], ["a", "b"]] * 10)),
    for_bert(
        "a hundred classes",
        pairs([f"w{n}" for n in range(400)], [f"c{n % 100}" for n in range(400)]),
    ),
    for_bert("rows that repeat", texts() * 2, also=("equal another row",)),
    evaluated("one row to evaluate on", texts(), [{"text": "moon good one", "label": "good"}]),
    Case("four rows", echo_rows(4)),
    Case("batch larger than the data", echo_rows(20), options="--batch-size 64"),
    Case(
        "optional column mostly empty",
        [
            {"instruction": f"Say {n}", "input": "" if n % 2 else "x", "output": "a"}
            for n in range(20)
        ],
    ),
    Case(
        "one question with two answers",
        [{"prompt": f"Name {n // 2}", "completion": "ab"[n % 2]} for n in range(20)],
    ),
    Case("long dialogue", chats(said(*["a b", "c"] * 20, system="Be kind."))),
    Case(
        "not SF137: dialogue that ends with a question",
        chats(said("a", "b", "c")),
        also=("behind the last answer",),
    ),
    Case(
        "tokenizer with its own template",
        chats(),
        tokenizer=Chat("llama3"),
        also=("SF311",),
    ),
    Case("template with generation marks", chats(), tokenizer=Chat("marked")),
    Case("not SF156: tokens without labels", [{"input_ids": [5, 6, 7 + n]} for n in range(20)]),
    Case(
        "not SF150: tokens with few labels",
        [{"input_ids": [5, 6, 7, 8 + n], "labels": [-100, -100, -100, 8 + n]} for n in range(20)],
    ),
    Case(
        "not SF152: tokens with a mask",
        tokens(0, [5, 6, 7], [5, 6, 7], attention_mask=lambda n: [1, 1, 1]),
    ),
    for_bert(
        "words with tags as numbers",
        [{"tokens": ["a", f"w{n}"], "tags": [0, 1]} for n in range(20)],
    ),
    for_bert("words of one letter", tagged(3, ["x"], ["X"])),
    for_bert("columns of words", {"a.conll": CONLL}),
    for_mlp(
        "table with empty cells",
        [{**r, "size": None if n % 9 == 4 else r["size"]} for n, r in enumerate(TABLE)],
        "--task regression --set columns.label=price",
    ),
    for_mlp(
        "whole numbers as target",
        [{**r, "price": int(r["price"])} for r in TABLE],
        "--task regression --set columns.label=price",
    ),
    for_mlp(
        "very large numbers",
        [{**r, "size": r["size"] * 1e12} for r in TABLE],
        "--task regression --set columns.label=price",
    ),
]
