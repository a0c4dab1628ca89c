"""What the user asked for, validated once: argv, YAML and Python all end in one RunConfig."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from surefit.errors import UsageError

Switch = Literal["auto", "on", "off"]


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_yes_for_one(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML reads `yes` and `on` as true, which Python would take for the number 1."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and "on" in get_args(kind):
            return "on" if value else "off"
        if isinstance(value, bool) and kind is not bool:
            raise ValueError("expected a value, not true or false")
        return value


class FeatureShape(_Section):
    """How a flat row of features is cut into steps."""

    steps: int | None = Field(None, ge=1)
    """Steps per row of an array saved as [rows, steps*width]."""
    width: int | None = Field(None, ge=1)
    """Features per step of an array saved as [rows, steps*width]."""


class Images(_Section):
    """How pictures are brought to one size."""

    size: tuple[PositiveInt, PositiveInt] | None = None
    """Height and width (or one number for both); the model's own, else the commonest, if left
    out."""

    @field_validator("size", mode="before")
    @classmethod
    def _square(cls, value: Any) -> Any:
        return (value, value) if isinstance(value, int) else value


class Reading(_Section):
    """How data files are to be read, where that cannot be worked out."""

    encoding: str | None = None
    """Of text files; UTF-8, or Windows-1252 where the text can be nothing else, if left out."""
    delimiter: str | None = None
    """Between the cells of a table; worked out if left out."""
    names: tuple[str, ...] = ()
    """Column names of a table without a header line."""
    pattern: str | None = None
    """A regular expression with named groups that become the columns of each line."""
    field: str | None = None
    """Where in a JSON file the list of rows is, such as data or data.items."""

    @field_validator("names")
    @classmethod
    def _different(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("every column needs a name of its own")
        return names


class EarlyStopping(_Section):
    """When to stop before the last epoch."""

    metric: str | None = None
    """The metric to watch; the task's own choice if left out. It also decides the best step."""
    patience: int | None = Field(None, ge=1)
    """Evaluations without improvement after which training stops; never if left out."""


class Generation(_Section):
    """How much text is generated at each evaluation, for tasks that generate."""

    rows: int = Field(64, ge=0)
    """Evaluation rows to generate for; 0 for none."""
    max_new_tokens: int = Field(64, ge=1)
    """Longest generated answer."""
    scorer: str | None = None
    """One's own score as module:function, f(expected, got) -> a number or a dict of them; more
    is better."""

    @field_validator("scorer")
    @classmethod
    def _named(cls, name: str | None) -> str | None:
        return _check_code_name(name)


ChangeName = Literal["wording", "synonyms", "case", "spacing", "punctuation", "typos"]


