"""Healthy data that looks odd: neither error nor warning may come."""

from __future__ import annotations

import gzip
import json
from typing import Any

from builders import echo_rows, sentiment_rows
from chats import said
from faults.case import Case, Chat
from faults.dialogues import chats
from faults.files import CSV, GOOD
from faults.labels import tagged, texts
from faults.tokens import tokens

BERT = "tiny:bert"
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
    Case(
        "most rows dropped, which is accepted",
        None,
        {"a.jsonl": [{**r, "text": "" if n % 3 else r["text"]} for n, r in enumerate(texts())]},
        BERT,
        "--set eval_share=0.3 --set accept=[SF204]",
        also=("SF204",),
    ),
    Case(
        "target given away, which is accepted",
        None,
        {"a.jsonl": [{**row, "total": row["price"] * 2} for row in TABLE]},
        "tiny:mlp",
        "--set columns.label=price --set accept=[SF232]",
        also=("SF232",),
    ),
    Case(
        "emoji and many scripts",
        None,
        {"a.jsonl": [{"prompt": f"日本 {n} 🙂 שלום", "completion": "مرحبا"} for n in range(20)]},
        also=("SF278",),
    ),
    Case(
        "texts of punctuation",
        None,
        {"a.jsonl": [{"prompt": "?!" * (n + 1), "completion": "…"} for n in range(20)]},
    ),
    Case(
        "texts that look like JSON",
        None,
        {"a.jsonl": [{"prompt": '{"a": [' * (n + 1), "completion": "]}"} for n in range(20)]},
    ),
    Case(
        "texts named null and nan",
        None,
        {
            "a.jsonl": [
                {"prompt": f"null {n}", "completion": ("nan", "None")[n % 2]} for n in range(20)
            ]
        },
    ),
    Case("lines that end as on Windows", None, {"a.jsonl": GOOD.replace("\n", "\r\n")}),
    Case("table that ends lines as on Windows", None, {"a.csv": CSV.replace("\n", "\r\n")}, BERT),
    Case("table with a byte order mark", None, {"a.csv": "\ufeff" + CSV}, BERT),
    Case("lines with a byte order mark", None, {"a.jsonl": "\ufeff" + GOOD}),
    Case("text in UTF-16 with a mark", None, {"a.csv": CSV.encode("utf-16")}, BERT),
    Case("no end of the last line", None, {"a.jsonl": GOOD.rstrip("\n")}),
    Case("blank lines between", None, {"a.jsonl": GOOD.replace("\n", "\n\n")}),
    Case(
        "answers that are numbers but for one",
        None,
        {"a.csv": "prompt,answer\n" + "".join(f"{n} + 1,{n + 1}\n" for n in range(30)) + "x,y\n"},
    ),
    Case(
        "codes with leading zeros in a table",
        None,
        {
            "a.csv": "code,size,label\n"
            + "".join(f"{n * 371 % 10000:04d},{n * 13 % 29},{'ab'[n % 2]}\n" for n in range(60))
        },
        "tiny:mlp",
    ),
    Case("gzip", None, {"a.jsonl.gz": echo_rows(20)}),
    Case(
        "gzip in two parts", None, {"a.jsonl.gz": gzip.compress(GOOD.encode()) * 2}, also=("SF214",)
    ),
    Case("plain text named as gzip", None, {"a.jsonl.gz": GOOD}),
    Case(
        "table parted by semicolons", None, {"a.csv": CSV.replace(",", ";")}, BERT, also=("SF112",)
    ),
    Case(
        "table without a header",
        None,
        {"a.tsv": "".join(f"{r['text']}\t{n % 2}\n" for n, r in enumerate(texts()))},
        BERT,
        also=("SF112",),
    ),
    Case(
        "line breaks in cells",
        None,
        {"a.csv": "text,label\n" + "".join(f'"a\nb {n}",{"xy"[n % 2]}\n' for n in range(20))},
        BERT,
    ),
    Case(
        "quotes in cells",
        None,
        {
            "a.csv": "text,label\n"
            + "".join(f'"say ""{n}"" now",{"xy"[n % 2]}\n' for n in range(20))
        },
        BERT,
    ),
    Case(
        "column of commas parted by tabs",
        None,
        {"a.csv": "text\n" + "".join(f"a, b, {n}\n" for n in range(20))},
        options="--set read.delimiter=tab",
    ),
    Case("one list of objects", None, {"a.json": json.dumps(echo_rows(20))}),
    Case(
        "one object of columns",
        None,
        {"a.json": json.dumps({"text": TEXTS, "label": [n % 2 for n in range(30)]})},
        BERT,
    ),
    Case("rows below a key", None, {"a.json": json.dumps({"version": 1, "data": echo_rows(20)})}),
    Case(
        "two files of rows",
        None,
        {"a.jsonl": echo_rows(20), "b.jsonl": echo_rows(9, seed=1)},
        data="a.jsonl b.jsonl",
    ),
    Case(
        "two texts line by line",
        None,
        {
            "a.txt": "".join(f"one {n}\n" for n in range(20)),
            "b.txt": "".join(f"un {n}\n" for n in range(20)),
        },
        "tiny:t5",
        data="a.txt b.txt",
    ),
    Case(
        "names with spaces",
        None,
        {"a.jsonl": named("My text", "Its class")},
        BERT,
        "--set columns.text='My text' --set columns.label='Its class'",
    ),
    Case("names in capitals", None, {"a.jsonl": named("TEXT", "Label")}, BERT),
    Case(
        "names in another script",
        None,
        {"a.jsonl": named("文", "類")},
        BERT,
        "--set columns.text=文 --set columns.label=類",
    ),
    Case(
        "further columns that nobody reads",
        None,
        {
            "a.jsonl": [
                {**r, "id": n, "meta": {"a": [n]}, "when": None} for n, r in enumerate(texts())
            ]
        },
        BERT,
    ),
    Case("class numbers", None, {"a.jsonl": pairs(TEXTS, [n % 3 for n in range(30)])}, BERT),
    Case(
        "class numbers from 100",
        None,
        {"a.jsonl": pairs(TEXTS, [100 + n % 3 for n in range(30)])},
        BERT,
    ),
    Case(
        "class numbers below zero",
        None,
        {"a.jsonl": pairs(TEXTS, [n % 2 * 2 - 1 for n in range(30)])},
        BERT,
    ),
    Case(
        "classes true and false",
        None,
        {"a.jsonl": pairs(TEXTS, [n % 2 == 0 for n in range(30)])},
        BERT,
    ),
    Case(
        "class numbers with a point",
        None,
        {"a.jsonl": pairs(TEXTS, [float(n % 2) for n in range(30)])},
        BERT,
    ),
    Case(
        "class numbers as text",
        None,
        {"a.jsonl": pairs(TEXTS, [str(n % 2) for n in range(30)])},
        BERT,
    ),
    Case(
        "several classes per row",
        None,
        {"a.jsonl": pairs(TEXTS, [["a"], ["b"], ["a", "b"]] * 10)},
        BERT,
    ),
    Case(
        "a hundred classes",
        None,
        {"a.jsonl": pairs([f"w{n}" for n in range(400)], [f"c{n % 100}" for n in range(400)])},
        BERT,
    ),
    Case("rows that repeat", None, {"a.jsonl": texts() * 2}, BERT, also=("SF214",)),
    Case(
        "one row to evaluate on",
        None,
        {"a.jsonl": texts(), "e.jsonl": [{"text": "moon good one", "label": "good"}]},
        BERT,
        "--eval-data e.jsonl",
    ),
    Case("four rows", None, {"a.jsonl": echo_rows(4)}),
    Case("batch larger than the data", None, {"a.jsonl": echo_rows(20)}, options="--batch-size 64"),
    Case(
        "one very long text",
        None,
        {"a.jsonl": texts(3, text="red sun " * 4000)},
        BERT,
        also=("SF211",),
    ),
    Case(
        "optional column mostly empty",
        None,
        {
            "a.jsonl": [
                {"instruction": f"Say {n}", "input": "" if n % 2 else "x", "output": "a"}
                for n in range(20)
            ]
        },
    ),
    Case(
        "one question with two answers",
        None,
        {"a.jsonl": [{"prompt": f"Name {n // 2}", "completion": "ab"[n % 2]} for n in range(20)]},
    ),
    Case("long dialogue", None, {"a.jsonl": chats(said(*["a b", "c"] * 20, system="Be kind."))}),
    Case(
        "dialogue that ends with a question",
        None,
        {"a.jsonl": chats(said("a", "b", "c"))},
        also=("SF281",),
    ),
    Case(
        "tokenizer with its own template",
        None,
        {"a.jsonl": chats(), "tok": Chat("llama3")},
        options="--tokenizer tok",
        also=("SF284", "SF311"),
    ),
    Case(
        "template with generation marks",
        None,
        {"a.jsonl": chats(), "tok": Chat("marked")},
        options="--tokenizer tok",
    ),
    Case(
        "tokens without labels",
        None,
        {"a.jsonl": [{"input_ids": [5, 6, 7 + n]} for n in range(20)]},
    ),
    Case(
        "tokens with few labels",
        None,
        {
            "a.jsonl": [
                {"input_ids": [5, 6, 7, 8 + n], "labels": [-100, -100, -100, 8 + n]}
                for n in range(20)
            ]
        },
    ),
    Case(
        "tokens with a mask",
        None,
        {"a.jsonl": tokens(0, [5, 6, 7], [5, 6, 7], attention_mask=lambda n: [1, 1, 1])},
    ),
    Case(
        "words with tags as numbers",
        None,
        {"a.jsonl": [{"tokens": ["a", f"w{n}"], "tags": [0, 1]} for n in range(20)]},
        BERT,
    ),
    Case("words of one letter", None, {"a.jsonl": tagged(3, ["x"], ["X"])}, BERT),
    Case("columns of words", None, {"a.conll": CONLL}, BERT),
    Case(
        "table with empty cells",
        None,
        {
            "a.jsonl": [
                {**r, "size": None if n % 9 == 4 else r["size"]} for n, r in enumerate(TABLE)
            ]
        },
        "tiny:mlp",
        "--task regression --set columns.label=price",
    ),
    Case(
        "whole numbers as target",
        None,
        {"a.jsonl": [{**r, "price": int(r["price"])} for r in TABLE]},
        "tiny:mlp",
        "--task regression --set columns.label=price",
    ),
    Case(
        "very large numbers",
        None,
        {"a.jsonl": [{**r, "size": r["size"] * 1e12} for r in TABLE]},
        "tiny:mlp",
        "--task regression --set columns.label=price",
    ),
]
