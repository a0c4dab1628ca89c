"""The registry of findings: what each code stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "fixed", "info"]


@dataclass(frozen=True)
class Rule:
    """What a code stands for: its severity, its title, why it matters and the usual fix."""

    severity: Severity
    title: str
    why: str
    fix: str


RULES: dict[str, Rule] = {
    # Reading the data
    "SF101": Rule(
        "error",
        "no data",
        "There is nothing to learn from.",
        "Check the path and the filter that wrote the file.",
    ),
    "SF102": Rule(
        "error",
        "corrupt line or file",
        "A line that cannot be read is either lost data or a damaged file.",
        "Repair or delete the named line.",
    ),
    "SF103": Rule(
        "error",
        "mixed types in a column",
        "A column with two types has no single meaning, and torch would fail on it mid-run.",
        "Write every value of the column with one type.",
    ),
    "SF104": Rule(
        "error",
        "pickled data",
        "Reading a pickle runs the code inside it; data must never run code.",
        "Save plain numeric arrays: flat values and offsets for ragged rows.",
    ),
    "SF105": Rule(
        "error",
        "text is not UTF-8",
        "Wrongly decoded text trains the model on noise.",
        "Convert the file to UTF-8, or name its encoding with read.encoding.",
    ),
    "SF106": Rule(
        "error",
        "files that do not belong together",
        "Rows can only be read together when every file has the same columns or the same rows.",
        "Give files with the same columns, or arrays with the same number of rows.",
    ),
    "SF107": Rule(
        "warning",
        "files with different columns",
        "Rows of a file without a column have no value in it; a row that needs it is dropped.",
        "Give files with the same columns.",
    ),
    "SF110": Rule(
        "error",
        "too many columns",
        "A table has a name and a type for every column; so many of them are rather one array.",
        "Save the numbers as one array (.npy), and the other columns beside it.",
    ),
    "SF111": Rule(
        "fixed",
        "read as Windows-1252",
        "The text is not UTF-8, and makes sense as Windows-1252 (latin-1 and a few signs more).",
        "Nothing to do; read.encoding names another encoding.",
    ),
    "SF112": Rule(
        "info",
        "layout of a table worked out",
        "The file does not say how its cells are parted or what its columns are called.",
        "Set read.delimiter or read.names if it was meant otherwise.",
    ),
    "SF113": Rule(
        "info",
        "layout of lines worked out",
        "The file does not say what its lines hold.",
        "Set read.pattern, a regular expression with named groups, if it was meant otherwise.",
    ),
    "SF114": Rule(
        "info",
        "nested rows flattened",
        "One row of the file holds several examples; each becomes a row of its own.",
        "Nothing to do.",
    ),
    "SF115": Rule(
        "error",
        "no rows found in a JSON file",
        "Rows are a list of objects, or lists of equal length, one per column.",
        "Set read.field to the place of the list, such as data or data.items.",
    ),
    "SF116": Rule(
        "info",
        "files joined side by side",
        "Their rows belong together by their order.",
        "Give one file, or files of another kind, if they were not meant to be joined.",
    ),
    "SF117": Rule(
        "warning",
        "two texts of different length",
        "As source and target they would need equally many lines; they are read one after the "
        "other.",
        "Align the files line by line if they are a text and its translation.",
    ),
    "SF120": Rule(
        "error",
        "the data's own code fails",
        "A Dataset, DataLoader or collate_fn given from Python raised on the data.",
        "Make the named row readable: dataset[row] must work for every row.",
    ),
    "SF121": Rule(
        "info",
        "splits that are not used",
        "Training uses one split; the others can be evaluated on.",
        "Name another one with --eval-data.",
    ),
    "SF122": Rule(
        "info",
        "rows copied from Python",
        "A Dataset or DataLoader is read once, with fixed random seeds; from then on order, "
        "batches and resuming are surefit's, on the copied rows.",
        "Nothing to do; what the Dataset does at random is drawn once, not anew in each epoch.",
    ),
    "SF123": Rule(
        "info",
        "batches by your own collate_fn",
        "It is called on the rows of each batch, in training, evaluation and prediction; what it "
        "does at random is not reproduced.",
        "Pass it again when the run is resumed, evaluated or predicted with from another process.",
    ),
    # Rows and columns
    "SF201": Rule(
        "error",
        "misaligned columns",
        "Columns that run along the same sequence must have the same length in every row.",
        "Recompute the shorter column from the same tokens.",
    ),
    "SF202": Rule(
        "error",
        "missing column",
        "The task cannot be learned without it.",
        "Name the column with columns.<role>, or give data that has it.",
    ),
    "SF203": Rule(
        "info",
        "rows dropped",
        "They hold nothing to learn from; the ledger counts them by reason.",
        "Nothing to do, unless the rows should have had content.",
    ),
    "SF204": Rule(
        "error",
        "too many rows dropped",
        "Training on a small rest of the data is rarely what was meant.",
        "Look at the named rows, or raise max_dropped_share.",
    ),
    "SF205": Rule(
        "error",
        "labels do not suit classification",
        "A classifier needs a small set of classes, each seen in training.",
        "Choose another label column with columns.label, or another task.",
    ),
    "SF206": Rule(
        "warning",
        "label never seen in training",
        "The model has no output for a class it never saw; such rows are dropped.",
        "Put examples of the class into the training data.",
    ),
    "SF207": Rule(
        "error",
        "values that are not finite",
        "One NaN or infinity makes the loss, then every weight, NaN.",
        "Replace or drop the named values.",
    ),
    "SF208": Rule(
        "error",
        "wrong shape",
        "The model reads axes in a fixed order and width.",
        "Save the array as [rows, steps, width], or set features.steps or features.width.",
    ),
    "SF209": Rule(
        "fixed",
        "dtype converted",
        "The model computes in float32; other types fail inside torch.",
        "Nothing to do.",
    ),
    "SF210": Rule(
        "warning",
        "evaluation rows that are also training rows",
        "The evaluation then measures memory, not learning.",
        "Remove the shared rows from one of the two sets.",
    ),
    "SF211": Rule(
        "info",
        "rows truncated",
        "They are longer than the limit; the ledger counts them.",
        "Raise max_seq_length if the model allows it, or set overlong=drop.",
    ),
    "SF212": Rule(
        "error",
        "overlong row",
        "overlong=error was asked for, and a row is longer than the limit.",
        "Raise max_seq_length, shorten the row, or set overlong=truncate or drop.",
    ),
    "SF213": Rule(
        "error",
        "wrong type of value",
        "The column's values are not of the kind its role needs.",
        "Name another column with columns.<role>, or convert the values.",
    ),
    "SF214": Rule(
        "info",
        "rows with identical content",
        "They were kept on one side of the split, so that none of them leaks into evaluation.",
        "Nothing to do.",
    ),
    "SF215": Rule(
        "warning",
        "many rows dropped",
        "A tenth of the rows or more holds nothing to learn from, which is seldom meant.",
        "Look at the named row.",
    ),
    "SF216": Rule(
        "warning",
        "many rows truncated",
        "A tenth of the rows or more is longer than the limit and loses content.",
        "Raise max_seq_length (or max_tokens, which bounds it) if the model allows it.",
    ),
    "SF230": Rule(
        "error",
        "target does not suit regression",
        "Regression learns a number, and the numbers must differ.",
        "Choose a column of numbers with columns.label, or a classification task.",
    ),
    "SF231": Rule(
        "info",
        "columns left out",
        "They cannot be read as numbers, categories or dates, or tell rows apart only by number.",
        "Nothing to do, unless a column should have been read.",
    ),
    "SF232": Rule(
        "warning",
        "columns that give the target away",
        "The model would read the answer off them, and fail where they are not known yet.",
        "Leave them out with ignore, unless they are known before the target is.",
    ),
    "SF233": Rule(
        "error",
        "no column to learn from",
        "Beside the target, rows need numbers, categories or dates that differ.",
        "Check columns.label and ignore, or give data with such columns.",
    ),
    "SF250": Rule(
        "error",
        "image that cannot be read",
        "A damaged or missing picture is lost data, and a loader would stop on it mid-run.",
        "Repair, replace or remove the named file, or set on_bad_file=skip.",
    ),
    "SF251": Rule(
        "error",
        "array that is no picture",
        "Pictures are [height, width], with 1, 3 or 4 channels, of values up to 255 or 1.",
        "Save the pixels as uint8 [height, width, channels], not scaled or normalised.",
    ),
    "SF252": Rule(
        "error",
        "picture too large",
        "A small file can unpack to more pixels than fit in memory.",
        "Shrink the picture, or set on_bad_file=skip.",
    ),
    "SF253": Rule(
        "error",
        "size the model does not take",
        "The model is made for pictures of one shape.",
        "Set image.size to one number, or leave it out.",
    ),
    # Data against model
    "SF301": Rule(
        "error",
        "model does not suit the task",
        "The architecture has no head, or no causal attention, for this task.",
        "Choose a model of another architecture or another task.",
    ),
    "SF302": Rule(
        "error",
        "token id outside the vocabulary",
        "The embedding has no row for it: 'index out of range' or a device-side assert.",
        "Tokenise with the model's own tokenizer.",
    ),
    "SF303": Rule(
        "error",
        "label outside the model's classes",
        "The loss would index past the logits: 'target out of bounds' or a device-side assert.",
        "Let the model's last layer have one output per class.",
    ),
    "SF304": Rule(
        "error",
        "rows longer than the model's positions",
        "Positions beyond the table fail with 'index out of range'.",
        "Lower max_seq_length.",
    ),
    "SF305": Rule(
        "error",
        "the model fails on the data",
        "One real batch was sent through the model and it raised.",
        "Make the named layer fit the named shape.",
    ),
    "SF306": Rule(
        "info",
        "new head",
        "The task's output layer is not in the weights; it starts untrained.",
        "Nothing to do.",
    ),
    "SF307": Rule(
        "fixed",
        "embeddings resized",
        "The tokenizer knows more tokens than the model had rows for.",
        "Nothing to do.",
    ),
    "SF308": Rule(
        "error",
        "axes in another order",
        "The module fails on [steps, width] rows and works on [width, steps] rows.",
        "Save the array as [rows, steps, width].",
    ),
    "SF309": Rule(
        "info",
        "argument matched by position",
        "The module's forward names an argument that no column has.",
        "Rename the argument after the column if that is not what was meant.",
    ),
    "SF310": Rule(
        "info",
        "the module's own loss",
        "It counts as a mean over its labelled targets, or over rows where there are none.",
        "Return logits to have surefit compute the loss as a sum and a count.",
    ),
    "SF311": Rule(
        "fixed",
        "pad token is eos",
        "The tokenizer has no pad token. Padding goes by length, so eos is still learned.",
        "Nothing to do.",
    ),
    "SF312": Rule(
        "error",
        "loss and target count disagree",
        "The divisor of a step is known before its first backward, from count_targets; a loss "
        "that counts otherwise would weigh rows wrongly.",
        "Let the task's count_targets give the count that its loss returns.",
    ),
    "SF313": Rule(
        "error",
        "a batch of one row meets batch statistics",
        "Batch normalisation cannot train on a single row and raises in the middle of the run.",
        "Choose another batch size.",
    ),
    "SF314": Rule(
        "error",
        "nothing to train",
        "No parameter of the model takes a gradient, so no step could change anything.",
        "Let some parameters have requires_grad=True.",
    ),
    "SF315": Rule(
        "error",
        "the model gives no finite numbers",
        "Its outputs are NaN or infinite on real rows before any training.",
        "Look at the weights and at divisions, logarithms and masks in the model.",
    ),
    "SF316": Rule(
        "warning",
        "more outputs than classes",
        "The outputs beyond the classes are never trained on and are ignored in predictions.",
        "Let the model's last layer have one output per class.",
    ),
    "SF317": Rule(
        "warning",
        "forward cannot do without labels",
        "Rows to predict on have no labels, so `predict` cannot call the model.",
        "Give the argument labels a default of None.",
    ),
    "SF320": Rule(
        "error",
        "no mask token",
        "masked-lm hides tokens behind a mask token; without one there is nothing to put there.",
        "Choose a model made for it, such as a BERT, or give a tokenizer with --tokenizer.",
    ),
    "SF325": Rule(
        "fixed",
        "features projected to the model's width",
        "A transformers model takes embeddings of one width; a layer that is trained and saved "
        "with it brings the data there.",
        "Nothing to do.",
    ),
    "SF326": Rule(
        "error",
        "the model reads no features",
        "Features enter a model as inputs_embeds, in place of its token embeddings.",
        "Choose an encoder or decoder of text, such as tiny:bert, or your own module.",
    ),
    "SF327": Rule(
        "warning",
        "trained projection left out",
        "The model was trained on features of another width, so its projection starts anew.",
        "Give features of the width the model was trained on, if they are meant to be the same.",
    ),
    # What will be learned
    "SF400": Rule(
        "error",
        "does not fit in memory",
        "The run would be killed, or fail with 'out of memory', when its largest batch comes.",
        "Take a smaller batch_size with a larger grad_accum, checkpointing, LoRA or shorter rows.",
    ),
    "SF401": Rule(
        "error",
        "nothing to learn from",
        "Every target is masked: the loss would be 0 or NaN and the run would look successful.",
        "Check the labels, the template and max_seq_length.",
    ),
    "SF402": Rule(
        "warning",
        "no evaluation rows",
        "Without them neither the best step nor overfitting can be seen.",
        "Give more rows, --eval-data, or a larger eval_share.",
    ),
    "SF403": Rule(
        "error",
        "the data changed since the run began",
        "A resumed run must see the rows it was begun with, or it is another run.",
        "Put the old data back, or start a new run.",
    ),
    "SF404": Rule(
        "error",
        "checkpointing is not possible",
        "Activations are made again layer by layer, which transformers' models are built for.",
        "Leave checkpointing out.",
    ),
    "SF405": Rule(
        "info",
        "batch size chosen",
        "batch_size is auto: the largest micro-batch that fits was taken, and kept in the config.",
        "Nothing to do.",
    ),
    "SF406": Rule(
        "info",
        "memory not predicted",
        "The model's code does something that cannot be done on shapes alone.",
        "Nothing to do; the run still begins with a real step on its largest batch.",
    ),
    "SF407": Rule(
        "info",
        "weights are not here",
        "Rows, memory and time are planned; the model itself could not be tried.",
        "Add the weights to the folder to train it.",
    ),
}
