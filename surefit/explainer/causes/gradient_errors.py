"""Gradients: missing, taken twice, overwritten, or no longer numbers."""

from __future__ import annotations

import re

from surefit.explainer.cause import Cause, Context, Form


def _why_no_gradient(context: Context) -> list[str]:
    text = context.text
    lines = []
    if re.search(r"None of the inputs have requires_grad=True", text):
        lines.append(
            "The text has the checkpointing warning: the inputs of the checkpointed layers "
            "carry no gradient. Call model.enable_input_require_grads()."
        )
    elif re.search(r"(?i)gradient[_ ]checkpointing|utils/checkpoint\.py", text):
        lines.append(
            "Gradient checkpointing is named: with frozen embeddings it needs "
            "model.enable_input_require_grads() or use_reentrant=False."
        )
    if re.search(r"(?i)\bpeft\b|lora", text):
        lines.append(
            "LoRA is named: PeftModel.from_pretrained needs is_trainable=True, and "
            "print_trainable_parameters() must not say 0."
        )
    if re.search(r"no_grad|inference_mode", text):
        lines.append("The text names no_grad: the loss was computed inside it.")
    return lines


def _where_nan(context: Context) -> list[str]:
    text = context.text
    losses = re.findall(r"loss['\"]?\s*[:=]\s*'?(nan|inf|[\d.]+(?:e[-+]?\d+)?)", text)
    lines = []
    before = [loss for loss in losses if loss not in ("nan", "inf")]
    if losses and not before:
        lines.append(
            "No loss in the text is a number: it is NaN from the first step, so the data or "
            "the labels are at fault (all -100, NaN features), not the learning rate."
        )
    elif len(before) >= 2 and float(before[-1]) > 3 * float(before[0]) > 0:
        lines.append(
            f"The loss rose from {before[0]} to {before[-1]} before it was lost: it "
            "diverged; lower the learning rate or clip the gradients."
        )
    if re.search(r"(?i)fp16|float16|\bhalf\b", text):
        lines.append(
            "The text names fp16: its largest number is 65504; bf16 or fp32 does not "
            "overflow there."
        )
    return lines


