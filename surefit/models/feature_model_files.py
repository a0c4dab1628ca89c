"""Saves and loads FeatureModels: the body as a transformers folder, our layers beside it.

`features.json` and `features.safetensors` hold what transformers has no class for: the projection,
the head and the mask vector.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.core import files
from surefit.core.foreign import read_json
from surefit.errors import UsageError
from surefit.models.auto_classes import quiet_transformers
from surefit.user_code.named_code import guard_remote

if TYPE_CHECKING:
    from torch import nn

SIZES = "features.json"
WEIGHTS = "features.safetensors"
FORMAT_VERSION = 1


def is_feature_model(module: nn.Module) -> bool:
    """Whether the module is a FeatureModel."""
    from surefit.models.feature_model import FeatureModel

    return isinstance(module, FeatureModel)


def has_feature_layers(folder: Path) -> bool:
    """Whether the folder holds the layers of a FeatureModel."""
    return (folder / SIZES).is_file()


def trained_feature_size(folder: Path) -> int:
    """The feature size that the folder's projection expects."""
    return int(read_sizes(folder)["width"])


def save_feature_model(module: Any, folder: Path) -> None:
    """Write the body as a plain transformers folder, and our layers beside it."""
    with quiet_transformers():
        module.body.save_pretrained(folder)
    save_feature_layers(module, folder)


def save_feature_layers(module: Any, folder: Path) -> None:
    """Write projection, head and mask vector."""
    from safetensors.torch import save_file

    ours = {k: v for k, v in module.state_dict().items() if not k.startswith("body.")}
    save_file({k: v.detach().cpu().contiguous() for k, v in ours.items()}, str(folder / WEIGHTS))
    projection = module.projection.linear
    files.write_json(
        folder / SIZES,
        {
            "format_version": FORMAT_VERSION,
            "reads": module.reads,
            "width": projection.in_features,
            "input_size": projection.out_features,
            "hidden_size": module.head.in_features,
            "outputs": module.head.out_features,
        },
    )


def load_feature_model(folder: Path, trust_remote_code: bool = False) -> nn.Module:
    """Read what `save_feature_model` wrote, the body through plain AutoModel."""
    import torch
    from torch import nn
    from transformers import AutoModel

    from surefit.models.feature_model import AdaptiveProjection, FeatureModel

    sizes = read_sizes(folder)
    with quiet_transformers(), guard_remote(str(folder), trust_remote_code):
        body: Any = AutoModel.from_pretrained(
            folder,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
        )
    module = FeatureModel(
        body,
        AdaptiveProjection(sizes["input_size"], sizes["width"]),
        nn.Linear(sizes["hidden_size"], sizes["outputs"]),
        sizes["reads"],
    )
    load_feature_layers(module, folder)
    return module


def load_feature_layers(module: nn.Module, folder: Path) -> None:
    """Load the saved projection, head and mask vector into a FeatureModel of their sizes."""
    module.load_state_dict({**module.state_dict(), **read_weights(folder)})


def read_weights(folder: Path) -> dict[str, Any]:
    """The saved tensors of projection, head and mask vector, by their names."""
    from safetensors.torch import load_file

    return dict(load_file(str(folder / WEIGHTS)))


def read_sizes(folder: Path) -> dict[str, Any]:
    """The saved sizes of the layers, where `width` is the feature size."""
    sizes = read_json(folder / SIZES, dict[str, Any])
    if sizes.get("format_version") != FORMAT_VERSION:
        raise UsageError(
            f"{folder / SIZES} was written by another version of surefit.",
            "Use the version that wrote it.",
        )
    return dict(sizes)
