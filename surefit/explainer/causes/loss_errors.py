"""Losses that are zero, NaN or without any labelled token; gradients that are missing or broken."""

from __future__ import annotations

import re
from math import isfinite

from surefit.explainer.cause import Cause, Context, Message
from surefit.explainer.message_values import read_decimal, remarks

LOSS_VALUE = re.compile(
    r"(?<!\w)loss['\"]?\s{0,4}[:=]\s{0,4}'?(nan|inf|\d[\d.e+-]{0,30})", re.IGNORECASE
)
ZERO_LOSS = r"(?<!\w)(?<!packet )(?:train_)?loss['\"]? ?[:=] ?'?0\.0+'?(?=[,}\s|]|$)"


def losses_in(text: str) -> tuple[float, ...]:
    """Return the losses that a log shows, in order; what is not a number is left out.

    >>> losses_in("{'loss': 1.5}\\nstep 2 loss: nan\\nloss: 1.2.3")
    (1.5, nan)
    """
    found = (read_decimal(loss.rstrip(".")) for loss in LOSS_VALUE.findall(text))
    return tuple(loss for loss in found if loss is not None)


def _all_zero(context: Context) -> bool:
    if re.search(r"(?i)labels .{0,24}-100", context.text):
        return True
    losses = losses_in(context.text)
    return len(losses) > 0 and not any(loss > 0 for loss in losses)


def _falls_to_zero(context: Context) -> bool:
    losses = losses_in(context.text)
    return len(losses) >= 2 and losses[0] > 0 and losses[-1] == 0


def _when_not_finite(context: Context) -> list[str]:
    losses = losses_in(context.text)
    finite = [loss for loss in losses if isfinite(loss)]
    lines = []
    if losses and not finite:
        lines.append(
            "No loss in the text is finite: the loss was NaN or infinite from the first step. The "
            "data or the labels are the cause (all labels -100, NaN features), not the learning "
            "rate."
        )
    elif len(finite) >= 2 and finite[-1] > 3 * finite[0] > 0:
        lines.append(
            f"The loss rose from {finite[0]:g} to {finite[-1]:g} first: the training diverged. "
            "Lower the learning rate or clip the gradients."
        )
    if re.search(r"(?i)fp16|float16|\bhalf\b", context.text):
        lines.append("The text names fp16, which overflows above 65504. bf16 and fp32 do not.")
    return lines


