"""Convolution and batch normalisation layers: channels, kernels and batches of one row."""

from __future__ import annotations

from surefit.explainer.cause import Cause, Context, Message


def _channels(context: Context) -> list[str]:
    found, expected = context.word("found"), context.word("expected")
    return [
        f"Axis 1 has {found} channels, the layer expects {expected}. If {found} is the height or "
        "the width, the channels are on the last axis."
    ]


CAUSES = (
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
