"""Shapes that do not fit: widths, lengths, axes and channels."""

from __future__ import annotations

from surefit.explainer.cause import Cause, Context, Form
from surefit.explainer.matmul_sizes import product_findings


def _two_sizes(context: Context) -> list[str]:
    a, b = context.number("a"), context.number("b")
    low, high = sorted((a, b))
    if "position" in context.text or "attention" in context.text.lower() or high in LIMITS:
        return (
            [
                f"{low} and {high}: if {low} is the model's max_position_embeddings, the rows are "
                "longer than the model has positions."
            ]
            if low in LIMITS
            else []
        )
    if high - low == 1:
        return [
            f"{a} and {b} differ by one: one side was shifted (labels, bos, cls) or truncated "
            "by a token, the other was not."
        ]
    return []


LIMITS = (77, 128, 256, 512, 514, 1024, 2048, 4096, 8192)


def _batch_sizes(context: Context) -> list[str]:
    inputs, targets = context.number("inputs"), context.number("targets")
    if targets > inputs and targets % inputs == 0:
        return [
            f"{targets} = {inputs} × {targets // inputs}: each of {inputs} rows has "
            f"{targets // inputs} labels, but the model gives one vector per row. The labels are "
            "per token (or one-hot), the head is per row."
        ]
    if inputs > targets and inputs % targets == 0:
        return [
            f"{inputs} = {targets} × {inputs // targets}: the model gives {inputs // targets} "
            f"vectors per row, but there is one label per row. Pool the steps, or take the last."
        ]
    return [
        f"{inputs} scored positions, {targets} targets: labels and inputs were padded, cut or "
        "shifted to different lengths."
    ]


