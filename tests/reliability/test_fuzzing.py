"""No damaged file makes a reader fail in another way than with a message.

A few examples of each in the default tests. By hand, for an hour:

    SUREFIT_FUZZ_MINUTES=60 python -m pytest -q tests/reliability/test_fuzzing.py
"""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from safetensors.numpy import save

import surefit
from builders import MeanPool, feature_rows
from surefit.config import config_yaml, make_config, parse_setting, read_yaml
from surefit.core.foreign import content_of
from surefit.data.cache import release_entries
from surefit.data.open_data import open_table
from surefit.errors import SurefitError
from surefit.inputs.encoder import load_encoder
from surefit.report.page import render
from surefit.run.choose_checkpoint import choose_checkpoint, latest_state
from surefit.run.run_folder import open_run
from surefit.run.verify_run import verify_files

ROWS = [{"text": f"row {n}", "label": n % 3, "x": [n, 2.5], "m": {"k": None}} for n in range(8)]
VALUES = np.arange(24, dtype=np.float32).reshape(6, 4)


def _saved(write: Callable[[io.BytesIO], object]) -> bytes:
    made = io.BytesIO()
    write(made)
    return made.getvalue()


def _arrow(made: io.BytesIO) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_file(made, table.schema) as writer:
        writer.write_table(table)


GOOD: dict[str, bytes] = {
    ".jsonl": "".join(json.dumps(row) + "\n" for row in ROWS).encode(),
    ".json": json.dumps({"data": ROWS, "version": 1}).encode(),
    ".csv": b'a,b,c\n1,"two, or\nthree",x\n2,,\xc3\xa9\n3,4,5\n',
    ".tsv": b"a\tb\n1\t2\n3\t4\n",
    ".txt": b"__label__a one\n__label__b two\n__label__a three\n__label__b four\n",
    ".conll": b"-DOCSTART- O\n\nBerlin B-LOC\nis O\n\nRome B-LOC\n",
    ".ts": b"@problemName x\n@univariate true\n@classLabel true a b\n@data\n1,2,3:a\n4,5,6:b\n",
    ".npy": _saved(lambda made: np.save(made, VALUES)),
    ".npz": _saved(lambda made: np.savez(made, x=VALUES, y=np.arange(6))),
    ".parquet": _saved(lambda made: pq.write_table(pa.Table.from_pylist(ROWS), made)),
    ".arrow": _saved(_arrow),
    ".safetensors": save({"x": VALUES, "y": np.arange(6)}),
    ".pt": _saved(lambda made: torch.save({"x": torch.tensor(VALUES)}, made)),
    ".idx": b"\0\0\x08\x03" + struct.pack(">III", 6, 2, 2) + bytes(range(24)),
}
"""A small file of each format, by the ending that chooses its opener."""