CAUSES = (
    Cause(
        "SF626",
        "every label is -100: there are no labelled tokens",
        messages=(
            Message(r"'loss': '?0\.0'?\b.{0,60}'grad_norm': '?nan", seen="chengtan9907/mc-cot#2"),
            Message(ZERO_LOSS, seen="huggingface/trl#6668"),
            Message(
                r"(?i)all labels (?:in your dataset )?(?:are|were|is) -100",
                seen="unslothai/unsloth#2095",
            ),
        ),
        why="The loss is exactly 0.0, or NaN that is logged as 0.0, because the batches have no "
        "labelled tokens. The prompt was masked and the answer truncated, the response template "
        "was not found, or the chat template has no generation markers. Trainer's "
        "logging_nan_inf_filter logs NaN as 0.0, so the run seems to succeed.",
        fix="Count (batch['labels'] != -100).sum() for a few batches. Truncate the prompt instead "
        "of the answer, compare the response template with the tokenised text, or use a chat "
        "template with {% generation %} markers.",
        in_surefit="The ledger counts the labelled tokens of every row. A batch without labelled "
        "tokens is an error before the first step.",
        does_not_help=(
            "Another learning rate or more epochs: there is no gradient to scale.",
            "logging_nan_inf_filter=False: it shows the NaN but does not remove its cause.",
        ),
        only_if=_all_zero,
    ),
    Cause(
        "SF627",
        "the assistant turns cannot be separated from the prompt",
        messages=(
            Message(
                r"chat template is not training-compatible \(missing prefix-preservation or "
                r"`\{% generation %\}` markers\)"
            ),
            Message(
                r"return_assistant_tokens_mask==True but chat template does not contain "
                r"`\{% generation %\}`",
                seen="huggingface/transformers#34172",
            ),
            Message(
                r"Could not find response key `?(?P<key>.{1,60}?)`? in the following instance",
                seen="huggingface/trl#1820",
            ),
        ),
        why="The loss mask comes from markers in the chat template, or from a response template "
        "that is searched in the tokens. Neither was found, so the whole row would be masked.",
        fix="Use a chat template with {% generation %} around the assistant turns, or prompt and "
        "completion columns. Compare a response template as tokens: its first token may merge with "
        "the text before it.",
        in_surefit="surefit finds answers by their position and does not search for tokens.",
    ),
    Cause(
        "SF628",
        "the loss became NaN and is logged as 0.0",
        messages=(Message(ZERO_LOSS, seen="tatsu-lab/stanford_alpaca#298"),),
        why="The loss was finite and is exactly 0.0 from one step on. That is not a perfect model: "
        "Trainer's logging_nan_inf_filter logs NaN as 0.0. fp16 overflowed, the learning rate was "
        "too high, or every label of a batch was -100.",
        fix="Set logging_nan_inf_filter=False to see the NaN. Use bf16 instead of fp16, a lower "
        "learning rate and max_grad_norm=1.0. Look at the batch of the first 0.0.",
        in_surefit="A loss that is not finite stops the run, and the batch is saved in failures/.",
        does_not_help=(
            "Resuming from a checkpoint saved after the first 0.0: its weights are NaN.",
        ),
        only_if=_falls_to_zero,
    ),
    Cause(
        "SF637",
        "the loss or the gradients are NaN or infinite",
        messages=(
            Message(
                r"(?i)(?<!\w)(?<!packet )(?:train_|eval_)?loss['\"]? ?(?:[:=]|is|became) ?"
                r"'?(?P<value>nan|inf)\b",
                seen="huggingface/transformers#9160",
            ),
            Message(
                r"(?i)grad[_ ]norm['\"]? ?[:=] ?'?(?P<value>nan|inf)\b",
                seen="bigscience-workshop/Megatron-DeepSpeed#396",
            ),
            Message(
                r"The total norm of order [\d.]{1,20} for gradients from `parameters` is non-finite"
            ),
            Message(r"Function '(?P<operation>\w{1,60})' returned nan values in its \d+th output"),
            Message(r"probability tensor contains either `inf`, `nan` or element < 0"),
        ),
        why="A value overflowed or was divided by zero. Common causes: a learning rate that is too "
        "high, fp16 above 65504, NaN or infinite features, log(0) or the gradient of sqrt(0), or a "
        "mean over a batch in which every label is -100.",
        fix="Check the data first: torch.isfinite on features and labels. Then use bf16 or fp32 "
        "instead of fp16, a lower learning rate with warm-up, and max_grad_norm=1.0. "
        "torch.autograd.set_detect_anomaly(True) names the operation.",
        in_surefit="surefit reports NaN features with their row and refuses batches without "
        "labelled tokens. A loss that is not finite stops the run, and the batch is saved in "
        "failures/.",
        does_not_help=(
            "torch.nan_to_num on the loss: the weights are NaN already.",
            "Skipping the step, if every step is NaN.",
        ),
        derive=_when_not_finite,
    ),
)


CHECKPOINTING = {
    "None of the inputs have requires_grad=True": (
        "The text has the checkpointing warning: the inputs of the checkpointed layers do not "
        "require gradients. Call model.enable_input_require_grads()."
    ),
    r"(?i)gradient[_ ]checkpointing|utils/checkpoint\.py": (
        "The text names gradient checkpointing. With frozen embeddings it needs "
        "model.enable_input_require_grads() or use_reentrant=False."
    ),
}
WITHOUT_GRADIENT = {
    r"(?i)\bpeft\b|lora": (
        "The text names LoRA. PeftModel.from_pretrained needs is_trainable=True, and "
        "print_trainable_parameters() must not print 0."
    ),
    "no_grad|inference_mode": "The text names no_grad: the loss was computed inside it.",
}


def _why_no_gradient(context: Context) -> list[str]:
    checkpointing = remarks(context.text, CHECKPOINTING, 1)
    return checkpointing + remarks(context.text, WITHOUT_GRADIENT)


