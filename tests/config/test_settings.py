"""The config: unknown keys with a suggestion, all faults together, dotted keys, flags, YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import surefit
from builders import write_jsonl
from surefit.cli import options
from surefit.config import (
    RunConfig,
    config_fields,
    config_yaml,
    make_config,
    nest,
    parse_setting,
    read_yaml,
)
from surefit.data.cache import cache_folder
from surefit.errors import UsageError


def message_of(settings: dict[str, Any]) -> str:
    with pytest.raises(UsageError) as caught:
        make_config(settings)
    assert caught.value.exit_code == 2
    return caught.value.message


SUGGESTIONS = {
    "batchsize": "batch_size",
    "learning_ratio_of_mine": None,
    "epoch": "epochs",
    "weight_deca": "weight_decay",
    "early_stopping.patence": "early_stopping.patience",
    "generate.row": "generate.rows",
    "feature": "features",
}


@pytest.mark.parametrize("key", SUGGESTIONS)
def test_unknown_key_gets_a_suggestion(key: str) -> None:
    near = SUGGESTIONS[key]
    message = message_of({key: "1"})
    hint = f" Did you mean {near!r}?" if near else ""
    assert message == f"Unknown key {key!r}.{hint}"


def test_every_fault_is_reported_together() -> None:
    faulty = {"lr": -1, "epochs": "x", "batchsize": 3, "overlong": "cut"}
    assert message_of(faulty).splitlines() == [
        "epochs: input should be a valid integer, unable to parse string as an integer; found 'x'.",
        "overlong: input should be 'split', 'truncate', 'drop' or 'error'; found 'cut'.",
        "lr: input should be greater than 0; found -1.",
        "Unknown key 'batchsize'. Did you mean 'batch_size'?",
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epochs", 0),
        ("batch_size", 0),
        ("max_seq_length", 1),
        ("eval_share", 1.0),
        ("eval_share", -0.1),
        ("warmup", 1),
        ("seed", -1),
        ("seed", 2**32),
        ("lr", "fast"),
        ("lr", float("nan")),
        ("schedule", "step"),
        ("early_stopping", 3),
        ("data", {"a": 1}),
        ("columns", "text"),
    ],
)
def test_value_out_of_range_names_key_and_value(key: str, value: Any) -> None:
    message = message_of({key: value})
    assert message.startswith(f"{key}: ")
    assert message.endswith(f"; found {value!r}.")


def test_dotted_and_nested_keys_meet_and_later_ones_win() -> None:
    settings = {
        "early_stopping": {"metric": "loss", "patience": 5},
        "early_stopping.patience": 2,
        "columns.label": "stars",
        "columns": {"text": "body"},
    }
    assert nest(settings) == {
        "early_stopping": {"metric": "loss", "patience": 2},
        "columns": {"label": "stars", "text": "body"},
    }
    config = make_config(settings)
    assert config.early_stopping.patience == 2
    assert config.columns == {"label": "stars", "text": "body"}


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("lr=2e-5", ("lr", "2e-5")),
        ("weight-decay=0.1", ("weight_decay", 0.1)),
        ("columns.label=stars", ("columns.label", "stars")),
        ("early_stopping.patience=2", ("early_stopping.patience", 2)),
        ("deterministic=true", ("deterministic", True)),
        ("trackers=[tensorboard]", ("trackers", ["tensorboard"])),
        ("columns.text=a=b", ("columns.text", "a=b")),
        ("columns.text=[oops", ("columns.text", "[oops")),
    ],
)
def test_setting_of_the_command_line(text: str, setting: tuple[str, Any]) -> None:
    assert parse_setting(text) == setting


@pytest.mark.parametrize("text", ["lr", "=3", ""])
def test_setting_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--set expects key=value"):
        parse_setting(text)


def test_number_that_yaml_reads_as_text_is_a_number() -> None:
    assert make_config({"lr": "2e-5"}).lr == 2e-5


def test_one_path_is_a_list_of_one() -> None:
    assert make_config({"data": "a.jsonl"}).data == ("a.jsonl",)


def test_written_config_reads_back_the_same(tmp_path: Path) -> None:
    config = make_config({"data": ["a", "b"], "columns.label": "é", "lr": 1e-5, "max_steps": 3})
    path = tmp_path / "config.yaml"
    path.write_text(config_yaml(config), encoding="utf-8")
    assert make_config(read_yaml(path)) == config


def test_known_keys_are_all_accepted() -> None:
    defaults = yaml.safe_load(config_yaml(RunConfig()))
    for key in config_fields():
        value = defaults
        for part in key.split("."):
            value = value[part]
        make_config({key: value})


BAD_YAML = {
    "an open bracket": ("lr: 1\ndata: [x\n", "line 3, column 1: not valid YAML"),
    "a tab": ("lr:\n\t1\n", "line 2, column 1: not valid YAML"),
    "a list": ("- lr\n", "holds a list; expected keys and values"),
    "one word": ("lr", "holds a str; expected keys and values"),
    "a Python object": ("lr: !!python/object:os.system x\n", "not valid YAML"),
}


@pytest.mark.parametrize("name", BAD_YAML)
def test_yaml_fault_names_file_and_place(tmp_path: Path, name: str) -> None:
    text, message = BAD_YAML[name]
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_yaml(path)
    assert str(path) in caught.value.message
    assert message in caught.value.message


def test_yaml_that_is_missing_empty_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no config file"):
        read_yaml(tmp_path / "nope.yaml")
    path = tmp_path / "run.yaml"
    path.write_text("# nothing yet\n")
    assert read_yaml(path) == {}
    path.write_bytes(b"lr: \xff\n")
    with pytest.raises(UsageError, match="is not valid YAML"):
        read_yaml(path)


def test_yaml_keys_that_are_no_words_are_unknown_keys(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("on: true\n7: 2\n")  # YAML reads `on` as true
    message = message_of(read_yaml(path))
    assert message.splitlines() == ["Unknown key 'True'.", "Unknown key '7'."]


@options.takes_run_options
def _settings(settings: dict[str, Any], config: Path | None, resume: str | None) -> int:
    SEEN.append(settings)
    return 0


SEEN: list[dict[str, Any]] = []


def parsed(*arguments: str) -> dict[str, Any]:
    """The settings that a command line of `train` and `check` ends in."""
    import typer

    from surefit.cli import app

    command = typer.Typer(context_settings=app.info.context_settings, add_completion=False)
    command.command()(_settings)
    command(list(arguments), standalone_mode=False)
    return SEEN.pop()


@pytest.mark.parametrize(
    "flags",
    [
        ["--batch-size", "4", "--max-seq-length", "9", "--from-scratch", "--eval-data", "e_1-x"],
        ["--batch_size", "4", "--max_seq_length", "9", "--from_scratch", "--eval_data", "e_1-x"],
        ["--batch_size=4", "--max_seq-length=9", "--from-scratch", "--eval_data=e_1-x"],
    ],
)
def test_flags_are_accepted_with_dashes_and_underscores(flags: list[str]) -> None:
    assert parsed(*flags) == {
        "batch_size": 4,
        "max_seq_length": 9,
        "from_scratch": True,
        "eval_data": ["e_1-x"],
    }


def test_flags_and_settings_beat_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("epochs: 1\nlr: 0.1\nseed: 1\nearly_stopping: {metric: loss}\n")
    settings = parsed(
        str(path), "--set", "lr=0.2", "--epochs", "3", "--data", "a",
        "--data", "b", "--set", "early_stopping.patience=4",
    )  # fmt: skip
    config = make_config(settings)
    assert (config.epochs, config.lr, config.seed, config.data) == (3, 0.2, 1, ("a", "b"))
    assert config.early_stopping.model_dump() == {"metric": "loss", "patience": 4}


def test_a_chosen_cache_holds_for_its_call_only(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"row {n}", "label": n % 2} for n in range(20)]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    options: dict[str, Any] = {"data": "rows.jsonl", "model": "tiny:bert", "cache": "here"}
    run = surefit.train(**options, max_steps=1, output=str(tmp_path / "run"))
    assert cache_folder() == cache
    with pytest.raises(surefit.UsageError, match="no file or folder"):
        surefit.check(**{**options, "data": "nope.jsonl"})
    assert cache_folder() == cache  # a call that fails leaves nothing behind either
    assert not list(cache.iterdir())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # the Run keeps the folder, wherever it is used
    surefit.evaluate(run)
    surefit.predict(run, str(tmp_path / "rows.jsonl"))
    assert not list(cache.iterdir())
    assert not list((tmp_path / "elsewhere").iterdir())
