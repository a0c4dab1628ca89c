"""report.html: batches as the model sees them, worst rows, comparison; rows are shown as data."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import surefit
from builders import echo_rows, sentiment_rows, write_jsonl
from surefit.cli import run as command
from surefit.errors import UsageError
from surefit.plan.make_plan import make_plan
from surefit.report.batch_view import NUM_CELLS, view_batches
from surefit.report.drawn_rows import draw_batch
from surefit.report.page import render
from surefit.report.worst_rows import judge_rows, row_by_row, token_losses
from surefit.request import make_request
from surefit.run.run_folder import open_run

EVIL = "<script>document.title = 'hacked'</script><img src=x onerror=\"document.title = 'hacked'\">"


def job_of(**options: Any) -> Any:
    plan = make_plan(make_request(options))
    assert plan.job is not None, plan.findings
    return plan.job


@pytest.fixture
def texts(tmp_path: Path) -> str:
    return str(write_jsonl(tmp_path / "train.jsonl", echo_rows(40)))


def test_each_token_has_the_colour_of_its_part(texts: str) -> None:
    job = job_of(data=texts, model="tiny:llama", batch_size=4)
    batch = view_batches(job)[0]
    assert batch["layout"] == "padding-free"
    assert "row 0 edge" not in draw_batch(batch)
    assert draw_batch(batch).count("class='row edge'") == 3
    for row in batch["rows"]:
        place = int(np.flatnonzero(job.train.source_row == row["row"])[0])
        known = job.train.row(place)
        cells = row["sequences"][0]["cells"]
        assert [cell[1] for cell in cells] == known["input_ids"].tolist()
        assert ["labelled" in cell[4] for cell in cells] == (known["labels"] >= 0).tolist()
        text = "".join(cell[0] for cell in cells)
        assert text == job.pipeline.encoder.tokenizer.decode(known["input_ids"])
        assert "special" in cells[-1][4]  # the end of the answer, which is learned


def test_padding_is_counted_and_rows_are_bounded() -> None:
    rows = [
        {"text": " ".join(["word"] * (3 + 90 * (n % 4))), "label": "ab"[n % 2]} for n in range(24)
    ]
    job = job_of(data=rows, model="tiny:deberta-v2", batch_size=4, max_seq_length=256)
    batch = view_batches(job)[0]
    assert batch["layout"] == "padded"
    widths = {
        sequence["length"] + sequence["padding"]
        for row in batch["rows"]
        for sequence in row["sequences"]
    }
    assert len(widths) == 1
    assert max(widths) > NUM_CELLS
    for row in batch["rows"]:
        (sequence,) = row["sequences"]
        left_out = sequence["left_out"][1] if sequence["left_out"] else 0
        assert len(sequence["cells"]) + left_out == sequence["length"]
        assert row["values"]["label"] in "ab"
    assert "padding × " in draw_batch(batch)


def test_the_loss_of_a_row_is_the_mean_of_its_tokens(texts: str) -> None:
    job = job_of(data=texts, model="tiny:llama")
    for row in row_by_row(job.pipeline, job.validation, np.arange(2)):
        batch = job.pipeline.batch(job.validation, np.array([row["place"]]))
        with torch.no_grad():
            losses = token_losses(job.pipeline, batch)
        assert losses is not None
        assert float(losses.mean()) == pytest.approx(row["loss"], rel=1e-5)
    judged = judge_rows(job)
    losses = [row["loss"] for row in judged["worst"]]
    assert losses == sorted((row["loss"] for row in judged["rows"]), reverse=True)[: len(losses)]
    cells = judged["worst"][0]["sequences"][0]["cells"]
    assert [cell[3] is not None for cell in cells] == ["labelled" in cell[4] for cell in cells]


def test_both_answers_of_a_pair_are_shown_behind_their_prompt() -> None:
    pairs = [
        {"prompt": f"Say {n}", "chosen": f"it is {n}", "rejected": "no idea"} for n in range(30)
    ]
    job = job_of(data=pairs, model="tiny:llama", task="preference", batch_size=2)
    for row in view_batches(job)[0]["rows"]:
        words = ["".join(cell[0] for cell in each["cells"]) for each in row["sequences"]]
        assert any("it is" in text for text in words)
        assert any("no idea" in text for text in words)
    margins = [row["metrics"]["reward_margin"] for row in judge_rows(job)["rows"]]
    assert margins == [0.0] * len(margins)  # the model is its own reference


class OnlyBatches(nn.Module):
    """Fails on a single row, as a module with a batch norm over vectors in training does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if len(features) == 1 and not self.training:
            raise ValueError("one row alone")
        return self.layer(features)


def test_a_model_that_takes_no_single_row_is_trained_and_the_reason_shown() -> None:
    rows = [{"features": [n % 2 + 0.1, n / 40], "label": "ab"[n % 2]} for n in range(40)]
    job = job_of(data=rows, model=OnlyBatches(), batch_size=8)
    assert judge_rows(job)["why"].endswith("ValueError: one row alone")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("report")
    rows = [{**row, "text": f"{row['text']} {EVIL}"} for row in sentiment_rows(60)]
    data = write_jsonl(folder / "rows.jsonl", rows)
    options: dict[str, Any] = {"data": str(data), "model": "tiny:bert", "batch_size": 8}
    return [
        surefit.train(**options, epochs=2, lr=lr, output=str(folder / name), quiet=True)
        for name, lr in (("one", 1e-3), ("two", 1e-4))
    ]


