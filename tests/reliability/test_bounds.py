"""What would never end, or not fit into memory, is refused with a message that names the place."""

from __future__ import annotations

import gzip
import json
import os
import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import surefit
from builders import write_jsonl
from opening import fault_of
from surefit.cli.explain import read_text
from surefit.config import make_config, parse_setting, read_yaml
from surefit.core.files import refuse_special_inside
from surefit.data import data_rules
from surefit.data.formats import (
    conll,
    delimited,
    json_rows,
    numpy_files,
    text_decoding,
)
from surefit.data.formats.jsonl import MAX_DEPTH
from surefit.data.open_data import open_table
from surefit.inputs.chat import bounded_rendering
from surefit.inputs.chat.template_rendering import Template
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.image.image_files import decode
from surefit.run.run_folder import check_plan, open_run

DIALOGUE = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


class FakeTokenizer:
    eos_token_id = 1

    @property
    def special_tokens_map(self) -> dict[str, str]:
        return {}


def codes(path: Path) -> list[str]:
    return [found.code for found in open_table(str(path)).findings]


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.csv", "x.txt", "x.jsonl.gz"])
def test_a_line_that_is_too_long_is_refused_with_its_place(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (text_decoding, json_rows, delimited):
        monkeypatch.setattr(module, "MAX_LINE_BYTES", 1000)
    raw = b'{"text": "short"}\n' + b'{"text": "' + b"x" * 5000
    raw = b"[" + raw.replace(b"\n", b",\n") if name == "x.json" else raw
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    found = fault_of(tmp_path / name)
    assert (found.code, found.where["line"]) == ("SF842", 2)
    assert name in found.message
    if name.startswith("x.jsonl"):
        assert "starts at byte 18" in found.message


def test_a_cell_or_sentence_without_end_names_the_line_it_begins_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f'{n},"text {n}"' for n in range(40)]
    rows[7] = '7,"never closed'
    for tail in (rows[8:], ["8,plain", "9,plain"]):  # a quote closes it in a later line, or none
        (tmp_path / "x.csv").write_text("\n".join(["number,text", *rows[:8], *tail]) + "\n")
        found = fault_of(tmp_path / "x.csv")
        assert (found.code, found.where["line"]) == ("SF102", 9)
        assert "opens in line 9" in found.message
    monkeypatch.setattr(conll, "MAX_TOKENS", 5)
    (tmp_path / "x.conll").write_text("a O\n\n" + "b O\n" * 6)
    found = fault_of(tmp_path / "x.conll")
    assert (found.code, found.where["line"]) == ("SF102", 3)
    assert codes(write_jsonl(tmp_path / "x.jsonl", [{"text": "x" * (1 << 20)}] * 3)) == []


@pytest.mark.parametrize("name", ["x.jsonl", "x.json"])
def test_deep_json_is_refused_and_usual_nesting_read(name: str, tmp_path: Path) -> None:
    for depth, fits in ((MAX_DEPTH - 2, True), (MAX_DEPTH + 1, False), (100_000, False)):
        rows = [f'{{"x": {"[" * depth}1{"]" * depth}}}'] * 2
        (tmp_path / name).write_text(
            "\n".join(rows) if name == "x.jsonl" else f"[{','.join(rows)}]"
        )
        if fits:
            assert open_table(str(tmp_path / name)).num_rows == 2
        else:
            found = fault_of(tmp_path / name)
            assert (found.code, found.where["line"]) == ("SF102", 1)


@pytest.mark.parametrize("name", ["x.jsonl", "x.json"])
def test_keys_that_occur_twice_are_reported(name: str, tmp_path: Path) -> None:
    lines = [
        '{"text": "a", "m": {"k": 1}}',
        '{"text": "b", "m": {"k": 1, "k": 2}}',
        '{"text": "c"}',
    ]
    text = "\n".join(lines) if name == "x.jsonl" else "[" + ",\n".join(lines) + "]"
    (tmp_path / name).write_text(text)
    found = open_table(str(tmp_path / name)).findings
    assert [(each.code, each.where["line"], each.where["column"]) for each in found] == [
        ("SF840", 2, "k")
    ]
    (tmp_path / name).write_text(text.replace('"k": 1, "k"', '"k": 1, "kk"'))
    assert codes(tmp_path / name) == []


@pytest.mark.parametrize("name", ["x.jsonl", "x.json"])
@pytest.mark.parametrize("key", [b"\xff", b"\\ud800"])
def test_a_key_that_is_not_text_is_refused_with_its_line(
    name: str, key: bytes, tmp_path: Path
) -> None:
    rows = [b'{"text": "a"}', b'{"' + key + b'": "b", "text": "c"}'] * 2
    raw = b"\n".join(rows) if name == "x.jsonl" else b"[" + b",\n".join(rows) + b"]"
    (tmp_path / name).write_bytes(raw)
    found = fault_of(tmp_path / name)
    assert (found.code, found.where["line"]) == ("SF105", 2)
    if name == "x.json":
        (tmp_path / name).write_bytes(b'{"' + key + b'": ["a", "b"]}')
        assert fault_of(tmp_path / name).code == "SF105"


def test_an_archive_that_would_fill_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1000, 100)))
    monkeypatch.setattr(numpy_files, "free_bytes", lambda _: 700_000)
    assert "would unpack to 0.8 MB" in fault_of(tmp_path / "x.npz").message
    monkeypatch.setattr(numpy_files, "free_bytes", lambda _: 900_000)
    assert open_table(str(tmp_path / "x.npz")).num_rows == 1000


