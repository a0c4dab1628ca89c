"""LoRA: exactly the intended weights are trained, and they load again, also in plain peft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import AutoPeftModelForCausalLM, AutoPeftModelForSequenceClassification
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

import surefit
from builders import (
    MeanPool,
    assert_close,
    assert_same_predictions,
    assert_same_weights,
    echo_rows,
    feature_rows,
    sentiment_rows,
)
from surefit.cli import run as command
from surefit.config import Lora
from surefit.errors import UsageError
from surefit.models.lora import adapt, merge_adapters, trainable_names, without_adapters
from surefit.models.lora_files import load_adapters
from surefit.models.model_source import Built
from surefit.models.tiny import TinySizes, tiny_config, tiny_families
from surefit.models.transformers_models import FAMILY_OF, quiet_transformers

QUICK: dict[str, Any] = {"max_steps": 3, "lora_r": 4, "lr": 1e-2, "generate": {"rows": 0}}


def tiny(arch: str) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny_config(arch, TinySizes(97))).eval()


def adapted(module: nn.Module, **settings: Any) -> nn.Module:
    adapt(Built(module), Lora(**{"r": 4, **settings}), None, None)
    return module


def set_everything(module: nn.Module) -> None:
    """Give the adapters values of which none is zero."""
    torch.manual_seed(1)
    for name, parameter in module.named_parameters():
        if name in trainable_names(module):
            nn.init.normal_(parameter, std=0.1)


def codes(plan: Any) -> list[str]:
    return [found.code for found in plan.findings]


@pytest.mark.parametrize(
    ("arch", "ends"),
    [
        ("llama", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
        ("gpt2", {"c_attn", "c_proj", "c_fc"}),
        ("gpt_neox", {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),
        ("mamba", {"in_proj", "x_proj"}),
        ("opt", {"k_proj", "v_proj", "q_proj", "out_proj", "fc1", "fc2"}),
    ],
)
def test_targets_are_all_linear_layers_but_the_output(arch: str, ends: set[str]) -> None:
    done, _ = adapt(Built(tiny(arch)), Lora(r=4), None, "AutoModelForCausalLM")
    assert {name.rpartition(".")[2] for name in done.targets} == ends
    assert not done.fully_trained


def test_names_and_regular_expressions_choose_targets() -> None:
    done, _ = adapt(Built(tiny("llama")), Lora(r=4, targets=("v_proj",)), None, None)
    assert {name.rpartition(".")[2] for name in done.targets} == {"v_proj"}
    chosen = Lora(r=4, targets=(r"model\.layers\.1\..*_proj", "model.layers.0.mlp.up_proj"))
    done, _ = adapt(Built(tiny("llama")), chosen, None, None)
    assert len(done.targets) == 8
    assert sum(name.startswith("model.layers.0.") for name in done.targets) == 1


def test_shared_weights_are_no_target() -> None:
    with pytest.raises(surefit.FindingError, match="shares its weights"):
        adapt(Built(tiny("gpt2")), Lora(r=4, targets=("lm_head",)), None, None)


@pytest.mark.parametrize("how", [{}, {"dora": True}, {"rslora": True, "alpha": 3.5}])
@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_merged_model_has_the_logits_of_the_adapted_one(arch: str, how: dict[str, Any]) -> None:
    module = tiny(arch)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad():
        plain = module(ids).logits
        adapted(module, **how)
        assert torch.allclose(module(ids).logits, plain, atol=1e-5)  # B starts at zero
        set_everything(module)
        changed = module(ids).logits
        with without_adapters(module):
            assert torch.equal(module(ids).logits, plain)
        assert torch.equal(module(ids).logits, changed)
        merged = merge_adapters(module)(ids).logits
    assert (changed - plain).abs().max() > 1e-2
    assert torch.allclose(merged, changed, atol=1e-5)
    assert not any("lora" in name for name, _ in module.named_parameters())


def test_torch_encoder_layers_use_their_adapters_in_evaluation() -> None:
    """torch's fast path for evaluation reads the weights directly and ignores adapters."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2)
    module = nn.Sequential(nn.Linear(4, 16), encoder, nn.Linear(16, 3)).eval()
    done, _ = adapt(Built(module), Lora(r=2), 3, None)
    # out_proj is read past its adapter as well; "0" and "2" also end the names of other layers
    assert done.targets == (
        "0",
        *(f"1.layers.{layer}.linear{number}" for layer in (0, 1) for number in (1, 2)),
    )
    assert done.fully_trained == ("2",)
    set_everything(module)
    steps = torch.randn(2, 5, 4)
    slow = module(steps)
    with torch.no_grad():
        assert torch.allclose(module(steps), slow, atol=1e-6)
        assert torch.allclose(merge_adapters(module)(steps), slow, atol=1e-5)