class Augmentation(_Section):
    """How the further views of a training row differ from it."""

    changes: tuple[ChangeName, ...] | None = None
    """Changes to draw from: wording, synonyms, case, spacing, punctuation, typos. Left out: all
    but typos, with synonyms where there is a table; none with a function of one's own."""
    frames: tuple[str, ...] = ()
    """Wordings of an instruction, with {} where it goes, instead of the English ones."""
    typo_rate: float = Field(0.05, gt=0, le=1)
    """Share of the words that can have a typo which get one."""
    synonyms: str | dict[str, str | tuple[str, ...]] | None = None
    """A JSON, CSV or TSV file of words and their synonyms, or the words themselves."""
    function: str | None = None
    """One's own change as module:function, f(text, rng) -> text."""

    @field_validator("changes", "frames", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("frames")
    @classmethod
    def _with_room(cls, frames: tuple[str, ...]) -> tuple[str, ...]:
        wrong = next((frame for frame in frames if frame.count("{}") != 1), None)
        if wrong is not None:
            raise ValueError(f"expected {{}} once in each, where the text goes, not in {wrong!r}")
        return frames

    @field_validator("function")
    @classmethod
    def _named(cls, name: str | None) -> str | None:
        return _check_code_name(name)


def _check_code_name(name: str | None) -> str | None:
    if name is not None and ":" not in name:
        raise ValueError("expected module:function")
    return name


class Lora(_Section):
    """Low-rank adapters on a frozen model, instead of training all of it."""

    r: int = Field(0, ge=0)
    """Rank of the adapters; 0 for no LoRA. Also `lora_r` and the option `--lora-r`."""
    alpha: float | None = Field(None, gt=0)
    """What the adapters are scaled by, over r; twice the rank if left out."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout before the adapters."""
    targets: tuple[str, ...] = ()
    """Layers to adapt, by the end of their names or as regular expressions; all linear layers but
    the output embedding if left out."""
    rslora: bool = False
    """Scale by alpha over the root of r, which keeps large ranks from fading."""
    dora: bool = False
    """Learn the size of each layer's weights apart from their direction."""
    quantize: Literal["4bit"] | None = None
    """4bit: hold the frozen weights in 4 bits (QLoRA); needs CUDA and bitsandbytes."""

    @field_validator("targets", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _meant(self) -> Lora:
        given = [name for name in Lora.model_fields if getattr(self, name) != Lora._default(name)]
        if self.r == 0 and given:
            raise ValueError(f"lora.{given[0]} has no meaning while lora.r is 0; give lora.r")
        return self

    @classmethod
    def _default(cls, name: str) -> Any:
        return cls.model_fields[name].default


class RunConfig(_Section):
    """Everything that decides a run, apart from objects given from Python."""

    data: tuple[str, ...] = ()
    """Files or folders with the training data."""
    eval_data: tuple[str, ...] = ()
    """Files or folders to evaluate on; a share of the data if left out."""
    model: str = ""
    """A local folder, a hub id, tiny:ARCH, or module:function."""
    tokenizer: str | None = None
    """A folder or hub id; the model's own if left out."""
    task: str | None = None
    """The task; worked out from the data if left out."""
    columns: dict[str, str] = {}
    """Which column plays which role, where the names do not say it."""
    ignore: tuple[str, ...] = ()
    """Columns that are not read, such as those that give the target away."""
    read: Reading = Reading()
    """How data files are to be read."""
    features: FeatureShape = FeatureShape()
    """How flat feature rows are cut into steps."""

    image: Images = Images()
    """How pictures are brought to one size."""
    on_bad_file: Literal["error", "skip"] = "error"
    """What becomes of a picture, or of one of several data files, that cannot be read: it stops the
    plan, or is left out."""

    augmentation_factor: int = Field(1, ge=1, le=1000)
    """Views of every training row: the row itself, and others with its prompt said otherwise."""
    augment: Augmentation = Augmentation()
    """How the further views of a training row differ from it."""

    epochs: int = Field(3, ge=1)
    """Passes over the training rows."""
    max_steps: int | None = Field(None, ge=1)
    """Stop after so many optimizer steps, whatever the epochs."""
    batch_size: int | Literal["auto"] = 8
    """Rows per micro-batch per process; auto: the most that fit, of an effective batch of
    8 × grad_accum rows, which stays."""
    max_tokens: int | None = Field(None, ge=1)
    """Padded positions per micro-batch, instead of a fixed number of rows."""
    grad_accum: int = Field(1, ge=1)
    """Micro-batches per optimizer step per process."""
    max_seq_length: int | None = Field(None, ge=2)
    """Longest row in tokens; the model's limit, at most 1024, if left out."""
    overlong: Literal["truncate", "drop", "error"] = "truncate"
    """What happens to longer rows."""
    loss_on: Literal["answers", "all"] = "answers"
    """Which tokens of an instruction row are learned."""
    template: str | None = None
    """How a dialogue is written: chat (the tokenizer's own), plain, chatml, alpaca, a file, or
    Jinja text; chat where the tokenizer has a template, else plain, if left out."""

    lora: Lora = Lora()
    """Low-rank adapters on a frozen model, instead of training all of it."""
    lr: float | None = Field(None, gt=0)
    """Peak learning rate; 2e-5, 2e-4 with LoRA, or 1e-3 for untrained models, if left out."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate falls after the warm-up."""
    warmup: float = Field(0.03, ge=0, lt=1)
    """Share of the steps over which the learning rate rises."""
    weight_decay: float = Field(0.01, ge=0)
    """AdamW's weight decay; biases and norms are exempt."""
    clip: float = Field(1.0, ge=0)
    """Largest gradient norm; 0 for no clipping."""
    checkpointing: bool = False
    """Make activations again in the backward instead of keeping them: less memory, slower."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Mixed precision; auto is bf16 on CUDA and fp32 elsewhere."""
    padding_free: Switch = "auto"
    """Rows of a micro-batch end to end, without padding, where the model keeps them apart."""
    compile: Switch = "auto"
    """torch.compile for the model's layers; auto where it pays for itself."""
    deterministic: bool = False
    """Use deterministic kernels on CUDA, so that a resumed run is equal to the bit."""
    from_scratch: bool = False
    """Start from the model's config with fresh weights."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Decides the split, the views, the order of rows, fresh weights and dropout."""

    eval_share: float = Field(0.1, ge=0, lt=1)
    """Share of the rows held out for evaluation when there is no eval_data."""
    eval_every: int | None = Field(None, ge=1)
    """Evaluate every so many steps; once per epoch if left out."""
    eval_at_start: bool = False
    """Also evaluate before the first step."""
    save_every: int | None = Field(None, ge=1)
    """Save a checkpoint every so many steps, besides those at each evaluation."""
    keep: int = Field(2, ge=1)
    """Latest checkpoints to keep; the best one is kept besides."""
    early_stopping: EarlyStopping = EarlyStopping()
    """When to stop before the last epoch."""
    generate: Generation = Generation()
    """How much text is generated at each evaluation."""
    max_dropped_share: float = Field(0.5, ge=0, le=1)
    """Refuse the data if a larger share of its rows would be dropped."""

    autofix: bool = True
    """Repair what can be repaired without doubt, and say so; if false, it is an error instead."""
    scan: int | None = Field(None, ge=2)
    """Check a sample of so many rows, drawn by the seed, instead of all; `train` refuses it."""
    fit: Literal["predicted", "measured"] = "predicted"
    """How `check` knows the peak: from shapes, or also by a real step on the largest batch, with
    which every `train` begins."""
    max_memory_gb: float | None = Field(None, gt=0)
    """Most memory the run may hold, in GB (10⁹ bytes); what is free if left out."""
    device_memory_gb: float | None = Field(None, gt=0)
    """Plan for a device with so much memory, in GB, instead of this machine."""

    probes: Literal["quick", "all"] = "quick"
    """Experiments on the model before training; all of them also learn one batch by heart."""
    workers: int = Field(0, ge=0)
    """Processes that make batches; 0 for a thread, which is enough unless collating is slow."""
    trackers: tuple[str, ...] = ()
    """Experiment trackers of Accelerate, such as tensorboard."""
    trust_remote_code: bool = False
    """Let a model folder or hub repository run its own Python code."""
    cache: str | None = None
    """Folder for encoded rows and other derived files; $SUREFIT_CACHE, else ~/.cache/surefit."""
    output: str | None = None
    """The run's folder; a new one under runs/ if left out."""

    @field_validator("batch_size", mode="before")
    @classmethod
    def _rows_or_auto(cls, value: Any) -> Any:
        rows = int(value) if isinstance(value, str) and value.isdecimal() else value
        if value == "auto" or (type(rows) is int and rows >= 1):
            return rows
        raise ValueError("expected a whole number from 1 on, or auto")

    @property
    def micro_batch_rows(self) -> int:
        """`batch_size`, once planning has settled what `auto` is."""
        assert self.batch_size != "auto"
        return self.batch_size

    @field_validator("data", "eval_data", "ignore", "trackers", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


def read_yaml(path: Path) -> dict[str, Any]:
    """The keys of a config file; its relative paths stay relative to the working folder."""
    if not path.is_file():
        raise UsageError(f"There is no config file {path}.", "Check the path.")
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UsageError(
            f"{path}{place}: not valid YAML ({error.problem}).", "Repair the named place."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid YAML: {error}", "Save it as UTF-8 text.") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise UsageError(
            f"{path} holds a {type(loaded).__name__}; expected keys and values.",
            "Write one `key: value` per line.",
        )
    return loaded


def parse_setting(text: str) -> tuple[str, Any]:
    """Split `key=value` of `--set`; the value is read as YAML.

    >>> parse_setting("early_stopping.patience=2")
    ('early_stopping.patience', 2)
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--set expects key=value, found {text!r}.", "Write --set key=value.")
    try:
        return key.strip().replace("-", "_"), yaml.safe_load(value)
    except yaml.YAMLError:
        return key.strip().replace("-", "_"), value


def nest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into sections; later keys win.

    >>> nest({"early_stopping.patience": 2, "lr": 0.1})
    {'early_stopping': {'patience': 2}, 'lr': 0.1}
    """
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, last = str(key).split(".")  # YAML reads the keys `on` and `1` as other types
        place = nested
        for section in sections:
            inner = place.get(section)
            place[section] = dict(inner) if isinstance(inner, Mapping) else {}
            place = place[section]
        if isinstance(value, Mapping) and isinstance(place.get(last), Mapping):
            value = {**place[last], **value}
        place[last] = value
    return nested


SHORT_KEYS = {"lora_r": "lora.r"}
"""Options whose key lies in a section."""


def spell_out(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Short keys in full; refuses two values for one key.

    >>> spell_out({"lora_r": 16})
    {'lora.r': 16}
    """
    spelled = {key: value for key, value in settings.items() if key not in SHORT_KEYS}
    for short, key in SHORT_KEYS.items():
        if short not in settings:
            continue
        section, name = key.split(".")
        inner = spelled.get(section)
        nested = inner.get(name) if isinstance(inner, Mapping) else None
        other = spelled.get(key, nested)
        if other is not None and other != settings[short]:
            raise UsageError(
                f"{short} is {settings[short]!r} and {key} is {other!r}.",
                "They mean the same; give one of them.",
            )
        spelled[key] = settings[short]
    return spelled


def make_config(settings: Mapping[str, Any]) -> RunConfig:
    """Validate `settings` (dotted or nested keys); every fault is reported, together."""
    try:
        return RunConfig.model_validate(nest(spell_out(settings)))
    except ValidationError as error:
        faults = [_describe(fault) for fault in error.errors()]
        raise UsageError(
            "\n".join(faults), "`surefit train --help` and docs/config.md list the keys."
        ) from None


def known_keys(section: type[BaseModel] = RunConfig, prefix: str = "") -> list[str]:
    """Every key a config may have, sections as dotted names."""
    keys = []
    for name, info in section.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            keys += known_keys(inner, f"{prefix}{name}.")
        else:
            keys.append(prefix + name)
    return keys


def _describe(fault: Any) -> str:
    key = ".".join(str(part) for part in fault["loc"] if part != "[key]")
    if fault["type"] == "extra_forbidden" or fault["loc"][-1] == "[key]":
        known = [*RunConfig.model_fields, *SHORT_KEYS, *known_keys()]
        close = difflib.get_close_matches(key, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        return f"Unknown key {key!r}.{hint}"
    found = fault["input"]
    return f"{key}: {fault['msg'][0].lower()}{fault['msg'][1:]}; found {found!r}."


def config_yaml(config: RunConfig) -> str:
    """The resolved config as it is written into the run's folder."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