PIECES = (
    *(b"\0", b"\n", b"\r", b'"', b",", b"[", b"{", b"}", b"]", b":", b"\\", b"-", b"\x1b[2J"),
    *(b"\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"9" * 30, b"1e999"),
    *(b"NaN", b"null", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"[" * 200),
)
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**30, 1.5, 1e308, "", "x", "\x1b[2J\n", "__class__", "../../x", "os:f"),
    *([], [[]], [None], {}, {"": {}}, {"step": "x"}),
)


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """The bytes after one to four changes: cut, overwritten, repeated, or with a piece inside."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 12)))
        kind = draw(st.sampled_from(("cut", "set", "drop", "repeat", "insert")))
        if kind == "cut":
            del data[at:]
        elif kind == "set":
            data[at:end] = draw(st.binary(min_size=end - at, max_size=end - at))
        elif kind == "drop":
            del data[at:end]
        elif kind == "repeat":
            data[at:at] = data[at:end] * draw(st.integers(1, 20))
        else:
            data[at:at] = draw(st.sampled_from(PIECES))
    return bytes(data)


@st.composite
def altered(draw: st.DrawFn, good: Any) -> Any:
    """The JSON value with some parts replaced, removed or renamed."""
    value = json.loads(json.dumps(good))
    for _ in range(draw(st.integers(1, 3))):
        value = _alter(draw, value)
    return value


def _alter(draw: st.DrawFn, value: Any) -> Any:
    inside = isinstance(value, dict | list) and len(value) > 0
    if not inside or draw(st.integers(0, 3)) == 0:
        return copy.deepcopy(draw(st.sampled_from(ODD)))  # which is changed further
    keys = sorted(value) if isinstance(value, dict) else range(len(value))
    key = draw(st.sampled_from(keys))
    kind = draw(st.sampled_from(("inside", "inside", "drop", "rename")))
    if kind == "inside" or isinstance(value, list):
        value[key] = _alter(draw, value[key])
    elif kind == "drop":
        del value[key]
    else:
        value[draw(st.sampled_from(("", "step", "\x1b[2J", "format_version")))] = value.pop(key)
    return value


MINUTES = float(os.environ.get("SUREFIT_FUZZ_MINUTES", "0"))
TARGETS = len(GOOD) + 6
NUM_EXAMPLES = 12


def fuzz(strategy: st.SearchStrategy[Any], target: Callable[[Any], None]) -> None:
    """Run examples of one seed; with SUREFIT_FUZZ_MINUTES, of new seeds for a share of the time."""
    until = time.monotonic() + 60 * MINUTES / TARGETS
    number = 0
    while number == 0 or time.monotonic() < until:

        @seed(number if MINUTES == 0 else time.time_ns())
        @settings(
            max_examples=NUM_EXAMPLES,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def run(example: Any) -> None:
            said = "read"
            try:
                target(example)
            except SurefitError as error:
                said = error.message
            assert said

        run()
        number += 1


@pytest.mark.parametrize("ending", GOOD)
def test_a_damaged_data_file_is_read_or_refused(ending: str, tmp_path: Path) -> None:
    def target(data: bytes) -> None:
        path = tmp_path / f"data{ending}"
        path.write_bytes(data)
        try:
            table = open_table(str(path))
            for row in range(min(table.num_rows, 50)):
                table.row(row)
        finally:
            if MINUTES:
                release_entries()
                shutil.rmtree(os.environ["SUREFIT_CACHE"], ignore_errors=True)

    fuzz(damaged(GOOD[ending]), target)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.ts", b"@univariate true\n@classLabel true a b\n@data\na\n4,5:b\n", "no values"),
        ("a.idx", b"\0\0\x08\x03\0\0\0\0\x80\0\0\x06\0\0\0\2\0\0\0\2", "no rows"),
    ],
)
def test_what_fuzzing_found(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SurefitError, match=said):
        open_table(str(tmp_path / name))


def test_a_damaged_config_is_read_or_refused(tmp_path: Path) -> None:
    good = make_config({"data": "x.jsonl", "model": "tiny:llama"})
    odd = altered(good.model_dump(mode="json")).map(lambda value: yaml.safe_dump(value).encode())

    def target(data: bytes) -> None:
        (tmp_path / "run.yaml").write_bytes(data)
        make_config(read_yaml(tmp_path / "run.yaml"))

    fuzz(damaged(config_yaml(good).encode()), target)
    fuzz(odd, target)
    fuzz(
        st.tuples(st.sampled_from(("lr", "lora", "columns", "a.b", "")), st.text(max_size=60)),
        lambda pair: make_config(dict([parse_setting("=".join(pair))])),  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with two checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUREFIT_CACHE", str(folder / "cache"))
        options = {"batch_size": 4, "epochs": 1, "save_every": 2}
        model = MeanPool()
        run = surefit.train(
            data=feature_rows(16), model=model, output=str(folder / "run"), **options
        )
    return run.path


def read_run(folder: Path) -> None:
    """Read all that does not need the model's weights."""
    run = open_run(folder)
    assert run.config is not None
    assert run.objects is not None
    assert run.finished is not None
    assert run.metrics is not None
    assert run.epochs is not None
    latest_state(run.checkpoints)
    choose_checkpoint(run.checkpoints)
    verify_files(run)
    with content_of(run.path):
        assert render(run)


def files_of(run: Path) -> list[str]:
    last = sorted((run / "checkpoints").glob("step-*"))[-1].name
    names = ["plan.json", "config.yaml", "digests.json", "events.jsonl"]
    return [*names, f"checkpoints/{last}/state.json", f"checkpoints/{last}/digests.json"]


def test_a_run_with_a_damaged_file_is_read_or_refused(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    good = {name: (run / name).read_bytes() for name in files_of(run)}
    values = {name: json.loads(raw) for name, raw in good.items() if name.endswith(".json")}

    def target(change: tuple[str, bytes]) -> None:
        name, data = change
        (run / name).write_bytes(data)
        try:
            read_run(run)
        finally:
            (run / name).write_bytes(good[name])

    def of_file(make: Callable[[str], st.SearchStrategy[bytes]]) -> Any:
        return lambda name: st.tuples(st.just(name), make(name))

    broken = of_file(lambda name: damaged(good[name]))
    fuzz(st.sampled_from(sorted(good)).flatmap(broken), target)
    odd = of_file(lambda name: altered(values[name]).map(lambda value: json.dumps(value).encode()))
    fuzz(st.sampled_from(sorted(values)).flatmap(odd), target)
    encoder = json.loads((trained / "model" / "encoder.json").read_text())

    def load(value: Any) -> None:
        (tmp_path / "encoder.json").write_text(json.dumps(value))
        load_encoder(tmp_path)

    fuzz(altered(encoder), load)
