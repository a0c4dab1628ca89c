"""Datasets, what Trainer does with their columns, and settings that contradict them."""

from __future__ import annotations

from surefit.explainer.cause import Cause, Context, Message


def _ignored_columns(context: Context) -> list[str]:
    columns = context.word("columns")
    if not columns:
        return []
    untokenised = " The rows were not tokenised." if "text" in columns else ""
    return [f"Columns of the dataset: {columns}.{untokenised}"]


def _no_labels(context: Context) -> list[str]:
    inputs = context.word("inputs")
    if not inputs or "labels" in inputs:
        return []
    return [f"The model received {inputs}, and no labels."]


def _too_long(context: Context) -> list[str]:
    return [f"The row has {context.word('found')} tokens, the limit is {context.word('limit')}."]


CAUSES = (
    Cause(
        "SF693",
        "a column has two types, or files have different columns",
        messages=(
            Message(
                r"JSON parse error: Column\((?P<column>[^)]{0,120})\) changed from "
                r"(?P<was>\w{1,40}) to (?P<now>\w{1,40}) in row (?P<row>\d+)",
                seen="huggingface/datasets#7322",
            ),
            Message(
                r"Could not convert (?P<value>.{1,60}?) with type (?P<now>\w{1,40}): tried to "
                r"convert to (?P<was>\w{1,40})"
            ),
            Message(r"Couldn't cast .{0,2000}because column names don't match"),
            Message(r"Couldn't cast array of type .{1,200}? to .{1,200}"),
            Message(
                r"Failed to parse string: '(?P<value>[^']{0,60})' as a scalar of type "
                r"(?P<was>\w{1,40})"
            ),
            Message(r"The features can't be aligned because the key (?P<column>\S{1,120}) of"),
            Message(r"All the data files must have the same columns", seen="allenai/OLMoE#21"),
        ),
        why="Arrow gives every column one type, inferred from the first rows. A later row or file "
        "has another type (a number instead of text, a list instead of a string), or other "
        "columns.",
        fix="Write every value of a column with one type (json.dumps for mixed values), pass "
        "load_dataset(features=…), or load files with different columns separately.",
        in_surefit="surefit reads every row. SF103 names file, line and column, and files with "
        "other columns are a warning.",
        does_not_help=("Deleting the cache: the file is read in the same way again.",),
    ),
    Cause(
        "SF694",
        "a line of the file is not valid JSON",
        messages=(
            Message(
                r"JSON parse error: (?!Column)(?P<what>[A-Z][^.]{2,80})\. in row (?P<row>\d+)",
                seen="huggingface/datasets#6315",
            ),
        ),
        why="A line is not one JSON object: it is truncated or empty, a list spans several lines, "
        "or a file named .json has another format.",
        fix="Look at the row in the message; it counts from 0 within a block. Write one object per "
        "line in .jsonl, and a list of objects in .json.",
        in_surefit="SF102 names the file and the line.",
    ),
    Cause(
        "SF695",
        "map() returned columns of different lengths",
        messages=(
            Message(
                r"Column \d+ named (?P<column>\S{1,120}) expected length (?P<expected>\d+) but got "
                r"length (?P<found>\d+)"
            ),
        ),
        why="A batched map() that returns more or fewer rows than it received must remove the old "
        "columns. Otherwise old and new columns have different lengths.",
        fix="Use dataset.map(fn, batched=True, remove_columns=dataset.column_names), or return one "
        "value per row.",
        in_surefit="The ledger counts rows that are split, dropped or augmented.",
    ),
    Cause(
        "SF696",
        "Trainer removed every column",
        messages=(
            Message(
                r"No columns in the dataset match the model's forward method signature"
                r"(?:.{0,400}?have been ignored: \[(?P<columns>[^\]]{0,400})\])?"
            ),
            Message(r"Invalid key: (?P<key>\d+) is out of bounds for size 0"),
            Message(
                r"You should supply an encoding or a list of encodings to this method that "
                r"includes input_ids, but you provided (?P<columns>\[[^\]]{0,400}\])"
            ),
        ),
        why="Trainer keeps only columns with the name of an argument of forward(). These rows have "
        "none: they were not tokenised, the tokenise function returned nothing, or a peft or "
        "compiled wrapper hides the arguments behind **kwargs.",
        fix="Tokenise first, so that input_ids exists. Set remove_unused_columns=False only if "
        "your own collator creates the model's inputs. For wrapped models, set "
        "label_names=['labels'].",
        in_surefit="surefit assigns roles to columns, passes forward() the arguments it names, and "
        "reports unused columns.",
        derive=_ignored_columns,
    ),
    Cause(
        "SF697",
        "the model did not return a loss",
        messages=(
            Message(
                r"The model did not return a loss from the inputs, only the following keys: "
                r"(?P<outputs>[\w,]{1,200})\. For reference, the inputs it received are "
                r"(?P<inputs>[\w,]{1,200})"
            ),
            Message(
                r"forward\(\) got an unexpected keyword argument "
                r"'(?P<argument>labels|label|attention_mask|token_type_ids|num_items_in_batch)'"
            ),
        ),
        why="Trainer expects the model to return a loss, and a model does so only if it receives "
        "labels. The batch has no labels (another column name, or a dropped column), or forward() "
        "does not accept them.",
        fix="Name the column labels. For your own model, override compute_loss, or let forward() "
        "accept labels and return {'loss': …, 'logits': …}.",
        in_surefit="The task computes the loss; a module only returns logits.",
        derive=_no_labels,
    ),
    Cause(
        "SF698",
        "the model received both or neither of input_ids and inputs_embeds",
        messages=(
            Message(
                r"You must specify exactly one of (?:decoder_)?input_ids or "
                r"(?:decoder_)?inputs_embeds"
            ),
            Message(
                r"You (?:cannot specify both|have to specify either) (?:decoder_)?input_ids "
                r"(?:and|or)",
                seen="huggingface/transformers#3626",
            ),
        ),
        why="The batch uses other names, or an encoder-decoder received no labels from which to "
        "create its decoder inputs.",
        fix="Pass exactly one of them. For T5 and BART, pass labels: "
        "DataCollatorForSeq2Seq(tokenizer, model=model).",
        in_surefit="surefit passes tokens as input_ids and features as inputs_embeds.",
    ),
    Cause(
        "SF699",
        "a row is longer than the model's maximum",
        messages=(
            Message(
                r"Token indices sequence length is longer than the specified maximum sequence "
                r"length for this model \((?P<found>\d+) > (?P<limit>\d+)\)"
            ),
            Message(
                r"Input length of input_ids is (?P<found>\d+), but `max_length` is set to "
                r"(?P<limit>\d+)"
            ),
        ),
        why="A row has more tokens than the model or generate() allows. The tokenizer only warns. "
        "The model then fails with 'index out of range' or a device-side assert, or returns "
        "nonsense.",
        fix="Use tokenizer(…, truncation=True, max_length=limit), or split long rows. For "
        "generation, set max_new_tokens instead of max_length.",
        in_surefit="`overlong` truncates, drops or refuses such rows, and the ledger counts them. "
        "Truncation keeps the end of the answer.",
        derive=_too_long,
        is_warning=True,
    ),
    Cause(
        "SF600",
        "the dataset is empty",
        messages=(
            Message(r"num_samples should be a positive integer value, but got num_samples=0"),
        ),
        why="The dataset has no rows: a filter or a split removed all of them, or the path matched "
        "no file.",
        fix="Print len(dataset) after every filter, and look at the rows that it removes.",
        in_surefit="SF101 reports an empty dataset, and the ledger accounts for every row.",
    ),
    Cause(
        "SF608",
        "the settings for evaluation and saving contradict each other",
        messages=(
            Message(r"--load_best_model_at_end requires the save (?:and eval )?(?:strategy|steps)"),
            Message(
                r"You have set `args\.eval_strategy` to .{1,40} but you didn't pass an "
                r"`eval_dataset`"
            ),
            Message(
                r"The `metric_for_best_model` training argument is set to "
                r"'(?P<metric>\w{1,60})', which is not found"
            ),
        ),
        why="Trainer should choose the best checkpoint, but it does not evaluate, it evaluates and "
        "saves at different steps, or compute_metrics does not return the metric.",
        fix="Use the same eval_strategy and save_strategy (and steps), pass an eval_dataset, and "
        "set metric_for_best_model to a key of compute_metrics.",
        in_surefit="surefit uses a tenth of the rows as validation set, saves at every evaluation, "
        "and refuses a metric that the task does not have.",
    ),
    Cause(
        "SF609",
        "the dataset has no length",
        messages=(
            Message(
                r"The train_dataset does not implement __len__|train_dataset does not implement "
                r"__len__, max_steps has to be specified"
            ),
        ),
        why="An IterableDataset has no length, so Trainer cannot infer the number of steps per "
        "epoch and the learning rate schedule.",
        fix="Set TrainingArguments(max_steps=…), or use a dataset with a length.",
        in_surefit="surefit stores tables on disk, where the number of rows is known.",
    ),
)
