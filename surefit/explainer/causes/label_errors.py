"""Ids and labels: out of range, of the wrong dtype, or on the wrong scale."""

from __future__ import annotations

import re

from surefit.explainer.cause import Cause, Context, Message
from surefit.explainer.message_values import SPELLED, read_dtype, remarks

MATRIX_PRODUCT = re.compile(r"\b(?:mm|bmm|addmm|baddbmm|matmul|einsum)\b| @ ")
LOSS_FUNCTION = re.compile(r"cross_entropy|mse_loss|l1_loss|huber_loss|BCE\w{0,20}Loss|MSELoss")


EMBEDDINGS = {
    r"position_embeddings|wpe\(|embed_positions": (
        "The traceback names position embeddings: a row is longer than the model's maximum."
    ),
    r"word_embeddings|embed_tokens|wte\(": (
        "The traceback names token embeddings: an id is ≥ the vocabulary size, or negative."
    ),
    "token_type_embeddings": (
        "The traceback names token type embeddings: an id is ≥ type_vocab_size."
    ),
}
ADDED_TOKENS = {
    r"add_special_tokens|add_tokens|\[PAD\]": (
        "The text adds tokens to the tokenizer. Call model.resize_token_embeddings afterwards."
    )
}
ASSERTIONS = {
    r"srcIndex < srcSelectDimSize|vectorized_gather_kernel|index out of bounds": (
        "The failed assertion checks an index: a token id is ≥ the vocabulary size, or a position "
        "is ≥ the model's maximum."
    ),
    r"t >= 0 && t < n_classes|cur_target >= 0": (
        "The failed assertion checks a label: it is negative (and not -100), or ≥ the number of "
        "classes."
    ),
    r"input_val >= zero && input_val <= one": (
        "The failed assertion is in binary_cross_entropy: an input is not between 0 and 1."
    ),
    r"probability tensor contains|Indexing\.cu.{0,200}multinomial": (
        "The failed assertion is in sampling: the logits are NaN or infinite."
    ),
    "": (
        "The text has no 'Assertion … failed' line. It is printed above the traceback and shows "
        "whether an id or a label is out of range."
    ),
}


def _index(context: Context) -> list[str]:
    text = context.text
    lines = []
    longer = re.search(r"sequence length is longer than .{0,80}\((\d{1,9}) > (\d{1,9})\)", text)
    if longer is not None:
        lines.append(
            f"The text has the tokenizer's warning ({longer[1]} > {longer[2]}): the row has "
            f"{longer[1]} tokens, the model has {longer[2]} positions."
        )
    return [*lines, *remarks(text, EMBEDDINGS, 1), *remarks(text, ADDED_TOKENS)]


def _outside_classes(context: Context) -> list[str]:
    label = context.number("label")
    if label is None:
        return []
    if label < 0:
        return [f"{label} is not a class. cross_entropy ignores only labels of -100."]
    lines = [f"The label {label} needs at least {label + 1} outputs."]
    if label > 1000:
        lines.append(f"{label} looks like a token id. Labels and token ids may be swapped.")
    return lines


def _is_label_dtype(context: Context) -> bool:
    """Return whether a message about int64 is about labels; matrix products word it alike."""
    if context.word("cast"):
        return LOSS_FUNCTION.search(context.text) is not None
    return not context.word("indices") or MATRIX_PRODUCT.search(context.text) is None


def _label_dtype(context: Context) -> list[str]:
    probabilities = read_dtype(context.word("probabilities"))
    if probabilities is not None:
        return [
            f"The labels are {probabilities.name} and have the shape of the logits, so "
            "cross_entropy reads them as class probabilities. Use labels.float() for one-hot "
            "labels, labels.argmax(-1) for class indices."
        ]
    target = read_dtype(context.word("cast"))
    if target is not None:
        return [
            f"The labels are {target.name} ({target.kind}), but this loss needs floating point. "
            "Use labels.float()."
        ]
    found = read_dtype(context.word("found") or context.word("indices"))
    if found is None:
        return []
    lines = [f"The labels are {found.name} ({found.kind}), but class indices must be torch.int64."]
    if found.kind == "floating-point":
        lines.append(
            "If the labels are numbers to predict, this is a regression: use num_labels=1 and "
            "mse_loss instead of cross_entropy."
        )
    return lines


def _id_dtype(context: Context) -> list[str]:
    found = read_dtype(context.word("found"))
    if found is None:
        return []
    lines = [f"The ids are {found.name} ({found.kind})."]
    if found.name == "torch.float32":
        lines.append("The usual source is an empty row: torch.tensor([]) has dtype float32.")
    if found.is_half:
        lines.append("The usual source is a cast of the whole batch to half precision.")
    return lines


