"""Keys of other tools get the name used here, with the value translated, or the reason why not."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import surefit
from builders import MeanPool, feature_rows
from surefit.cli import run
from surefit.config import RunConfig, config_fields, make_config
from surefit.config.other_tools import (
    TABLE,
    answer_key,
    read_table,
)
from surefit.errors import UsageError

OURS = [*RunConfig.model_fields, *config_fields()]

TRANSLATED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # transformers and TRL
    ({"learning_rate": 2e-5}, {"lr": 2e-5}),
    ({"per_device_train_batch_size": 4}, {"batch_size": 4}),
    ({"num_train_epochs": 3.0}, {"epochs": 3}),
    ({"gradient_accumulation_steps": 8}, {"grad_accum": 8}),
    ({"save_total_limit": 3}, {"keep": 3}),
    ({"bf16": True}, {"precision": "bf16"}),
    ({"fp16": "true"}, {"precision": "fp16"}),
    ({"bf16": False}, {"precision": "fp32"}),
    ({"lr_scheduler_type": "constant_with_warmup"}, {"schedule": "constant"}),
    ({"warmup_ratio": 0.1}, {"warmup": 0.1}),
    ({"warmup_steps": 0.05}, {"warmup": 0.05}),
    ({"eval_strategy": "no"}, {"eval_share": 0}),
    ({"eval_steps": 50}, {"eval_every": 50}),
    ({"max_grad_norm": 0.5}, {"clip": 0.5}),
    ({"report_to": "wandb,tensorboard"}, {"trackers": ["wandb", "tensorboard"]}),
    ({"metric_for_best_model": "eval_accuracy"}, {"early_stopping.metric": "accuracy"}),
    ({"completion_only_loss": False}, {"loss_on": "all"}),
    ({"assistant_only_loss": True}, {"loss_on": "answers"}),
    ({"neftune_noise_alpha": 5}, {"neftune": 5}),
    ({"lr_scheduler_type": "warmup_stable_decay"}, {"schedule": "wsd"}),
    ({"lr_scheduler_type": "inverse_sqrt"}, {"schedule": "inverse-sqrt"}),
    ({"lr_scheduler_type": "cosine_with_restarts"}, {"schedule": "cosine", "restarts": 1}),
    ({"max_length": 512}, {"max_seq_length": 512}),
    ({"gradient_checkpointing": True}, {"checkpointing": True}),
    ({"dataset_text_field": "body"}, {"columns.text": "body"}),
    # Axolotl
    ({"train_on_inputs": True}, {"loss_on": "all"}),
    ({"base_model": "Qwen/Qwen3-0.6B"}, {"model": "Qwen/Qwen3-0.6B"}),
    ({"datasets": [{"path": "a.jsonl", "type": "alpaca"}]}, {"data": "a.jsonl"}),
    ({"sequence_len": 2048}, {"max_seq_length": 2048}),
    ({"val_set_size": 0.05}, {"eval_share": 0.05}),
    ({"sample_packing": True}, {"packing": True}),
    ({"lora_modules_to_save": ["lm_head"]}, {"lora.modules_to_save": ["lm_head"]}),
    ({"cosine_min_lr_ratio": 0.1}, {"schedule_end": 0.1}),
    ({"finetuning_type": "qlora"}, {"lora.r": 16, "lora.quantize": "4bit"}),
    ({"lora_target_modules": ["q_proj", "v_proj"]}, {"lora.targets": ["q_proj", "v_proj"]}),
    # LLaMA-Factory
    ({"mask_history": True}, {"loss_on": "last"}),
    ({"add_special_tokens": ["<x>"]}, {"add_tokens": ["<x>"]}),
    ({"fast_dev_run": 5}, {"max_steps": 5}),
    ({"fast_dev_run": True}, {"max_steps": 1}),
    ({"fsdp": ["full_shard"]}, {"parallel": "fsdp"}),
    ({"mixed_precision": "no"}, {"precision": "fp32"}),
    ({"lora_rank": 8}, {"lora.r": 8}),
    ({"lora_target": "q_proj,v_proj"}, {"lora.targets": ["q_proj", "v_proj"]}),
    ({"cutoff_len": 2048}, {"max_seq_length": 2048}),
    ({"stage": "pt"}, {"task": "causal-lm"}),
    ({"quantization_bit": 4}, {"lora.quantize": "4bit"}),
    # Lightning, as its CLI nests them
    ({"trainer": {"max_epochs": 5}}, {"epochs": 5}),
    ({"trainer": {"accumulate_grad_batches": 2}}, {"grad_accum": 2}),
    ({"trainer": {"precision": "bf16-mixed"}}, {"precision": "bf16"}),
    ({"gradient_clip_val": 1.0}, {"clip": 1.0}),
    # misspelt
    ({"learnig_rate": 0.1}, {"lr": 0.1}),
]


def refused(settings: dict[str, Any]) -> UsageError:
    with pytest.raises(UsageError) as caught:
        make_config(settings)
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize(("theirs", "ours"), TRANSLATED, ids=lambda each: str(each)[:40])
def test_the_name_used_here_can_be_pasted(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    error = refused(theirs)
    assert all(f"{key}: " in error.message.split("Here it is ", 1)[1] for key in ours)
    words = shlex.split(error.fix.removeprefix("Use ").split(". `surefit")[0])
    settings = dict(word.split("=", 1) for word in words if word != "--set")
    assert {key: yaml.safe_load(value) for key, value in settings.items()} == {
        key: yaml.safe_load(yaml.safe_dump(value)) for key, value in ours.items()
    }
    more = {"lora.r": 8} if any(key.startswith("lora.") for key in ours) else {}
    make_config(more | ours)  # what is suggested is valid


NOT_HERE = {
    "optim": "The key is optimizer: adamw, adafactor",
    "packing_strategy": "padding-free batches replace packing",
    "special_tokens": "Name new tokens in add_tokens",
    "min_lr": "Here it is schedule_end",
    "logging_steps": "each step is in events.jsonl",
    "deepspeed": "DeepSpeed divides the loss by itself",
    "push_to_hub": "Not available yet",
    "load_in_8bit": "Not available yet",
    "flash_attention": "the attention kernel is chosen by the plan",
    "devices": "Launch with --processes N, torchrun",
    "ref_model": "is the model before training",
    "num_train_epochs": "a whole number",
    "strategy": "DeepSpeed divides the loss",
    "lora_target": "the default here",
    "evaluation_strategy": "it is the default here",
}


@pytest.mark.parametrize("key", NOT_HERE)
def test_what_is_not_here_has_its_reason(key: str) -> None:
    given = {
        "num_train_epochs": 2.5,
        "strategy": "deepspeed_stage_2",
        "lora_target": "all-linear",
        "evaluation_strategy": "IntervalStrategy.EPOCH",
    }
    assert NOT_HERE[key] in refused({key: given.get(key, 1)}).message


def test_all_faults_are_reported_together() -> None:
    error = refused(
        {"learning_rate": 1e-4, "epochs": 0, "packing_strategy": "bfd", "kep": 1, "lora_rank": 4}
    )
    assert len(error.message.splitlines()) == 5
    assert "--set lr=0.0001 --set lora.r=4" in error.fix


def test_every_option_of_the_trainers_has_an_answer() -> None:
    from peft import LoraConfig
    from transformers import Seq2SeqTrainingArguments
    from trl import DPOConfig, SFTConfig

    theirs = {
        field.name
        for config in (Seq2SeqTrainingArguments, SFTConfig, DPOConfig, LoraConfig)
        for field in dataclasses.fields(config)
    } - {"r", "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path"}
    missing = [n for n in sorted(theirs - set(OURS)) if n not in read_table() and n[0] != "_"]
    assert missing == []


def test_a_value_of_another_tool_names_the_keys_that_mean_it() -> None:
    assert "Here it is lora.r: 16, lora.quantize: 4bit." in refused({"adapter": "qlora"}).message


def test_the_table_has_each_key_once_and_none_of_ours() -> None:
    table = yaml.safe_load(TABLE.read_text())
    names = [name for each in table["renamed"].values() for name in each.split()]
    for part in ("translated", "reasons"):
        names += [name for entry in table[part] for name in entry["keys"].split()]
    assert sorted(n for n in set(names) if names.count(n) > 1) == []
    assert [n for n in names if n in OURS and n != "preference"] == []
    kept = {"freeze", "loss.label_smoothing", "loss.class_weights", "metrics"}
    ours = {n for n in table["renamed"] if not n.startswith(("columns.", "generate."))}
    assert ours - kept <= set(OURS)
    assert answer_key("entirely_unknown_knob", 1, OURS) is None


def test_flags_yaml_and_python_are_answered_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--learning_rate", "2e-5", "--num-train-epochs=3", "--bf16", "--warmup", "0.1"]
    assert run(["train", "--data", "x.jsonl", *flags]) == 2
    said = capsys.readouterr().err
    assert "Here it is lr: 2e-5" in said
    assert "--set warmup=0.1 --set lr=2e-5 --set epochs=3 --set precision=bf16" in said
    path = tmp_path / "axolotl.yaml"
    path.write_text("base_model: m\nmicro_batch_size: 2\ndatasets:\n  - path: a.jsonl\n")
    assert run(["check", "--json", str(path)]) == 2
    said = json.loads(capsys.readouterr().out)["error"]["message"]
    assert "Here it is batch_size: 2" in said
    with pytest.raises(UsageError, match="Here it is grad_accum: 4"):
        surefit.check(data=[{"text": "a"}], gradient_accumulation_steps=4)


def test_commands_and_options_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "run"]) == 2
    assert "surefit tune is not available yet" in capsys.readouterr().err
    assert run(["train", "--frobnicate", "1"]) == 2
    assert "No such option: --frobnicate" in capsys.readouterr().err


NO_OBJECTS: list[tuple[dict[str, Any], str]] = [
    ({"optimizer": 3}, "optimizer is a int; expected an Optimizer or a function"),
    ({"optimizer": lambda parameters: None}, "optimizer returned a NoneType"),
    ({"optimizer": lambda: None}, "optimizer fails on the model's parameters: TypeError"),
    ({"callbacks": [3]}, "callbacks holds a int; expected functions"),
    ({"callbacks": "print"}, "callbacks holds a str ('print')"),
    ({"loss_fn": "mse"}, "loss_fn is a str ('mse')"),
    ({"collate_fn": 3}, "collate_fn is a int"),
    ({"trackers": "nope"}, "The tracker 'nope' is not available"),
]


@pytest.mark.parametrize(("options", "message"), NO_OBJECTS, ids=lambda each: str(each)[:30])
def test_check_refuses_what_train_refuses(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    said = []
    for call in (surefit.check, surefit.train):
        with pytest.raises(UsageError) as caught:
            call(data=feature_rows(20), model=MeanPool(), output=str(tmp_path / "run"), **options)
        said.append(caught.value.message)
    assert said[0] == said[1]
    assert said[0].startswith(message)


def test_check_refuses_the_outputs_that_train_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.json").write_text("{}")
    for output in ("file/run", "run"):
        for call in (surefit.check, surefit.train):
            with pytest.raises(UsageError, match=r"Cannot write|already holds a run"):
                call(data=feature_rows(20), model=MeanPool(), output=str(tmp_path / output))
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(UsageError, match="asked for DeepSpeed"):
        surefit.check(data=feature_rows(20), model=MeanPool())
