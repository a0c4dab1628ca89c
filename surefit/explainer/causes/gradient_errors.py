"""Gradients that are missing, computed twice, overwritten or not scalable."""

from __future__ import annotations

import re

from surefit.explainer.cause import Cause, Context, Message


def _why_no_gradient(context: Context) -> list[str]:
    text = context.text
    lines = []
    if "None of the inputs have requires_grad=True" in text:
        lines.append(
            "The text has the checkpointing warning: the inputs of the checkpointed layers do not "
            "require gradients. Call model.enable_input_require_grads()."
        )
    elif re.search(r"(?i)gradient[_ ]checkpointing|utils/checkpoint\.py", text):
        lines.append(
            "The text names gradient checkpointing. With frozen embeddings it needs "
            "model.enable_input_require_grads() or use_reentrant=False."
        )
    if re.search(r"(?i)\bpeft\b|lora", text):
        lines.append(
            "The text names LoRA. PeftModel.from_pretrained needs is_trainable=True, and "
            "print_trainable_parameters() must not print 0."
        )
    if re.search(r"no_grad|inference_mode", text):
        lines.append("The text names no_grad: the loss was computed inside it.")
    return lines


CAUSES = (
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
