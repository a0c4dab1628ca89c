"""Values that no file should have, each in a place where a library or surefit would use it."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from reliability.hostile_case import ANY, Case, Content
from reliability.hostile_data import GOOD, npy_of
from reliability.hostile_files import LAST, RUN
from reliability.hostile_runs import CHECK, edited

TINY = (*CHECK, "tiny:llama")
ROWS: dict[str, Content] = {"rows.jsonl": GOOD}
SLOW = "(.*.*.*.*.*.*.*.*.*.*.*.*)*x$"
"""A regular expression whose matching takes time without end on any name."""


def value_cases() -> list[Case]:
    """All values in their places."""
    return [*_numbers(), *_patterns(), *_tokenizers(), *_configs(), *_states(), *_names(), *_web()]


def _numbers() -> Iterator[Case]:
    for text in (
        *("epochs=1000000", "epochs=1e300", "epochs=-1", "max_steps=99999999999999999999"),
        *("batch_size=1000000000000", "lr=1e400", "seed=-1", "max_length=99999999999999"),
        *("warmup=1e99", "split.fraction=7", "save_every=10000000000000000000000"),
    ):
        yield Case(f"number {text}", [*TINY, "--set", text], ROWS, ANY)
    many: Content = _many_members
    yield Case("npz of 20,000 members", ["inspect", "x.npz"], {"x.npz": many}, ANY)
    large: Content = _dictionary
    command = ["check", "--data", "x.parquet", "--model", "tiny:llama"]
    yield Case("dictionary-encoded parquet of 4 GB", command, {"x.parquet": large}, ANY)


def _many_members(path: Path) -> None:
    member = npy_of("(1,)") + struct.pack("<f", 1.0)
    with zipfile.ZipFile(path, "w") as archive:
        for n in range(20_000):
            archive.writestr(f"a{n}.npy", member)


def _dictionary(path: Path) -> None:
    indices = pa.array(np.zeros(4096, np.int32))
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["x " * (1 << 19)]))
    pq.write_table(pa.table({"text": column}), path)


def _patterns() -> Iterator[Case]:
    train = ["train", "--data", "rows.jsonl", "--model", "tiny:llama", "--output", "../out/run"]
    for key in (f"freeze=['{SLOW}']", f"lora.targets=['{SLOW}']", f"lr_by={{'{SLOW}': 0.1}}"):
        yield Case(f"endless pattern in {key[:8]}", [*train, "--set", key], ROWS)
    ranks = {"rank_pattern": {SLOW: 4}, "alpha_pattern": {SLOW: 4}}
    changes: dict[str, dict[str, Any]] = {
        "endless rank patterns": ranks,
        "endless targets": {"target_modules": SLOW},
        "endless exclusions": {"exclude_modules": SLOW},
        "rank patterns of nonsense": {"rank_pattern": {"[": "x"}, "alpha_pattern": [[]]},
        "rank of 10**12": {"r": 10**12},
        "rank of a text": {"r": "x"},
        "unknown type": {"peft_type": "EVIL"},
        "no targets": {"target_modules": None},
        "unknown keys": {"\ud800": 1, "auto_mapping": {"parent_library": "os"}},
    }
    for name, change in changes.items():
        placed: dict[str, Content] = {**ROWS, "adapter/model/adapter_config.json": edited(**change)}
        command = ["predict", "adapter", "--text", "hello"]
        yield Case(f"adapter with {name}", command, placed, ANY, run="adapter")


def _tokenizer(change: Callable[[dict[str, Any]], object]) -> Content:
    def write(path: Path) -> None:
        state = json.loads(path.read_text())
        change(state)
        path.write_text(json.dumps(state))

    return write


def _replaces(pattern: Any, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _tokenizers() -> Iterator[Case]:
    doubling = {"type": "Sequence", "normalizers": [_replaces({"String": "a"}, "aa")] * 40}
    words = _replaces({"String": " "}, "a" * 100)
    normalizers: dict[str, Any] = {
        "Replace that doubles": {
            "type": "Sequence",
            "normalizers": [words, *doubling["normalizers"]],
        },
        "Prepend of megabytes": {"type": "Prepend", "prepend": "ab " * (1 << 22)},
        "endless regex": _replaces({"Regex": "(a|a|b|b)*(a|a)*(.*)*$x"}, "y"),
        "broken charsmap": {"type": "Precompiled", "precompiled_charsmap": "AAAA////"},
        "charsmap beyond its end": {"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="},
        "regex that is none": _replaces({"Regex": "(((["}, "y"),
        "unknown normalizer": {"type": "Evil"},
    }
    for name, value in normalizers.items():
        yield _with_tokenizer(name, _tokenizer(lambda state, v=value: state.update(normalizer=v)))
    regex = {"type": "Split", "pattern": {"Regex": "(x+x+)+y|(\\w+\\s?)*!"}, "invert": False}
    split = {**regex, "behavior": "Isolated"}
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "nothing"}
    unigram = {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": None, "byte_fallback": False}
    post = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "no", "type_id": 0}}]}
    for name, change in {
        "endless split": {"pre_tokenizer": split},
        "WordLevel without unk": {"model": model, "pre_tokenizer": None},
        "Unigram without unk": {"model": unigram, "pre_tokenizer": None},
        "Unigram of an unk beyond": {"model": {**unigram, "unk_id": 99}},
        "post-processor of unknown tokens": {
            "post_processor": {**post, "pair": [], "special_tokens": {}}
        },
        "ids of 2**31": {"added_tokens": [_added("x", 2**31)]},
        "an added token of nothing": {"added_tokens": [_added("", 5)]},
        "merges of nonsense": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["x y"]}},
    }.items():
        yield _with_tokenizer(name, _tokenizer(lambda state, c=change: state.update(c)))
    for name, change in {
        "class of nothing": {"tokenizer_class": "NothingTokenizer"},
        "class of a number": {"tokenizer_class": 7},
        "special tokens of numbers": {"eos_token": 7, "pad_token": [], "bos_token": {"a": 1}},
        "length of 10**300": {"model_max_length": 10**300},
        "length of a text": {"model_max_length": "x"},
        "a surrogate": {"eos_token": "\ud800"},
        "tokens decoder of nonsense": {"added_tokens_decoder": {"x": {"content": 5}}},
    }.items():
        yield _with_tokenizer(name, edited(**change), "tokenizer_config.json")


def _added(content: str, number: int) -> dict[str, Any]:
    kinds = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": number, "content": content, **dict.fromkeys(kinds, False)}


def _with_tokenizer(name: str, content: Content, file: str = "tokenizer.json") -> Case:
    placed: dict[str, Content] = {**ROWS, f"run/model/{file}": content}
    return Case(f"tokenizer with {name}", [*CHECK, "run/model"], placed, ANY, run="run")


def _configs() -> Iterator[Case]:
    for key, value in {
        "quantization_config": "x",
        "quantization_config ": {"quant_method": 7},
        "quantization_config  ": {"quant_method": "gptq", "bits": "x"},
        "text_config": {"model_type": "evil"},
        "vision_config": 7,
        "rope_parameters": {"rope_type": "evil", "factor": "x"},
        "rope_scaling": {"type": 7},
        "eos_token_id": "x",
        "pad_token_id": 10**9,
        "num_key_value_heads": 3,
        "max_position_embeddings": -1,
        "layer_types": ["evil"],
        "dtype": 7,
        "id2label": {"x": []},
        "problem_type": 9,
        "tie_word_embeddings": "x",
        "initializer_range": 1e300,
        "rms_norm_eps": "nan",
        "\ud800": "\ud800",
        "hidden_act": 7,
        "tokenizer_class": 7,
        "transformers_version": [],
    }.items():
        placed: dict[str, Content] = {
            **ROWS,
            "run/model/config.json": edited(**{key.strip(): value}),
        }
        yield Case(f"config {key}={value!r:.24}", [*CHECK, "run/model"], placed, ANY, run="run")
    for key, value in {
        "size": "x",
        "size ": {"height": -1, "width": 10**9},
        "size  ": [1, 2, 3, 4],
        "image_mean": "x",
        "image_std": [0, 0, 0],
        "image_mean ": [[1]],
        "image_processor_type": "Evil",
        "image_processor_type ": 7,
        "rescale_factor": {},
        "crop_size": 10**12,
    }.items():
        placed = {"vision/model/preprocessor_config.json": edited(**{key.strip(): value})}
        command = ["check", "--data", "pictures", "--model", "vision/model"]
        name = f"processor {key}={value!r:.24}"
        yield Case(name, command, {**placed, **_pictures()}, ANY, run="vision")
    for shown, index in {
        "nonsense": {"weight_map": 7},
        "numbers": {"weight_map": {"model.norm.weight": 7}},
        "a list": [],
        "a folder": {"weight_map": {"model.norm.weight": ".."}},
        "NUL": {"weight_map": {"model.norm.weight": "a\0b"}},
        "surrogates": {"weight_map": {"\ud800": "\ud800"}},
    }.items():
        files: dict[str, Content] = {
            "run/model/model.safetensors.index.json": json.dumps(index),
            "run/model/model.safetensors": Path.unlink,
        }
        command = [*CHECK, "run/model"]
        yield Case(f"weight_map of {shown}", command, {**ROWS, **files}, ANY, run="run")


def _pictures() -> dict[str, Content]:
    from reliability.hostile_data import class_folders

    return class_folders()


def _states() -> Iterator[Case]:
    resume = ["train", "--resume", RUN, "--epochs", "2"]
    state, index = f"{RUN}/{LAST}/state.json", f"{RUN}/{LAST}/index.json"
    for key, value in {
        "step": 10**30,
        "step ": -1,
        "epoch": 2**70,
        "rng": "x",
        "rng ": [[0] * 9],
        "random": {"python": [3, [7], None]},
        "schedule": {"last": 1e400},
    }.items():
        change = edited(**{key.strip(): value})
        yield Case(f"state {key}={value!r:.16}", resume, {state: change}, ANY, run=RUN)
    for key, value in {
        "files": 7,
        "tensors": {"x": {"shape": [10**18]}},
        "optimizer": {"state": {"0": "x"}, "param_groups": 7},
        "weights": {"x": "../../../etc/passwd"},
    }.items():
        yield Case(
            f"index {key}={value!r:.16}", resume, {index: edited(**{key: value})}, ANY, run=RUN
        )
    for key, value in {
        "epochs": 10**9,
        "data": "a\0b",
        "data ": "http://[::1",
        "data  ": ["x::y.jsonl", "\ud800"],
        "cache": "../elsewhere",
        "output": "../elsewhere",
        "workers": 10**6,
        "model": "/etc",
        "freeze": [SLOW],
        "lr_by": {SLOW: 0.1},
        "read": {"pattern": SLOW},
        "optimizer": "os:system",
        "trackers": ["wandb"],
        "max_memory_gb": 1e-9,
        "generate": {"scorer": "os:system"},
    }.items():

        def write(path: Path, key: str = key.strip(), value: Any = value) -> None:
            config = yaml.safe_load(path.read_text())
            path.write_text(yaml.safe_dump({**config, key: value}))

        yield Case(
            f"run's {key}={value!r:.16}", resume, {f"{RUN}/config.yaml": write}, ANY, run=RUN
        )


def _names() -> Iterator[Case]:
    for name in ("a::b.jsonl", "zip::x.jsonl", "file::x.jsonl", "http:x.jsonl", "s3:x.jsonl"):
        yield Case(f"local file {name}", ["inspect", name], {name: GOOD}, (0,))
    for option in ("a\0b", "\ud800", "x" * 300, "~nobody/x", "file://", "::", "zip://::"):
        yield Case(
            f"data named {option!r:.9}", ["check", "--data", option, "--model", "tiny:llama"]
        )
        yield Case(f"model named {option!r:.9}", [*CHECK, option], ROWS)
        yield Case(f"run named {option!r:.9}", ["predict", option, "--text", "x"], ROWS)
    for changed in ({"HOME": ""}, {"HOME": "/dev/null"}, {"HOME": "relative"}):
        for variable in ("SUREFIT_CACHE", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
            environment = {**changed, variable: ""}
            name = f"HOME={changed['HOME']!r}, no {variable}"
            train = [
                "train",
                "--data",
                "rows.jsonl",
                "--model",
                "tiny:llama",
                "--output",
                "../out/r",
            ]
            yield Case(name, train, ROWS, ANY, environment=environment, may_write=True)


def _web() -> Iterator[Case]:
    for url in (
        *(
            "http://",
            "http://[::1",
            "http://x:99999/a.jsonl",
            "http://a b/c.jsonl",
            "https://%00/x",
        ),
        *("http://127.0.0.1:x/a", "s3://", "hf://", "ftp://", "nothing://x", "http://\ud800/x"),
        *("zip://x::http://", "file://elsewhere/x.jsonl", "http://user:secret@127.0.0.1:1/x.jsonl"),
    ):
        yield Case(f"url {url!r:.28}", ["inspect", url])
