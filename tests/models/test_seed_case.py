"""The case that began it: `mat1 and mat2 shapes cannot be multiplied (255744x4000 and 271x256)`.

A config of width 271 (its vocab_size), hidden size 256 and 20 positions meets shards of
[n, 999, 4000], which are 256 × 999 = 255744 steps a batch; or of [n, 20 * 271].
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig, AutoModel

import surefit
from surefit.findings import Finding
from surefit.gigabytes import GB
from surefit.memory.limit import CgroupTree, find_limit
from surefit.memory.process_memory import anonymous_bytes
from surefit.plan import draft


@pytest.fixture
def body(tmp_path: Path) -> str:
    """The folder of an untrained body with the seed's config."""
    config = AutoConfig.for_model(
        "bert",
        vocab_size=271,
        hidden_size=256,
        max_position_embeddings=20,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
    )
    AutoModel.from_config(config).save_pretrained(tmp_path / "body")
    return str(tmp_path / "body")


def of_code(findings: Any, code: str) -> Finding:
    return next(found for found in findings if found.code == code)


def sparse_shards(folder: Path, rows: int) -> str:
    """Shards of [rows, 999, 4000] zeros that take no room on disk."""
    folder.mkdir()
    for place in range(2):
        np.lib.format.open_memmap(
            folder / f"{place}.npy", mode="w+", dtype=np.float32, shape=(rows, 999, 4000)
        ).flush()
    return str(folder)


@pytest.mark.slow
def test_a_batch_above_the_device_memory_is_refused_before_it_is_read(
    tmp_path: Path, body: str
) -> None:
    data = sparse_shards(tmp_path / "data", 200)
    options: dict[str, Any] = {"data": data, "model": body, "from_scratch": True}
    plan = surefit.check(**options, batch_size=256, device_memory_gb=2.5)
    assert not plan.ok
    (found,) = [found for found in plan.findings if found.severity == "error"]
    assert found.code == "SF400"
    assert found.message == (
        "A batch of 256 rows of [999, 4000] takes 4.09 GB; the memory limit is 2.50 GB "
        "(device_memory_gb)."
    )
    assert "--batch-size 125 or less" in found.fix


def limited_by(monkeypatch: pytest.MonkeyPatch, folder: Path, limit: str) -> None:
    """Let planning see a machine whose control group has this memory limit."""
    folder.mkdir()
    (folder / "memory.max").write_text(f"{limit}\n")
    tree = CgroupTree(folder, folder / "membership")
    monkeypatch.setattr(draft, "find_limit", partial(find_limit, cgroups=tree))


@pytest.mark.slow
def test_a_batch_above_the_cgroup_limit_is_refused_before_it_is_read(
    tmp_path: Path, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = sparse_shards(tmp_path / "data", 200)
    limited_by(monkeypatch, tmp_path / "cgroup", str(anonymous_bytes() + 2 * GB))
    options: dict[str, Any] = {"data": data, "model": body, "from_scratch": True}
    found = of_code(surefit.check(**options, batch_size=256).findings, "SF400")
    assert "(free in this container (cgroup))" in found.message
    most = int(found.fix.split()[2])
    assert 100 <= most <= 125


@pytest.mark.parametrize("limit", ["max", str(10**15)])
def test_a_batch_within_the_limits_raises_no_alarm(
    tmp_path: Path, body: str, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    rows = [{"features": np.ones((9, 40), np.float32), "label": n % 2} for n in range(20)]
    limited_by(monkeypatch, tmp_path / "cgroup", limit)
    for options in ({}, {"device_memory_gb": 0.51}, {"max_memory_gb": 100.0}):
        plan = surefit.check(data=rows, model=body, from_scratch=True, **options)
        assert "SF400" not in [found.code for found in plan.findings], options


def test_another_feature_size_and_length_are_adapted(tmp_path: Path, body: str) -> None:
    random = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for place in range(2):
        np.save(
            tmp_path / "data" / f"{place}.npy",
            random.normal(size=(3, 99, 400)).astype(np.float32),
        )
    options = {"data": str(tmp_path / "data"), "model": body, "task": "feature-pretraining"}
    plan = surefit.check(**options, from_scratch=True)
    assert plan.ok
    assert of_code(plan.findings, "SF432").message.endswith(
        "vocab_size 271 → 400, max_position_embeddings 20 → 99."
    )
    module: Any = plan.job.pipeline.module
    assert (module.projection.width, module.projection.linear.out_features) == (400, 256)
    assert module.body.config.max_position_embeddings == 99
    assert plan.ledger.truncated_rows == 0
    trained = surefit.check(**options)  # with its weights, the body keeps its 20 positions
    assert trained.ok
    assert trained.ledger.truncated_rows == 6
    run = surefit.train(
        **options, from_scratch=True, max_steps=1, batch_size=2, output=str(tmp_path / "run")
    )
    again: Any = surefit.load(run.path)
    assert again.projection.width == 400
    assert again.body.config.vocab_size == 400


def test_flat_rows_are_cut_as_the_config_says(tmp_path: Path, body: str) -> None:
    random = np.random.default_rng(0)
    one_hot = np.eye(271, dtype=np.float32)[random.integers(0, 271, (30, 20))]
    np.save(tmp_path / "flat.npy", one_hot.reshape(30, -1))
    plan = surefit.check(data=str(tmp_path / "flat.npy"), model=body, eval_share=0.0)
    assert plan.ok
    assert plan.task.name == "feature-pretraining"
    assert (
        "read as [20, 271]: the model's vocab_size is 271"
        in of_code(plan.findings, "SF420").message
    )
    assert any("distribution over 271 places" in note for note in plan.notes)
    row = plan.job.train.row(3)
    masked = row["masked_steps"] == 1
    np.testing.assert_array_equal(row["inputs_embeds"][~masked], one_hot[3][~masked])


def test_classes_are_in_the_config(tmp_path: Path, body: str) -> None:
    rows = [
        {"features": np.random.default_rng(n).normal(size=(5, 3)), "label": n % 4}
        for n in range(40)
    ]
    plan = surefit.check(data=rows, model=body)
    module: Any = plan.job.pipeline.module
    assert module.body.config.num_labels == 4
