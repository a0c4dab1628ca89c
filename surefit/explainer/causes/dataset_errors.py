"""Data sets and what Trainer makes of them."""

from __future__ import annotations

from surefit.explainer.cause import Cause, Context, Form


def _dropped(context: Context) -> list[str]:
    columns = context.values.get("columns")
    if columns is None:
        return []
    text = " The rows were not tokenised." if "text" in str(columns) else ""
    return [f"Ignored columns: {columns}.{text}"]


CAUSES = (
    Cause(
        "SF693",
        "a column with two types, or files with different columns",
        (
            Form(
                r"JSON parse error: Column\((?P<column>[^)]*)\) changed from (?P<was>\w+) to "
                r"(?P<now>\w+) in row (?P<row>\d+)",
                seen="huggingface/datasets#7322",
            ),
            Form(
                r"Could not convert (?P<value>.{1,60}?) with type (?P<now>\w+): tried to convert "
                r"to (?P<was>\w+)"
            ),
            Form(r"Couldn't cast .{0,2000}because column names don't match"),
            Form(
                r"Couldn't cast array of type .{1,200}? to .{1,200}",
            ),
            Form(
                r"Failed to parse string: '(?P<value>[^']{0,60})' as a scalar of type (?P<was>\w+)"
            ),
            Form(r"The features can't be aligned because the key (?P<column>\S+) of features"),
            Form(r"All the data files must have the same columns", seen="allenai/OLMoE#21"),
        ),
        "Arrow gives each column one type, guessed from the first block of rows; a later row (or "
        "file) has another: a number where there was text, a list where there was a string, a "
        "column more or fewer.",
        "Write every value of the column with one type (json.dumps for mixed ones), give "
        "load_dataset(features=…), or load files with different columns apart.",
        "Every row is read: SF103 names file, line and column; files with other columns are a "
        "warning.",
        ("Deleting the cache: the file is read the same way again.",),
    ),
    Cause(
        "SF694",
        "a line that is no JSON",
        (
            Form(r"JSON parse error: (?!Column)(?P<what>[A-Z][^.]{2,80})\. in row (?P<row>\d+)"),
            Form(
                r"JSON parse error: (?:Missing a|Invalid|The document)",
                seen="huggingface/datasets#6315",
            ),
        ),
        "The file has a line that is not one JSON object: cut off, empty, a list over several "
        "lines, or another format under a .json name.",
        "The row counts from 0 within a block: look there. One object per line for .jsonl; a list "
        "of objects is .json.",
        "SF102 names the file and the line.",
    ),
    Cause(
        "SF695",
        "map() returned columns of another length",
        (
            Form(
                r"Column \d+ named (?P<column>\S+) expected length (?P<expected>\d+) but got "
                r"length (?P<found>\d+)"
            ),
        ),
        "A batched map that returns more or fewer rows than it was given must also drop the old "
        "columns; otherwise their lengths differ.",
        "dataset.map(fn, batched=True, remove_columns=dataset.column_names), or return one value "
        "per row.",
        "Rows that are split, dropped or augmented are counted in the ledger.",
    ),
    Cause(
        "SF696",
        "Trainer removed every column",
        (
            Form(
                r"No columns in the dataset match the model's forward method signature"
                r"(?:.{0,400}?have been ignored: \[(?P<columns>[^\]]*)\])?"
            ),
            Form(r"Invalid key: (?P<key>\d+) is out of bounds for size 0"),
            Form(
                r"You should supply an encoding or a list of encodings to this method that "
                r"includes input_ids, but you provided (?P<columns>\[[^\]]*\])"
            ),
        ),
        "Trainer keeps only columns whose names are arguments of the model's forward; these rows "
        "have none of them: they were not tokenised, tokenise() returned nothing, or the model (a "
        "peft or compiled wrapper) hides its arguments behind **kwargs.",
        "Tokenise first, so that input_ids is there; then remove_unused_columns=False only if "
        "your own collator makes the model's inputs; label_names=['labels'] for wrapped models.",
        "Columns get roles, and forward is given what it names; what is left out is reported.",
        derive=_dropped,
    ),
    Cause(
        "SF697",
        "the model returned no loss",
        (
            Form(
                r"The model did not return a loss from the inputs, only the following keys: "
                r"(?P<outputs>[\w,]+)\. For reference, the inputs it received are "
                r"(?P<inputs>[\w,]+)"
            ),
            Form(
                r"forward\(\) got an unexpected keyword argument "
                r"'(?P<argument>labels|label|attention_mask|token_type_ids|num_items_in_batch)'"
            ),
        ),
        "Trainer expects the model to return a loss, which it does when it is given labels: the "
        "batch has none (the column has another name, or was dropped), or the model's forward "
        "takes none.",
        "Name the column labels; for a model of your own override compute_loss, or let forward "
        "take labels and return {'loss': …, 'logits': …}.",
        "The loss is the task's; a module only returns logits.",
        derive=lambda context: (
            [f"The model was given {context.values['inputs']}: labels are not among them."]
            if "inputs" in context.values and "labels" not in str(context.values["inputs"])
            else []
        ),
    ),
    Cause(
        "SF698",
        "both or neither of input_ids and inputs_embeds",
        (
            Form(
                r"You must specify exactly one of (?:decoder_)?input_ids or "
                r"(?:decoder_)?inputs_embeds"
            ),
            Form(
                r"You (?:cannot specify both|have to specify either) (?:decoder_)?input_ids "
                r"(?:and|or)",
                seen="huggingface/transformers#3626",
            ),
        ),
        "The model was given both ids and embeddings, or neither: the batch has other names, or an "
        "encoder-decoder got no labels to make its decoder's inputs from.",
        "Give one of them; for T5 and BART pass labels (DataCollatorForSeq2Seq(tokenizer, "
        "model=model)).",
        "Tokens go to input_ids, features to inputs_embeds.",
    ),
    Cause(
        "SF699",
        "rows longer than the model's positions",
        (
            Form(
                r"Token indices sequence length is longer than the specified maximum sequence "
                r"length for this model \((?P<found>\d+) > (?P<limit>\d+)\)"
            ),
            Form(
                r"Input length of input_ids is (?P<found>\d+), but `max_length` is set to "
                r"(?P<limit>\d+)"
            ),
        ),
        "A row has more tokens than the model (or generation) allows. The tokenizer only warns; "
        "the model then fails with 'index out of range' or a device-side assert, or gives "
        "nonsense.",
        "tokenizer(…, truncation=True, max_length=limit), or split long rows; for generation "
        "max_new_tokens instead of max_length.",
        "`overlong` cuts, drops or refuses such rows, counts them, and keeps the answer's end.",
        derive=lambda context: [
            f"{context.values['found']} tokens, {context.values['limit']} allowed."
        ],
        notice=True,
    ),
)
