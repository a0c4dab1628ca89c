"""Ids and labels out of range, of the wrong dtype, or missing altogether."""

from __future__ import annotations

import re

from surefit.explainer.cause import Cause, Context, Form

ZERO_LOSS = r"(?<!\w)(?:train_)?loss['\"]?\s*[:=]\s*'?0\.0+'?(?=[,}\s|]|$)"


def _index(context: Context) -> list[str]:
    text = context.text
    lines = []
    longer = re.search(r"sequence length is longer than .{0,80}\((\d+) > (\d+)\)", text)
    if longer is not None:
        lines.append(
            f"The text has the tokenizer's warning ({longer[1]} > {longer[2]}): the row is longer "
            f"than the model's {longer[2]} positions."
        )
    if re.search(r"position_embeddings|wpe\(|embed_positions", text):
        lines.append("The frames name position embeddings: a row is longer than the positions.")
    elif re.search(r"word_embeddings|embed_tokens|wte\(", text):
        lines.append(
            "The frames name the token embeddings: an id is ≥ the vocabulary (or negative)."
        )
    elif "token_type_embeddings" in text:
        lines.append("The frames name token types: an id there is ≥ type_vocab_size.")
    if re.search(r"add_special_tokens|add_tokens|\[PAD\]", text):
        lines.append("Tokens were added to the tokenizer: were the embeddings resized?")
    return lines


def _assertion(context: Context) -> list[str]:
    if re.search(
        r"srcIndex < srcSelectDimSize|vectorized_gather_kernel|index out of bounds", context.text
    ):
        return [
            "The assertion is of an index: a token id ≥ the vocabulary, or a position ≥ the "
            "model's positions."
        ]
    if re.search(r"t >= 0 && t < n_classes|cur_target >= 0", context.text):
        return [
            "The assertion is of the loss: a label is < 0 (and not -100) or ≥ the number of "
            "classes."
        ]
    if re.search(r"input_val >= zero && input_val <= one", context.text):
        return ["The assertion is of binary_cross_entropy: its input is not between 0 and 1."]
    if re.search(r"probability tensor contains|Indexing\.cu.*multinomial", context.text):
        return ["The assertion is of sampling: the logits are NaN or infinite."]
    return [
        "The text has no 'Assertion … failed' line; it stands above the traceback, and tells "
        "ids from labels."
    ]


def _classes(context: Context) -> list[str]:
    target = context.values.get("target")
    if target is None:
        return []
    if str(target) == "-1":
        return ["-1 is no class: it was meant to be ignored, and what is ignored is -100."]
    lines = [f"Label {target} needs at least {int(target) + 1} outputs."]
    if int(target) > 1000:
        lines.append(f"{target} looks like a token id: labels and token ids may be exchanged.")
    return lines


