"""One run in the workers of a Ray cluster: Ray Train around `surefit.train`.

python examples/cluster/ray_train.py run.yaml [workers]

Data, code and `output` must be on a file system that all workers share.
"""

import os
import sys
from pathlib import Path


def train(settings):
    """What each worker runs, with the process group that Ray Train has made."""
    import yaml

    import surefit

    os.chdir(settings["folder"])
    sys.path.insert(0, settings["folder"])
    surefit.train(**yaml.safe_load(Path(settings["config"]).read_text()))


def main(config="run.yaml", workers="2"):
    import torch
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    settings = {"folder": os.getcwd(), "config": str(Path(config).resolve())}
    scaling = ScalingConfig(num_workers=int(workers), use_gpu=torch.cuda.is_available())
    TorchTrainer(train, train_loop_config=settings, scaling_config=scaling).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
