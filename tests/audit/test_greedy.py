"""Generated answers against a hand-written argmax loop, with hostile generation configs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    MBart50Tokenizer,
    NllbTokenizer,
)

import surefit
from builders import WORDS, write_jsonl
from surefit.errors import UsageError
from surefit.targets.sequence import forced_first_token

pytestmark = pytest.mark.slow

NEW = 9
HOSTILE: dict[str, Any] = {
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 5,
    "min_p": 0.1,
    "typical_p": 0.9,
    "repetition_penalty": 1.8,
    "encoder_repetition_penalty": 1.7,
    "no_repeat_ngram_size": 1,
    "encoder_no_repeat_ngram_size": 1,
    "num_beams": 3,
    "length_penalty": 3.0,
    "early_stopping": True,
    "num_return_sequences": 2,
    "min_length": 40,
    "min_new_tokens": 6,
    "max_length": 3,
    "max_time": 1e-6,
    "bad_words_ids": [[token] for token in range(8, 16)],
    "suppress_tokens": [16, 17, 18, 19],
    "begin_suppress_tokens": [20, 21, 22],
    "sequence_bias": [[[9], 30.0]],
    "forced_bos_token_id": 7,
    "forced_eos_token_id": 6,
    "exponential_decay_length_penalty": [1, 1.5],
    "renormalize_logits": True,
    "guidance_scale": 1.5,
    "prompt_lookup_num_tokens": 2,
    "return_dict_in_generate": True,
    "output_scores": True,
    "eos_token_id": [10, 11, 12],
    "watermarking_config": {"greenlist_ratio": 0.25, "bias": 9.0},
    "cache_implementation": "static",
}


def rows(count: int, names: tuple[str, str], seed: int = 0) -> list[dict[str, str]]:
    """Texts, and their words in reverse, so that answers have several tokens."""
    choose = random.Random(seed)
    texts = [choose.choices(WORDS, k=choose.randint(1, 6)) for _ in range(count)]
    return [dict(zip(names, (" ".join(t), " ".join(t[::-1])), strict=True)) for t in texts]


def hostile_folder(tmp_path: Path, arch: str, data: list[dict[str, str]], **more: Any) -> Path:
    """A model trained for a few steps, saved with a hostile generation config."""
    run = surefit.train(
        data=data,
        model=f"tiny:{arch}",
        max_steps=12,
        lr=3e-3,
        generate={"rows": 0},
        output=str(tmp_path / "first"),
        **more,
    )
    path = run.path / "model" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **HOSTILE}))
    return run.path / "model"


def argmax(model: Any, ids: list[int], start: list[int] | None, ends: list[int]) -> list[int]:
    """The most likely next token again and again, from the whole text each time."""
    made: list[int] = []
    with torch.no_grad():
        while len(made) < NEW and (not made or made[-1] not in ends):
            if start is None:
                given = {"input_ids": torch.tensor([[*ids, *made]]), "use_cache": False}
            else:
                decoder_ids = torch.tensor([[*start, *made]])
                given = {"input_ids": torch.tensor([ids]), "decoder_input_ids": decoder_ids}
            made.append(int(model(**given).logits[0, -1].argmax()))
    return made


@pytest.mark.parametrize(
    "arch", ["llama", "gpt2", "qwen3", "gemma2", "mamba", "t5", "bart", "marian"]
)
def test_answers_are_the_argmax(tmp_path: Path, arch: str) -> None:
    is_causal = arch not in ("t5", "bart", "marian")
    names = ("prompt", "completion") if is_causal else ("source", "target")
    data = rows(60, names)
    run = surefit.train(
        data=data,
        model=str(hostile_folder(tmp_path, arch, data)),
        max_steps=1,
        lr=1e-9,
        generate={"rows": 6, "max_new_tokens": NEW},
        output=str(tmp_path / "run"),
    )
    settings, folder = run.plan["generate"]["settings"], run.path / "model"
    known = {"do_sample", "num_beams", "eos_token_id", "pad_token_id", "decoder_start_token_id"}
    assert set(settings) <= known  # no target begins with a token that is forced
    auto = AutoModelForCausalLM if is_causal else AutoModelForSeq2SeqLM
    model = auto.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    start = None if is_causal else [settings["decoder_start_token_id"]]
    ends = settings["eos_token_id"]
    (event,) = [event for event in run.history if event["event"] == "eval"]
    assert len(event["samples"]) == 6
    reading = run.open_pipeline().for_prediction
    for sample in event["samples"]:
        (row,) = reading.encode_row({names[0]: sample["prompt"]})
        ids = row.columns["input_ids"].tolist()
        made = argmax(model, ids, start, ends if isinstance(ends, list) else [ends])
        assert sample["got"] == tokenizer.decode(made, skip_special_tokens=True).strip()
    predicted = surefit.predict(run, [{names[0]: s["prompt"]} for s in event["samples"]])
    assert [p["prediction"] for p in predicted] == [s["got"] for s in event["samples"]]


def test_what_is_not_taken_over_is_reported_and_what_is_named_is_used(tmp_path: Path) -> None:
    data = rows(60, ("prompt", "completion"))
    folder = hostile_folder(tmp_path, "llama", data)
    write_jsonl(tmp_path / "rows.jsonl", data)
    options: dict[str, Any] = {"data": str(tmp_path / "rows.jsonl"), "model": str(folder)}
    plan = surefit.check(**options)
    (said,) = [note for note in plan.notes if "is generated without" in note]
    assert "repetition_penalty 1.8" in said
    assert "num_beams 3" in said
    named = {"rows": 6, "max_new_tokens": NEW, "from_model": ["repetition_penalty", "num_beams"]}
    run = surefit.train(
        **options, generate=named, max_steps=1, lr=1e-9, output=str(tmp_path / "run")
    )
    settings = run.plan["generate"]["settings"]
    assert (settings["repetition_penalty"], settings["num_beams"]) == (1.8, 3)
    assert run.plan["generate"]["from_model"] == ["repetition_penalty", "num_beams"]
    (said,) = [note for note in run.plan["notes"] if "is generated without" in note]
    assert " repetition_penalty" not in said
    assert "num_beams" not in said
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "<td>generate.settings.repetition_penalty</td><td>1.8</td>" in page
    assert "<td>generate.from_model</td><td>repetition_penalty, num_beams</td>" in page
    samples = run.history[-1]["samples"]
    predicted = surefit.predict(run, [{"prompt": sample["prompt"]} for sample in samples])
    assert [p["prediction"] for p in predicted] == [s["got"] for s in samples]
    plain = surefit.train(
        **options,
        generate={"rows": 6, "max_new_tokens": NEW},
        max_steps=1,
        lr=1e-9,
        output=str(tmp_path / "plain"),
    )
    assert [s["got"] for s in plain.history[-1]["samples"]] != [s["got"] for s in samples]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("do_sample", "cannot take over"),
        ("temprature", "Name some of"),
        ("no_repeat_ngram_size", "does not set"),
    ],
)
def test_a_setting_that_cannot_be_taken_over_is_refused(name: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        surefit.check(
            data=rows(20, ("prompt", "completion")),
            model="tiny:llama",
            generate={"from_model": [name]},
        )
    assert words in f"{caught.value} {caught.value.fix}"
    assert name in str(caught.value)


class Targets:
    """A tokenizer that writes special tokens around a target."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.bos_token_id, self.eos_token_id, self.cls_token_id, self.unk_token_id = 0, 2, 0, 3
        self.all_special_ids = [0, 1, 2, 3, 250004]

    def __call__(self, text_target: str) -> dict[str, list[int]]:
        return {"input_ids": self.ids}