CAUSES = (
    Cause(
        "SF620",
        "an id beyond the embeddings",
        (Form(r"index out of range in self"),),
        "An embedding was asked for a row it does not have: a token id ≥ the vocabulary (another "
        "model's tokenizer, or added tokens), a row longer than the model's positions, or -100 "
        "among input_ids.",
        "Compare max(input_ids) with model.get_input_embeddings().num_embeddings and the longest "
        "row with config.max_position_embeddings. Then: the model's own tokenizer; "
        "model.resize_token_embeddings(len(tokenizer)) after adding tokens; truncation=True, "
        "max_length=….",
        "Every id and length is compared before the first step: SF302 and SF304 name the row.",
        ("Retrying on the GPU: there it is 'device-side assert triggered', which says less.",),
        _index,
    ),
    Cause(
        "SF621",
        "a label beyond the classes",
        (
            Form(r"Target (?P<target>-?\d+) is out of bounds"),
            Form(r"Class values must be smaller than num_classes"),
            Form(
                r"Assertion `cur_target >= 0 && cur_target < n_classes' failed",
                seen="xiaojunxu/SQLNet#41",
            ),
        ),
        "The model has fewer outputs than there are classes, or the labels do not count from 0 "
        "without gaps.",
        "num_labels = number of classes when loading the model; map labels to 0…n-1 "
        "(dataset.class_encode_column, or a dict). What is to be ignored is -100.",
        "Classes are counted and numbered from the training rows, and the head is made to fit.",
        ("ignore_index for the label in question: its rows would then teach nothing.",),
        _classes,
    ),
    Cause(
        "SF622",
        "an index or label out of range, on the GPU",
        (
            Form(r"CUDA error: device-side assert triggered", seen="huggingface/trl#2996"),
            Form(
                r"Assertion `(?P<assertion>[^`']*(?:srcIndex|n_classes|input_val|index)[^`']*)[`'] "
                r"failed",
                seen="modelscope/ms-swift#3267",
            ),
        ),
        "A kernel met an index outside its table: a token id ≥ the vocabulary, a row longer than "
        "the positions, or a label outside the classes. Kernels run later than they are called, "
        "so the traceback points at an innocent line.",
        "Run one batch on the CPU (model.cpu()): there the message is exact. Or set "
        "CUDA_LAUNCH_BLOCKING=1. Then compare ids with the vocabulary, labels with num_labels. "
        "The process must be restarted: after an assert the GPU answers every call with the same "
        "error.",
        "Ids, lengths and labels of every row are compared before the first step (SF302, SF303, "
        "SF304), with the row.",
        (
            "torch.cuda.empty_cache(), another driver or another GPU: the data is at fault.",
            "Catching the error and going on: the CUDA context is lost.",
        ),
        _assertion,
    ),
    Cause(
        "SF623",
        "labels of the wrong dtype",
        (
            Form(r"expected target dtype to be Long or Byte, but got (?P<found>\w+)"),
            Form(
                r"expected scalar type Long but found (?P<found>Float|Int|Double|Half)",
                seen="jfzhang95/pytorch-video-recognition#71",
            ),
            Form(
                r"Expected object of scalar type Long but got scalar type (?P<found>\w+) for "
                r"argument #\d+ '?target",
                seen="milesial/Pytorch-UNet#93",
            ),
            Form(
                r"\"?nll_loss\w*\"? not implemented for '(?P<found>Int|Float|Half)'",
                seen="ThilinaRajapakse/simpletransformers#1553",
            ),
            Form(
                r"Expected floating point type for target with class probabilities, got "
                r"(?P<found>\w+)"
            ),
            Form(r"result type Float can't be cast to the desired output type (?P<found>Long|Int)"),
        ),
        "cross_entropy takes class numbers as int64; mse_loss and BCEWithLogits take float32. "
        "transformers chooses between them by num_labels and problem_type, and by the dtype of the "
        "labels.",
        "Classes: labels.long(). One number per row (num_labels=1) or several labels per row "
        "(problem_type='multi_label_classification'): labels.float().",
        "Field dtypes follow the task, and labels are cast as they are encoded.",
    ),
    Cause(
        "SF624",
        "ids of a floating dtype",
        (
            Form(
                r"Expected tensor for argument #1 'indices' to have one of the following scalar "
                r"types: Long, Int; but got (?P<found>[\w.]+)"
            ),
        ),
        "Token ids became floating point: an empty list makes a float tensor, pandas turns ids "
        "with a missing value into floats, and a cast of the whole batch to half also casts the "
        "ids.",
        "input_ids = torch.tensor(ids, dtype=torch.long); cast the model, not the batch.",
        "Ids are int64 in every batch; empty rows are dropped and counted.",
        derive=lambda context: (
            ["An empty row is the usual source: torch.tensor([]) is float."]
            if "Float" in str(context.values["found"])
            else []
        ),
    ),
    Cause(
        "SF625",
        "probabilities where logits are wanted, or the reverse",
        (Form(r"all elements of (?P<which>input|target) should be between 0 and 1"),),
        "binary_cross_entropy takes probabilities and targets from 0 to 1; it was given logits, "
        "NaN, or class numbers above 1.",
        "Use binary_cross_entropy_with_logits on the raw scores, with float targets of 0 and 1.",
        "Tasks take logits; several labels per row become 0/1 rows.",
    ),
    Cause(
        "SF626",
        "every label is -100: there is nothing to learn",
        (
            Form(r"'loss': '?0\.0'?\b.{0,60}'grad_norm': '?nan", seen="chengtan9907/mc-cot#2"),
            Form(ZERO_LOSS, seen="huggingface/trl#6668"),
            Form(
                r"(?i)all labels (?:in your dataset )?(?:are|were|is) -100",
                seen="unslothai/unsloth#2095",
            ),
        ),
        "A loss of exactly 0.0 (or one that is NaN while 0.0 is logged) over labels that are all "
        "-100: the prompt was masked and the answer cut off, the response template was not found, "
        "or the chat template has no generation markers. Trainer's logging_nan_inf_filter shows "
        "the NaN as 0.0, and the run 'succeeds'.",
        "Count (batch['labels'] != -100).sum() for a few batches. Truncate the prompt rather than "
        "the answer, check the response template against the tokenised text, or use a chat "
        "template with {% generation %} markers.",
        "The ledger counts the trained tokens of every row; a batch with nothing to learn is an "
        "error before the first step.",
        (
            "Another learning rate or more epochs: there is no gradient to scale.",
            "logging_nan_inf_filter=False: it shows the NaN, and mends nothing.",
        ),
        only_if=lambda context: _all_losses_zero(context.text),
    ),
    Cause(
        "SF628",
        "the loss became NaN and is shown as 0.0",
        (Form(ZERO_LOSS, seen="tatsu-lab/stanford_alpaca#298"),),
        "The loss was a number, and is exactly 0.0 from one step on. That is no success: Trainer's "
        "logging_nan_inf_filter shows a NaN as 0.0. fp16 overflowed, the step was too large, or a "
        "batch came in which every label is -100.",
        "logging_nan_inf_filter=False shows it. bf16 instead of fp16, a lower learning rate, "
        "max_grad_norm=1.0; look at the batch of the first 0.0.",
        "A loss that is not finite stops the run and leaves the batch in failures/.",
        ("Going on from the last checkpoint if it was saved after the first 0.0: it holds NaN.",),
        only_if=lambda context: _falls_to_zero(context.text),
    ),
    Cause(
        "SF627",
        "the assistant's turns cannot be told from the prompt",
        (
            Form(
                r"chat template is not training-compatible \(missing prefix-preservation or "
                r"`\{% generation %\}` markers\)"
            ),
            Form(
                r"return_assistant_tokens_mask==True but chat template does not contain "
                r"`\{% generation %\}`",
                seen="huggingface/transformers#34172",
            ),
            Form(
                r"Could not find response key `?(?P<key>.{1,60}?)`? in the following instance",
                seen="huggingface/trl#1820",
            ),
        ),
        "The mask of what is to be learned comes from markers in the chat template, or from a "
        "response template in the text; here neither is found, so the whole row would be masked.",
        "Use a template with {% generation %} around the assistant's turns, or prompt/completion "
        "columns. A response template must be compared as tokens: its first token may merge with "
        "what stands before it.",
        "Answers are found by their position, not by a search for tokens.",
    ),
)


def _losses(text: str) -> list[float]:
    found = re.findall(r"(?<!\w)loss['\"]?\s*[:=]\s*'?(nan|\d[\d.]*(?:e-?\d+)?)", text)
    return [float(loss.rstrip(".")) for loss in found]


def _all_losses_zero(text: str) -> bool:
    losses = _losses(text)
    named = re.search(r"(?i)labels .{0,24}-100", text) is not None
    return named or (len(losses) > 0 and not any(loss > 0 for loss in losses))


def _falls_to_zero(text: str) -> bool:
    losses = _losses(text)
    return len(losses) >= 2 and losses[0] > 0 and losses[-1] == 0
