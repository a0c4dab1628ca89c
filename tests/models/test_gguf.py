"""GGUF files as models: dequantized, trained, saved as a plain folder, with a leading bos."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

import surefit
from builders import WORDS, assert_close, assert_same_weights, echo_rows
from surefit.cli import run as command
from surefit.data.cache import collect_damage, use_cache
from surefit.data.cache_contents import list_entries
from surefit.errors import UsageError
from surefit.inputs import tokenizer as tokenizers
from surefit.inputs.tokenizer import adds_bos, load_tokenizer, train_tokenizer
from surefit.models import pretrained
from surefit.models.model_source import Built
from surefit.models.open_model import open_model
from surefit.models.pretrained import load_gguf, read_gguf_config
from surefit.user_code import NamedCode

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
HEADS = 2


def write_gguf(path: Path, model: Any, tokenizer: Any, add_bos: bool) -> Path:
    """A llama and its byte-level tokenizer as llama.cpp's converter writes them, in Q8_0."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    bpe = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 2 + [1] * (len(tokens) - 2))
    writer.add_token_merges([" ".join(merge) for merge in bpe["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(add_bos)
    for name, tensor in model.state_dict().items():
        values = tensor.numpy().astype(np.float32)
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            part = NAMES[rest.removesuffix(".weight")]
            if part in ("attn_q", "attn_k"):  # llama.cpp turns pairs of dimensions together
                halves = values.reshape(HEADS, 2, -1, values.shape[1])
                values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
            name = f"blk.{layer}.{part}.weight"
        else:
            name = {
                "model.embed_tokens.weight": "token_embd.weight",
                "model.norm.weight": "output_norm.weight",
                "lm_head.weight": "output.weight",
            }[name]
        if values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def llama() -> tuple[Any, Any]:
    tokenizer = train_tokenizer([" ".join(WORDS)] * 20, 320, ("bos_token",))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config).eval(), tokenizer


@pytest.mark.parametrize("add_bos", [True, False])
def test_trains_and_saves_a_plain_folder(
    tmp_path: Path, llama: tuple[Any, Any], add_bos: bool
) -> None:
    model, tokenizer = llama
    path = write_gguf(tmp_path / "small.gguf", model, tokenizer, add_bos)
    read = load_tokenizer(str(path))
    ids = read("red cat")["input_ids"]
    assert ids == [1] * add_bos + tokenizer("red cat")["input_ids"]
    run = surefit.train(
        data=echo_rows(60, longest=4),
        model=str(path),
        task="sft",
        max_steps=4,
        lr=1e-3,
        output=str(tmp_path / "run"),
    )
    assert run.plan["model"]["kind"] == "gguf"
    assert all(parameter.requires_grad for parameter in run.model.parameters())
    steps = [event["loss"] for event in run.history if event["event"] == "step"]
    assert steps[-1] < steps[0]
    folder = tmp_path / "run" / "model"
    plain, saved = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    assert adds_bos(saved) is add_bos
    assert "quantization_config" not in (folder / "config.json").read_text()
    batch = {"input_ids": torch.tensor([ids])}
    loaded = surefit.load(run)
    assert_same_weights(plain, loaded)
    with torch.no_grad():
        assert_close(plain(**batch).logits, loaded(**batch).logits)


def test_untouched_weights_are_those_of_the_file(
    tmp_path: Path, llama: tuple[Any, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = llama
    path = write_gguf(tmp_path / "small.gguf", model, tokenizer, True)
    plan = surefit.check(data=echo_rows(20), model=str(path), task="sft")
    batch = {"input_ids": torch.tensor([[1, 50, 60, 70]])}
    with torch.no_grad():
        expected, got = model(**batch).logits, plan.job.pipeline.module(**batch).logits
    got = got[..., : model.config.vocab_size]  # transformers adds an <|endoftext|> to the tokenizer
    assert (expected - got).abs().max() < 0.02 * expected.abs().max()
    assert "GGUF tensors" not in capfd.readouterr().err  # the reader's bar


def test_files_that_cannot_be_read(
    tmp_path: Path, llama: tuple[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = write_gguf(tmp_path / "small.gguf", *llama, True).read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:700])
    (tmp_path / "text.gguf").write_text("not weights at all")
    for name, said in (("cut", "cut.gguf"), ("text", "GGUF"), ("none", "does not exist")):
        with pytest.raises(UsageError, match=said):
            open_model(str(tmp_path / f"{name}.gguf"), code=NamedCode())
    arguments = ["check", "--data", "rows.jsonl", "--model", str(tmp_path / "none.gguf")]
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 3)
    assert command([*arguments[:2], str(tmp_path / "rows.jsonl"), *arguments[3:]]) == 2
    assert "none.gguf" in capsys.readouterr().err


def kept() -> list[str]:
    return [entry.path for entry in list_entries() if entry.kind == "gguf-weights"]


def load_seeded(load: Any, auto: Any, path: Path) -> tuple[Built, torch.Tensor]:
    """The model of a file, and a number that is drawn after it was loaded."""
    torch.manual_seed(5)
    return load(auto, path, read_gguf_config(path)), torch.rand(1)


@pytest.mark.parametrize("auto", [AutoModelForCausalLM, AutoModelForSequenceClassification])
def test_weights_are_dequantized_once_and_stay_the_same(
    tmp_path: Path, llama: tuple[Any, Any], auto: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "small.gguf", *llama, True)
    with use_cache(str(tmp_path / "cache")):
        direct, drawn = load_seeded(pretrained._dequantize, auto, path)
        made = [load_seeded(load_gguf, auto, path)]
        monkeypatch.setattr(pretrained, "_dequantize", None)
        made.append(load_seeded(load_gguf, auto, path))
        assert len(kept()) == 1
    for built, then_drawn in made:
        assert built.newly_initialized == direct.newly_initialized
        assert_same_weights(built.module, direct.module)
        assert torch.equal(then_drawn, drawn)
        module: Any = built.module
        plain: Any = direct.module
        assert module.config.to_dict() == plain.config.to_dict()
        assert module.name_or_path == module.config.name_or_path == str(tmp_path)
        if auto is AutoModelForCausalLM:
            assert module.generation_config.to_dict() == plain.generation_config.to_dict()


def test_damaged_weights_are_dequantized_again(tmp_path: Path, llama: tuple[Any, Any]) -> None:
    path = write_gguf(tmp_path / "small.gguf", *llama, True)
    with use_cache(str(tmp_path / "cache")), collect_damage() as damaged:
        first, _ = load_seeded(load_gguf, AutoModelForCausalLM, path)
        weights = tmp_path / "cache" / kept()[0] / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.unlink()  # the first model's weights are mapped from it
        weights.write_bytes(content)
        again, _ = load_seeded(load_gguf, AutoModelForCausalLM, path)
    assert [finding.code for finding in damaged] == ["SF820"]
    assert_same_weights(first.module, again.module)


def test_weights_over_the_limit_of_the_cache_are_not_kept(
    tmp_path: Path, llama: tuple[Any, Any]
) -> None:
    path = write_gguf(tmp_path / "small.gguf", *llama, True)
    cache = str(tmp_path / "cache")
    check = partial(surefit.check, data=echo_rows(20), model=str(path), task="sft", cache=cache)
    for limit_gb, num_kept in ((1e-5, 0), (1.0, 1)):
        assert check(cache_limit_gb=limit_gb).ok
        with use_cache(cache):
            assert len(kept()) == num_kept


def test_the_header_is_parsed_once(
    tmp_path: Path, llama: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "small.gguf", *llama, True)
    with use_cache(str(tmp_path / "cache")):
        config, read = read_gguf_config(path), load_tokenizer(str(path))
        tokenizers._parse.cache_clear()  # as in another process
        monkeypatch.setattr(gguf, "GGUFReader", None)
        assert read_gguf_config(path).to_dict() == config.to_dict()
        assert load_tokenizer(str(path)).get_vocab() == read.get_vocab()
