"""No damaged file makes a reader fail in another way than with a message.

A few cases of each parser; `fuzz.py` tries more, also with trained runs and their models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reliability.fuzz import failure_of
from reliability.fuzz_targets import RUN_FILES, parsers, run_reader

import surefit
from builders import MeanPool, feature_rows
from surefit.config import make_config
from surefit.data.open_data import open_table
from surefit.errors import SurefitError, UsageError
from surefit.run.run_folder import check_plan


def failures(targets: list[Any], num_cases: int) -> list[str]:
    return [
        f"{target.name} --first {number}: {fault}"
        for target in targets
        for number in range(num_cases)
        if (fault := failure_of(target, number, 1)) is not None
    ]


def test_a_damaged_file_is_read_or_refused(tmp_path: Path) -> None:
    assert failures([t for t in parsers(tmp_path) if t.name != "image.png"], 6) == []


@pytest.mark.slow
def test_a_run_with_a_damaged_file_is_read_or_refused(tmp_path: Path) -> None:
    options: Any = {"batch_size": 4, "epochs": 1, "save_every": 2, "quiet": True}
    run = surefit.train(
        data=feature_rows(16), model=MeanPool(), output=str(tmp_path / "run"), **options
    )
    last = sorted(run.checkpoints.glob("step-*"))[-1].relative_to(run.path).as_posix()
    targets = [
        run_reader(tmp_path, run.path, name.replace("LAST", last), form)
        for name, form in RUN_FILES.items()
    ]
    assert failures(targets, 2) == []


def _parquet(path: Path) -> None:
    content = pa.array([b"a", b"\xff"], pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"text": content}), path)


def _empty(path: Path) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 0)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)


FOUND: list[tuple[str, Any, str]] = [
    ("a.ts", b"@univariate true\n@classLabel true a b\n@data\na\n4,5:b\n", "no values"),
    ("a.idx", b"\0\0\x08\x03\0\0\0\0\x80\0\0\x06\0\0\0\2\0\0\0\2", "no rows|announces 0"),
    ("a.idx", b"\0\0\x08\x03\x0f\xff\xff\xff\0\0\0\2\0\0\0\0", "holds no values"),
    ("a.npy", _empty, "holds no values"),
    ("a.parquet", _parquet, "row group 0"),
    ("saved/state.json", b'{"_data_files": [{"filename": "%s"}]}' % (b"a" * 300), "not the name"),
    ("images/data.yaml", b"names: 7", "names"),
    ("labels/1.txt", b"0 .5 .5 .2 .2\n\xff 1 1 1 1", "class number"),
]


@pytest.mark.parametrize(("name", "content", "said"), FOUND)
def test_what_fuzzing_found(name: str, content: Any, said: str, tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if path.parent.name in ("images", "labels"):
        for folder in ("images", "labels"):
            (tmp_path / folder).mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / "1.png")
        (tmp_path / "labels" / "1.txt").write_text("0 0.5 0.5 0.2 0.2")
    content(path) if callable(content) else path.write_bytes(content)
    with pytest.raises(SurefitError, match=said):
        open_table(
            str(
                path
                if path.parent == tmp_path
                else path.parent.with_name(
                    "images" if path.parent.name == "labels" else path.parent.name
                )
            )
        )


def test_white_space_that_int_does_not_skip_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n1\t2\n3\t4\x1f\n")
    assert open_table(str(tmp_path / "a.tsv")).num_rows == 2


def test_settings_that_no_one_writes_are_refused() -> None:
    with pytest.raises(UsageError, match="not a regular expression"):
        make_config({"read.label_from": "(?P<\udcf0>a)"})
    assert [*make_config({"metrics": [[1]]}).metrics] == ["[1]"]


def test_a_plan_without_a_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not the plan of a run"):
        check_plan({"model": {}, "steps": 3}, tmp_path / "plan.json")