CAUSES = (
    Cause(
        "SF630",
        "the loss depends on no trainable parameter",
        (Form(r"element \d+ of tensors does not require grad and does not have a grad_fn"),),
        "backward() found nothing to differentiate: all parameters are frozen, the loss was "
        "computed under no_grad or from detached values (.item(), argmax, numpy), or checkpointed "
        "layers got inputs without a gradient.",
        "Check sum(p.requires_grad for p in model.parameters()); compute the loss from the model's "
        "own outputs; with checkpointing and LoRA call model.enable_input_require_grads() or use "
        "gradient_checkpointing_kwargs={'use_reentrant': False}.",
        "A probe requires a loss with a gradient before the first step (SF305).",
        ("loss.requires_grad_(True): the error goes away, and nothing is trained.",),
        _why_no_gradient,
    ),
    Cause(
        "SF631",
        "the same graph is used for a second backward",
        (Form(r"Trying to backward through the graph a second time"),),
        "A graph is freed by its backward(). A tensor of an earlier step is still in use: a "
        "hidden state carried over, a loss added to a running sum, something computed once before "
        "the loop.",
        "Detach what is carried over (state = state.detach()), sum losses as loss.item(), compute "
        "inside the loop what depends on parameters.",
        "Losses are added up detached, and each micro-batch has a graph of its own.",
        (
            "retain_graph=True: the graph of all earlier steps stays in memory, which grows until "
            "it is full.",
        ),
    ),
    Cause(
        "SF632",
        "a tensor needed for the gradient was overwritten",
        (
            Form(
                r"one of the variables needed for gradient computation has been modified by an "
                r"inplace operation"
            ),
            Form(
                r"a (?:leaf Variable|view of a leaf Variable) that requires grad is being used in "
                r"an in-place operation"
            ),
        ),
        "backward() needs a value as it was in the forward, and an operation in place (+=, x[…] = "
        "…, relu_, or optimizer.step() between forward and backward) changed it.",
        "Write x = x + y instead of x += y; clone() before assigning to parts; call all backward() "
        "before optimizer.step(); change parameters only under torch.no_grad(). "
        "torch.autograd.set_detect_anomaly(True) names the operation.",
        "The loop steps the optimizer only after all micro-batches went backward.",
        ("retain_graph=True: the value is still overwritten.",),
    ),
    Cause(
        "SF633",
        "the optimizer was given something that is no parameter",
        (Form(r"can't optimize a non-leaf Tensor"),),
        "An optimizer changes leaves: tensors that were made, not computed. .to(device), .cuda() "
        "or an operation after requires_grad=True makes a new, computed tensor.",
        "Move first, then make it a parameter: nn.Parameter(torch.zeros(…, device=device)); give "
        "the optimizer model.parameters() after model.to(device).",
        "Parameters are collected from the module itself.",
    ),
    Cause(
        "SF634",
        "there is nothing to train",
        (Form(r"optimizer got an empty parameter list"),),
        "No parameter was handed over: all are frozen and filtered out, the layers are in a plain "
        "list instead of an nn.ModuleList, or a generator was used up by an earlier loop.",
        "Check [name for name, p in model.named_parameters() if p.requires_grad]; use "
        "nn.ModuleList; pass list(model.parameters()).",
        "A model without trainable parameters is an error of `surefit check`.",
    ),
    Cause(
        "SF635",
        "the loss is not one number",
        (Form(r"grad can be implicitly created only for scalar outputs"),),
        "backward() starts from a single number; this loss has one per row or per GPU "
        "(reduction='none', or nn.DataParallel, which returns one per device).",
        "loss.mean().backward(), or loss.sum() / number_of_targets.",
        "A loss is a sum and a count, and is divided once per step.",
    ),
    Cause(
        "SF636",
        "gradients of half-precision weights cannot be scaled",
        (
            Form(r"Attempting to unscale FP16 gradients"),
            Form(r"Attempted (?:step|unscale_) but _scale is None"),
        ),
        "Mixed precision keeps the weights in float32 and computes in half; here the weights "
        "themselves are float16 (from_pretrained(dtype=float16)), or the loss was never scaled.",
        "Load the trainable weights in float32 and let fp16=True do the rest, or use bf16. With "
        "LoRA: for p in model.parameters(): if p.requires_grad: p.data = p.data.float().",
        "Models are loaded in float32; precision is Accelerate's.",
        ("model.half() with fp16=True: that is what fails.",),
    ),
    Cause(
        "SF637",
        "the loss or the gradients are NaN or infinite",
        (
            Form(
                r"(?i)(?<!\w)(?:train_|eval_)?loss['\"]?\s*(?:[:=]|is|became)\s*'?(?P<value>nan|"
                r"inf)\b",
                seen="huggingface/transformers#9160",
            ),
            Form(
                r"(?i)grad[_ ]norm['\"]?\s*[:=]\s*'?(?P<value>nan|inf)\b",
                seen="bigscience-workshop/Megatron-DeepSpeed#396",
            ),
            Form(r"The total norm of order [\d.]+ for gradients from `parameters` is non-finite"),
            Form(r"Function '(?P<operation>\w+)' returned nan values in its \d+th output"),
            Form(r"probability tensor contains either `inf`, `nan` or element < 0"),
        ),
        "Somewhere a number overflowed or was divided by zero: a learning rate that is too high, "
        "fp16 beyond 65504, NaN or infinite values in the features, a log or square root of 0, or "
        "a mean over a batch in which every label is -100.",
        "Check the data first (torch.isfinite on features and labels); then bf16 or fp32 instead "
        "of fp16, a lower learning rate with warm-up, max_grad_norm=1.0. "
        "torch.autograd.set_detect_anomaly(True) names the operation.",
        "NaN features are findings with their row, batches with nothing to learn are errors, and a "
        "loss that is not finite stops the run and leaves the batch in failures/.",
        (
            "torch.nan_to_num on the loss: the weights are NaN already.",
            "Skipping the step and going on, if it happens in every step.",
        ),
        _where_nan,
    ),
    Cause(
        "SF638",
        "a tensor that still has a graph was to be copied",
        (
            Form(r"Can't call numpy\(\) on Tensor that requires grad"),
            Form(
                r"Only Tensors created explicitly by the user \(graph leaves\) support the "
                r"deepcopy protocol"
            ),
        ),
        "The tensor belongs to a computation whose gradient is still wanted; numpy() and deepcopy "
        "would lose it. Metrics collected with their graph also keep the memory of every step.",
        "tensor.detach().cpu().numpy(); copy models by state_dict, not with outputs stored on "
        "them.",
        "Metrics are sums on detached tensors.",
    ),
    Cause(
        "SF639",
        "checkpointed layers get inputs without a gradient",
        (
            Form(
                r"None of the inputs have requires_grad=True\. Gradients will be None",
                seen="huggingface/trl#2486",
            ),
        ),
        "Reentrant checkpointing passes gradients only through inputs that require one; with "
        "frozen embeddings (LoRA) the first layers then train nothing, in silence.",
        "model.enable_input_require_grads(), or "
        "gradient_checkpointing_kwargs={'use_reentrant': False}.",
        "",
        ("Filtering the warning: the adapters stay untrained.",),
        notice=True,
    ),
)
