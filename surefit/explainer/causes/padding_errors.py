"""Rows of different lengths that nothing padded, and values that no batch can hold."""

from __future__ import annotations

import re

from surefit.explainer.cause import Cause, Context, Message

COPYING = (
    "Copying the labels in another way (.copy(), [:], list(), copy.deepcopy): the copies have the "
    "same lengths.",
    "Converting the BatchEncoding to a plain dict: the collator receives the same ragged lists.",
)
COLLATOR = (
    "surefit pads every column by its length, and labels with -100. With your own Trainer, pass "
    "data_collator=surefit.Collator(tokenizer)."
)
USUAL_MAX_LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)


def _two_lengths(context: Context) -> list[str]:
    expected, found = context.number("expected"), context.number("found")
    if expected is None or found is None:
        return []
    lines = [f"The first row of the batch has {expected} values, a later row has {found}."]
    longer = max(expected, found)
    if longer in USUAL_MAX_LENGTHS:
        lines.append(
            f"{longer} is probably the truncation limit. Truncation shortens long rows; it does "
            "not pad short rows."
        )
    column = re.search(r"features \(`(\w{1,60})` in this case\)", context.text)
    if column is not None:
        lines.append(f"The column {column[1]!r} was not padded.")
    elif re.search(r"DataCollatorForLanguageModeling|DataCollatorWithPadding", context.text):
        lines.append(
            "The text names a collator that pads only the tokenizer's own columns (input_ids, "
            "attention_mask). It does not pad a labels column."
        )
    if re.search(r"deepcopy|BatchEncoding", context.text):
        lines.append("The text suspects copies or BatchEncoding. Neither causes this error.")
    return lines


def _two_shapes(context: Context) -> list[str]:
    entries = [
        (context.word("entry"), context.word("shape")),
        (context.word("other_entry"), context.word("other_shape")),
    ]
    if not entries[0][0]:
        return []
    (entry, shape), (other_entry, other_shape) = entries
    lines = [
        f"Entry {entry} of the batch has shape [{shape}], entry {other_entry} has shape "
        f"[{other_shape}]."
    ]
    for number, sizes in entries:
        if sizes.split(",")[0].strip() == "0":
            lines.append(
                f"Entry {number} is empty: a row without content. Drop or repair such rows; "
                "padding only hides them."
            )
    return lines


def _ragged_column(context: Context) -> list[str]:
    column = context.word("column")
    if not column:
        return []
    lengths = re.search(
        r"expected sequence of length (\d{1,9}) at dim 1 \(got (\d{1,9})\)", context.text
    )
    if lengths is not None:
        return [
            f"The column {column!r} is ragged: one batch has rows of {lengths[1]} and {lengths[2]} "
            "values."
        ]
    if column in ("labels", "label"):
        return [f"The column {column!r} is ragged: the tokenizer does not pad it."]
    return [f"The column {column!r} could not become a tensor."]


