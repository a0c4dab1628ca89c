"""Code in a model folder (`auto_map`) runs only if this command, or a record of it, allows it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from builders import sentiment_rows, write_jsonl
from surefit.cli import run as command
from surefit.user_code.run_code import records_folder

MODELING = """
from pathlib import Path
Path({path!r}).touch()
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput
import torch

class OwnConfig(PretrainedConfig):
    model_type = "own-thing"
    def __init__(self, vocab_size=64, hidden_size=8, **kwargs):
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        super().__init__(**kwargs)

class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.embed = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.head = torch.nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()
    def get_input_embeddings(self):
        return self.embed
    def set_input_embeddings(self, value):
        self.embed = value
    def forward(self, input_ids, attention_mask=None):
        return SequenceClassifierOutput(logits=self.head(self.embed(input_ids).mean(1)))
"""
MAP = {
    "AutoConfig": "modeling_own.OwnConfig",
    "AutoModelForSequenceClassification": "modeling_own.OwnModel",
}


def change(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "hf"))
    write_jsonl(tmp_path / "data.jsonl", sentiment_rows(30))
    return tmp_path


def train(*more: str) -> int:
    words = ["train", "--data", "data.jsonl", "--max-steps", "2", "--task", "text-classification"]
    return command([*words, "--output", "run", *more])


def test_code_in_a_run_folder_is_not_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--model", "tiny:bert") == 0
    canary, model = home / "it-ran", home / "run" / "model"
    (model / "modeling_own.py").write_text(MODELING.format(path=str(canary)))
    change(model / "config.json", model_type="own-thing", auto_map=MAP)
    change(model / "tokenizer_config.json", auto_map={"AutoTokenizer": ["modeling_own.Own", None]})
    for words in (
        ["predict", "run", "--text", "a good one"],
        ["evaluate", "run", "--data", "data.jsonl"],
        ["check", "--data", "data.jsonl", "--model", "run", "--task", "text-classification"],
    ):
        assert command(words) == 2
        told = capsys.readouterr().err
        assert "modeling_own" in told
        assert "--trust-code modeling_own:OwnModel" in told
    change(model / "config.json", model_type="bert", attn_implementation="kernels-community/x")
    assert command(["predict", "run", "--text", "a good one"]) == 2
    assert "kernels-community/x" in capsys.readouterr().err
    assert not canary.exists()


@pytest.mark.slow
def test_own_run_with_remote_code_opens_again(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer

    assert train("--model", "tiny:bert") == 0
    shutil.move(home / "run" / "model", home / "base")
    shutil.rmtree(home / "run")
    base, canary = home / "base", home / "it-ran"
    size = len(AutoTokenizer.from_pretrained(base))
    for file in base.glob("*.safetensors"):
        file.unlink()
    (base / "modeling_own.py").write_text(MODELING.format(path=str(canary)))
    about = {"model_type": "own-thing", "architectures": ["OwnModel"], "auto_map": MAP}
    (base / "config.json").write_text(json.dumps({**about, "vocab_size": size}))
    own = ("--model", "base", "--from-scratch", "--set", "trust_remote_code=true")
    assert train("--model", "base", "--from-scratch") == 2
    assert not canary.exists()
    assert train(*own) == 0
    assert command(["predict", "run", "--text", "a good one"]) == 0
    shutil.rmtree(records_folder())
    capsys.readouterr()
    assert command(["predict", "run", "--text", "a good one"]) == 2
    asked = [word for word in capsys.readouterr().err.split() if word.startswith("modeling_own:")]
    names = sorted({word.strip(".,()") for word in asked})
    trusted = [word for name in names for word in ("--trust-code", name)]
    assert command(["predict", "run", "--text", "a good one", *trusted]) == 0