@pytest.mark.parametrize(
    ("ids", "forced", "expected"),
    [
        ([2], None, None),  # T5, Marian: text, eos
        ([2], 7, None),  # a forced token that no target begins with
        ([0, 2], None, None),  # BART: bos, text, eos; the model writes bos
        ([0, 2], 0, 0),  # and its generation config forces it
        ([0, 2], 7, None),
        ([250004, 2], None, 250004),  # mBART-50, NLLB: the language, text, eos
        ([250004, 2], 250004, 250004),
        (
            [2, 250004],
            250004,
            None,
        ),  # mBART: text, eos, language
        ([], 7, None),
    ],
)
def test_the_language_of_a_translation_is_forced(
    ids: list[int], forced: int | None, expected: int | None
) -> None:
    config = type("Config", (), {"forced_bos_token_id": forced})
    assert forced_first_token(Targets(ids), config) == expected


def test_language_codes_of_translation_tokenizers_are_recognised() -> None:
    names = ("<s>", "<pad>", "</s>", "<unk>", "▁", "▁a", "b")
    pieces = [(name, -1.0) for name in names]
    mbart = MBart50Tokenizer(vocab=pieces, src_lang="en_XX", tgt_lang="ro_RO")
    assert forced_first_token(mbart, None) == mbart.convert_tokens_to_ids("ro_RO")
    vocab = {name: place for place, name in enumerate(names)}
    nllb = NllbTokenizer(vocab=vocab, merges=[], src_lang="eng_Latn", tgt_lang="fra_Latn")
    assert forced_first_token(nllb, None) == nllb.convert_tokens_to_ids("fra_Latn")
