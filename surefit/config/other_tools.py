"""Keys and values of other tools: what to write here instead, or why there is no such thing.

`other_tool_keys.yaml` is the table of keys.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from surefit.core.foreign import read_yaml

Settings = Mapping[str, Any]
Translated = Settings | str
"""Settings of ours, or a sentence that says why there are none."""
Translator = Callable[[Any], Translated]

DEFAULT = "Leave it out: it is the default here."


def truth(value: Any) -> bool:
    """A flag as YAML, JSON or a shell writes it.

    >>> truth("True"), truth("no"), truth(1)
    (True, False, True)
    """
    return str(value).strip().lower() not in ("false", "0", "0.0", "no", "off", "n", "none", "")


def number(value: Any) -> float | None:
    """A number, also where it was written as text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def whole(key: str) -> Translator:
    """A count that other tools write as 3.0 or -1 (no limit)."""

    def translate(value: Any) -> Translated:
        count = number(value)
        if count is None or count < 0:
            return f"Here it is {key}: a whole number, or leave it out for no limit."
        if count != int(count):
            return f"Here it is {key}, a whole number; for part of an epoch, set max_steps."
        return {key: int(count)}

    return translate


def when(key: str, yes: Any, no: Any = None) -> Translator:
    """A flag: `yes` and `no` are our values for true and false; None where it is the default."""

    def translate(value: Any) -> Translated:
        chosen = yes if truth(value) else no
        return DEFAULT if chosen is None else {key: chosen}

    return translate


def half(name: str) -> Translator:
    """`bf16: true`, `fp16: false`."""
    return lambda value: {
        "precision": "auto" if value == "auto" else name if truth(value) else "fp32"
    }


def choices(known: Mapping[str, Translated], otherwise: Translated) -> Translator:
    """A value among a few, such as `IntervalStrategy.EPOCH`, `lora` or 4."""
    return lambda value: known.get(str(value).lower().rsplit(".", 1)[-1], otherwise)


def mixed_precision(value: Any) -> Translated:
    """Accelerate's name for the precision."""
    return {"precision": "fp32" if value == "no" else value}


def dev_run(value: Any) -> Translated:
    """`fast_dev_run`: true, or a number of steps."""
    return {"max_steps": value if type(value) is int else 1}


def schedule(value: Any) -> Translated:
    """`lr_scheduler_type`."""
    name = str(value).lower().rsplit(".", 1)[-1].removesuffix("_with_warmup")
    if name in ("cosine", "linear", "constant"):
        return {"schedule": name}
    return "That schedule is not available yet; schedule is cosine, linear or constant."


def warmup(value: Any) -> Translated:
    """`warmup_steps`, which newer versions of transformers also take as a share."""
    steps = number(value)
    if steps is not None and 0 <= steps < 1:
        return {"warmup": steps}
    return "Here it is warmup, a share of all steps: 100 steps of 1,000 are warmup: 0.1."


def every(key: str) -> Translator:
    """Steps between two evaluations or checkpoints; transformers also takes a share."""

    def translate(value: Any) -> Translated:
        steps = number(value)
        if steps is None or steps < 1:
            return f"Here it is {key}, a number of steps; left out, it is once per epoch."
        return {key: int(steps)}

    return translate


def strategy(key: str, off: Translated) -> Translator:
    """`eval_strategy` and `save_strategy`: no, steps or epoch."""
    known = {**dict.fromkeys(("no", "false", "none"), off), "epoch": DEFAULT}
    return choices(known, f"Set {key} to a number of steps instead.")


def share(value: Any) -> Translated:
    """`val_set_size`: a share, or a number of rows."""
    size = number(value)
    if size is not None and 0 <= size < 1:
        return {"eval_share": size}
    return "Here it is eval_share, a share of the rows: 100 rows of 1,000 are eval_share: 0.1."


def names(key: str, everything: tuple[str, ...] = ()) -> Translator:
    """Several names, as a list or as `a,b`; `everything` are names that stand for the default."""

    def translate(value: Any) -> Translated:
        listed = value.split(",") if isinstance(value, str) else value
        if not isinstance(listed, list | tuple | set) or not listed:
            return f"Here it is {key}, a list of names."
        listed = [str(name).strip() for name in listed]
        return DEFAULT if listed[0] in everything else {key: listed}

    return translate


def metric(value: Any) -> Translated:
    """`metric_for_best_model`, with or without its prefix."""
    return {"early_stopping.metric": str(value).removeprefix("eval_").removeprefix("val_")}


def files(key: str) -> Translator:
    """Data as a path, several paths, or Axolotl's list of `path:` entries."""

    def translate(value: Any) -> Translated:
        listed = value if isinstance(value, list | tuple) else [value]
        paths = [item.get("path") if isinstance(item, Mapping) else item for item in listed]
        if not all(isinstance(path, str) for path in paths):
            return f"Here it is {key}: a file, a folder or a hub id, or a list of them."
        return {key: paths[0] if len(paths) == 1 else paths}

    return translate


ADAPTERS: Mapping[str, Translated] = {
    "qlora": {"lora.r": 16, "lora.quantize": "4bit"},
    "lora": {"lora.r": 16},
    "dora": {"lora.r": 16, "lora.dora": True},
    **dict.fromkeys(("full", "none", ""), DEFAULT),
}
"""Values of `adapter` and `finetuning_type`."""