@pytest.mark.slow
def test_local_base_is_named_and_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = surefit.train(data=echo_rows(40), model="tiny:llama", max_steps=2, output="whole")
    run = surefit.train(data=echo_rows(40), model="whole", output="run", **QUICK)
    assert not (run.path / "model" / "base").exists()
    said = json.loads((run.path / "model" / "adapter_config.json").read_text())
    assert said["base_model_name_or_path"] == "./whole/model"  # no path of this machine
    inputs = {"input_ids": torch.tensor([[5, 6, 7]])}
    with torch.no_grad():
        auto = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
        monkeypatch.chdir("/")
        expected = surefit.load(tmp_path / "run")(**inputs).logits
        assert_close(auto(**inputs).logits, expected)
        together = tmp_path / "moved"
        together.mkdir()
        for name in ("run", "whole"):
            (tmp_path / name).rename(together / name)
        assert_close(surefit.load(together / "run")(**inputs).logits, expected)
        for name in ("run", "whole"):
            (together / name).rename(tmp_path / name)
    # adapters on other weights than they were trained on would answer nonsense
    monkeypatch.chdir(tmp_path)
    base = AutoModelForCausalLM.from_pretrained("whole/model")
    nn.init.normal_(base.model.layers[0].mlp.up_proj.weight)
    base.save_pretrained("whole/model")
    with pytest.raises(surefit.UsageError, match="has changed since"):
        surefit.load("run")
    (whole.path / "model").rename(tmp_path / "gone")
    with pytest.raises(surefit.UsageError, match="was not found"):
        surefit.load("run")
    capsys.readouterr()
    assert command(["train", "--data", "x.jsonl", "--model", "run"]) == 2
    assert command(["predict", "run", "--text", "red"]) == 2
    assert "was not found" in capsys.readouterr().err


