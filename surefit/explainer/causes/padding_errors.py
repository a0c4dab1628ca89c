"""Rows of unequal length that nobody padded: the failures of the batch before the model."""

from __future__ import annotations

import re

from surefit.explainer.cause import Cause, Context, Form

COPYING = (
    "Copying the labels differently (.copy(), [:], list(), copy.deepcopy): equal lists fail alike; "
    "nothing is shared, the rows are just not equally long.",
    "Turning the BatchEncoding into a plain dict: the collator sees the same ragged lists.",
)
COLLATOR = (
    "surefit pads every column by length (labels with -100), never by token id; for a Trainer of "
    "your own pass data_collator=surefit.Collator(tokenizer)."
)


def _lengths(context: Context) -> list[str]:
    expected, found = context.number("expected"), context.number("found")
    lines = [f"Two rows of one batch differ: the first has {expected} values, a later one {found}."]
    top = max(expected, found)
    if top in (128, 256, 512, 1024, 2048, 4096, 8192):
        lines.append(
            f"{top} looks like the limit of a truncation: truncation shortens the long rows, but "
            "lengthens no short one."
        )
    named = re.search(r"features \(`(\w+)` in this case\)", context.text)
    if named is not None:
        lines.append(f"The column that was not padded is {named[1]!r}.")
    elif re.search(r"DataCollatorForLanguageModeling|DataCollatorWithPadding", context.text):
        lines.append(
            "The text names a collator that pads only what the tokenizer knows (input_ids, "
            "attention_mask): a labels column of your own stays ragged."
        )
    if re.search(r"deepcopy|BatchEncoding", context.text):
        lines.append("The text blames copies or BatchEncoding; neither has a part in this.")
    return lines


def _entries(context: Context) -> list[str]:
    first, other = str(context.values["first"]), str(context.values["other"])
    lines = [
        f"Entry {context.values['entry']} of the batch has shape [{first}], entry "
        f"{context.values['place']} has [{other}]."
    ]
    for shape, place in ((first, context.values["entry"]), (other, context.values["place"])):
        if shape.split(",")[0].strip() == "0":
            lines.append(
                f"Entry {place} is empty: a row without content. Padding would hide it, and the "
                "model would learn from nothing; such rows are to be dropped or repaired."
            )
    return lines


def _column(context: Context) -> list[str]:
    column = context.values.get("column")
    if column is None:
        return []
    inner = re.search(r"expected sequence of length (\d+) at dim 1 \(got (\d+)\)", context.text)
    if inner is not None:
        return [
            f"Column {column!r} is ragged: rows of {inner[1]} and {inner[2]} values in one batch."
        ]
    if column in ("labels", "label"):
        return [f"Column {column!r} is ragged: the tokenizer's padding does not touch it."]
    return [f"Column {column!r} is what could not become a tensor."]