GRADIENTS = (
    Cause(
        "SF630",
        "the loss does not depend on a trainable parameter",
        messages=(
            Message(r"element \d+ of tensors does not require grad and does not have a grad_fn"),
        ),
        why="backward() found nothing to differentiate. All parameters are frozen, the loss was "
        "computed under no_grad or from detached values (.item(), argmax, numpy), or the inputs of "
        "checkpointed layers do not require gradients.",
        fix="Check sum(p.requires_grad for p in model.parameters()). Compute the loss from the "
        "model's outputs. With gradient checkpointing and LoRA, call "
        "model.enable_input_require_grads() or set gradient_checkpointing_kwargs={'use_reentrant': "
        "False}.",
        in_surefit="A probe requires a loss with a gradient before the first step (SF305).",
        does_not_help=(
            "loss.requires_grad_(True): the error disappears, but no parameter is trained.",
        ),
        derive=_why_no_gradient,
    ),
    Cause(
        "SF631",
        "backward() runs through the same graph twice",
        messages=(Message(r"Trying to backward through the graph a second time"),),
        why="backward() frees the graph. A tensor of an earlier step is still in use: a hidden "
        "state that is carried over, a running sum of losses, or a value computed once before the "
        "loop.",
        fix="Detach what is carried over (state = state.detach()), sum losses with loss.item(), "
        "and compute inside the loop what depends on parameters.",
        in_surefit="surefit sums detached losses, and every micro-batch has its own graph.",
        does_not_help=(
            "retain_graph=True: the graphs of all earlier steps stay in memory until it is full.",
        ),
    ),
    Cause(
        "SF632",
        "a tensor that backward() needs was overwritten",
        messages=(
            Message(
                r"one of the variables needed for gradient computation has been modified by an "
                r"inplace operation"
            ),
            Message(
                r"a (?:view of a )?leaf Variable that requires grad is being used in an in-place "
                r"operation"
            ),
        ),
        why="backward() needs the values of the forward pass. An in-place operation changed one of "
        "them: +=, x[…] = …, relu_, or optimizer.step() between forward and backward.",
        fix="Write x = x + y instead of x += y, and call clone() before assigning to a part. Call "
        "every backward() before optimizer.step(). Change parameters only under torch.no_grad(). "
        "torch.autograd.set_detect_anomaly(True) names the operation.",
        in_surefit="surefit steps the optimizer after the backward passes of all micro-batches.",
        does_not_help=("retain_graph=True: the value is still overwritten.",),
    ),
    Cause(
        "SF633",
        "the optimizer received a tensor that is not a parameter",
        messages=(Message(r"can't optimize a non-leaf Tensor"),),
        why="An optimizer updates leaf tensors, which no operation computed. .to(device), .cuda() "
        "or another operation after requires_grad=True returns a new tensor that is not a leaf.",
        fix="Move first, then create the parameter: nn.Parameter(torch.zeros(…, device=device)). "
        "Pass model.parameters() to the optimizer after model.to(device).",
        in_surefit="surefit takes the parameters from the module.",
    ),
    Cause(
        "SF634",
        "there is no parameter to train",
        messages=(Message(r"optimizer got an empty parameter list"),),
        why="The optimizer received no parameters. All of them are frozen and filtered out, the "
        "layers are in a plain list instead of nn.ModuleList, or an earlier loop consumed the "
        "generator.",
        fix="Check [name for name, p in model.named_parameters() if p.requires_grad]. Use "
        "nn.ModuleList, and pass list(model.parameters()).",
        in_surefit="`surefit check` refuses a model without trainable parameters.",
    ),
    Cause(
        "SF635",
        "the loss is not a single number",
        messages=(Message(r"grad can be implicitly created only for scalar outputs"),),
        why="backward() starts from a single number. This loss has one value per row "
        "(reduction='none') or one per GPU (nn.DataParallel).",
        fix="Call loss.mean().backward(), or divide loss.sum() by the number of labels.",
        in_surefit="A loss of surefit is a sum and a count, and is divided once per step.",
    ),
    Cause(
        "SF636",
        "gradients of half-precision weights cannot be unscaled",
        messages=(
            Message(r"Attempting to unscale FP16 gradients"),
            Message(r"Attempted (?:step|unscale_) but _scale is None"),
        ),
        why="Mixed precision keeps float32 weights and computes in half precision. Here the "
        "weights are float16 (from_pretrained(dtype=float16)), or the loss was never scaled.",
        fix="Load trainable weights in float32 and set fp16=True, or use bf16. With LoRA: for p in "
        "model.parameters(): if p.requires_grad: p.data = p.data.float().",
        in_surefit="surefit loads models in float32, and Accelerate applies the precision.",
        does_not_help=("model.half() together with fp16=True: that combination fails.",),
    ),
    Cause(
        "SF638",
        "a tensor with a graph cannot be copied",
        messages=(
            Message(r"Can't call numpy\(\) on Tensor that requires grad"),
            Message(
                r"Only Tensors created explicitly by the user \(graph leaves\) support the "
                r"deepcopy protocol"
            ),
        ),
        why="The tensor is part of a graph, which numpy() and deepcopy would lose. Metrics that "
        "keep their graph also keep the memory of every step.",
        fix="Use tensor.detach().cpu().numpy(). Copy a model by its state_dict, and do not store "
        "outputs on the model.",
        in_surefit="surefit computes metrics as sums of detached tensors.",
    ),
    Cause(
        "SF639",
        "the inputs of checkpointed layers do not require gradients",
        messages=(
            Message(
                r"None of the inputs have requires_grad=True\. Gradients will be None",
                seen="huggingface/trl#2486",
            ),
        ),
        why="Reentrant gradient checkpointing passes gradients only through inputs that require "
        "them. With frozen embeddings (LoRA), the first layers are not trained, without an error.",
        fix="Call model.enable_input_require_grads(), or set "
        "gradient_checkpointing_kwargs={'use_reentrant': False}.",
        does_not_help=("Filtering the warning: the adapters stay untrained.",),
        is_warning=True,
    ),
)