CAUSES = (
    Cause(
        "SF601",
        "rows of different lengths were not padded",
        messages=(
            Message(
                r"expected sequence of length (?P<expected>\d+) at dim \d+ \(got (?P<found>\d+)\)"
            ),
        ),
        why="A batch is a rectangular tensor, but these rows have different lengths. The tokenizer "
        "ran without padding, and the collator pads only the columns it knows (input_ids, "
        "attention_mask). A labels column, or any column of your own, stays ragged.",
        fix="Pad every column in the collator. DataCollatorForSeq2Seq(tokenizer) and "
        "DataCollatorForTokenClassification(tokenizer) also pad labels, with -100. For causal LM, "
        "drop the labels column: DataCollatorForLanguageModeling(tokenizer, mlm=False) creates "
        "labels after padding.",
        in_surefit=COLLATOR,
        does_not_help=(
            *COPYING,
            "A smaller batch size: rows of different lengths only meet less often.",
        ),
        derive=_two_lengths,
    ),
    Cause(
        "SF602",
        "the collator cannot turn a column into a tensor",
        messages=(
            Message(
                r"Unable to create tensor, you should probably activate truncation and/or padding"
                r"(?:.{0,160}features \(`(?P<column>\w{1,60})` in this case\))?"
            ),
        ),
        why="The message suspects too much nesting, but the named column is usually just ragged. "
        "tokenizer.pad pads only the columns that the tokenizer returns. A column of text gives "
        "the same message.",
        fix="Pad the column in the collator: DataCollatorForSeq2Seq and "
        "DataCollatorForTokenClassification pad labels with -100. Remove text columns that the "
        "model does not read: dataset.remove_columns([…]).",
        in_surefit=COLLATOR,
        does_not_help=(
            *COPYING,
            "truncation=True alone: truncation shortens long rows and pads none.",
            "padding=True inside map(): each map batch is padded to its own length, and labels are "
            "not padded at all.",
        ),
        derive=_ragged_column,
    ),
    Cause(
        "SF603",
        "the default collate_fn cannot stack rows of different shapes",
        messages=(
            Message(
                r"stack expects each tensor to be equal size, but got \[(?P<shape>[\d, ]{0,60})\] "
                r"at entry (?P<entry>\d+) and \[(?P<other_shape>[\d, ]{0,60})\] at entry "
                r"(?P<other_entry>\d+)"
            ),
            Message(r"each element in list of batch should be of equal size"),
        ),
        why="The default collate_fn of DataLoader stacks rows without padding, so all rows of a "
        "batch must have the same shape.",
        fix="Pass a collate_fn that pads: DataLoader(…, "
        "collate_fn=DataCollatorWithPadding(tokenizer)), or one with pad_sequence(rows, "
        "batch_first=True, padding_value=…). Drop empty rows first.",
        in_surefit="surefit pads rows by length, drops empty rows and counts them in the ledger. "
        "With your own DataLoader, pass collate_fn=surefit.Collator(tokenizer).",
        does_not_help=(
            *COPYING[:1],
            "batch_size=1: the error disappears, but the run trains on the empty rows.",
        ),
        derive=_two_shapes,
    ),
    Cause(
        "SF604",
        "a batch contains values that are not numbers",
        messages=(
            Message(
                r"default_collate: batch must contain tensors, .{0,60}; found <class "
                r"'(?P<type>[\w.]{1,60})'>"
            ),
            Message(r"too many dimensions '(?P<type>str)'"),
            Message(r"Could not infer dtype of (?P<type>\w{1,60})"),
            Message(r"can't convert np\.ndarray of type numpy\.(?P<type>object_|str_)"),
        ),
        why="Text, None and mixed objects cannot become a tensor. A text column is still in the "
        "batch, a value is missing, or a ragged array has dtype object.",
        fix="Keep only numeric columns: dataset.remove_columns([…]). Fill or drop missing values. "
        "Store ragged rows as lists, not as object arrays.",
        in_surefit="`surefit inspect DATA` names the column and the row. surefit assigns roles to "
        "text columns and reports missing values with their row.",
    ),
    Cause(
        "SF605",
        "NumPy cannot build an array from rows of different lengths",
        messages=(
            Message(
                r"setting an array element with a sequence\. The requested array has an "
                r"inhomogeneous shape after (?P<axes>\d+) dimensions?",
                needs_library=True,
            ),
        ),
        why="A NumPy array is rectangular, but the rows have different lengths.",
        fix="Pad the rows first, or store flat values with offsets.",
        in_surefit="surefit stores ragged rows as flat values with offsets and pads each batch.",
        does_not_help=("np.array(rows, dtype=object): torch cannot convert object arrays.",),
    ),
    Cause(
        "SF606",
        "the tokenizer has no pad token",
        messages=(
            Message(r"Asking to pad but the tokenizer does not have a padding token"),
            Message(r"Cannot handle batch sizes > 1 if no padding token is defined"),
        ),
        why="Decoder models such as GPT-2 and Llama have no pad token. A batch of rows with "
        "different lengths needs one.",
        fix="Set tokenizer.pad_token = tokenizer.eos_token and model.config.pad_token_id = "
        "tokenizer.pad_token_id. Then mask padding by length, not by token id: "
        "DataCollatorForLanguageModeling would also replace the real eos in labels with -100.",
        in_surefit="surefit uses eos as the pad token and masks padding by length, so the model "
        "still learns the real eos.",
        does_not_help=(
            "add_special_tokens({'pad_token': '[PAD]'}) without model.resize_token_embeddings: the "
            "new id is outside the embedding table and raises 'index out of range'.",
        ),
    ),
    Cause(
        "SF607",
        "the tokenizer received a value that is not text",
        messages=(
            Message(r"[Tt]ext input must be of type `str` \(single example\)"),
            Message(
                r"TextEncodeInput must be Union\[TextInputSequence",
                seen="huggingface/lighteval#301",
            ),
        ),
        why="The text of a row is None, a number or a nested list. pandas reads an empty cell as "
        "NaN, which is a number.",
        fix="Look at the affected rows, then fill in their text or remove them: "
        "dataset.filter(lambda row: isinstance(row['text'], str) and row['text']).",
        in_surefit="surefit drops empty rows and counts them. SF103 reports a column of mixed "
        "types with file and row.",
        does_not_help=("astype(str): the model would train on the word 'nan'.",),
    ),
)