CAUSES = (
    Cause(
        "SF601",
        "rows of unequal length in one batch, not padded",
        (Form(r"expected sequence of length (?P<expected>\d+) at dim \d+ \(got (?P<found>\d+)\)"),),
        "A batch is one rectangle, and these rows have different lengths. No step padded them all: "
        "the tokenizer was called without padding, and the collator pads only the columns it knows "
        "(input_ids, attention_mask), so a labels column, or any column of your own, stays ragged.",
        "Pad every column in the collator: DataCollatorForSeq2Seq(tokenizer) or "
        "DataCollatorForTokenClassification(tokenizer) also pad labels (with -100). For plain "
        "causal LM leave labels out and let DataCollatorForLanguageModeling(tokenizer, mlm=False) "
        "make them after padding.",
        COLLATOR,
        (*COPYING, "A smaller batch size: it only makes two unequal rows meet less often."),
        _lengths,
    ),
    Cause(
        "SF602",
        "a column that the collator cannot pad",
        (
            Form(
                r"Unable to create tensor, you should probably activate truncation and/or padding"
                r"(?:.{0,160}features \(`(?P<column>\w+)` in this case\))?"
            ),
        ),
        "The message guesses at nesting; nearly always the named column is simply ragged: its rows "
        "have different lengths, and tokenizer.pad pads only what the tokenizer itself returns. A "
        "column of text among the features gives the same message.",
        "Pad that column in the collator (labels with -100: DataCollatorForSeq2Seq, "
        "DataCollatorForTokenClassification), or remove it: "
        "dataset.remove_columns([…]) for text that the model does not read.",
        COLLATOR,
        (
            *COPYING,
            "truncation=True alone: it shortens rows, and pads none.",
            "padding=True in the tokenizer's call inside map(): it pads each map batch to a length "
            "of its own, and the labels not at all.",
        ),
        _column,
    ),
    Cause(
        "SF603",
        "a DataLoader without a collator for rows of unequal length",
        (
            Form(
                r"stack expects each tensor to be equal size, but got \[(?P<first>[\d, ]*)\] at "
                r"entry (?P<entry>\d+) and \[(?P<other>[\d, ]*)\] at entry (?P<place>\d+)"
            ),
            Form(r"each element in list of batch should be of equal size"),
        ),
        "DataLoader's default collate_fn stacks the rows of a batch and pads nothing, so they must "
        "all have the same shape.",
        "Give the DataLoader a collate_fn that pads: "
        "DataLoader(…, collate_fn=DataCollatorWithPadding(tokenizer)), or pad_sequence(rows, "
        "batch_first=True, padding_value=…). Drop empty rows before.",
        "Rows are padded by length, empty ones are dropped and counted in the ledger; for a "
        "DataLoader of your own: collate_fn=surefit.Collator(tokenizer).",
        (
            *COPYING[:1],
            "batch_size=1: it hides the fault, and trains on the empty rows.",
        ),
        lambda context: _entries(context) if "first" in context.values else [],
    ),
    Cause(
        "SF604",
        "values that are no numbers in a batch",
        (
            Form(
                r"default_collate: batch must contain tensors, .{0,60}; found <class "
                r"'(?P<kind>[\w.]+)'>"
            ),
            Form(r"too many dimensions '(?P<kind>str)'"),
            Form(r"Could not infer dtype of (?P<kind>\w+)"),
            Form(r"can't convert np\.ndarray of type numpy\.(?P<kind>object_|str_)"),
        ),
        "A column of text, None or mixed objects was to become a tensor: a text column was left in "
        "the batch, a value is missing, or a ragged array was stored as dtype object.",
        "Keep only columns of numbers: dataset.remove_columns([…]); replace or drop missing "
        "values; store ragged rows as lists, not as object arrays.",
        "`surefit inspect DATA` names the column and the row; text columns are given roles, and "
        "missing values are findings with their row.",
    ),
    Cause(
        "SF605",
        "an array of unequal rows",
        (
            Form(
                r"setting an array element with a sequence\. The requested array has an "
                r"inhomogeneous shape after (?P<axes>\d+) dimensions?",
                libraries_only=True,
            ),
        ),
        "NumPy was to make one rectangular array of rows with different lengths.",
        "Pad the rows first, or keep flat values and offsets; do not use dtype=object, torch "
        "cannot read that.",
        "Ragged rows are stored flat with offsets, and padded in each batch.",
        ("np.array(rows, dtype=object): torch refuses it later.",),
    ),
    Cause(
        "SF606",
        "the tokenizer has no pad token",
        (
            Form(r"Asking to pad but the tokenizer does not have a padding token"),
            Form(r"Cannot handle batch sizes > 1 if no padding token is defined"),
        ),
        "Decoder models (GPT-2, Llama …) come without a pad token, and a batch of unequal rows "
        "needs one.",
        "tokenizer.pad_token = tokenizer.eos_token, and model.config.pad_token_id = "
        "tokenizer.pad_token_id. Then mask padding by length, not by id: the stock causal collator "
        "would turn the true eos into -100.",
        "A missing pad token is eos, and padding goes by length: the true eos is still learned.",
        (
            "add_special_tokens({'pad_token': '[PAD]'}) without model.resize_token_embeddings: the "
            "new id is beyond the embeddings, 'index out of range' follows.",
        ),
    ),
    Cause(
        "SF607",
        "text that is no text",
        (
            Form(r"[Tt]ext input must be of type `str` \(single example\)"),
            Form(
                r"TextEncodeInput must be Union\[TextInputSequence",
                seen="huggingface/lighteval#301",
            ),
        ),
        "The tokenizer was given None, a number or a nested list: a row's text is missing or is "
        "not a string (pandas reads an empty cell as NaN).",
        "dataset.filter(lambda row: isinstance(row['text'], str) and row['text']), or fill the "
        "missing ones; look at the rows that are dropped.",
        "Empty rows are dropped and counted; a column of mixed types is SF103 with file and row.",
        ("astype(str): it trains the model on the word 'nan'.",),
    ),
)
