"""Hostile configs, settings, models, run folders and logs."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from reliability.hostile_case import ANY, Case, Content
from reliability.hostile_data import ESCAPES, EVIL, GOOD, save_pickle

import surefit

Damage = Callable[[Path], object]
ROWS: dict[str, Content] = {"rows.jsonl": GOOD}
TEXTS: dict[str, Content] = {"rows.jsonl": [{"text": f"row {n}"} for n in range(20)]}
CHECK = ("check", "--data", "rows.jsonl", "--model")


def make_run(folder: Path) -> Path:
    """Three small finished runs: of a language model, of an adapter of it, and of images."""
    folder.mkdir(parents=True)
    cache = str(folder / "cache")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in GOOD))
    surefit.train(
        data=str(folder / "rows.jsonl"),
        model="tiny:llama",
        epochs=1,
        batch_size=8,
        save_every=1,
        output=str(folder / "run"),
        generate={"rows": 0},
        cache=cache,
        quiet=True,
    )
    surefit.train(
        data=str(folder / "rows.jsonl"),
        model=str(folder / "run" / "model"),
        lora={"r": 2},
        epochs=1,
        batch_size=8,
        output=str(folder / "adapter"),
        generate={"rows": 0},
        cache=cache,
        quiet=True,
    )
    for label, shade in {"cat": 20, "dog": 140}.items():
        pictures = folder / "pictures" / label
        pictures.mkdir(parents=True)
        for n in range(6):
            Image.new("RGB", (8, 8), (shade + n,) * 3).save(pictures / f"{n}.png")
    surefit.train(
        data=str(folder / "pictures"),
        model="tiny:resnet",
        epochs=1,
        batch_size=4,
        output=str(folder / "vision"),
        cache=cache,
        quiet=True,
    )
    return folder


def run_cases() -> list[Case]:
    """All cases of configs, models, runs and logs."""
    return [*configs(), *settings(), *models(), *templates(), *runs(), *hostile_plans(), *logs()]


def configs() -> Iterator[Case]:
    """YAML that runs code, expands, nests, or is none."""
    laughs = "a0: &a0 [x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
    )
    contents: dict[str, Content] = {
        "python tag": "data: !!python/object/apply:pathlib.Path.touch [CANARY]\n",
        "python name": "model: !!python/name:os.system\n",
        "billion laughs": laughs + "data: *a11\n",
        "billion laughs in a known key": laughs + "accept: *a11\n",
        "laughs as a key": laughs + "? *a11\n: 1\n",
        "merged laughs": "a: &a {b: 1}\n" + "".join(f"c{n}: {{<<: *a}}\n" for n in range(5)),
        "deep list": "data: " + "[" * 50_000,
        "deep blocks": "".join(" " * n + "a:\n" for n in range(2000)),
        "recursive": "data: &x [*x]\n",
        "recursive map": "columns: &x {text: *x}\n",
        "empty": "",
        "a list": "- a\n- b\n",
        "a number": "7\n",
        "NUL": b"data: a\0b\n",
        "not UTF-8": b"data: \xff\xfe\xfd\n",
        "UTF-16": "data: x\n".encode("utf-16"),
        "tabs": "data:\n\t- x\n",
        "two documents": "data: a\n---\ndata: b\n",
        "twin keys": "data: rows.jsonl\ndata: other.jsonl\nmodel: tiny:llama\n",
        "terminal codes": 'data: "\\e[2J\\e]0;owned\\a"\n',
        "unknown key of codes": '"\\e[2J\\n": 1\n',
        "number keys": "1: 2\n3: 4\n",
        "date": "data: 2020-01-01\n",
        "huge int": "epochs: " + "9" * 5000 + "\n",
        "huge base 60": "epochs: " + "9:" * 3000 + "9\n",
        "infinite": "lr: .inf\ndata: rows.jsonl\nmodel: tiny:llama\n",
        "10 MB": "# " + "x" * 10_000_000 + "\n",
        "pipe": os.mkfifo,
        "folder": Path.mkdir,
    }
    for name, content in contents.items():
        yield Case(f"config {name}", ["check", "run.yaml"], {**ROWS, "run.yaml": content})


UNUSED = ("read.", "template=", "augment.function")
"""Settings that the rows of the case do not use."""


def settings() -> Iterator[Case]:
    """Strings for --set, options and the environment."""
    for text in (
        "epochs=!!python/name:os.system",
        "=",
        "epochs",
        "epochs=" + "[" * 5000,
        "a.b.c.d.e=1",
        "lora=7",
        "columns.text=[1, {a: b}]",
        "read.pattern=(a+)+$",
        "read.encoding=rot13",
        "read.encoding=idna",
        "read.delimiter=\x1b",
        "cache=/dev/null",
        "template={{ ''.__class__.__mro__ }}",
        "accept=[SF999]",
        f'accept=["{ESCAPES.encode("unicode_escape").decode()}"]',
        "generate.scorer=os:system",
        "augment.function=os:system",
        "lr=nan",
        "max_memory_gb=-1",
        "seed=99999999999999999999999",
        "trackers=[../../../x]",
    ):
        codes = ANY if text.startswith(UNUSED) else (1, 2)
        yield Case(f"set {text[:30]!r}", [*CHECK, "tiny:llama", "--set", text], TEXTS, codes)
    for name, value in {
        "SUREFIT_CACHE": "/dev/null/x",
        "SUREFIT_CACHE ": "/proc/1/nothing",
        "XDG_STATE_HOME": "/dev/null",
        "COLUMNS": "-5",
        "TERM": "\x1b[2J",
        "LC_ALL": "C",
        "PYTHONIOENCODING": "ascii:strict",
        "SUREFIT_CACHE  ": "\x1b]0;owned\x07",
    }.items():
        changed = {name.strip(): value, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        yield Case(
            f"environment {name}={value[:12]!r}",
            ["inspect", "ü.jsonl"],
            {"ü.jsonl": [{"text": f"Grüße {ESCAPES} {n}"} for n in range(20)]},
            ANY,
            own_process=True,
            may_write=True,
            environment=changed,
        )


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def edited(**changes: Any) -> Damage:
    """Changes keys of a JSON file."""
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def with_model(name: str, files: dict[str, Content], *codes: int, says: str = "") -> Case:
    """Checks a good model folder in which some files are changed."""
    changed = {f"run/model/{file}": content for file, content in files.items()}
    command, allowed = [*CHECK, "run/model"], codes or (1, 2)
    return Case(name, command, {**ROWS, **changed}, allowed, says=says, run="run")


AUTO = {"AutoConfig": "modeling_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}
ONLY = {"AutoConfig": "modeling_evil.C", "AutoModel": "modeling_evil.M"}
TOKENIZERS = {"AutoTokenizer": ["tok_evil.T", "tok_evil.T"]}
OWN_CODE: dict[str, Content] = {
    "modeling_evil.py": EVIL,
    "config.json": edited(auto_map=AUTO, model_type="evil"),
}
PICKLED: dict[str, Content] = {"model.safetensors": Path.unlink, "pytorch_model.bin": save_pickle}


def models() -> Iterator[Case]:
    """Model folders that are damaged, huge by their config, or bring code."""
    damages: dict[str, Content] = {
        "empty": b"",
        "noise": bytes(range(256)) * 8,
        "list": b"[]",
        "null": b"null",
        "deep": '{"a":' * 100_000,
    }
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        codes = ANY if "tokenizer" in file else (1, 2)
        for kind, content in damages.items():
            yield with_model(f"model {file} {kind}", {file: content}, *codes)
        yield with_model(f"model {file} pipe", {file: replace_by_pipe})
    for key, value in {
        "hidden_size": 10**12,
        "vocab_size": -5,
        "num_hidden_layers": 10**9,
        "num_attention_heads": 0,
        "model_type": f"../../{ESCAPES}",
        "architectures": ["os.system"],
        "torch_dtype": "os",
        "attn_implementation": "evil/kernel",
        "quantization_config": {"quant_method": "evil"},
        "rope_parameters": "x",
        "hidden_act": "__import__",
    }.items():
        name = f"model config {key}={str(value)[:16]!r}"
        yield with_model(name, {"config.json": edited(**{key: value})}, *ANY)
    yield with_model("model with auto_map", OWN_CODE, says="code of its own")
    alone = {**OWN_CODE, "config.json": json.dumps({"auto_map": ONLY})}
    yield with_model("model only of auto_map", alone, says="code of its own")
    mapped = edited(auto_map=TOKENIZERS, tokenizer_class="T")
    evil: dict[str, Content] = {"tok_evil.py": EVIL, "tokenizer_config.json": mapped}
    yield with_model("tokenizer with auto_map", evil, *ANY)
    yield with_model("pickled weights", PICKLED)
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "../../../../etc/passwd"}}
    elsewhere: dict[str, Content] = {"model.safetensors.index.json": json.dumps(index)}
    elsewhere["model.safetensors"] = Path.unlink
    yield with_model("weights of a module index", elsewhere, *ANY)
    for name, raw in {
        "empty": b"",
        "magic": b"GGUF",
        "absurd counts": b"GGUF" + struct.pack("<IQQ", 3, 2**62, 2**62),
        "absurd string": b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60),
        "noise": b"GGUF" + bytes(range(256)) * 99,
    }.items():
        yield Case(f"gguf {name}", [*CHECK, "m.gguf"], {**ROWS, "m.gguf": raw})
    for name in (
        *("os:system", "nothing:here", "../../x:y", ":", "tiny:", "tiny:../x", f"{ESCAPES}/x"),
    ):
        yield Case(f"model named {name[:12]!r}", [*CHECK, name], ROWS)


TEMPLATES = {
    "endless loops": "{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "doubling": "{% set n = namespace(x='ab') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}"
    "{% endfor %}{{ n.x }}",
    "doubling lists": "{% set n = namespace(x=[1]) %}{% for a in range(60) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
    "multiplied": "{{ 'x' * 99999999999 }}",
    "power": "{{ 9 ** 9 ** 9 }}",
    "rounded": "{{ 1.5 | round(999999999, 'ceil') }}",
    "padded": "{{ '%99999999999d' % 1 }}",
    "formatted": "{{ '{:>99999999999}'.format(1) }}",
    "centered": "{{ 'x' | center(99999999999) }}",
    "recursive macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}"
    "{% endmacro %}{{ m(60) }}",
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "indented json": "{{ messages | tojson(indent=9999999999) }}",
    "joined": "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
    "lipsum": "{{ lipsum(n=999999999) }}",
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "import": "{% include '/etc/passwd' %}",
    "cycler": "{{ cycler.__init__.__globals__.os.system('touch canary') }}",
    "deep": "{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}",
    "many blocks": "{% if 1 %}" * 500,
    "codes": f"{{{{ raise_exception('{ESCAPES}') }}}}",
    "unclosed": "{% for m in messages %}",
}


def templates() -> Iterator[Case]:
    """Chat templates that loop, double, pad, or reach for Python."""
    roles = {"user": "q", "assistant": "a"}
    rows = [
        {"messages": [{"role": role, "content": f"{word} {n}"} for role, word in roles.items()]}
        for n in range(20)
    ]
    for name, text in TEMPLATES.items():
        changed: dict[str, Content] = {
            "run/model/chat_template.jinja": lambda path: path.unlink(missing_ok=True),  # the first
            "run/model/tokenizer_config.json": edited(chat_template=text),
            "rows.jsonl": rows,
        }
        yield Case(f"template {name}", [*CHECK, "run/model"], changed, run="run")


RUN_FILES = (
    *("config.yaml", "plan.json", "digests.json", "events.jsonl", "model/config.json"),
    *("model/encoder.json", "model/model.safetensors", "model/tokenizer.json"),
    *("checkpoints/step-00000003/state.json", "checkpoints/step-00000003/digests.json"),
)
DAMAGES: dict[str, Content] = {
    "empty": b"",
    "noise": bytes(range(256)) * 8,
    "list": "[]",
    "object": "{}",
    "numbers": lambda path: path.write_text(json.dumps(dict.fromkeys(keys_of(path), 7))),
    "deep": '{"a":' * 100_000,
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "codes": lambda path: path.write_text(json.dumps(dict.fromkeys(keys_of(path), ESCAPES))),
    "pipe": replace_by_pipe,
}


def keys_of(path: Path) -> list[str]:
    try:
        found = json.loads(path.read_text())
    except ValueError:
        return ["data", "model", "task", "seed", "event", "step"]
    return list(found) if isinstance(found, dict) else ["event", "step"]


def runs() -> Iterator[Case]:
    """Run folders with a damaged or hostile file, opened by each command in turn."""
    run = "../out/run"
    commands = (
        ["predict", run, "--text", "hello"],
        ["report", run],
        ["verify", run],
        ["train", "--resume", run, "--epochs", "2"],
        ["export", run, "../out/exported"],
        ["evaluate", run],
        ["explain", run],
    )
    number = 0
    for file in RUN_FILES:
        for kind, damage in DAMAGES.items():
            number += 1
            command = commands[number % len(commands)]
            shown = file.replace("step-00000003", "LAST")
            name = f"run {shown} {kind}: {command[0]}"
            yield Case(name, command, {f"{run}/{file}": damage}, ANY, run=run)


def replaced(old: str, new: str) -> Damage:
    return lambda path: path.write_text(path.read_text().replace(old, new))


def link_away(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def hostile_plans() -> Iterator[Case]:
    """Run folders of strangers that name code, paths and templates."""
    trusting = replaced("trust_remote_code: false", "trust_remote_code: true")
    endless = edited(chat_template=TEMPLATES["endless loops"])
    changes: dict[str, dict[str, Content]] = {
        "task of code": {"config.yaml": replaced("task:", "task: evil:SPEC #")},
        "model of code": {"config.yaml": replaced("model:", "model: evil:make #")},
        "scorer of code": {"config.yaml": replaced("scorer:", "scorer: evil:f #")},
        "trust": {"config.yaml": trusting},
        "auto_map": {f"model/{name}": content for name, content in OWN_CODE.items()},
        "pickled weights": {f"model/{name}": content for name, content in PICKLED.items()},
        "endless template": {"model/tokenizer_config.json": endless},
        "absolute link": {"model/config.json": link_away},
    }
    lying: dict[str, Content] = dict.fromkeys(("evil.py", "run/evil.py", "run/model/evil.py"), EVIL)
    for name, files in changes.items():
        changed = {f"run/{file}": content for file, content in files.items()}
        for command in (["predict", "run", "--text", "x"], ["evaluate", "run"], ["verify", "run"]):
            shown = f"stranger's {name}: {command[0]}"
            yield Case(shown, command, {**lying, **changed}, ANY, run="run")


def logs() -> Iterator[Case]:
    """Logs for `explain`."""
    for name, raw in {
        "codes": b"\x1b[2J\x1b]0;owned\x07RuntimeError: \x1b[31mCUDA out of memory\r\x9b",
        "noise": bytes(range(256)) * 100,
        "one 100 MB line": b"x" * 100_000_000,
        "a million frames": b'  File "a.py", line 1, in f\n' * 1_000_000,
        "open brackets": b"[" * 1_000_000,
        "repeated message": b"mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5) " * 20_000,
        "spaces": b" " * 5_000_000 + b"x",
    }.items():
        yield Case(f"log {name}", ["explain", "log.txt"], {"log.txt": raw}, ANY)
    for name, path in {"pipe": "pipe", "device": "/dev/zero", "nothing": "nowhere"}.items():
        yield Case(f"log {name}", ["explain", path], {"pipe": os.mkfifo})
