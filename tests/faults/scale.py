"""Values that train without an error and mean something else: scale, encoding, dates, constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from builders import sentiment_rows
from chats import said
from faults.case import Case, for_bert, for_mlp, for_vit
from faults.learning import TO_PRICE, table

RANDOM = np.random.default_rng(0)
NOISE = RANDOM.normal(size=(60, 6, 3)).astype(np.float32)
PIXELS = RANDOM.integers(0, 256, (60, 8, 8), dtype=np.uint8)
KINDS = np.arange(60) % 3
WORDS = ("café", "naïve", "L’été", "über", "señor", "coûte 5 €", "– déjà", "façade")
RUSSIAN = ("привет", "хороший день", "не знаю", "плохо")


def images(pixels: Any) -> dict[str, Any]:
    """Arrays of images with three classes."""
    return {"a.npz": {"image": pixels, "label": KINDS}}


def steps(features: Any) -> dict[str, Any]:
    """Feature sequences with three classes."""
    return {"a.npz": {"features": features.astype(np.float32), "label": KINDS}}


def texts(garble: Any, words: tuple[str, ...] = WORDS) -> dict[str, Any]:
    """Texts with a word that a function garbles."""
    rows = sentiment_rows(60)
    return {
        "a.jsonl": [
            {**row, "text": f"{row['text']} {garble(words[n % len(words)])} {n}"}
            for n, row in enumerate(rows)
        ]
    }


def targets(value: Any, count: int = 80) -> dict[str, Any]:
    """A table whose target is a function of the row's number and the true target."""
    rows = table(count, age=lambda n: n * 7 % 31)["a.jsonl"]
    return {"a.jsonl": [{**row, "price": value(n, row["price"])} for n, row in enumerate(rows)]}


def replaced(features: Any, place: Any, value: float) -> Any:
    """A copy with one place set."""
    made = features.copy()
    made[place] = value
    return made


def priced(title: str, rows: Any, **more: Any) -> Case:
    """A table whose target is the price."""
    return for_mlp(title, rows, TO_PRICE, **more)


HALF = np.where(np.arange(60)[:, None, None] % 5 == 1, PIXELS / 255, PIXELS).astype(np.float32)
IMAGES = [
    for_vit("SF240 float images of two ranges", images(HALF), column="image", row=1),
    for_vit(
        "SF240 color images of which one ranges to 1",
        images(
            replaced(
                np.repeat(PIXELS[..., None], 3, -1).astype(np.float32),
                7,
                np.repeat(PIXELS[7][..., None], 3, -1) / 255,
            )
        ),
        row=7,
    ),
    for_vit("SF241 8-bit images of zero and one", images(PIXELS % 2)),
    for_vit(
        "SF241 image files of zero and one",
        {
            f"d/{'ab'[n % 2]}/{n}.png": np.repeat((PIXELS[n] % 2)[..., None], 3, -1)
            for n in range(24)
        },
        data="d",
    ),
]
NUMBERS = [
    priced(
        "SF244 one value of 1e38 in a column",
        table(age=lambda n: 1e38 if n == 11 else n * 7 % 31),
        row=11,
        column="age",
    ),
    Case("SF244 one value of 1e38 in a sequence", steps(replaced(NOISE, (9, 2, 1), 1e38)), row=9),
    Case(
        "SF244 one feature of 1e30 among units",
        steps(NOISE * np.array([1, 1, 1e30])),
        column="features",
    ),
    priced(
        "SF245 days as eight digits",
        table(day=lambda n: 20230101 + n % 28 + 100 * (n % 12)),
        column="day",
    ),
    priced(
        "SF245 times as seconds since 1970",
        table(created_at=lambda n: 1675123217 + n * n * 977),
        column="created_at",
    ),
    priced(
        "SF244 missing target as -999",
        targets(lambda n, price: -999 if n % 20 == 6 else price),
        row=6,
        column="price",
    ),
    priced(
        "SF244 missing target as -1",
        targets(lambda n, price: -1 if n % 5 == 2 else price + 17.25 + n / 100),
        row=2,
    ),
]
ENCODINGS = [
    for_bert(
        "SF243 UTF-8 read as Windows-1252",
        texts(lambda word: word.encode().decode("cp1252", "ignore")),
        column="text",
    ),
    Case(
        "SF243 Russian read as Windows-1251 in a dialogue",
        [
            {"messages": said(f"say {n}", RUSSIAN[n % 4].encode().decode("cp1251", "ignore"))}
            for n in range(40)
        ],
        column="messages",
    ),
    for_bert(
        "SF243 replaced characters",
        texts(lambda word: word.encode("latin-1", "replace").decode("utf-8", "replace")),
    ),
    for_bert(
        "SF243 replaced characters decoded twice",
        texts(lambda word: f"word{'ï¿½' * 2}", RUSSIAN),
        row=0,
    ),
]
CONSTANTS = [
    Case("SF246 features that are all zero", steps(NOISE * 0)),
    for_vit("SF246 the same image in all rows", images(np.repeat(PIXELS[:1], 60, 0))),
    Case(
        "SF185 feature that varies in validation only",
        {
            "a.npz": {"features": NOISE * np.float32([1, 1, 0]), "label": KINDS},
            "e.npz": {"features": NOISE[:30] + np.float32(0.1), "label": KINDS[:30]},
        },
        options="--eval-data e.npz",
        column="features",
    ),
    for_mlp(
        "SF185 column that varies in validation only",
        {
            **table(site=lambda n: "north", age=lambda n: n * 7 % 31),
            "e.jsonl": [
                {"size": n * 5 % 29, "site": "south", "age": n * 3 % 31, "price": n * 1.75}
                for n in range(30)
            ],
        },
        f"{TO_PRICE} --eval-data e.jsonl",
        column="site",
    ),
]

