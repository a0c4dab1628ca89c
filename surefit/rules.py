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
    "SF217": Rule(
        "error",
        "delimiter that no line has",
        "The whole line would be read as one cell, and learned as one text.",
        "Set read.delimiter to the one the file has, or leave it out.",
    ),
    "SF218": Rule(
        "info",
        "a sample of the rows was checked",
        "scan was given: rows, tokens and batches are those of the sample, and a fault in a row "
        "that was not drawn is not found.",
        "Leave scan out to have every row checked.",
    ),
    "SF219": Rule(
        "warning",
        "layers that are not part of the model",
        "A layer in a plain list or dict, or a tensor that is no Parameter, is neither trained nor "
        "moved to the device nor saved.",
        "Use nn.ModuleList, nn.ModuleDict or nn.Parameter.",
    ),
    "SF220": Rule(
        "warning",
        "outputs are probabilities",
        "The loss takes logits and applies the softmax itself; applied twice, it learns slowly and "
        "never gets sure.",
        "Return the scores from before the softmax.",
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
    # Dialogues and their templates
    "SF270": Rule(
        "warning",
        "answer or prompt missing",
        "There is nothing to learn from such a row, or nothing to learn it for; it is dropped.",
        "Fill in the named row, or leave it out of the data.",
    ),
    "SF271": Rule(
        "warning",
        "messages in a wrong order",
        "Templates take one system message, then user and assistant in turn, tools after an "
        "assistant; such a row is dropped.",
        "Put the messages of the named row in order.",
    ),
    "SF272": Rule(
        "warning",
        "message that cannot be read",
        "A message has a role that is known and content that is text; such a row is dropped.",
        "Repair the named message.",
    ),
    "SF273": Rule(
        "warning",
        "text of a row that is not UTF-8",
        "Wrongly decoded text trains the model on noise, so it is taken as missing.",
        "Write the named line as UTF-8.",
    ),
    "SF274": Rule(
        "error",
        "template that cannot be used",
        "It is no valid Jinja text, asks for what the sandbox forbids, or fails on a dialogue.",
        "Repair it, or choose another one with template.",
    ),
    "SF275": Rule(
        "error",
        "template that cannot be masked",
        "What is to be learned must be found in the template's text to the character.",
        "Let it write every answer as it is, or put generation marks around it.",
    ),
    "SF276": Rule(
        "warning",
        "row that the template refuses",
        "The template raises on it, as it would when the model is used; the row is dropped.",
        "Change the named row, or choose another template.",
    ),
    "SF277": Rule(
        "warning",
        "row whose answers are not found",
        "The template changes its answers, so what is to be learned is unknown; it is dropped.",
        "Change the named row, or choose another template.",
    ),
    "SF278": Rule(
        "info",
        "template",
        "It decides the text the model learns from, and is kept with the model.",
        "Set template to plain, chat or another one if it was meant otherwise.",
    ),
    "SF279": Rule(
        "warning",
        "overlong row dropped",
        "An answer without its end teaches the model never to stop, so it is not cut.",
        "Raise max_seq_length if the model allows it, or shorten the row.",
    ),
    "SF280": Rule(
        "warning",
        "template leaves a part of an answer out",
        "Some templates show the thoughts of the last answer only; the rest is learned.",
        "Make a row of each answer whose thoughts are to be learned.",
    ),
    "SF281": Rule(
        "info",
        "messages behind the last answer",
        "No answer follows them, so there is nothing to learn from them; they are left out.",
        "Nothing to do.",
    ),
    "SF282": Rule(
        "fixed",
        "eos put after answers",
        "Without an end that is learned, a model never stops.",
        "Nothing to do; a template that writes the tokenizer's eos needs no such help.",
    ),
    "SF283": Rule(
        "fixed",
        "system message joined to the first prompt",
        "The template takes no system message.",
        "Nothing to do.",
    ),
    "SF285": Rule(
        "info",
        "views alike",
        "A view that equals another view of its row says nothing new; the row only weighs more.",
        "Name more changes under augment.changes, or lower augmentation_factor.",
    ),
    "SF286": Rule(
        "error",
        "the augmenting function failed",
        "A view without a text cannot be trained on, and leaving it out would weigh rows unevenly.",
        "Let the function take (text, rng) and return the text, changed or not.",
    ),
    "SF287": Rule(
        "warning",
        "views left out",
        "Rows with fewer views than others weigh less in training.",
        "Raise max_seq_length, or let the augmenting function keep some text.",
    ),
    "SF288": Rule(
        "info",
        "your own code is run",
        "Code runs only where it is named; this is the file it comes from.",
        "Nothing to do.",
    ),
    "SF289": Rule(
        "warning",
        "nothing is augmented",
        "Changes were asked for, but every row has one view, the row itself.",
        "Give --augmentation-factor 2 or more.",
    ),
    "SF290": Rule(
        "error",
        "the scorer failed",
        "It was tried on an expected answer before training, and would fail at each evaluation.",
        "Let it take (expected, got) and return a number, or a dict of numbers by name.",
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
    "SF321": Rule(
        "error",
        "no layer for LoRA",
        "An adapter on a layer that is not there, or that cannot have one, would train nothing.",
        "Name layers of the model in lora.targets, or leave it out.",
    ),
    "SF322": Rule(
        "info",
        "adapters out of the loss's reach",
        "Some layers take no part in this task, such as a pooler nobody reads; adapters on them "
        "get no gradient.",
        "Nothing to do.",
    ),
    "SF323": Rule(
        "error",
        "the model already has other adapters",
        "Adapters on adapters could be neither merged nor loaded by peft.",
        "Pass the module without its adapters, or ask for the same rank.",
    ),
    "SF324": Rule(
        "info",
        "new tokens trained beside the adapters",
        "A frozen row of a token that the model never saw would stay random.",
        "Nothing to do.",
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
    "SF328": Rule(
        "error",
        "the loss reaches no adapter",
        "The adapters would get no gradient: the run would train nothing, or the head alone.",
        "Train the whole model (leave lora.r out), or name other layers in lora.targets.",
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
    # Feature sequences and their files
    "SF420": Rule(
        "fixed",
        "flat rows cut into steps",
        "Rows were saved as [steps * width]; a sequence model reads [steps, width].",
        "Overrule it with features.steps or features.width.",
    ),
    "SF421": Rule(
        "error",
        "flat rows with more than one reading",
        "Cut at the wrong places, every step would mix values of two; a guess would train on that.",
        "Say what they are: --set features.width=W, or --set features.steps=T.",
    ),
    "SF422": Rule(
        "fixed",
        "axes exchanged",
        "Rows were saved as [width, steps]; steps come first.",
        "Overrule it with features.width.",
    ),
    "SF423": Rule(
        "fixed",
        "stray axis dropped",
        "An axis of length 1 is left over from a batch or a picture; rows are [steps, width].",
        "Save the array without it to be rid of this note.",
    ),
    "SF424": Rule(
        "fixed",
        "ids read as one-hot steps",
        "Ids are names, not amounts: as numbers, id 8 would count as twice id 4.",
        "Give features.width to cut the rows into numbers instead.",
    ),
    "SF425": Rule(
        "info",
        "steps are distributions",
        "Each step sums to 1, as one-hot steps and probabilities do; such steps are left as they "
        "are, and feature-pretraining learns them by cross-entropy.",
        "",
    ),
    "SF426": Rule(
        "info",
        "rows of different lengths",
        "They are padded within their batch; the mask keeps padding out of model and loss.",
        "",
    ),
    "SF427": Rule(
        "fixed",
        "file brought to the shape of the others",
        "Rows of several files are read as one table, so their axes and types must agree.",
        "Save the files alike to be rid of this note.",
    ),
    "SF428": Rule(
        "error",
        "files that disagree in shape",
        "Rows of several files are read as one table; no exchange of axes makes these agree.",
        "Leave the file out, or save it with the width of the others.",
    ),
    "SF429": Rule(
        "info",
        "labels from the file beside",
        "The file of features has no labels of its own, and one beside it is named for them.",
        "Rename the file of labels if it does not belong to these rows.",
    ),
    "SF430": Rule(
        "warning",
        "file left out",
        "on_bad_file=skip was asked for, and the file cannot be read.",
        "Write the file anew.",
    ),
    "SF431": Rule(
        "error",
        "a batch does not fit in memory",
        "The rows of one batch alone take more than there is, before any model or gradient.",
        "Choose a smaller --batch-size, or cut rows with --max-seq-length.",
    ),
    "SF432": Rule(
        "fixed",
        "model config follows the data",
        "A fresh model is made for the width and the length of the rows it will read.",
        "",
    ),
    "SF433": Rule(
        "fixed",
        "projection put before a layer",
        "The module's first layer takes another width than the data has; a layer that is trained "
        "and saved with the module brings it there.",
        "Make the module for this width to be rid of the projection.",
    ),
    "SF434": Rule(
        "info",
        "parts of a run taken over",
        "Training goes on from what that run has learned.",
        "",
    ),
    "SF435": Rule(
        "error",
        "rows do not have the axes that were given",
        "features.steps and features.width name the axes of every row.",
        "Give the sizes the rows have, or leave the keys out.",
    ),
    "SF436": Rule(
        "error",
        "too many ids to be features",
        "Features are numbers; ids of a large vocabulary need an embedding.",
        "Use a task that reads tokens.",
    ),
    # Memory
    "SF450": Rule(
        "error",
        "a batch does not fit in the memory given",
        "The rows of a batch are in memory while it is made and while it is used.",
        "Take smaller batches, shorter rows, or more memory.",
    ),
    # How the work is done
    "SF500": Rule(
        "info",
        "head computed at every position",
        "Logits at positions without a label cost time and memory and are not used.",
        "Nothing to do; the results are the same.",
    ),
    "SF501": Rule(
        "info",
        "rows are padded",
        "Rows laid end to end need no padding, but only some models can keep them apart.",
        "Nothing to do; padding_free=off leaves the question out.",
    ),
    "SF502": Rule(
        "info",
        "nothing to compile",
        "compile=on compiles the layers that a model repeats, and this model repeats none.",
        "Nothing to do; the run is the same without it.",
    ),
    # Probes: small experiments on the model
    "SF700": Rule(
        "info",
        "outputs differ from call to call",
        "A model that draws random numbers in evaluation mode cannot be compared with itself.",
        "Draw them in training mode only (self.training), if they are not meant to be there.",
    ),
    "SF701": Rule(
        "warning",
        "padding changes the outputs",
        "What the model says of a row depends on how long the other rows of its batch are.",
        "Let forward take attention_mask, and leave padded positions out of sums and means.",
    ),
    "SF702": Rule(
        "warning",
        "rows of a batch influence each other",
        "What the model says of a row depends on the rows it happens to be batched with.",
        "Keep the batch axis apart: no sum, mean or normalisation over it.",
    ),
    "SF703": Rule(
        "error",
        "a label is seen by the position that predicts it",
        "Labels that are not shifted, or attention that is not causal, teach copying: the loss "
        "falls to nothing and the model can predict nothing.",
        "Compare the outputs at position t with the label at t + 1, and mask later tokens.",
    ),
    "SF704": Rule(
        "error",
        "labels are shifted twice",
        "The model learns to predict the token after the next one.",
        "Shift once: give labels equal to input_ids to a model that shifts them itself.",
    ),
    "SF705": Rule(
        "warning",
        "the loss is not a sum over rows",
        "Accumulated micro-batches then give another gradient than one batch, and the evaluation "
        "loss depends on the batch size.",
        "Return the sum over targets and their count, and let no row's loss depend on others.",
    ),
    "SF706": Rule(
        "error",
        "what is saved is not what was trained",
        "A part of the model is not in its saved weights, or comes back another.",
        "Register every part that learns as a submodule, parameter or persistent buffer.",
    ),
    "SF707": Rule(
        "warning",
        "one batch cannot be learned by heart",
        "A model that cannot fit a handful of rows will hardly learn from thousands.",
        "Check that the loss depends on the inputs, the rate, and which layers are frozen.",
    ),
    "SF708": Rule(
        "info",
        "a probe could not be run",
        "The model takes batches of the shape that is trained on, and not the one that was tried.",
        "Nothing to do; what the probe asks remains unknown.",
    ),
    "SF709": Rule(
        "info",
        "parameters without a gradient",
        "They stay as they are: the loss does not depend on them, as on the pooler of an encoder "
        "that is fed with features.",
        "Nothing to do, unless they were meant to learn; then let forward use them.",
    ),
    # Other people's runs
    "SF720": Rule(
        "error",
        "the data collator fails",
        "It pads only the columns it knows, or meets a row of another shape.",
        "Use surefit.Collator(tokenizer) as the data_collator: it pads every column by length.",
    ),
    "SF721": Rule(
        "warning",
        "rows with nothing to learn",
        "They cost time, and a batch of them alone has a loss of 0 or NaN.",
        "Leave them out, or keep the end of the answer when rows are cut.",
    ),
    "SF722": Rule(
        "warning",
        "the end is never learned",
        "Where pad is eos, a collator that masks by token id masks the true eos, too: the model "
        "never stops.",
        "Use surefit.Collator(tokenizer) as the data_collator: it masks by length.",
    ),
    "SF723": Rule(
        "warning",
        "columns dropped by the trainer",
        "What the model or the loss was to use of them is not there.",
        "Name them in forward, or set remove_unused_columns=False.",
    ),
    "SF724": Rule(
        "warning",
        "a row begins with bos twice",
        "A template wrote bos and the tokenizer added it again; the model never saw that.",
        "Tokenize with add_special_tokens=False what a template has written.",
    ),
    "SF725": Rule(
        "warning",
        "micro-batches weigh the same whatever they hold",
        "The mean of means is another loss: a short micro-batch counts as much as a long one.",
        "Let forward take num_items_in_batch, or use a loss that is a sum over a count.",
    ),
}
