"""forecasting: windows of long tables, split by time; MASE, sMAPE and baselines are true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import surefit
from surefit.cli import run as run_command
from surefit.errors import FindingError, UsageError

RANDOM = np.random.default_rng(0)
DAYS = pd.date_range("2024-01-01", periods=60).strftime("%Y-%m-%d")
SALES = pd.DataFrame(
    {
        "shop": np.repeat(["north", "south"], 60),
        "day": np.tile(DAYS, 2),
        "sales": np.concatenate(
            [
                scale * (10 + np.sin(2 * np.pi * np.arange(60) / 7)) + RANDOM.normal(0, 0.1, 60)
                for scale in (1, 50)
            ]
        ),
    }
).sample(frac=1, random_state=0)  # fmt: skip
FORECAST = {"group": "shop", "time": "day", "history": 14, "horizon": 3, "season": 7}


class Repeats(nn.Module):
    """Forecasts a multiple of the values a season ago."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(14, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1:] == (14, 1)
        return self.head(x[..., 0] / x.mean(1))


def train(folder: Path, data: Any = SALES, **options: Any) -> surefit.Run:
    options = {"forecast": FORECAST, "epochs": 2, "lr": 0.01, "quiet": True, **options}
    return surefit.train(data=data, model=Repeats(), output=folder, **options)


def series(shop: str) -> Any:
    return SALES[SALES["shop"] == shop].sort_values("day")["sales"].to_numpy()


def truth(made: Any, begins: list[tuple[str, int]]) -> dict[str, float]:
    """MASE and sMAPE as their definitions have them, one window at a time."""
    scaled, percent = [], []
    for forecast, (shop, at) in zip(made, begins, strict=True):
        known, actual = series(shop)[:at], series(shop)[at : at + 3]
        errors = np.abs(np.asarray(forecast) - actual)
        scaled.append(errors.mean() / np.abs(known[7:] - known[:-7]).mean())
        percent.append((200 * errors / (np.abs(forecast) + np.abs(actual))).mean())
    return {"mase": float(np.mean(scaled)), "smape": float(np.mean(percent))}


def test_metrics_and_baselines_are_those_of_the_definitions(tmp_path: Path) -> None:
    run = train(tmp_path / "run")
    plan = run.plan
    assert plan["task"] == "forecasting"
    # 44 windows of each shop: the latest tenth, and before it two that would reach into it
    ledger = plan["ledger"]
    assert (ledger["rows"], ledger["train_rows"], ledger["eval_rows"]) == (88, 74, 10)
    assert sum(ledger["dropped_rows"].values()) == 4
    begins = [(shop, at) for shop in ("north", "south") for at in range(53, 58)]
    last = [series(shop)[at - 1].repeat(3) for shop, at in begins]
    season = [series(shop)[at - 7 : at - 4] for shop, at in begins]
    for name, made in {"last value": last, "seasonal naive": season}.items():
        for metric, figure in truth(made, begins).items():
            assert plan["baselines"][name][metric] == pytest.approx(figure, rel=1e-4)
    history = torch.tensor(np.array([series(shop)[at - 14 : at] for shop, at in begins]))
    with torch.no_grad():
        scaled = run.model.eval()(history.float()[..., None]).double().numpy()
    encoder = json.loads((run.path / "model" / "encoder.json").read_text())
    scales = encoder["target"]["numbers"]
    figures = truth(scaled * scales["scale"] + np.asarray(scales["mean"]), begins)
    for metric, figure in figures.items():
        assert run.metrics[metric] == pytest.approx(figure, rel=1e-4)


def test_forecasts_follow_the_last_steps_of_each_series(tmp_path: Path) -> None:
    run = train(tmp_path / "run")
    made = surefit.predict(run, SALES[["day", "sales", "shop"]], quiet=True)
    assert [(row["shop"], row["day"]) for row in made] == [
        (shop, DAYS[-1]) for shop in dict.fromkeys(SALES["shop"])
    ]
    for row in made:
        alone = SALES[SALES["shop"] == row["shop"]]
        again = surefit.predict(run, alone, quiet=True)
        assert again[0]["prediction"] == pytest.approx(row["prediction"])
        assert len(row["prediction"]) == 3
    assert surefit.evaluate(run, SALES, quiet=True)["mase"] > 0
    with pytest.raises(UsageError, match="no series has 14 rows"):
        surefit.predict(run, SALES[SALES["day"] < "2024-01-05"], quiet=True)


def test_windows_with_missing_values_are_left_out_and_counted() -> None:
    data = SALES.sort_values(["shop", "day"]).reset_index(drop=True)
    data.loc[30, "sales"] = np.nan
    plan = surefit.check(data=data, model=Repeats(), forecast=FORECAST)
    assert plan.as_dict()["ledger"]["rows"] == 88 - 17
    assert any("17 windows with missing values are left" in n for n in plan.as_dict()["notes"])
    plan = surefit.check(data=data.drop(index=range(40, 44)), model=Repeats(), forecast=FORECAST)
    assert "SF193" in {f.code for f in plan.findings}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no horizon": ({"history": 14, "time": "day"}, "needs forecast.horizon"),
    "no such column": ({**FORECAST, "time": "date"}, "'date'"),
    "a long season": ({**FORECAST, "season": 30}, "season is 30 steps, and forecast.history 14"),
    "long windows": ({**FORECAST, "history": 58}, "no series has 61 rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_forecast_is_refused(name: str) -> None:
    forecast, message = REFUSED[name]
    with pytest.raises((UsageError, FindingError), match=message):
        surefit.train(
            data=SALES, model=Repeats(), task="forecasting", forecast=forecast, quiet=True
        )


def test_series_must_be_told_apart() -> None:
    alone = {key: value for key, value in FORECAST.items() if key != "group"}
    plan = surefit.check(data=SALES, model=Repeats(), forecast=alone)
    (found,) = (f for f in plan.findings if f.severity == "error")
    assert found.code == "SF192"
    assert "forecast.group" in found.fix
    with pytest.raises(UsageError, match=r"split\.folds is set, and windows of series overlap"):
        surefit.train(data=SALES, model=Repeats(), forecast=FORECAST, split={"folds": 3})


@pytest.mark.slow
def test_a_forecast_is_trained_from_the_command_line(tmp_path: Path) -> None:
    SALES.to_csv(tmp_path / "sales.csv", index=False)
    (tmp_path / "repeats.py").write_text(
        "from torch import nn\n"
        "def make(horizon):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(14, horizon))\n"
    )
    settings = [f"--set=forecast.{key}={value}" for key, value in FORECAST.items()]
    command = ["train", "--data", str(tmp_path / "sales.csv"), *settings, "--quiet"]
    command += ["--model", f"{tmp_path / 'repeats.py'}:make", "--output", str(tmp_path / "run")]
    assert run_command([*command, "--max-steps", "2"]) == 0
    assert run_command(["train", "--resume", str(tmp_path / "run"), "--max-steps", "3"]) == 0