def test_classifier_trains_its_head_in_full(tmp_path: Path) -> None:
    rows = sentiment_rows(80)
    run = surefit.train(
        data=rows, model="tiny:bert", output=str(tmp_path / "run"), epochs=10, lora_r=8, lr=5e-3
    )
    assert run.plan["model"]["lora"]["trained_in_full"] == ["classifier"]
    assert run.metrics["accuracy"] == 1
    predicted = surefit.predict(run, rows[:1])
    plain = AutoPeftModelForSequenceClassification.from_pretrained(run.path / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(run.path / "model")
    with torch.no_grad():
        chances = plain(**tokenizer(rows[0]["text"], return_tensors="pt")).logits.softmax(-1)
    assert float(chances.max()) == pytest.approx(predicted[0]["probability"], abs=1e-6)
    assert command(["export", str(run.path), str(tmp_path / "out"), "--merge"]) == 0
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        again = merged(**tokenizer(rows[0]["text"], return_tensors="pt")).logits.softmax(-1)
    assert torch.allclose(again, chances, atol=1e-5)


@pytest.mark.slow
def test_new_tokens_are_trained_with_both_kinds_of_output(tmp_path: Path) -> None:
    """Embeddings of new tokens are trained, tied or untied, and load again."""
    for arch, tied in (("gpt2", True), ("llama", False)):
        folder = tmp_path / arch
        small = surefit.train(
            data=echo_rows(40), model=f"tiny:{arch}", max_steps=2, output=str(folder / "small")
        )
        tokenizer = AutoTokenizer.from_pretrained(small.path / "model")
        had = len(tokenizer)
        tokenizer.add_tokens(["<one>", "<two>"])
        tokenizer.save_pretrained(folder / "more")
        rows = [{**row, "prompt": f"<one> {row['prompt']} <two>"} for row in echo_rows(40)]
        run = surefit.train(
            data=rows,
            model=str(small.path),
            tokenizer=str(folder / "more"),
            output=str(folder / "run"),
            **QUICK,
        )
        assert any("new token" in note for note in run.plan["notes"])
        assert run.module_object.config.tie_word_embeddings is tied
        inputs = {"input_ids": torch.tensor([[had, 5, 6, had + 1]])}
        with torch.no_grad():
            trained = run.module_object.eval()(**inputs).logits
            # The base's rows of new tokens are random and unused: the adapter has its own.
            assert_close(surefit.load(folder / "run")(**inputs).logits, trained)
            auto = AutoPeftModelForCausalLM.from_pretrained(folder / "run" / "model")
            assert_close(auto(**inputs).logits, trained)
            assert command(["export", str(run.path), str(folder / "out"), "--merge"]) == 0
            merged = AutoModelForCausalLM.from_pretrained(folder / "out")
            assert torch.allclose(merged(**inputs).logits, trained, atol=1e-5)


def test_feature_model_adapts_its_body_and_trains_the_rest(tmp_path: Path) -> None:
    rows = feature_rows(60)
    run = surefit.train(data=rows, model="tiny:bert", output=str(tmp_path / "run"), **QUICK)
    # The pooler and the mask vector take no part.
    assert any("adapter weights are left" in note for note in run.plan["notes"])
    before = surefit.predict(run, rows[:5])
    assert_same_predictions(surefit.predict(tmp_path / "run", rows[:5]), before)
    assert command(["export", str(run.path), str(tmp_path / "out"), "--merge"]) == 0
    assert (tmp_path / "out" / "features.json").is_file()
    module = surefit.load(run)
    trained = {name: p for name, p in run.module_object.named_parameters() if "projection" in name}
    assert trained
    assert all(torch.equal(module.get_parameter(name), p) for name, p in trained.items())


def test_convolutions_keep_their_statistics(tmp_path: Path) -> None:
    """A model without linear layers is adapted in its convolutions; batch norms are saved."""

    class Convolved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv1d(4, 8, 3, padding=1)
            self.norm = nn.BatchNorm1d(8)
            self.head = nn.Linear(8, 3)

        def forward(self, inputs_embeds: torch.Tensor) -> torch.Tensor:
            hidden = self.norm(self.first(inputs_embeds.transpose(1, 2))).relu()
            return self.head(hidden.mean(-1))

    rows = feature_rows(40)
    run = surefit.train(data=rows, model=Convolved(), output=str(tmp_path / "run"), **QUICK)
    assert run.plan["model"]["lora"]["targets"] == ["first"]
    assert sorted(run.plan["model"]["lora"]["trained_in_full"]) == ["head", "norm"]
    trained = run.module_object.norm.running_mean
    assert trained.abs().max() > 0
    again = surefit.load(tmp_path / "run", model=Convolved())
    assert torch.equal(again.norm.running_mean, trained)


@pytest.mark.slow
def test_peft_models_are_trained_as_they_are(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    plain = surefit.train(
        data=echo_rows(40), model="tiny:llama", max_steps=1, output=str(tmp_path / "plain")
    )
    own = get_peft_model(surefit.load(plain), LoraConfig(r=3, target_modules=["q_proj"]))
    folder = str(plain.path / "model")
    options = {**QUICK, "lora_r": 0, "data": echo_rows(40), "tokenizer": folder, "task": "sft"}
    run = surefit.train(model=own, output=str(tmp_path / "run"), **options)
    assert run.plan["model"]["lora"]["r"] == 3
    inputs = {"input_ids": torch.tensor([[5, 6, 7]])}
    with torch.no_grad():
        expected = own.eval()(**inputs).logits
        loaded = surefit.load(tmp_path / "run")
        assert_same_weights(loaded, own.get_base_model())
        assert_close(loaded(**inputs).logits, expected)
    with pytest.raises(surefit.FindingError, match="rank 3"):
        surefit.train(model=own, output=str(tmp_path / "other"), **{**options, "lora_r": 4})


def test_four_bits_need_a_trained_transformers_model() -> None:
    options: dict[str, Any] = {"data": echo_rows(20), "lora": {"r": 4, "quantize": "4bit"}}
    with pytest.raises(surefit.UsageError, match="tiny:llama is none"):
        surefit.check(model="tiny:llama", **options)


def test_adapters_that_nothing_calls_are_an_error() -> None:
    class Past(MeanPool):
        """Reads the weights of its body without calling it."""

        def forward(
            self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor
        ) -> torch.Tensor:
            hidden = nn.functional.linear(inputs_embeds, self.body.weight).tanh()
            return self.head(hidden.mean(1))

    plan = surefit.check(data=feature_rows(40), model=Past(), lora_r=4)
    assert "SF321" in codes(plan)
    assert not plan.ok


INPUTS = {
    "causal-lm": {"input_ids": (2, 7)},
    "text-classification": {"input_ids": (2, 7)},
    "seq2seq": {"input_ids": (2, 7), "decoder_input_ids": (2, 5)},
    "image-classification": {"pixel_values": (2, 3, 32, 32)},
}
WITHOUT = {
    "rwkv": "it has no backward in evaluation mode",
    "xlstm": "it keeps the state of an earlier batch",
}
EVERY_FOURTH = [(family, arch) for family in INPUTS for arch in tiny_families()[family][::4]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "arch"), [each for each in EVERY_FOURTH if each[1] not in WITHOUT]
)
def test_every_fourth_architecture(family: str, arch: str) -> None:
    """Layers are found, exactly they are trained, and merging changes nothing."""
    auto = {name: auto for auto, name in FAMILY_OF.items()}[family]
    num_labels = 3 if "classification" in family else None
    torch.manual_seed(0)
    config = tiny_config(arch, TinySizes(97, hidden_size=32), family=family, num_labels=num_labels)
    config.pad_token_id = 0
    with quiet_transformers():
        module = getattr(transformers, auto).from_config(config).eval()
    inputs = {
        name: torch.randn(shape) if name == "pixel_values" else torch.randint(3, 90, shape)
        for name, shape in INPUTS[family].items()
    }
    done, _ = adapt(Built(module), Lora(r=4), num_labels, auto)
    taking = {name for name, p in module.named_parameters() if p.requires_grad}
    assert taking == done.trained
    weights = [module.get_parameter(name) for name in sorted(taking)]
    total = module(**inputs).logits.float().pow(2).sum()
    slopes = torch.autograd.grad(total, weights, allow_unused=True)
    reached = [w for w, slope in zip(weights, slopes, strict=True) if slope is not None]
    assert len(reached) > len(done.fully_trained)
    with torch.no_grad():
        for weight in reached:
            weight.add_(torch.randn_like(weight) * 0.02)
        changed = module(**inputs).logits
        merged = merge_adapters(module)(**inputs).logits
    assert torch.allclose(merged, changed, atol=1e-4, rtol=1e-4)


def test_adapters_that_name_a_module_to_import_are_refused(tmp_path: Path) -> None:
    config = {"peft_type": "LORA", "target_modules": ["q_proj"], "megatron_core": "evil"}
    for more, said in (({"megatron_config": {"x": 1}}, "the module evil"), ({"r": 10**12}, "rank")):
        (tmp_path / "adapter_config.json").write_text(json.dumps({**config, **more}))
        with pytest.raises(UsageError, match=said):
            load_adapters(tiny("llama"), tmp_path)
