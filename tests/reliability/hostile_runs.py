"""Hostile configs, settings, models, run folders and logs."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from reliability.hostile_case import ANY, Case, Scene
from reliability.hostile_data import ESCAPES, GOOD, content, fifo, lines

import surefit

Damage = Callable[[Path], object]


def make_run(folder: Path) -> Path:
    """A small finished run with checkpoints, and a transformers model folder beside it."""
    folder.mkdir(parents=True)
    lines(GOOD)(folder / "rows.jsonl")
    before = os.environ.get("SUREFIT_CACHE")
    os.environ["SUREFIT_CACHE"] = str(folder / "cache")
    try:
        surefit.train(
            data=str(folder / "rows.jsonl"),
            model="tiny:llama",
            epochs=1,
            batch_size=8,
            save_every=1,
            output=str(folder / "run"),
            generate={"rows": 0},
        )
    finally:
        if before is None:
            del os.environ["SUREFIT_CACHE"]
        else:
            os.environ["SUREFIT_CACHE"] = before
    return folder


def run_cases() -> list[Case]:
    """All cases of configs, models, runs and logs."""
    return [*configs(), *settings(), *models(), *templates(), *runs(), *hostile_plans(), *logs()]


def with_config(text: str | bytes, *more: str) -> Callable[[Scene], Sequence[str]]:
    def prepare(scene: Scene) -> Sequence[str]:
        lines(GOOD)(scene.work / "rows.jsonl")
        changed = text.replace("CANARY", str(scene.canary)) if isinstance(text, str) else text
        content(changed)(scene.work / "run.yaml")
        return ["check", "run.yaml", *more]

    return prepare


def configs() -> Iterator[Case]:
    """YAML that runs code, expands, nests, or is none."""
    laughs = "a0: &a0 [x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
    )
    texts: dict[str, str | bytes] = {
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
    }
    for name, text in texts.items():
        yield Case(f"config {name}", with_config(text))
    for name, write in {"pipe": fifo, "folder": Path.mkdir}.items():

        def prepare(scene: Scene, write: Damage = write) -> Sequence[str]:
            write(scene.work / "run.yaml")
            return ["check", "run.yaml"]

        yield Case(f"config {name}", prepare)


UNUSED = ("read.", "template=", "augment.function")
"""Settings that the rows of the case do not use."""


def settings() -> Iterator[Case]:
    """Strings for --set, options and the environment."""
    base = ("--data", "rows.jsonl", "--model", "tiny:llama")
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

        def prepare(scene: Scene, text: str = text) -> Sequence[str]:
            lines([{"text": f"row {n}"} for n in range(20)])(scene.work / "rows.jsonl")
            return ["check", *base, "--set", text]

        yield Case(f"set {text[:30]!r}", prepare, ANY if text.startswith(UNUSED) else (1, 2))
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

        def prepare(scene: Scene) -> Sequence[str]:
            lines([{"text": f"Grüße {ESCAPES} {n}"} for n in range(20)])(scene.work / "ü.jsonl")
            return ["inspect", "ü.jsonl"]

        yield Case(
            f"environment {name}={value[:12]!r}",
            prepare,
            ANY,
            own_process=True,
            may_write=True,
            environment=changed,
        )


def with_model(change: Callable[[Scene, Path], object], name: str = "model") -> Any:
    """Checks a copy of a good model folder after a change."""

    def prepare(scene: Scene) -> Sequence[str]:
        run = scene.copy_run()
        model = scene.work / name
        (run / "model").rename(model)
        lines(GOOD)(scene.work / "rows.jsonl")
        change(scene, model)
        return ["check", "--data", "rows.jsonl", "--model", name]

    return prepare


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def models() -> Iterator[Case]:
    """Model folders that are damaged, huge by their config, or bring code."""
    file_damages = {"empty": b"", "noise": bytes(range(256)) * 8, "list": b"[]", "null": b"null"}
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        for kind, data in file_damages.items():
            yield Case(
                f"model {name} {kind}",
                with_model(lambda s, m, name=name, data=data: (m / name).write_bytes(data)),
                ANY if "tokenizer" in name else (1, 2),
            )
        yield Case(
            f"model {name} deep",
            with_model(lambda s, m, name=name: (m / name).write_text('{"a":' * 100_000)),
            ANY if "tokenizer" in name else (1, 2),
        )
        yield Case(
            f"model {name} pipe", with_model(lambda s, m, name=name: replace_by_pipe(m / name))
        )
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
        yield Case(
            f"model config {key}={str(value)[:16]!r}",
            with_model(lambda s, m, k=key, v=value: edit_json(m / "config.json", **{k: v})),
            ANY,
        )
    yield Case("model with auto_map", with_model(add_code), says="code of its own")
    yield Case("model only of auto_map", with_model(only_code), says="code of its own")
    yield Case("tokenizer with auto_map", with_model(add_tokenizer_code), ANY)
    yield Case("pickled weights", with_model(pickled_weights))
    yield Case("weights of a module index", with_model(index_elsewhere), ANY)
    for name, raw in {
        "empty": b"",
        "magic": b"GGUF",
        "absurd counts": b"GGUF" + struct.pack("<IQQ", 3, 2**62, 2**62),
        "absurd string": b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60),
        "noise": b"GGUF" + bytes(range(256)) * 99,
    }.items():

        def prepare(scene: Scene, raw: bytes = raw) -> Sequence[str]:
            lines(GOOD)(scene.work / "rows.jsonl")
            (scene.work / "m.gguf").write_bytes(raw)
            return ["check", "--data", "rows.jsonl", "--model", "m.gguf"]

        yield Case(f"gguf {name}", prepare)
    for name in (
        "os:system",
        "nothing:here",
        "../../x:y",
        ":",
        "tiny:",
        "tiny:../x",
        f"{ESCAPES}/x",
    ):

        def prepare(scene: Scene, name: str = name) -> Sequence[str]:
            lines(GOOD)(scene.work / "rows.jsonl")
            return ["check", "--data", "rows.jsonl", "--model", name]

        yield Case(f"model named {name[:12]!r}", prepare)


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    fifo(path)


def add_code(scene: Scene, model: Path) -> None:
    (model / "modeling_evil.py").write_text(f"open({str(scene.canary)!r}, 'w')\n")
    mapped = {"AutoConfig": "modeling_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}
    edit_json(model / "config.json", auto_map=mapped, model_type="evil")


def only_code(scene: Scene, model: Path) -> None:
    (model / "modeling_evil.py").write_text(f"open({str(scene.canary)!r}, 'w')\n")
    mapped = {"AutoConfig": "modeling_evil.C", "AutoModel": "modeling_evil.M"}
    (model / "config.json").write_text(json.dumps({"auto_map": mapped}))


def add_tokenizer_code(scene: Scene, model: Path) -> None:
    (model / "tok_evil.py").write_text(f"open({str(scene.canary)!r}, 'w')\n")
    mapped = {"AutoTokenizer": ["tok_evil.T", "tok_evil.T"]}
    edit_json(model / "tokenizer_config.json", auto_map=mapped, tokenizer_class="T")


def pickled_weights(scene: Scene, model: Path) -> None:
    import torch
    from reliability.hostile_data import Canary

    (model / "model.safetensors").unlink()
    torch.save({"x": Canary(scene.canary)}, model / "pytorch_model.bin")


def index_elsewhere(scene: Scene, model: Path) -> None:
    (model / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "../../../../etc/passwd"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


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
    for name, text in TEMPLATES.items():

        def change(scene: Scene, model: Path, text: str = text) -> None:
            (model / "chat_template.jinja").unlink(missing_ok=True)  # which would come first
            edit_json(model / "tokenizer_config.json", chat_template=text)
            rows = [
                {
                    "messages": [
                        {"role": "user", "content": f"q {n}"},
                        {"role": "assistant", "content": f"a {n}"},
                    ]
                }
                for n in range(20)
            ]
            lines(rows)(scene.work / "rows.jsonl")

        yield Case(f"template {name}", with_model(change))


RUN_FILES = (
    "config.yaml",
    "plan.json",
    "digests.json",
    "events.jsonl",
    "model/config.json",
    "model/encoder.json",
    "model/model.safetensors",
    "model/tokenizer.json",
    "checkpoints/LAST/state.json",
    "checkpoints/LAST/digests.json",
)
DAMAGES: dict[str, Damage] = {
    "empty": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "list": lambda path: path.write_text("[]"),
    "object": lambda path: path.write_text("{}"),
    "numbers": lambda path: path.write_text(json.dumps(dict.fromkeys(keys_of(path), 7))),
    "deep": lambda path: path.write_text('{"a":' * 100_000),
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
    commands = (
        ["predict", "run", "--text", "hello"],
        ["report", "run"],
        ["verify", "run"],
        ["train", "--resume", "run", "--epochs", "2"],
        ["export", "run", "../out/exported"],
        ["evaluate", "run"],
        ["explain", "run"],
    )
    number = 0
    for file in RUN_FILES:
        for kind, damage in DAMAGES.items():
            number += 1
            command = commands[number % len(commands)]

            def prepare(
                scene: Scene, file: str = file, damage: Damage = damage, command: Any = command
            ) -> Sequence[str]:
                run = scene.copy_run()
                saved = sorted((run / "checkpoints").glob("step-*"))[-1].name
                path = run / file.replace("LAST", saved)
                if path.exists():
                    damage(path)
                run.rename(scene.root / "out" / "run")
                return [part if part != "run" else "../out/run" for part in command]

            yield Case(f"run {file} {kind}: {command[0]}", prepare, ANY)


def hostile_plans() -> Iterator[Case]:
    """Run folders of strangers that name code, paths and templates."""
    changes: dict[str, Callable[[Scene, Path], object]] = {
        "task of code": lambda s, r: replace_in(r / "config.yaml", "task:", "task: evil:SPEC #"),
        "model of code": lambda s, r: replace_in(r / "config.yaml", "model:", "model: evil:make #"),
        "scorer of code": lambda s, r: replace_in(r / "config.yaml", "scorer:", "scorer: evil:f #"),
        "trust": lambda s, r: replace_in(
            r / "config.yaml", "trust_remote_code: false", "trust_remote_code: true"
        ),
        "auto_map": lambda s, r: add_code(s, r / "model"),
        "pickled weights": lambda s, r: pickled_weights(s, r / "model"),
        "endless template": lambda s, r: edit_json(
            r / "model" / "tokenizer_config.json", chat_template=TEMPLATES["endless loops"]
        ),
        "absolute link": lambda s, r: link_away(r / "model" / "config.json"),
    }
    for name, change in changes.items():
        for command in (["predict", "run", "--text", "x"], ["evaluate", "run"], ["verify", "run"]):

            def prepare(
                scene: Scene, change: Any = change, command: Any = command
            ) -> Sequence[str]:
                run = scene.copy_run()
                bad = f"open({str(scene.canary)!r}, 'w')\n"
                for place in (run, scene.work, run / "model"):
                    (place / "evil.py").write_text(bad)
                change(scene, run)
                return command

            yield Case(f"stranger's {name}: {command[0]}", prepare, ANY)


def replace_in(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


def link_away(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def logs() -> Iterator[Case]:
    """Logs for `explain`."""
    texts: dict[str, bytes] = {
        "codes": b"\x1b[2J\x1b]0;owned\x07RuntimeError: \x1b[31mCUDA out of memory\r\x9b",
        "noise": bytes(range(256)) * 100,
        "one 100 MB line": b"x" * 100_000_000,
        "a million frames": b'  File "a.py", line 1, in f\n' * 1_000_000,
        "open brackets": b"[" * 1_000_000,
        "repeated message": b"mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5) " * 20_000,
        "spaces": b" " * 5_000_000 + b"x",
    }
    for name, raw in texts.items():

        def prepare(scene: Scene, raw: bytes = raw) -> Sequence[str]:
            (scene.work / "log.txt").write_bytes(raw)
            return ["explain", "log.txt"]

        yield Case(f"log {name}", prepare, ANY)
    for name, path in {"pipe": "pipe", "device": "/dev/zero", "nothing": "nowhere"}.items():

        def prepare(scene: Scene, path: str = path) -> Sequence[str]:
            fifo(scene.work / "pipe")
            return ["explain", path]

        yield Case(f"log {name}", prepare)
