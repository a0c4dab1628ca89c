"""Law 10: data never runs code."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import surefit
from builders import MeanPool, feature_rows, write_jsonl
from surefit.cli import run as command
from surefit.data.open_data import open_table
from surefit.errors import FindingError, UsageError
from surefit.report.page import render
from surefit.user_code import RunCode
from surefit.user_code.run_code import CodeRecord, remember
from tar_files import tar_of


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_pickled_arrays_are_refused_and_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "it-ran"
    payload = np.array([Bomb(trace)], dtype=object)
    np.save(tmp_path / "x.npy", payload, allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=payload)
    for name in ("x.npy", "x.npz"):
        plan = surefit.check(data=str(tmp_path / name), model=MeanPool())
        assert [found.code for found in plan.findings] == ["SF104"]
    assert not trace.exists()
    pickle.loads(pickle.dumps(Bomb(trace)))
    assert trace.exists()  # the bomb would have gone off


def test_config_cannot_make_objects(tmp_path: Path) -> None:
    trace = tmp_path / "it-ran"
    config = tmp_path / "config.yaml"
    config.write_text(f"data: !!python/object/apply:os.system ['touch {trace}']\n")
    assert command(["check", str(config)]) == 2
    assert not trace.exists()


def test_report_escapes_what_comes_from_the_data(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    rows = [{**row, "label": bad if row["label"] else "fine"} for row in feature_rows(40)]
    run = surefit.train(data=rows, model=MeanPool(), max_steps=2, output=str(tmp_path / "run"))
    plan = json.loads((run.path / "plan.json").read_text())
    plan["findings"].append(
        {"code": bad, "severity": "info", "message": bad, "where": {"file": bad}, "fix": bad}
    )
    plan["model"]["name"] = bad
    (run.path / "plan.json").write_text(json.dumps(plan))
    assert bad not in render(run)
    assert "&lt;script&gt;" in render(run)


def test_plan_names_the_code_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from builders import save_ragged, write_module

    monkeypatch.chdir(tmp_path)
    data = save_ragged(tmp_path / "data.npz", feature_rows(30))
    plan = surefit.check(data=str(data), model=write_module(tmp_path, "law10net"))
    assert plan.as_dict()["model"]["code"] == str(tmp_path / "law10net.py")


def test_run_folder_brings_neither_code_nor_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = surefit.train(
        data=feature_rows(40), model=MeanPool(), max_steps=2, output=str(tmp_path / "run")
    )
    trace = tmp_path / "it-ran"
    (tmp_path / "law10evil.py").write_text(f"open({str(trace)!r}, 'w')\ndef make(): ...\n")
    monkeypatch.chdir(tmp_path)
    recipe = run.path / "model" / "module.json"
    recipe.write_text(json.dumps({**json.loads(recipe.read_text()), "function": "law10evil:make"}))
    with pytest.raises(surefit.UsageError, match="names the code law10evil:make"):
        surefit.load(str(run.path))
    assert not trace.exists()
    with pytest.raises(surefit.SurefitError):  # it makes no module, but it runs
        surefit.load(str(run.path), trust_code="law10evil:make")
    assert trace.exists()


def test_record_of_one_model_does_not_allow_the_code_of_another(tmp_path: Path) -> None:
    remember("0" * 32, CodeRecord("run", remote=("another digest",)))
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoModel": "modeling_evil.Evil"}}')
    (tmp_path / "modeling_evil.py").write_text("")
    assert not RunCode(tmp_path, "0" * 32).allows_remote(str(tmp_path), True)


def test_checkpoints_hold_no_pickle(tmp_path: Path) -> None:
    run = surefit.train(
        data=feature_rows(40), model=MeanPool(), max_steps=2, output=str(tmp_path / "run")
    )
    kinds = {path.suffix for path in run.path.rglob("*") if path.is_file()}
    assert kinds == {".yaml", ".json", ".jsonl", ".safetensors", ".html"}


def test_rows_are_data_even_where_they_look_like_templates(tmp_path: Path) -> None:
    text = "{{ ''.__class__ }} {0.__class__} %(x)s"
    path = write_jsonl(
        tmp_path / "x.jsonl", [{"prompt": text, "answer": f"a {i}"} for i in range(9)]
    )
    plan = surefit.check(data=str(path), model="tiny:llama")
    assert plan.job is not None
    row = plan.job.train.row(0)
    assert plan.job.pipeline.encoder.tokenizer.decode(row["input_ids"]).startswith(text)


def test_pickles_in_tar_files_are_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "it-ran"
    array = io.BytesIO()
    np.save(array, np.array([Bomb(trace)], dtype=object), allow_pickle=True)
    bomb = pickle.dumps(Bomb(trace))
    others = [("0.pyd", bomb), ("0.pickle", bomb), ("0.pth", bomb)]
    (tmp_path / "a.tar").write_bytes(tar_of([("0.txt", b"text"), *others]))
    assert open_table(tmp_path / "a.tar").columns == ("text",)
    (tmp_path / "b.tar").write_bytes(tar_of([("0.npy", array.getvalue())]))
    with pytest.raises(FindingError) as caught:
        open_table(tmp_path / "b.tar")
    assert caught.value.findings[0].code == "SF104"
    assert not trace.exists()


@pytest.mark.parametrize("url", ["zip://rows.jsonl::{}", "simplecache::file://{}", "dir::{}"])
def test_urls_lead_to_the_files_they_name(url: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [{"text": "a"}])
    with zipfile.ZipFile(tmp_path / "rows.zip", "w") as archive:
        archive.write(tmp_path / "rows.jsonl", "rows.jsonl")
    with pytest.raises(UsageError, match="Data cannot be read through"):
        open_table(url.format(tmp_path / ("rows.zip" if "zip" in url else "rows.jsonl")))