SPARSE = np.where(RANDOM.random((60, 6, 8)) < 0.3, RANDOM.random((60, 6, 8)), 0)
SPARSE[:, :, 5] = 0
DARK = np.where(RANDOM.random((60, 8, 8)) < 0.1, PIXELS // 8, 0).astype(np.uint8)
HEALTHY = [
    for_vit("not SF241: dark images", images(DARK)),
    for_vit(
        "not SF240: float images of which some are black",
        images(replaced((PIXELS / 255).astype(np.float32), slice(0, 6, 3), 0)),
        "--set eval_share=0.1",
    ),
    for_vit("masks as booleans", images(PIXELS > 99)),
    Case("not SF246 SF185: sparse features", steps(SPARSE)),
    Case("masks as features", steps(NOISE > 0.3)),
    priced(
        "not SF244: prices with a heavy tail",
        table(
            income=lambda n: round(float(np.exp(n * 7 % 31 / 3)) + n, 2),
            gain=lambda n: 99999 if n % 25 == 3 else 0,
            tiny=lambda n: 1e-17 if n % 9 else n * 3 % 7,
        ),
    ),
    priced(
        "not SF245: years, codes and one-hot columns",
        table(
            built=lambda n: 1990 + n * 17 % 31,
            code=lambda n: 1_000_000_007 + n * 7_919_333 % 900_000_001,
            article=lambda n: 20_000_000 + n * 91_331 % 997_751,
            red=lambda n: n % 3 == 0,
            blue=lambda n: int(n % 5 == 1),
        ),
    ),
    priced("not SF244: targets below zero", targets(lambda n, price: n * 13 % 29 - 1 + n * 7 % 5)),
    for_bert("accents in UTF-8", texts(str)),
    for_bert("Russian in UTF-8", texts(str, RUSSIAN)),
    for_bert("Chinese in UTF-8", texts(str, ("你好", "不错的电影", "很糟糕", "我不知道"))),
    for_bert(
        "not SF243: capitals with accents before quotes",
        texts(str, ("« CAFÉ »", "„MUSS À“", "“NIÑO”", "‚Ä‘ und ‚ß‘", "på…”", "3×½", "À «")),
    ),
]
