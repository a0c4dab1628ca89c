"""Feature models: sized to the data, saved, loaded, and reused by later runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

import surefit
from builders import assert_close, assert_same_weights, feature_rows, mostly_slow, save_ragged
from surefit.cli import run as command
from surefit.models.feature_model import AdaptiveProjection, FeatureModel
from surefit.models.transformers_models import input_size, max_positions

FEATURES = "feature-classification"


def batch(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """The rows as a model receives them."""
    collated = surefit.Collator()([{"inputs_embeds": row["features"]} for row in rows])
    return {name: collated[name] for name in ("inputs_embeds", "attention_mask")}  # type: ignore[misc]


def shared_tensors(one: torch.nn.Module, other: torch.nn.Module, *parts: str) -> bool:
    """Whether all weights of the named submodules are bitwise equal."""
    left, right = one.state_dict(), other.state_dict()
    keys = [key for key in left if key.startswith(parts)]
    return bool(keys) and all(torch.equal(left[key], right[key]) for key in keys)


def test_projection_standardises_and_projects() -> None:
    sample = torch.randn(50, 9, 3, dtype=torch.float64) * torch.tensor([1.0, 10.0, 0.0]) + 4
    projection = AdaptiveProjection.for_data(sample, hidden_size=8)
    assert projection.width == 3
    assert torch.allclose(projection.mean, sample.mean((0, 1)).float())
    assert projection.scale[2] == 1  # a channel that never changes
    assert repr(projection) == "AdaptiveProjection(feature size 3 to hidden size 8, standardised)"
    out = projection(sample)
    assert out.shape == (50, 9, 8)
    assert out.dtype == torch.float32
    by_hand = projection.linear((sample.float() - projection.mean) / projection.scale)
    assert_close(out, by_hand)


def test_the_first_batch_sets_the_feature_size() -> None:
    projection = surefit.AdaptiveProjection(hidden_size=8)
    assert projection.width is None
    assert "of the data" in repr(projection)
    optimizer = torch.optim.SGD(projection.parameters(), lr=0.1)
    projection(torch.randn(2, 5, 7)).sum().backward()
    before = projection.linear.weight.detach().clone()
    optimizer.step()
    assert projection.width == 7
    assert not torch.equal(before, projection.linear.weight)


def test_projection_refuses_what_it_cannot_take() -> None:
    with pytest.raises(surefit.UsageError, match=r"feature size 3.*\[2, 5, 4\]"):
        AdaptiveProjection(8, width=3)(torch.zeros(2, 5, 4))
    with pytest.raises(surefit.UsageError, match=r"shape \[4\]; expected \[rows, steps, width\]"):
        AdaptiveProjection.for_data(np.zeros(4), 8)


def test_sizes_are_read_off_the_config_alone() -> None:
    electra = AutoConfig.for_model("electra", hidden_size=64, embedding_size=32)
    assert input_size(electra) == 32
    assert input_size(AutoConfig.for_model("gpt2", n_embd=48)) == 48
    assert max_positions(AutoConfig.for_model("bert", max_position_embeddings=271)) == 271
    assert max_positions(AutoConfig.for_model("roberta", max_position_embeddings=514)) == 512


@pytest.mark.slow
def test_tiny_bert_learns_the_largest_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_ragged(tmp_path / "x.npz", feature_rows(300))
    save_ragged(tmp_path / "test.npz", feature_rows(60, seed=9))
    arguments = ["train", "--data", "x.npz", "--model", "tiny:bert", "--task", FEATURES]
    assert command([*arguments, "--epochs", "4", "--output", "run"]) == 0
    assert "SF325" in capsys.readouterr().err
    metrics = surefit.evaluate("run", "test.npz")
    assert metrics["accuracy"] > 0.95

    trained = surefit.load("run")
    assert isinstance(trained, FeatureModel)
    assert trained.projection.width == 4
    every_step = np.concatenate([row["features"] for row in feature_rows(300)])
    assert torch.allclose(
        trained.projection.mean, torch.from_numpy(every_step.mean(0)), atol=0.1
    )  # of the training rows
    rows = feature_rows(8, seed=3)
    with torch.no_grad():
        expected = trained(**batch(rows))
    assert command(["export", "run", "out"]) == 0
    body = AutoModel.from_pretrained("out")
    assert shared_tensors(trained.body, body, "")
    with torch.no_grad():
        inputs = batch(rows)
        hidden = body(
            inputs_embeds=trained.projection(inputs["inputs_embeds"]),
            attention_mask=inputs["attention_mask"],
        ).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1)
        assert_close(trained.head((hidden * mask).sum(1) / mask.sum(1)), expected)
    assert {path.name for path in Path("out").iterdir()} == {
        *("config.json", "model.safetensors", "encoder.json"),
        *("features.json", "features.safetensors", "surefit.json", "digests.json"),
    }


@pytest.mark.parametrize(
    "arch", mostly_slow(["bert", "roberta", "electra", "llama", "deberta-v2", "gpt2"], every=3)
)
def test_bodies_build_step_and_come_back(arch: str, tmp_path: Path) -> None:
    rows = feature_rows(30, width=5)
    rows[0]["features"] = np.random.default_rng(0).normal(size=(90, 5)).astype(np.float32)
    run = surefit.train(
        data=rows, model=f"tiny:{arch}", task=FEATURES, max_steps=2, output=str(tmp_path / "run")
    )
    config = run.model.body.config
    assert config.max_position_embeddings >= 90
    assert config.vocab_size < 64
    again = surefit.load(tmp_path / "run")
    assert_same_weights(again, run.model)
    with torch.no_grad():
        assert_close(again(**batch(rows)), run.model.eval()(**batch(rows)))


def test_longer_rows_than_in_training_are_cut_and_not_fatal(tmp_path: Path) -> None:
    run = surefit.train(
        data=feature_rows(30), model="tiny:bert", max_steps=1, output=str(tmp_path / "run")
    )
    long = {"features": np.zeros((500, 4), np.float32)}
    assert surefit.predict(run, [long])[0]["prediction"] in (0, 1, 2)
    assert surefit.predict(run, [{"features": long["features"][:64]}])[0]["probability"] > 0


@pytest.mark.slow
def test_rows_longer_than_the_positions_of_a_folder(tmp_path: Path) -> None:
    config = AutoConfig.for_model(
        "bert", hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    config.max_position_embeddings, config.vocab_size = 6, 8
    AutoModel.from_config(config).save_pretrained(tmp_path / "body")
    options = {"data": feature_rows(40), "model": str(tmp_path / "body")}
    plan = surefit.check(**options)
    assert plan.ok
    assert plan.job.pipeline.encoder.max_length == 6
    assert plan.ledger.truncated_rows > 0
    assert {"SF215", "SF325"} <= {found.code for found in plan.findings}
    (projected,) = (found for found in plan.findings if found.code == "SF325")
    assert "AdaptiveProjection" in projected.fix  # how to leave the model as it is
    refused = surefit.check(**options, max_seq_length=8)
    assert [f.code for f in refused.findings if f.severity == "error"] == ["SF304"] * 2
    dropped = surefit.check(**options, overlong="drop", max_dropped_share=1.0)
    assert dropped.ledger.dropped_rows["overlong"] == plan.ledger.truncated_rows


def test_models_that_read_no_features_are_refused() -> None:
    for name in ("tiny:t5", "tiny:vit", "tiny:funnel"):
        plan = surefit.check(data=feature_rows(30), model=name, task=FEATURES)
        assert [found.code for found in plan.findings if found.severity == "error"] == ["SF301"]


@pytest.mark.slow
def test_pretrained_run_is_taken_over(tmp_path: Path) -> None:
    rows = [{"features": row["features"]} for row in feature_rows(60)]
    before = surefit.train(
        data=rows,
        model="tiny:bert",
        task="feature-pretraining",
        max_steps=3,
        output=str(tmp_path / "run"),
    )
    for folder in (tmp_path / "run", tmp_path / "run" / "model"):
        plan = surefit.check(data=feature_rows(50, seed=1), model=str(folder))
        assert plan.ok
        module = plan.job.pipeline.module
        assert shared_tensors(before.model, module, "body.", "projection.", "mask_vector")
        assert module.head.out_features == 3  # type: ignore[union-attr]
        assert plan.model.lr == 2e-5
    tuned = surefit.train(
        data=feature_rows(50, seed=1),
        model=str(tmp_path / "run"),
        max_steps=2,
        output=str(tmp_path / "tuned"),
    )
    assert len(surefit.predict(tuned, feature_rows(4))) == 4
    again = surefit.check(data=feature_rows(50), model=str(tmp_path / "tuned"))
    assert shared_tensors(tuned.model, again.job.pipeline.module, "body.", "projection.", "head.")


def test_another_feature_size_reuses_the_body_and_warns(tmp_path: Path) -> None:
    before = surefit.train(
        data=feature_rows(40), model="tiny:bert", max_steps=1, output=str(tmp_path / "run")
    )
    plan = surefit.check(data=feature_rows(40, width=6), model=str(tmp_path / "run"))
    assert plan.ok
    assert shared_tensors(before.model, plan.job.pipeline.module, "body.")
    assert plan.job.pipeline.module.projection.width == 6  # type: ignore[union-attr]
    told = next(found for found in plan.findings if found.code == "SF327")
    assert "feature size 4; the data has feature size 6" in told.message
