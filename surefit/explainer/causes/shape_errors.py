"""Shapes that do not match: feature sizes, lengths, axes, channels and kernels."""

from __future__ import annotations

from math import prod

from surefit.explainer import message_values
from surefit.explainer.cause import Cause, Context, Message
from surefit.explainer.message_values import factor, read_whole

USUAL_POSITIONS = (77, 128, 256, 512, 514, 1024, 2048, 4096, 8192)


def _two_sizes(context: Context) -> list[str]:
    first, second = context.number("size_a"), context.number("size_b")
    if first is None or second is None:
        return []
    low, high = sorted((first, second))
    text = context.text.lower()
    if low in USUAL_POSITIONS and (
        high in USUAL_POSITIONS or "position" in text or "attention" in text
    ):
        return [
            f"If {low} is the model's max_position_embeddings, then rows of length {high} are too "
            "long for the model."
        ]
    if high - low == 1:
        return [
            f"{first} and {second} differ by one. One tensor was shifted or truncated by one token "
            "(labels, bos, cls), the other was not."
        ]
    return []


def _predictions_and_labels(context: Context) -> list[str]:
    predictions, labels = context.number("predictions"), context.number("labels")
    if predictions is None or labels is None:
        return []
    if labels == 0:
        return [f"There are {predictions} predictions and no labels: the label tensor is empty."]
    if predictions == 0:
        return [f"There are {labels} labels and no predictions: the batch has no rows."]
    per_row = factor(labels, predictions)
    if per_row is not None:
        return [
            f"{labels} = {predictions} × {per_row}. Each row has {per_row} labels, but the model "
            "predicts once per row. The labels are per token or one-hot, the head is per row."
        ]
    per_row = factor(predictions, labels)
    if per_row is not None:
        return [
            f"{predictions} = {labels} × {per_row}. The model makes {per_row} predictions per row, "
            "but each row has one label. Pool over the sequence, or use its last position."
        ]
    return [
        f"There are {predictions} predictions and {labels} labels. Inputs and labels were padded, "
        "truncated or shifted differently."
    ]


def _elements(context: Context) -> list[str]:
    size = context.number("elements")
    sizes = [read_whole(text.strip()) for text in context.word("shape").split(",")]
    known = [number for number in sizes if number is not None and number != -1]
    if size is None or None in sizes:
        return []
    product, shown = prod(known), " × ".join(map(str, known))
    if len(known) == len(sizes):
        return [f"{shown} = {product}, but the tensor has {size} elements."]
    return [f"{size} elements cannot be divided by {shown}."] if known else []


def _channels(context: Context) -> list[str]:
    found, expected = context.word("found"), context.word("expected")
    return [
        f"Axis 1 has {found} channels, the layer expects {expected}. If {found} is the height or "
        "the width, the channels are on the last axis."
    ]