def parallel(value: Any) -> Translated:
    """`fsdp` as a string, a list or a mapping of options; `strategy` of Lightning."""
    text = str(value).lower()
    if "deepspeed" in text:
        return "DeepSpeed divides the loss by itself and is not supported; launch with torchrun."
    if text in ("", "false", "none", "no", "auto", "ddp", "[]"):
        return "Launch with torchrun or accelerate launch; the processes are found."
    return {"parallel": "fsdp"}


TRANSLATIONS: dict[str, Translator] = {
    "data": files("data"),
    "eval_data": files("eval_data"),
    "epochs": whole("epochs"),
    "max_steps": whole("max_steps"),
    "loss_on inputs": when("loss_on", "all", "answers"),
    "loss_on answers": when("loss_on", "answers", "all"),
    "checkpointing": when("checkpointing", True, False),
    "no checkpointing": when("checkpointing", False, True),
    "bf16": half("bf16"),
    "fp16": half("fp16"),
    "mixed_precision": mixed_precision,
    "schedule": schedule,
    "warmup": warmup,
    "eval_every": every("eval_every"),
    "save_every": every("save_every"),
    "eval strategy": strategy("eval_every", {"eval_share": 0}),
    "save strategy": strategy(
        "save_every", "A checkpoint is saved at each evaluation, for resuming."
    ),
    "share": share,
    "lora.targets": names("lora.targets", ("all", "all-linear")),
    "all linear layers": when("lora.targets", None, ["q_proj", "v_proj"]),
    "lora.quantize": when("lora.quantize", "4bit"),
    "bits": choices(
        {"4": {"lora.quantize": "4bit"}}, "Only 4 bits are available: lora.quantize: 4bit."
    ),
    "adapter": choices(
        ADAPTERS, "That kind of adapter is not available yet; lora.r sets the rank of LoRA."
    ),
    "stage": choices(
        {"sft": {"task": "sft"}, "pt": {"task": "causal-lm"}},
        "Preference tuning is not available yet.",
    ),
    "compile": when("compile", "on", "off"),
    "trackers": names("trackers", ("none", "None", "False")),
    "wandb": when("trackers", ["wandb"]),
    "metric": metric,
    "grouped": when("order", "grouped", "shuffle"),
    "shuffle": when("order", "shuffle"),
    "sampling": choices({"group_by_length": {"order": "grouped"}}, {"order": "shuffle"}),
    "dev_run": dev_run,
    "probes": when("probes", "all"),
    "batch_size": when("batch_size", "auto"),
    "parallel": parallel,
}
"""What translates a value, by the names of other_tool_keys.yaml."""


TABLE = Path(__file__).with_name("other_tool_keys.yaml")

VALUES: Mapping[str, Mapping[str, str]] = {
    "precision": {
        **dict.fromkeys(("bf16-mixed", "bf16-true", "bfloat16"), "bf16"),
        **dict.fromkeys(("16", "16-mixed", "16-true", "float16", "half"), "fp16"),
        **dict.fromkeys(("32", "32-true", "float32", "float", "no"), "fp32"),
    },
    "schedule": {"constant_with_warmup": "constant"},
    "loss_on": dict.fromkeys(("completion", "completions", "assistant", "answer"), "answers"),
}
"""Values of other tools for keys that surefit has, too."""

KEPT_VALUES: Mapping[str, tuple[str, ...]] = {"loss_on": ("last",)}
"""Values that are kept for later."""


@dataclass(frozen=True)
class Answer:
    """What to write instead of another tool's key: settings of ours, or the reason for none."""

    settings: Settings
    reason: str = ""


@cache
def read_table() -> dict[str, Translator]:
    """Every key that has an answer, and what translates its value."""
    table = read_yaml(TABLE, dict[str, Any], "Install surefit again.")
    answers: dict[str, Translator] = {}
    for ours, names in table["renamed"].items():
        answers |= dict.fromkeys(names.split(), lambda value, ours=ours: {ours: value})
    for translation, names in table["translated"].items():
        answers |= dict.fromkeys(names.split(), TRANSLATIONS[translation])
    for entry in table["reasons"]:
        answers |= dict.fromkeys(entry["keys"].split(), lambda value, why=entry["why"]: why)
    return answers


def is_of_other_tool(key: str) -> bool:
    """Whether the table has the key, by the last part of its name."""
    return _last_name(key) in read_table()


def _last_name(key: str) -> str:
    return key.lower().replace("-", "_").rsplit(".", 1)[-1]


def answer_key(key: str, given: Any, known: Collection[str]) -> Answer | None:
    """What surefit has for a key of another tool; `known` are the keys that it has."""
    answers = read_table()
    name = _last_name(key)
    if name in known and name != key:  # a section that surefit does not have: trainer.precision
        return Answer({name: VALUES.get(name, {}).get(str(given), given)})
    if name not in answers:
        near = difflib.get_close_matches(name, answers, n=1, cutoff=0.9)
        if not near:
            return None
        name = near[0]
    found = answers[name](given)
    if isinstance(found, str):
        return Answer({}, found)
    pending = [ours for ours in found if ours not in known and not ours.startswith("columns.")]
    if pending:
        will_be = f"; its name will be {pending[0]}" if pending[0] != key else ""
        return Answer({}, f"Not available yet{will_be}.")
    return Answer(found)


def answer_value(key: str, given: Any) -> str:
    """A sentence about another tool's value for a key of ours; empty where there is none."""
    said = str(given).lower()
    if said in KEPT_VALUES.get(key, ()):
        return f" {key}: {said} is not available yet."
    ours = VALUES.get(key, {}).get(said)
    return f" Here it is {key}: {ours}." if ours else ""
