"""Task `embedding`: losses and files of sentence-transformers, in surefit's batches."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import surefit
from builders import WORDS, echo_rows, events_of, stop_at, weights_of, write_jsonl
from surefit.batches.branches import LENGTHS, SIDE, cut_row
from surefit.cli import run as command
from surefit.config.sections import EmbeddingOptions
from surefit.errors import UsageError
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import Embedding
from surefit.models.save_model import save_model
from surefit.targets import embeddings
from surefit.targets.sentence_folder import read_pooling
from surefit.tasks import TASKS

TEXTS = [row["prompt"].split() for row in echo_rows(24)]
PAIRS = [{"query": " ".join(each), "answer": " ".join(each[::-1])} for each in TEXTS]
TRIPLETS = [{**row, "negative": f"{WORDS[n % 9]} {n}"} for n, row in enumerate(PAIRS)]
SCORED = [{**row, "score": n % 6} for n, row in enumerate(PAIRS)]
ROWS = {"ranking": PAIRS, "cosine": SCORED, "triplet": TRIPLETS}
OPTIONS: dict[str, Any] = {"model": "tiny:bert", "task": "embedding", "max_steps": 3, "lr": 0.003}


def plan_of(rows: Any, **options: Any) -> Any:
    plan = surefit.check(data=rows, **{**OPTIONS, **options})
    assert plan.ok, plan.findings
    return plan


def first_loss(plan: Any, rows: int = 6) -> float:
    pipeline, train = plan.job.pipeline, plan.job.train
    pipeline.module.eval()
    batch = pipeline.batch(train, np.arange(rows))
    total, count = pipeline.loss(pipeline.outputs(batch), batch)
    assert count == rows
    return float(total) / rows


def vectors(*rows: list[float]) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.tensor(rows), dim=1)


def batch_of(*texts: list[int]) -> dict[str, Any]:
    ids = torch.tensor(texts)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def test_ranking_is_a_cross_entropy_among_the_texts_of_the_batch() -> None:
    sides = [vectors([1.0, 0.0], [0.0, 1.0]), vectors([1.0, 0.0], [1.0, 1.0])]
    batch, half = batch_of([1], [2], [3], [4]), 0.5**0.5
    lost = embeddings.ranking(sides, batch, Embedding(scale=3.0))
    expected = -np.log(np.exp(3) / (np.exp(3) + np.exp(3 * half)))
    expected -= np.log(np.exp(3 * half) / (np.exp(3 * half) + 1))
    assert float(lost) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("texts", [([1], [2], [1], [4]), ([1], [2], [3], [2])])
def test_rows_with_one_text_are_not_negatives_of_each_other(texts: Any) -> None:
    sides = [vectors([1.0, 0.0], [0.0, 1.0]), vectors([1.0, 0.5], [1.0, 1.0])]
    assert float(embeddings.ranking(sides, batch_of(*texts), Embedding())) == pytest.approx(0)


def test_a_negative_that_is_the_positive_of_another_row_still_counts() -> None:
    sides = [vectors([1.0, 0.0]), vectors([1.0, 1.0]), vectors([0.0, 1.0])]
    lost = embeddings.ranking(sides, batch_of([1], [2], [3]), Embedding(scale=1.0))
    assert float(lost) == pytest.approx(float(np.log(1 + np.exp(-(0.5**0.5)))), rel=1e-5)


@pytest.mark.parametrize(
    ("how", "expected"), [("mean", [2.0, 3.0]), ("cls", [1.0, 2.0]), ("last", [3.0, 4.0])]
)
def test_pooling_leaves_padding_out(how: str, expected: list[float]) -> None:
    states = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]])
    batch = {"attention_mask": torch.tensor([[1, 1, 0]])}
    found = embeddings.pool(SimpleNamespace(logits=states), batch, how)
    assert found.tolist() == [expected]


def test_figures_among_all_rows() -> None:
    anchors = vectors([1.0, 0.0], [0.0, 1.0], [1.0, 1.0])
    others = vectors([1.0, 0.1], [1.0, 0.0], [1.0, 1.0])[:, None]
    assert embeddings.retrieval_accuracy(anchors, others) == pytest.approx(1 / 3)
    assert embeddings.reciprocal_rank(anchors, others) == pytest.approx((1 / 2 + 1 / 3 + 1) / 3)
    similar, scores = torch.tensor([0.1, 0.5, 0.5, 0.9]), torch.tensor([1.0, 3.0, 2.0, 2.0])
    assert embeddings.spearman(similar, scores) == pytest.approx(0.5)  # as scipy's spearmanr
    assert embeddings.spearman(anchors, others) is None


def test_a_row_is_cut_text_by_text() -> None:
    row = {"input_ids": np.arange(9), LENGTHS: np.array([2, 5, 2])}
    cut = cut_row(row, embeddings.fields_of(Encoder("embedding", {})), 9)
    assert cut["input_ids"].tolist() == [0, 1, 2, 3, 4, 7, 8]
    assert cut[LENGTHS].tolist() == [2, 3, 2]


def settled(roles: Any, model: str = "tiny:bert", batch_size: int = 8, **given: Any) -> Any:
    asked = EmbeddingOptions(**given)
    return embeddings.settle_embedding(asked, TASKS["embedding"], roles, model, batch_size)


PAIR, TRIPLET = ("anchor", "positive"), ("anchor", "positive", "negative")


def test_settings_by_the_roles_and_by_name(tmp_path: Path) -> None:
    assert settled(PAIR) == settled(TRIPLET) == Embedding("ranking", 20.0, 0.5, "mean")
    assert settled((*PAIR, "score")) == Embedding("cosine")
    assert settled(PAIR, scale=5, pooling="last") == Embedding(scale=5, pooling="last")
    assert settled(TRIPLET, loss="triplet", margin=1) == Embedding("triplet", margin=1)
    (tmp_path / "modules.json").write_text('[{"type": "a.Transformer"}, {"type": "a.Pooling"}]')
    (tmp_path / "1_Pooling").mkdir()
    for known in ('{"pooling_mode_cls_token": true}', '{"pooling_mode": "cls"}'):
        (tmp_path / "1_Pooling" / "config.json").write_text(known)
        assert settled(PAIR, str(tmp_path)).pooling == "cls"
    assert settled(PAIR, str(tmp_path), pooling="mean").pooling == "mean"
    (tmp_path / "modules.json").write_text('[{"type": "a.Transformer"}, {"type": "a.Dense"}]')
    with pytest.raises(UsageError, match=r"the module a\.Dense"):
        settled(PAIR, str(tmp_path))


def test_scale_margin_and_pooling_change_the_loss() -> None:
    plan = plan_of(TRIPLETS)
    pipeline, train = plan.job.pipeline, plan.job.train
    pipeline.module.eval()
    batch = pipeline.batch(train, np.arange(6))
    outputs = pipeline.outputs(batch)

    def loss(**options: Any) -> float:
        encoder = pipeline.encoder.with_settings(embedding=Embedding(**options))
        return float(embeddings.embedding_loss(encoder)(outputs, batch)[0])

    apart = [loss(), loss(scale=5), loss(pooling="cls"), loss(pooling="last"), loss(loss="triplet")]
    assert len({round(each, 3) for each in apart}) == len(apart)
    wide = loss(loss="triplet", margin=3.0)
    assert loss(loss="triplet", margin=4.0) == pytest.approx(wide + 6, rel=1e-4)


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (PAIRS, {"loss": "triplet"}, "needs a negative in each row"),
        (PAIRS, {"loss": "cosine"}, "needs pairs with a score"),
        (SCORED, {"loss": "ranking"}, "without a score"),
        (PAIRS, {"margin": 1}, "has no effect on the loss ranking"),
    ],
)
def test_settings_that_do_not_suit_the_rows_are_refused(
    rows: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        surefit.check(data=rows, **OPTIONS, embedding=options)


def test_scores_are_scaled_and_rows_read() -> None:
    plan = plan_of(SCORED)
    assert sorted({*map(float, plan.job.train.values("labels"))}) == pytest.approx(
        [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    )
    batch = plan.job.pipeline.batch(plan.job.train, np.arange(3))
    assert batch[SIDE].tolist() == [0, 1, 0, 1, 0, 1]
    assert batch["labels"][::2].tolist() == batch["labels"][1::2].tolist()


def test_texts_are_truncated_one_by_one() -> None:
    plan = plan_of(TRIPLETS, max_seq_length=6)
    lengths = plan.job.train.joined(LENGTHS, np.arange(len(plan.job.train)))
    assert max(lengths) == 6
    assert plan.ledger.truncated_rows > 0


@pytest.mark.slow
def test_a_loss_of_rows_does_not_depend_on_the_micro_batch(tmp_path: Path) -> None:
    """Law 3 for scored pairs and triplets; ranking declares that it compares rows."""
    for name in ("cosine", "triplet"):
        options = {"data": ROWS[name], "embedding": {"loss": name}, "eval_share": 0}
        losses = []
        for size, accum in ((8, 1), (2, 4)):
            settings = {"batch_size": size, "grad_accum": accum, "order": "shuffle"}
            out = str(tmp_path / f"{name}{size}")
            run = surefit.train(**OPTIONS, **options, **settings, output=out)
            losses.append([each["loss"] for each in run.history if each["event"] == "step"])
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert "other rows in its micro-batch" in " ".join(plan_of(PAIRS).notes)


def test_a_run_with_lora_resumes_to_the_bit_and_is_exported(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", PAIRS)
    options = {**OPTIONS, "data": str(tmp_path / "rows.jsonl"), "lora_r": 4, "save_every": 1}
    run = surefit.train(**options, output=str(tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        surefit.train(**options, output=str(tmp_path / "cut"), callbacks=[stop_at(2)])
    cut = surefit.train(resume=str(tmp_path / "cut"))
    assert (events_of(cut), weights_of(cut)) == (events_of(run), weights_of(run))
    told = surefit.predict(run, PAIRS)
    assert [np.linalg.norm(each["prediction"]) for each in told] == pytest.approx([1] * 24)
    assert surefit.predict(run.path / "model", PAIRS) == told
    assert {"retrieval_accuracy", "mrr", "loss"} == {*run.metrics}
    assert "eval" not in [each["event"] for each in run.history if not each["step"]]  # untrained
    again = surefit.train(
        **{**OPTIONS, "model": str(run.path)}, data=PAIRS, output=str(tmp_path / "next")
    )
    first = next(each for each in again.history if each["event"] == "eval")
    assert first["step"] == 0
    assert first["metrics"]["mrr"] == pytest.approx(run.metrics["mrr"])


def test_a_module_may_return_the_vectors_itself(tmp_path: Path) -> None:
    plan_of(PAIRS).job.pipeline.encoder.tokenizer.save_pretrained(tmp_path)
    plan_of(PAIRS, model=Pooled(), tokenizer=str(tmp_path))


class Pooled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(2000, 8)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        weights = attention_mask[:, :, None] / attention_mask.sum(1)[:, None, None]
        return (self.words(input_ids) * weights).sum(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "loss", "lora_r"),
    [(PAIRS, "ranking", 0), (TRIPLETS, "ranking", 4), (TRIPLETS, "triplet", 0), (SCORED, "", 0)],
)
def test_sentence_transformers_has_the_same_vectors_and_losses(
    rows: Any, loss: str, lora_r: int, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("sentence_transformers")
    from sentence_transformers import losses

    chosen = {"loss": loss} if loss else {}
    plan = plan_of(rows, embedding={**chosen, "pooling": "mean"}, lora_r=lora_r)
    pipeline = plan.job.pipeline
    save_model(pipeline.module, pipeline.encoder, plan.model.source, tmp_path / "model")
    theirs = transformers.SentenceTransformer(str(tmp_path / "model"))
    made = surefit.predict(tmp_path / "model", rows)
    sent = theirs.encode([row["query"] for row in rows])
    np.testing.assert_allclose([each["prediction"] for each in made], sent, atol=1e-5)
    chosen_rows = [plan.job.train.source_row[n] for n in range(6)]
    columns = [key for key in rows[0] if key != "score"]
    features = [theirs.tokenize([rows[n][key] for n in chosen_rows]) for key in columns]
    measures = {
        "ranking": lambda: losses.MultipleNegativesRankingLoss(theirs),
        "triplet": lambda: losses.TripletLoss(theirs, triplet_margin=0.5),
        "": lambda: losses.CosineSimilarityLoss(theirs),
    }
    scores = torch.tensor([rows[n].get("score", 0) / 5 for n in chosen_rows])
    theirs.eval()
    assert first_loss(plan) == pytest.approx(float(measures[loss]()(features, scores)), rel=1e-4)


def test_a_row_is_shown_text_by_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(write_jsonl(tmp_path / "rows.jsonl", TRIPLETS))
    options = ["--model", "tiny:bert", "--task", "embedding", "--row", "1"]
    assert command(["inspect", data, *options]) == 0
    assert f"⟨block 3⟩{TRIPLETS[1]['negative']}" in capsys.readouterr().out


@pytest.mark.parametrize("modules", [[1], {}, [{"idx": 0}], [{"type": 5}]])
def test_a_folder_with_other_modules_is_told_as_damaged(tmp_path: Path, modules: Any) -> None:
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UsageError, match=r"modules\.json is damaged"):
        read_pooling(tmp_path)