CAUSES = (
    Cause(
        "SF610",
        "the feature size of the input does not match the layer",
        messages=(
            Message(
                r"mat1 and mat2 shapes cannot be multiplied(?: \((?P<rows>\d+)x(?P<features>\d+) "
                r"and (?P<in_features>\d+)x(?P<out_features>\d+)\))?"
            ),
            Message(
                r"size mismatch, m1: \[(?P<rows>\d+) x (?P<features>\d+)\], "
                r"m2: \[(?P<in_features>\d+) x (?P<out_features>\d+)\]",
                seen="bamos/densenet.pytorch#19",
            ),
        ),
        why="The last axis of the input must have the size that the layer was built for. In the "
        "message, the second pair is the layer (in_features, out_features). The first pair is the "
        "input: all leading axes multiplied, then the feature size.",
        fix="Print input.shape before the layer. Build the layer from the data, "
        "nn.Linear(batch.shape[-1], hidden), or bring the data to the expected feature size. If "
        "you replace the layer, add the new one to the optimizer and to the checkpoint.",
        in_surefit="surefit.AdaptiveProjection.for_data(sample, hidden_size) takes its feature "
        "size from the data and is saved with the model. `surefit check` reports the mismatch "
        "(SF305) before the first step.",
        does_not_help=(
            "reshape or view to the expected size: it mixes rows if the axes mean something else.",
            "A smaller batch size: it changes the first number, not the feature size.",
        ),
        derive=message_values.conclusions,
    ),
    Cause(
        "SF611",
        "a tensor has too few or too many axes",
        messages=(
            Message(
                r"Expected (?P<expected>\d)-?D tensor,? (?:but )?got (?P<found>\d)-?D",
                seen="seed 003",
            ),
            Message(
                r"[Ee]xpected (?P<expected>\d)D(?: or (?P<also>\d)D)? input \(got (?P<found>\d)D "
                r"input\)"
            ),
            Message(
                r"Expected (?P<expected>\d)D \(unbatched\) or (?P<also>\d)D \(batched\) input to "
                r"(?P<layer>\w{1,60}), but got input of size: \[(?P<size>[\d, ]{1,60})\]"
            ),
            Message(r"Expected input to be (?P<expected>\d)D or (?P<also>\d)D, got (?P<found>\d)D"),
            Message(
                r"Expected (?P<expected>\d)-dimensional input for (?P=expected)-dimensional weight "
                r"\[(?P<weight>[\d, ]{1,60})\], but got (?P<found>\d)-dimensional input",
                seen="shaofengzeng/SuperPoint-Pytorch#2",
            ),
        ),
        why="A layer expects a fixed number of axes, such as [batch, length, features] or [batch, "
        "channels, height, width]. One axis is missing (a single row without its batch axis, "
        "features without their sequence axis), or there is one too many.",
        fix="Print the shape. Add a missing batch axis with x.unsqueeze(0), a missing channel axis "
        "with x.unsqueeze(1). Split a flattened axis with x.view(batch, length, features) if the "
        "sizes multiply to that axis.",
        in_surefit="Feature rows are [sequence length, feature size]. surefit checks the axes of "
        "every row before the first step.",
        does_not_help=("squeeze() without an axis: it also removes a batch axis of size 1.",),
    ),
    Cause(
        "SF612",
        "two tensors with different sizes are combined",
        messages=(
            Message(
                r"The size of tensor a \((?P<size_a>\d+)\) must match the size of tensor b "
                r"\((?P<size_b>\d+)\) at non-singleton dimension (?P<axis>\d+)"
            ),
            Message(
                r"Sizes of tensors must match except in dimension (?P<axis>\d+)\. Expected size "
                r"(?P<size_a>\d+) but got size (?P<size_b>\d+)"
            ),
            Message(
                r"The expanded size of the tensor \((?P<size_a>\d+)\) must match the existing size "
                r"\((?P<size_b>\d+)\) at non-singleton dimension (?P<axis>\d+)"
            ),
            Message(
                r"Tensors must have same number of dimensions: got (?P<axes_a>\d+) and "
                r"(?P<axes_b>\d+)"
            ),
        ),
        why="The tensors must have the same number of axes and the same size on this axis. Common "
        "causes: a row is longer than the model's maximum number of positions, a mask and its "
        "inputs have different lengths, or batches with different padding are concatenated, also "
        "during evaluation.",
        fix="Truncate to model.config.max_position_embeddings: tokenizer(…, truncation=True, "
        "max_length=…). Create the attention mask together with the ids. Pad before torch.cat; in "
        "Trainer, use pad_across_processes or a fixed length for evaluation.",
        in_surefit="`overlong` decides whether surefit truncates or drops rows that are longer "
        "than the model's positions, and the ledger counts them. Masks follow from the lengths.",
        derive=_two_sizes,
    ),
    Cause(
        "SF613",
        "the numbers of predictions and labels differ",
        messages=(
            Message(
                r"Expected input batch_size \((?P<predictions>\d+)\) to match target batch_size "
                r"\((?P<labels>\d+)\)"
            ),
        ),
        why="cross_entropy needs one label per prediction. Common causes: labels per token with a "
        "head that predicts once per row, the reverse, or inputs and labels of different lengths.",
        fix="Choose the head that fits the labels: AutoModelForTokenClassification for one label "
        "per token, AutoModelForSequenceClassification for one label per row. Pad labels with -100 "
        "to the length of input_ids.",
        in_surefit="surefit infers the task from the columns. A probe compares logits with labels "
        "before the first step (SF305).",
        does_not_help=("flatten() on the labels: the numbers still differ.",),
        derive=_predictions_and_labels,
    ),
    Cause(
        "SF614",
        "the labels have the wrong shape for the loss",
        messages=(
            Message(r"1D target tensor expected, multi-target not supported"),
            Message(
                r"Expected target size \[(?P<expected>[\d, ]{1,60})\], got "
                r"\[(?P<found>[\d, ]{1,60})\]"
            ),
            Message(
                r"Target size \(torch\.Size\(\[(?P<labels>[\d, ]{0,60})\]\)\) must be the same as "
                r"input size \(torch\.Size\(\[(?P<predictions>[\d, ]{0,60})\]\)\)"
            ),
            Message(
                r"size mismatch \(got input: \[(?P<predictions>[\d, ]{1,60})\] ?, ?target: "
                r"\[(?P<labels>[\d, ]{1,60})\]"
            ),
        ),
        why="Each loss accepts one format of labels. cross_entropy accepts class indices without a "
        "class axis, and its logits have shape [batch, classes, …]. BCEWithLogitsLoss accepts "
        "labels of exactly the shape of the logits.",
        fix="One class per row: labels of shape [batch] and dtype int64, by labels.argmax(-1) from "
        "one-hot labels or squeeze(-1) from [batch, 1]. One class per token: "
        "cross_entropy(logits.transpose(1, 2), labels) for logits of shape [batch, length, "
        "classes]. Several labels per row: float labels of shape [batch, classes], and "
        "problem_type='multi_label_classification' in transformers.",
        in_surefit="surefit infers from the data whether a row has one label, one per token or "
        "several.",
    ),
    Cause(
        "SF616",
        "a tensor cannot be viewed with this shape",
        messages=(
            Message(
                r"shape '\[(?P<shape>[-\d, ]{1,60})\]' is invalid for input of size "
                r"(?P<elements>\d+)"
            ),
            Message(r"view size is not compatible with input tensor's size and stride"),
        ),
        why="view() keeps all elements in their order: the sizes must multiply to the number of "
        "elements, and the memory must be contiguous. Sizes that are hard-coded for one batch size "
        "or image size fail for another, most often for the last batch.",
        fix="Take sizes from the tensor: x.view(x.size(0), -1). After transpose or permute, call "
        "reshape instead.",
        in_surefit="`surefit check` runs the longest and the shortest row through the model first.",
        derive=_elements,
    ),
    Cause(
        "SF617",
        "the last axis of the input does not match the layer",
        messages=(
            Message(
                r"Given normalized_shape=\[(?P<expected>[\d, ]{1,60})\], expected input with shape "
                r"\[\*, [\d, ]{1,60}\], but got input of size ?\[(?P<found>[\d, ]{1,60})\]"
            ),
            Message(
                r"input\.size\(-1\) must be equal to input_size\. Expected (?P<expected>\d+), got "
                r"(?P<found>\d+)"
            ),
            Message(
                r"was expecting embedding dimension of (?P<expected>\d+), but got (?P<found>\d+)"
            ),
            Message(
                r"Expected size for first two dimensions of batch2 tensor to be: "
                r"\[(?P<expected>[\d, ]{1,60})\] but got: \[(?P<found>[\d, ]{1,60})\]"
            ),
            Message(
                r"size mismatch, got input \(\d+\), mat \((?P<expected>\d+x\d+)\), vec "
                r"\((?P<found>\d+)\)"
            ),
        ),
        why="The last axis has another size than the layer was built for. Often the axes are in "
        "another order, such as [length, batch, features] instead of [batch, length, features].",
        fix="Print the shape before the layer. Build the layer with that size, set "
        "batch_first=True, or project first: nn.Linear(features, hidden).",
        in_surefit="A projection takes its feature size from the data. SF305 reports swapped axes.",
    ),
    Cause(
        "SF615",
        "the input has another number of channels than the layer",
        messages=(
            Message(
                r"Given groups=\d+, weight of size \[(?P<weight>[\d, ]{1,60})\], expected "
                r"input\[(?P<input>[\d, ]{1,60})\] to have (?P<expected>\d+) channels, but got "
                r"(?P<found>\d+) channels instead"
            ),
            Message(r"running_mean should contain (?P<found>\d+) elements not (?P<expected>\d+)"),
        ),
        why="Axis 1 holds the channels. Common causes: greyscale images for an RGB model, or "
        "channels on the last axis, as in [height, width, channels].",
        fix="Greyscale to RGB: image.convert('RGB') or x.expand(-1, 3, -1, -1). Channels last: "
        "x.permute(0, 3, 1, 2).",
        in_surefit="The model's own processor converts images of any mode to [3, height, width].",
        derive=_channels,
    ),
    Cause(
        "SF618",
        "batch normalisation received a batch of one row",
        messages=(
            Message(
                r"Expected more than 1 value per channel when training, got input size "
                r"torch\.Size\(\[(?P<size>[\d, ]{1,60})\]\)"
            ),
        ),
        why="BatchNorm needs more than one value per channel in training. A batch of one row is "
        "usually the last, incomplete batch of an epoch.",
        fix="Use DataLoader(…, drop_last=True), or GroupNorm or LayerNorm instead of BatchNorm. "
        "Call model.eval() before an evaluation.",
        in_surefit="`surefit check` knows the batch sizes of the whole run. It warns and names the "
        "layer.",
        does_not_help=(
            "batch_size=1 with more gradient accumulation: each micro-batch still has one row.",
        ),
    ),
    Cause(
        "SF619",
        "the input is smaller than the convolution kernel",
        messages=(
            Message(
                r"Calculated padded input size per channel: \((?P<input>[\dx ]{1,40})\)\. Kernel "
                r"size: \((?P<kernel>[\dx ]{1,40})\)\. Kernel size can't be greater than actual "
                r"input size"
            ),
        ),
        why="The image or sequence is shorter than the kernel of a convolution, at the input or "
        "after several pooling layers.",
        fix="Use larger inputs (resize images, pad short rows), a smaller kernel, or fewer pooling "
        "layers.",
        in_surefit="`image.size` resizes images. surefit runs the shortest row before the first "
        "step.",
    ),
)