def test_the_report_is_one_small_file_that_shows_rows_as_data(trained: Any) -> None:
    page = trained[0].report_path.read_text("utf-8")
    assert len(page) < 1_000_000
    assert EVIL[:30] not in page
    assert "<img src=x" not in page
    assert page.count("<script>") == 1
    assert not re.search(r"(src|href)\s*=(?![\"']?(data:|#))", page)
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles.index("Findings") < titles.index("Worst rows") < titles.index("Curves")
    for title in ("Batches as the model sees them", "Classes", "Evaluations", "Memory and time"):
        assert title in titles
    for chart in ("loss per row", "learning rate", "gradient norm", "tokens per second"):
        assert f'aria-label="{chart}"' in page
    assert "(best)" in page
    assert page == render(open_run(trained[0].path))


def test_predictions_and_worst_rows_stand_beside_their_columns(trained: Any) -> None:
    run = trained[0]
    made, worst = run.predictions(), run.worst(3)
    assert {"text", "label", "row", "prediction", "probability"} <= {*made.columns}
    assert len(made) == run.plan["ledger"]["eval_rows"]
    lines = Path(run.config.data[0]).read_text("utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert [texts[row] for row in made["row"]] == made["text"].tolist()
    assert worst["loss"].is_monotonic_decreasing
    assert [*worst["target"]] == [*worst["label"].astype(str)]
    again = run.predictions([{"text": "a"}, {"text": "b"}])
    assert again["text"].tolist() == ["a", "b"]
    page = run._repr_html_()
    assert page.startswith("<iframe sandbox=")
    assert "<script" not in page


def test_a_run_of_python_objects_has_its_validation_rows(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
    data = {"x": x, "label": (x[:, 0] > 0).astype(int)}
    options: dict[str, Any] = {"model": torch.nn.Linear(3, 2), "epochs": 1, "quiet": True}
    run = surefit.train(data=data, output=str(tmp_path / "drawn"), **options)
    made, worst = run.predictions(), run.worst(3)
    assert len(made) == 6
    assert sorted(worst["loss"], reverse=True) == worst["loss"].tolist()
    assert np.allclose(worst["x"][0], x[worst["row"][0]])
    held = {name: values[:5] for name, values in data.items()}
    run = surefit.train(data=data, eval_data=held, output=str(tmp_path / "passed"), **options)
    assert len(run.predictions()) == 5
    assert np.allclose(run.worst(1)["x"][0], x[run.worst(1)["row"][0]])
    assert surefit.evaluate(run)["loss"] == pytest.approx(run.metrics["loss"], rel=1e-5)
    with pytest.raises(surefit.UsageError, match="trained on Python objects"):
        surefit.evaluate(str(tmp_path / "drawn"), model=torch.nn.Linear(3, 2))


def test_curves_and_confusion_of_a_run(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": "tiny:bert", "max_steps": 3, "quiet": True}
    output = str(tmp_path / "run")
    run = surefit.train(data=sentiment_rows(40), output=output, **options)
    found = run.confusion()
    assert [*found.index] == [*found.columns] == ["bad", "good"]
    assert found.to_numpy().tolist() == run.metrics["confusion"]
    drawn = run.plot()._repr_html_()
    assert drawn.startswith("<iframe sandbox")
    assert "loss per row" in drawn
    assert "Batches" not in drawn
    with pytest.raises(UsageError, match="rows passed from Python"):
        open_run(Path(output)).predictions()
    (tmp_path / "run" / "examples.json").unlink()
    with pytest.raises(UsageError, match="no confusion matrix"):
        run.confusion()


def test_predictions_are_an_arrow_table_without_pandas(
    trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    monkeypatch.setattr("surefit.results.find_spec", lambda name: None)
    made = trained[0].predictions([{"text": "a"}])
    assert isinstance(made, pa.Table)
    assert made.column_names[:2] == ["text", "row"]


def test_runs_are_compared_by_what_differs(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(["report", *(str(run.path) for run in trained)]) == 0
    assert capsys.readouterr().out == "comparison.html\n"
    page = Path("comparison.html").read_text("utf-8")
    differs = page[page.index("<h2>What differs</h2>") :].split("</section>")[0]
    assert re.findall(r"<tr><td>(.*?)</td>", differs) == ["lr"]
    assert 'aria-label="validation loss"' in page
    Path("mine.html").write_text("mine")
    arguments = ["report", str(trained[0].path), "--output", "mine.html"]
    assert command(arguments) == 2
    assert Path("mine.html").read_text() == "mine"
    assert "is not a report of surefit" in capsys.readouterr().err


def test_check_writes_a_report_without_training(texts: str, tmp_path: Path, capsys: Any) -> None:
    report = tmp_path / "plan.html"
    options = ["--data", texts, "--model", "tiny:llama", "--report", str(report)]
    assert command(["check", *options]) == 0
    page = report.read_text("utf-8")
    assert "Batches as the model sees them" in page
    assert "nothing was trained" in page
    assert f"surefit check --data {texts}" in page
    assert "<h2>Curves</h2>" not in page
    assert command(["check", "--data", texts, "--model", "tiny:none", "--report", str(report)]) == 2
    capsys.readouterr()


BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.mark.slow
def test_a_browser_shows_the_page_without_errors_or_requests(trained: Any, tmp_path: Path) -> None:
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no browser is installed")
    asked = [browser, "--headless=new", "--no-sandbox", "--disable-gpu"]
    asked += [f"--user-data-dir={tmp_path / 'user'}", "--enable-logging=stderr", "--dump-dom"]
    done = subprocess.run(
        [*asked, trained[0].report_path.resolve().as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    assert title[1] == "surefit: text-classification, tiny:bert"
    assert '<div id="tip"' in done.stdout  # the script ran