CAUSES = (
    Cause(
        "SF610",
        "the data has another width than the layer",
        (
            Form(
                r"mat1 and mat2 shapes cannot be multiplied"
                r"(?: \((?P<m>\d+)x(?P<k>\d+) and (?P<n>\d+)x(?P<p>\d+)\))?"
            ),
            Form(
                r"size mismatch, m1: \[(?P<m>\d+) x (?P<k>\d+)\], m2: \[(?P<n>\d+) x (?P<p>\d+)\]",
                seen="bamos/densenet.pytorch#19",
            ),
        ),
        "The last axis of the input is not as wide as the layer's weight. The two numbers on the "
        "right are the layer (in, out); of the two on the left the second is the width it was "
        "given, the first all other axes multiplied.",
        "Print input.shape before the layer. Build the layer from the data "
        "(nn.Linear(batch.shape[-1], hidden)), or bring the data to the configured width; a "
        "fixed layer that is rebuilt must also be in the optimizer and in the checkpoint.",
        "surefit.AdaptiveProjection.for_data(sample, hidden_size) takes its width from the data "
        "and is saved with the model; `surefit check` finds the mismatch (SF305) before the first "
        "step.",
        (
            "reshape or view to the expected width without knowing the axes: it mixes rows.",
            "A smaller batch size: it changes the first number, not the width.",
        ),
        lambda context: product_findings(context) if "m" in context.values else [],
    ),
    Cause(
        "SF611",
        "a tensor has too few or too many axes",
        (
            Form(
                r"Expected (?P<expected>\d)-?D tensor,? (?:but )?got (?P<found>\d)-?D",
                seen="seed 003",
            ),
            Form(
                r"[Ee]xpected (?P<expected>\d)D(?: or (?P<also>\d)D)? input \(got (?P<found>\d)D "
                r"input\)"
            ),
            Form(
                r"Expected (?P<expected>\d)D \(unbatched\) or (?P<also>\d)D \(batched\) input to "
                r"(?P<layer>\w+), but got input of size: \[(?P<size>[\d, ]+)\]"
            ),
            Form(r"Expected input to be (?P<expected>\d)D or (?P<also>\d)D, got (?P<found>\d)D"),
            Form(
                r"Expected (?P<expected>\d)-dimensional input for (?P=expected)-dimensional weight "
                r"\[(?P<weight>[\d, ]+)\], but got (?P<found>\d)-dimensional input",
                seen="shaofengzeng/SuperPoint-Pytorch#2",
            ),
        ),
        "The layer counts axes: batch, steps or channels, width. One is missing (a single row "
        "without its batch axis, features without their steps) or one is too many.",
        "Print the shape. A missing batch axis: x.unsqueeze(0); a missing channel axis: "
        "x.unsqueeze(1); steps and width in one axis: x.view(batch, steps, width), only if their "
        "product is that axis.",
        "Feature rows are [steps, width], and the axes are checked row by row before the first "
        "step.",
        ("squeeze() without an axis: it also drops a batch of one.",),
    ),
    Cause(
        "SF612",
        "two tensors of different lengths are combined",
        (
            Form(
                r"The size of tensor a \((?P<a>\d+)\) must match the size of tensor b "
                r"\((?P<b>\d+)\) at non-singleton dimension (?P<axis>\d+)"
            ),
            Form(
                r"Sizes of tensors must match except in dimension (?P<axis>\d+)\. Expected size "
                r"(?P<a>\d+) but got size (?P<b>\d+)"
            ),
            Form(
                r"The expanded size of the tensor \((?P<a>\d+)\) must match the existing size "
                r"\((?P<b>\d+)\) at non-singleton dimension (?P<axis>\d+)"
            ),
            Form(r"Tensors must have same number of dimensions: got (?P<a>\d+) and (?P<b>\d+)"),
        ),
        "Two tensors meet whose sizes differ on an axis that must be equal: a row longer than the "
        "model's positions, a mask of another length than its inputs, or batches of unequal "
        "padding being concatenated (in an evaluation, too).",
        "Truncate to model.config.max_position_embeddings (tokenizer(…, truncation=True, "
        "max_length=…)); make the attention mask together with the ids; pad before torch.cat "
        "(Trainer: pad_across_processes or a fixed length for evaluation).",
        "Rows longer than the model's positions are cut or dropped as `overlong` says, and "
        "counted; masks are made from the lengths.",
        derive=_two_sizes,
    ),
    Cause(
        "SF613",
        "logits and labels do not belong together",
        (
            Form(
                r"Expected input batch_size \((?P<inputs>\d+)\) to match target batch_size "
                r"\((?P<targets>\d+)\)"
            ),
        ),
        "cross_entropy wants one target per row of scores, and the counts differ: per-token labels "
        "for a per-row head or the reverse, or inputs and labels of different lengths.",
        "Take the head that fits the labels (AutoModelForTokenClassification for labels per "
        "token, AutoModelForSequenceClassification for one per row); pad labels to the length of "
        "input_ids with -100.",
        "The task is chosen from the columns, and a probe compares logits with labels (SF305).",
        ("flatten() on the labels: the counts stay different.",),
        _batch_sizes,
    ),
    Cause(
        "SF614",
        "labels have the wrong shape for the loss",
        (
            Form(r"(?:0D or 1D|1D) target tensor expected, multi-target not supported"),
            Form(r"Expected target size \[(?P<expected>[\d, ]+)\], got \[(?P<found>[\d, ]+)\]"),
            Form(
                r"Target size \(torch\.Size\(\[(?P<targets>[\d, ]*)\]\)\) must be the same as "
                r"input size \(torch\.Size\(\[(?P<inputs>[\d, ]*)\]\)\)"
            ),
            Form(
                r"size mismatch \(got input: \[(?P<inputs>[\d, ]+)\]\s*,\s*target: "
                r"\[(?P<targets>[\d, ]+)\]"
            ),
        ),
        "Class numbers, one-hot rows and maps of classes have different shapes, and each loss "
        "takes one of them: cross_entropy class numbers without the class axis (scores are "
        "[batch, classes, …]), BCEWithLogits a target of exactly the scores' shape.",
        "For one class per row: labels of shape [batch] and dtype long (labels.argmax(-1) from "
        "one-hot, squeeze(-1) from [batch, 1]). For token scores [batch, steps, classes]: "
        "cross_entropy(logits.transpose(1, 2), labels) or flatten both. For several labels per "
        "row: float targets [batch, classes], or problem_type='multi_label_classification'.",
        "Labels per row, per token or several per row are told apart from the data.",
    ),
    Cause(
        "SF615",
        "a picture or sequence has other channels than the layer",
        (
            Form(
                r"Given groups=\d+, weight of size \[(?P<weight>[\d, ]+)\], expected "
                r"input\[(?P<input>[\d, ]+)\] to have (?P<expected>\d+) channels, but got "
                r"(?P<found>\d+) channels instead"
            ),
            Form(r"running_mean should contain (?P<found>\d+) elements not (?P<expected>\d+)"),
        ),
        "The channel axis (the second) has another size than the layer: grey pictures for a colour "
        "model, or the channels standing last (height, width, channels).",
        "Grey to colour: image.convert('RGB') or x.expand(-1, 3, -1, -1). Channels last: "
        "x.permute(0, 3, 1, 2).",
        "Pictures of any mode become [3, height, width] by the model's own processor.",
        derive=lambda context: [
            f"{context.values['found']} channels at axis 1 where {context.values['expected']} are "
            "expected; if that number is your height or width, the channels stand last."
        ],
    ),
    Cause(
        "SF616",
        "a view that does not hold the numbers",
        (
            Form(r"shape '\[(?P<shape>[-\d, ]+)\]' is invalid for input of size (?P<size>\d+)"),
            Form(r"view size is not compatible with input tensor's size and stride"),
        ),
        "view() keeps the numbers and their order: the sizes must multiply to the number of "
        "elements, and the memory must be contiguous. Sizes written down for one batch size or "
        "picture size fail on another, the last batch above all.",
        "Take sizes from the tensor: x.view(x.size(0), -1); after transpose or permute use "
        "reshape.",
        "`surefit check` runs the longest and the shortest row through the module first.",
    ),
    Cause(
        "SF617",
        "the input has another width than a layer was built for",
        (
            Form(
                r"Given normalized_shape=\[(?P<expected>[\d, ]+)\], expected input with shape "
                r"\[\*, [\d, ]+\], but got input of size ?\[(?P<found>[\d, ]+)\]"
            ),
            Form(
                r"input\.size\(-1\) must be equal to input_size\. Expected (?P<expected>\d+), got "
                r"(?P<found>\d+)"
            ),
            Form(r"was expecting embedding dimension of (?P<expected>\d+), but got (?P<found>\d+)"),
            Form(
                r"Expected size for first two dimensions of batch2 tensor to be: "
                r"\[(?P<expected>[\d, ]+)\] but got: \[(?P<found>[\d, ]+)\]"
            ),
            Form(
                r"size mismatch, got input \(\d+\), mat \((?P<expected>\d+x\d+)\), vec "
                r"\((?P<found>\d+)\)"
            ),
        ),
        "The last axis of the input differs from the size the layer was built with; often the axes "
        "[batch, steps, width] stand in another order (batch_first).",
        "Print the shape before the layer; build the layer with that width, set batch_first=True, "
        "or project first: nn.Linear(width, hidden).",
        "A projection takes its width from the data; exchanged axes are SF308.",
    ),
    Cause(
        "SF618",
        "a batch of one row for batch normalisation",
        (
            Form(
                r"Expected more than 1 value per channel when training, got input size "
                r"torch\.Size\(\[(?P<size>[\d, ]+)\]\)"
            ),
        ),
        "BatchNorm needs more than one value per channel in training, and this batch has one row: "
        "usually the last, incomplete batch of an epoch.",
        "DataLoader(…, drop_last=True), or GroupNorm/LayerNorm instead; model.eval() if this was "
        "meant to be an evaluation.",
        "`surefit check` warns of it from the batch sizes of the whole run, and names the layer.",
        ("batch_size=1 with more accumulation: each micro-batch still has one row.",),
    ),
    Cause(
        "SF619",
        "the input is smaller than the kernel",
        (
            Form(
                r"Calculated padded input size per channel: \((?P<input>[\dx ]+)\)\. Kernel size: "
                r"\((?P<kernel>[\dx ]+)\)\. Kernel size can't be greater than actual input size"
            ),
        ),
        "The picture or sequence is shorter than the convolution's kernel, at the input or after "
        "several poolings.",
        "Use larger inputs (resize, or pad short rows), or a smaller kernel and fewer poolings.",
        "`image.size` resizes; the shortest row is tried before the first step.",
    ),
)