CAUSES = (
    Cause(
        "SF620",
        "an id is outside the embedding table",
        messages=(Message(r"index out of range in self"),),
        why="An embedding has no row for this index. Common causes: a token id ≥ the vocabulary "
        "size (another model's tokenizer, or added tokens), a row longer than the model's maximum "
        "number of positions, or -100 in input_ids.",
        fix="Compare max(input_ids) with model.get_input_embeddings().num_embeddings, and the "
        "longest row with config.max_position_embeddings. Then use the model's own tokenizer, call "
        "model.resize_token_embeddings(len(tokenizer)) after adding tokens, or tokenise with "
        "truncation=True and max_length=….",
        in_surefit="surefit compares every id and every length before the first step. SF302 and "
        "SF304 name the row.",
        does_not_help=(
            "Running on the GPU: the message is 'device-side assert triggered' there, which says "
            "less.",
        ),
        derive=_index,
    ),
    Cause(
        "SF621",
        "a label is outside the classes",
        messages=(
            Message(r"Target (?P<label>-?\d+) is out of bounds", needs_library=True),
            Message(r"Class values must be smaller than num_classes"),
            Message(
                r"Assertion `cur_target >= 0 && cur_target < n_classes' failed",
                seen="xiaojunxu/SQLNet#41",
            ),
        ),
        why="The model has fewer outputs than the data has classes, or the labels are not numbered "
        "from 0 without gaps.",
        fix="Load the model with num_labels=<number of classes>. Map the labels to 0…n-1, with "
        "dataset.class_encode_column or a dict. Use -100 for labels that the loss should ignore.",
        in_surefit="surefit numbers the classes from the training rows and sizes the head to "
        "match.",
        does_not_help=("ignore_index=<this label>: its rows would no longer train the model.",),
        derive=_outside_classes,
    ),
    Cause(
        "SF622",
        "an id or a label is out of range on the GPU",
        messages=(
            Message(r"CUDA error: device-side assert triggered", seen="huggingface/trl#2996"),
            Message(
                r"thread: \[[\d,]{1,30}\] Assertion `(?P<assertion>[^`']{1,120})[`'] failed",
                seen="modelscope/ms-swift#3267",
            ),
        ),
        why="A CUDA kernel met an index outside its table: a token id ≥ the vocabulary size, a row "
        "longer than the model's maximum number of positions, or a label outside the classes. CUDA "
        "runs asynchronously, so the traceback often points at an unrelated line.",
        fix="Run one batch on the CPU (model.cpu()): the message is exact there. Or set "
        "CUDA_LAUNCH_BLOCKING=1. Then compare ids with the vocabulary size and labels with "
        "num_labels. Restart the process: after an assertion, every CUDA call raises this error.",
        in_surefit="surefit compares ids, lengths and labels of every row before the first step. "
        "SF302, SF303 and SF304 name the row.",
        does_not_help=(
            "torch.cuda.empty_cache(), another driver or another GPU: the fault is in the data.",
            "Catching the error and continuing: the CUDA context is lost.",
        ),
        derive=lambda context: remarks(context.text, ASSERTIONS, 1),
    ),
    Cause(
        "SF623",
        "the labels have the wrong dtype",
        messages=(
            Message(rf"expected target dtype to be Long or Byte, but got (?P<found>{SPELLED})"),
            Message(
                rf"expected scalar type Long but found (?P<indices>{SPELLED})",
                seen="jfzhang95/pytorch-video-recognition#71",
            ),
            Message(
                rf"Expected object of scalar type Long but got scalar type (?P<found>{SPELLED}) "
                r"for argument #\d+ '?target",
                seen="milesial/Pytorch-UNet#93",
            ),
            Message(
                rf"nll_loss\w{{0,60}}_index\" not implemented for '(?P<found>{SPELLED})'",
                seen="ThilinaRajapakse/simpletransformers#1553",
            ),
            Message(
                r"Expected floating point type for target with class probabilities, got "
                rf"(?P<probabilities>{SPELLED})"
            ),
            Message(
                r"result type \w{1,20} can't be cast to the desired output type "
                r"(?P<cast>Long|Int|Short|Char|Byte)"
            ),
            Message(
                r"Subtraction, the `-` operator, with (?:a|two) (?P<cast>bool) tensors? is not "
                r"supported"
            ),
        ),
        why="cross_entropy accepts class indices as int64, or class probabilities as floating "
        "point. mse_loss and BCEWithLogitsLoss accept floating-point labels. transformers chooses "
        "the loss by num_labels, problem_type and the dtype of the labels.",
        fix="One class per row or token: labels.long(). One number per row (num_labels=1) or "
        "several labels per row (problem_type='multi_label_classification'): labels.float().",
        in_surefit="The task sets the dtype of every field, and surefit casts labels when it "
        "encodes a row.",
        derive=_label_dtype,
        only_if=_is_label_dtype,
    ),
    Cause(
        "SF624",
        "ids or indices have the wrong dtype",
        messages=(
            Message(
                r"Expected tensor for argument #1 'indices' to have one of the following scalar "
                rf"types: Long, Int; but got (?P<found>{SPELLED})"
            ),
            Message(r"one_hot is only applicable to index tensor of type LongTensor"),
            Message(r"\(\): Expected dtype int(?:32(?:/| or )int)?64 for index"),
            Message(r"tensors used as indices must be long, int, byte or bool tensors"),
        ),
        why="Embeddings, gather and indexing accept integers only, and one_hot accepts int64 only. "
        "Token ids become floating point in three usual ways: an empty list makes a float tensor, "
        "pandas turns ids with a missing value into floats, and a cast of the whole batch to half "
        "precision casts the ids, too.",
        fix="Create ids with torch.tensor(ids, dtype=torch.long). Cast the model, not the batch.",
        in_surefit="Ids are int64 in every batch. surefit drops empty rows and counts them.",
        derive=_id_dtype,
    ),
    Cause(
        "SF625",
        "binary_cross_entropy received values outside 0 to 1",
        messages=(Message(r"all elements of (?P<which>input|target) should be between 0 and 1"),),
        why="binary_cross_entropy accepts probabilities and labels from 0 to 1. It received "
        "logits, NaN, or class indices above 1.",
        fix="Use binary_cross_entropy_with_logits on the logits, with float labels of 0 and 1.",
        in_surefit="Losses of surefit take logits. Several labels per row become vectors of 0 and "
        "1.",
    ),
)