@pytest.mark.parametrize("name", ["x.npz", "x.parquet", "x.jsonl.gz"])
def test_a_file_that_expands_too_much_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_rules, "ALLOWED_BYTES", 1 << 20)
    text = "x" * 20_000
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((10_000, 100)))
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(900, np.int32)), pa.array([text]))
    pq.write_table(pa.table({"text": column}), tmp_path / "x.parquet")
    lines = (json.dumps({"a": text}) + "\n").encode() * 900
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(lines))
    assert fault_of(tmp_path / name).code == "SF843"
    monkeypatch.setattr(data_rules, "ALLOWED_RATIO", 10**6)
    assert open_table(str(tmp_path / name)).num_rows >= 900


@pytest.mark.parametrize("shape", [f"({2**70},)", "(-1, 4)", "(" + "1," * 100 + ")", "(" * 3000])
def test_an_array_with_an_absurd_header_is_refused(shape: str, tmp_path: Path) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    raw = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    (tmp_path / "x.npy").write_bytes(raw)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", raw)
    for name in ("x.npy", "x.npz"):
        assert fault_of(tmp_path / name).code == "SF102"


@pytest.mark.parametrize("name", ["x.jsonl", "x", "cat/x.png"])
def test_a_pipe_is_never_opened(name: str, tmp_path: Path) -> None:
    for folder in ("cat", "dog"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0.png").touch()
    (tmp_path / "cat" / "loop.png").symlink_to("loop.png")  # a file that cannot be read
    names = [Path(str(row["image"])).name for row in open_table(str(tmp_path)).rows()]
    assert sorted(names) == ["0.png", "0.png", "loop.png"]
    os.mkfifo(tmp_path / name)
    place = tmp_path if "/" in name else tmp_path / name
    with pytest.raises(surefit.UsageError, match="is a named pipe"):
        open_table(str(place))


def test_pipes_in_configs_images_models_and_runs_are_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "plan.json")
    (tmp_path / "config.yaml").touch()
    with pytest.raises(surefit.UsageError, match="is a named pipe"):
        read_yaml(tmp_path / "plan.json")
    with pytest.raises(RowFaultError, match="is a named pipe"):
        decode(str(tmp_path / "plan.json"))
    with pytest.raises(surefit.UsageError, match="is a named pipe"):
        refuse_special_inside(tmp_path)
    with pytest.raises(surefit.UsageError):
        open_run(tmp_path)
    monkeypatch.setattr("surefit.cli.explain.WRITER_WAIT_SECONDS", 0.01)
    with pytest.raises(surefit.UsageError, match="is empty"):
        read_text(str(tmp_path / "plan.json"))
    with pytest.raises(surefit.UsageError, match="is a device"):
        read_text("/dev/zero")


LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LAUGHS, "line 6.*more than 100,000 values"),
        ("data: " + "[" * 5000, "deeper than 32"),
        ("data: &x [*x]", "an alias stands inside"),
        ("lr: 1\nepochs: 2\nlr: 3\n", "line 3.*'lr' occurs twice"),
        ("# " + "x" * (1 << 20), "characters"),
        ("epochs: " + "9" * 5000, "digits"),
        ("epochs: " + "9:" * 3000 + "9", "line 1.*digits"),
    ],
)
def test_yaml_without_bounds_is_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(surefit.UsageError, match=says):
        read_yaml(tmp_path / "run.yaml")


def test_usual_yaml_with_aliases_and_merges_is_read(tmp_path: Path) -> None:
    text = "lora: &a {r: 8}\nearly_stopping: {<<: {patience: 1}, patience: 2}\ngenerate: {}\n"
    (tmp_path / "run.yaml").write_text(text)
    config = make_config(read_yaml(tmp_path / "run.yaml"))
    assert (config.lora.r, config.early_stopping.patience) == (8, 2)
    assert parse_setting("lora.targets=[a, b]") == ("lora.targets", ["a", "b"])
    assert parse_setting("x=" + "[" * 5000)[1] == "[" * 5000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "0.2 s"),
        (
            "{% macro m(n) %}{% if n %}{{ m(n-1) ~ m(n-1) }}{% endif %}{% endmacro %}{{ m(50) }}",
            "0.2 s",
        ),
        ("{{ 'x' * 99999999999 }}", "GB of memory"),
        ("{{ '%99999999999d' % 1 }}", "GB of memory"),
        ("{{ 'x' * 20000000 }}", "20,000,000 characters"),
        ("{{ 9 ** 9 }}", "power"),
        ("{{ 1.5 | round(10 * 99999999) }}", "rounds to more"),
    ],
)
def test_a_template_without_bounds_is_refused(
    text: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if says == "0.2 s":
        monkeypatch.setattr(bounded_rendering, "MAX_SECONDS", 0.2)
    with pytest.raises(surefit.FindingError, match=says) as caught:
        Template(text, tokenizer=FakeTokenizer()).render(DIALOGUE)
    assert caught.value.findings[0].code == "SF274"
    before = resource.getrlimit(resource.RLIMIT_AS)
    usual = "{{ '%s' % 1.55 | round(1) }}{{ dict(**{'a': 2}) }}{% for m in messages %}{{ m.role }}"
    assert "user" in Template(usual + "{% endfor %}", tokenizer=FakeTokenizer()).render(DIALOGUE)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize("change", [{"steps": "7"}, {"objects": 7}, {"spans": [7]}])
def test_a_plan_of_odd_values_is_named(change: dict[str, Any], tmp_path: Path) -> None:
    plan = {"task": "sft", "model": {}, "steps": 3, "objects": {}, "run_format": 2, **change}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "config.yaml").write_text("{}")
    run = open_run(tmp_path)
    with pytest.raises(surefit.UsageError, match=r"plan\.json"):
        run.spans(run.plan["steps"])
    with pytest.raises(surefit.SurefitError, match="is not the plan of a run"):
        check_plan({"model": {}}, tmp_path / "plan.json")
