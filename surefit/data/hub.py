"""The Hugging Face Hub: datasets as Arrow files; local copies of models when it is offline."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from surefit.core.foreign import first_line, library_reads
from surefit.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_WAIT_SECONDS = 5


def may_be_hub_id(path: Path) -> bool:
    """Return whether a path that does not exist may be a hub id: `owner/name`, or a bare name.

    >>> may_be_hub_id(Path("stanfordnlp/imdb")), may_be_hub_id(Path("train.jsonl"))
    (True, False)
    """
    has_ending = bool(re.fullmatch(r"\.[A-Za-z]\w*", path.suffix))
    is_inside = path.parent != Path() and path.parent.exists()
    return bool(_NAME.fullmatch(str(path))) and not has_ending and not is_inside


def hub_files(name: str, config: str | None = None) -> list[Path]:
    """Return the Arrow files of the split `train` of a dataset on the hub."""
    if find_spec("datasets") is None:
        raise _missing(
            name, "the package `datasets`, which loads datasets from the hub, is not installed"
        )
    import datasets
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import RepositoryNotFoundError

    if int(datasets.__version__.split(".")[0]) < 4:
        raise _missing(name, "`datasets` before 4.0 runs code from the hub; install 4.0 or later")
    try:
        if not constants.HF_HUB_OFFLINE:  # load_dataset would retry for half a minute
            HfApi().dataset_info(name, timeout=_WAIT_SECONDS)
        loaded = datasets.load_dataset(*filter(None, (name, config)), split="train")
    except RepositoryNotFoundError:
        raise _missing(name, "the hub has no dataset of that name") from None
    except Exception as error:
        raise _missing(name, f"the hub did not return it: {first_line(error)}") from None
    return [Path(file["filename"]) for file in loaded.cache_files]


def model_place(name: str) -> str:
    """Return a model's folder or hub id; the folder of an earlier download if the hub is
    unreachable.

    One short request: transformers would retry for half a minute, file by file.
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    if Path(name).exists() or constants.HF_HUB_OFFLINE or not _NAME.fullmatch(name):
        return name
    try:
        HfApi().model_info(name, timeout=_WAIT_SECONDS)
    except HfHubHTTPError:
        return name  # the hub answered; loading the model reports its error
    except Exception as error:
        try:
            return snapshot_download(name, local_files_only=True)
        except Exception:
            raise UsageError(
                f"There is no local folder {name}, the hub could not be reached "
                f"({first_line(error)}), and no model of that name is in the local download cache.",
                "Check the name or the network, or give a local folder, tiny:ARCH or "
                "module:function.",
            ) from None
    return name


def weights_place(name: str) -> Path:
    """A model's folder; for a hub id, that of its safetensors, which are downloaded if need be."""
    from huggingface_hub import snapshot_download

    if Path(name).is_dir():
        return Path(name)
    wanted = ["*.safetensors", "*.safetensors.index.json"]
    fix = "Check the network and the access to the model, or give a local folder."
    with library_reads(f"The weights of {name} could not be downloaded", fix):
        return Path(snapshot_download(name, allow_patterns=wanted))


def _missing(name: str, why: str) -> UsageError:
    return UsageError(
        f"There is no file or folder {name}, and {why}.",
        "Check the path or the name (owner/name or owner/name:config, with a split called train), "
        "or the network; HF_HUB_OFFLINE=1 uses earlier downloads.",
    )
