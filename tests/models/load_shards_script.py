"""Divided models that each process read its share of, compared with `from_pretrained`."""

from __future__ import annotations

import sys
from pathlib import Path

import accelerate  # noqa: F401 - forked processes have it
import torch
import transformers
from forked_processes import run, start_group
from transformers import AutoConfig

from surefit.models.load_shards import build_late, fill_shards, late_weights
from surefit.models.sharding import Skeleton, gather_whole, shard_module, unique_tensors
from surefit.processes import is_main, num_processes

SMALL = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2}
CASES = {
    # name: config, saved as, loaded as
    "llama": (
        transformers.LlamaConfig(**SMALL, **HEADS, num_key_value_heads=1),
        "AutoModelForCausalLM",
        "AutoModelForCausalLM",
    ),
    "gpt2": (
        transformers.GPT2Config(vocab_size=61, n_embd=16, n_layer=2, n_head=2, n_positions=32),
        "AutoModel",  # without the prefix that the loaded one has
        "AutoModelForCausalLM",
    ),
    "bert": (
        transformers.BertConfig(**SMALL, **HEADS, max_position_embeddings=32),
        "AutoModelForMaskedLM",
        "AutoModelForSequenceClassification",
    ),
    "t5": (
        transformers.T5Config(
            vocab_size=61, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2
        ),
        "AutoModelForSeq2SeqLM",
        "AutoModelForSeq2SeqLM",
    ),
}


def save(folder: Path, name: str) -> None:
    """Write a model; that of Llama in bfloat16 and in several files."""
    config, saved_as, _ = CASES[name]
    torch.manual_seed(1)
    model = getattr(transformers, saved_as).from_config(config)
    if name == "llama":
        model.to(torch.bfloat16).save_pretrained(folder / name, max_shard_size="5KB")
    else:
        model.save_pretrained(folder / name)


def compare(folder: Path) -> None:
    mesh = start_group(num_processes())
    for name, (_, _, loaded_as) in CASES.items():
        auto, place = getattr(transformers, loaded_as), folder / name
        expected, info = auto.from_pretrained(place, dtype=torch.float32, output_loading_info=True)
        built = build_late(auto, AutoConfig.from_pretrained(place), place, None, False)
        assert sorted(built.newly_initialized) == sorted(info["missing_keys"])
        module = built.module
        assert all(weight.is_meta for weight in module.parameters())
        places = late_weights(module)
        skeleton = Skeleton(module)
        shard_module(module, mesh)
        fresh = fill_shards(module, places, "cpu", 0, skeleton.module)
        assert sorted(fresh) == sorted(info["missing_keys"]), (name, fresh)
        state, known = unique_tensors(module), expected.state_dict()
        for first, (tensor, names) in state.items():
            whole = gather_whole(tensor.detach())
            for each in names:
                if first in fresh:
                    known[each].copy_(whole)
                assert torch.equal(whole, known[each]), (name, each)
        for (own, buffer), (other, value) in zip(
            module.named_buffers(), expected.named_buffers(), strict=True
        ):
            assert own == other
            assert torch.equal(buffer, value), own
        ids = torch.arange(8)[None]
        more = {"decoder_input_ids": ids} if name == "t5" else {}
        with torch.no_grad():
            outputs = [model.eval()(input_ids=ids, **more).logits for model in (module, expected)]
        assert torch.equal(*outputs), name
        spread = {n: float(gather_whole(module.get_parameter(n).detach()).std()) for n in fresh}
        if is_main():
            drawn = sorted(n for n, std in spread.items() if 0.005 < std < 0.05)
            print(name, len(state), *drawn)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for case in CASES:
        save(root, case)
    assert run(3, compare, root) == [0, 0, 0]
