"""Preference tuning: the forms of pairs, the losses, their reference, and whole runs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import cross_entropy

import surefit
from builders import events_of, run_python
from faults.columns import PAIRS
from surefit.batches.branches import branch_bounds, split_branches
from surefit.batches.field import PER_ROW
from surefit.errors import FindingError, UsageError
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import Preference, Settings
from surefit.pipeline.evaluation import as_metric
from surefit.speed.sparse_head import Chunks, LogitTransform, chunked_loss
from surefit.speed.varlen_kernels import Attention, Rows, attend_by_row
from surefit.targets.pairs import METHODS, METRICS, REWARD_METRICS, Answers, preference_loss
from surefit.tasks.preferences import divide_preference
from surefit.training import reference

WORDS = ["time", "year", "people", "way", "day", "thing", "life", "child", "world", "school"]


def pairs(count: int = 24) -> list[dict[str, Any]]:
    draw, rows = random.Random(0), []
    for number in range(count):
        good, bad = draw.sample(WORDS, 2)
        chosen, rejected = (" ".join([word] * draw.randint(1, 4)) for word in (good, bad))
        rows.append({"prompt": f"Say {good}, {number}", "chosen": chosen, "rejected": rejected})
    return rows


JUDGED = [
    {
        "prompt": r["prompt"],
        "completion": r["chosen" if n % 2 else "rejected"],
        "label": bool(n % 2),
    }
    for n, r in enumerate(pairs())
]
OPTIONS: dict[str, Any] = {"model": "tiny:llama", "task": "preference", "quiet": True}
TRANSCRIPTS = [
    {
        "chosen": f"\n\nHuman: Hi {n}\n\nAssistant: Hello!\n\nHuman: Why?\n\nAssistant: So.",
        "rejected": f"\n\nHuman: Hi {n}\n\nAssistant: Hello!\n\nHuman: Why?\n\nAssistant: Go away.",
    }
    for n in range(20)
]


def written(folder: Path, rows: list[dict[str, Any]]) -> str:
    """A file with the rows, which a finished run can read again."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def texts_of(plan: Any, number: int) -> list[str]:
    """The prompt and both answers of a row of the Store, as text."""
    job = plan.job
    row, tokenizer = job.train.row(number), job.pipeline.encoder.tokenizer
    parts = branch_bounds(
        int(row["prompt_length"]), int(row["first_length"]), len(row["input_ids"])
    )
    return [tokenizer.decode(row["input_ids"][part]) for part in parts]


@pytest.mark.parametrize("name", [*PAIRS, "transcripts"])
def test_every_form_of_pairs_is_divided_into_prompt_and_answers(name: str) -> None:
    rows = TRANSCRIPTS if name == "transcripts" else PAIRS[name][1]
    given = {"prompt": "input"} if name == "preferred outputs" else {}
    plan = surefit.check(
        data=rows, columns=given, eval_share=0, preference={"method": "simpo"}, **OPTIONS
    )
    assert plan.ok, plan.findings
    prompt, chosen, rejected = texts_of(plan, 0)
    assert prompt.strip()
    assert chosen.strip()
    assert rejected.strip()
    assert chosen != rejected
    end = plan.job.pipeline.encoder.dialogues.template.end
    assert end is not None
    assert chosen.endswith(end)
    assert rejected.endswith(end)


def test_only_answers_are_scored_with_their_first_token_and_their_end() -> None:
    plan = surefit.check(data=pairs(), eval_share=0, **OPTIONS)
    row = plan.job.train.row(0)
    prompt, first, second = branch_bounds(
        int(row["prompt_length"]), int(row["first_length"]), len(row["input_ids"])
    )
    assert (row["labels"][prompt] == -100).all()
    for part in (first, second):
        assert (row["labels"][part] == row["input_ids"][part]).all()


def test_both_answers_see_the_same_prompt_and_not_each_other() -> None:
    plan = surefit.check(data=pairs(), eval_share=0, **OPTIONS)
    store, fields = plan.job.train, plan.job.pipeline.fields
    columns, _ = split_branches(store.columns([0]), fields)
    one, other = columns["input_ids"]
    length = int(store.value("prompt_length", 0))
    assert (one[:length] == other[:length]).all()
    assert len(one) + len(other) == store.lengths[0] + length


def test_long_rows_lose_the_same_part_of_their_prompt_and_no_answer() -> None:
    rows = [{**row, "prompt": f"{'word ' * 30}{row['prompt']}"} for row in pairs()]
    plan = surefit.check(data=rows, max_seq_length=24, eval_share=0, accept=["SF215"], **OPTIONS)
    assert plan.ok, plan.findings
    store = plan.job.train
    first = store.values("first_length")
    longest = store.values("prompt_length") + np.maximum(
        first, store.lengths - store.values("prompt_length") - first
    )
    assert longest.max() == 24
    whole = surefit.check(data=pairs(), eval_share=0, **OPTIONS).job.train
    assert sorted(first) == sorted(whole.values("first_length"))


def expected_loss(method: str, chosen: float, rejected: float, sizes: tuple[int, int]) -> float:
    """The losses as their papers write them, with a reference of −5 and −6."""
    ratios, means = (chosen + 5, rejected + 6), (chosen / sizes[0], rejected / sizes[1])

    def log_sigmoid(x: float) -> float:
        return -float(np.log1p(np.exp(-x)))

    def odds(log_prob: float) -> float:
        return float(np.exp(log_prob) / (1 - np.exp(log_prob)))

    if method == "dpo":
        return -log_sigmoid(0.1 * (ratios[0] - ratios[1]))
    if method == "ipo":
        return float((ratios[0] / sizes[0] - ratios[1] / sizes[1] - 1 / 0.2) ** 2)
    if method == "simpo":
        return -log_sigmoid(0.1 * (means[0] - means[1]) - 0.05)
    return -0.1 * log_sigmoid(float(np.log(odds(means[0]) / odds(means[1]))))


@pytest.mark.parametrize("method", ["dpo", "ipo", "simpo", "orpo"])
def test_losses_are_those_of_the_papers(method: str) -> None:
    chosen, rejected, sizes = [-4.0, -9.0], [-7.0, -2.0], [(3, 5), (4, 2)]
    known = torch.tensor([-5.0, -5.0]), torch.tensor([-6.0, -6.0])
    lengths = torch.tensor([3, 4]), torch.tensor([5, 2])
    answers = Answers(torch.tensor(chosen), torch.tensor(rejected), *lengths, *known)
    found = METHODS[method](answers, {}, Preference(method, 0.1, 0.05))
    wanted = [expected_loss(method, *each) for each in zip(chosen, rejected, sizes, strict=True)]
    assert found.tolist() == pytest.approx(wanted, rel=1e-5)


def test_kto_compares_with_the_mean_kl_of_the_batch() -> None:
    zero, one = torch.zeros(2), torch.ones(2)
    answers = Answers(
        torch.tensor([-4.0, -9.0]), torch.tensor([0.5, 1.5]), one, one, zero - 5, zero
    )
    batch = {"good": torch.tensor([1, 1, 0, 0])}
    found = METHODS["kto"](answers, batch, Preference("kto", 0.1))
    wanted = [1 - 1 / (1 + np.exp(-0.1 * (1 - 1))), 1 - 1 / (1 + np.exp(-0.1 * (1 + 4)))]
    assert found.tolist() == pytest.approx(wanted, rel=1e-5)


def test_the_terms_of_orpo_have_their_own_divisors() -> None:
    settings = Settings(preference=Preference("orpo", 0.1))
    loss = preference_loss(Encoder("preference", {}, settings=settings))
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 7, 11, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, 11, (8, 7), generator=draw)
    for row in range(8):
        labels[row, : 1 + row % 4] = -100

    def outputs(rows: slice) -> tuple[Any, dict[str, Any]]:
        batch = {"labels": labels[rows], "side": torch.tensor([0, 1] * len(labels[rows][::2]))}
        return SimpleNamespace(logits=logits[rows]), batch

    whole, count = loss(*outputs(slice(0, 8)))
    per_row = float(count) / 4
    parts = [
        loss(out, {**b, PER_ROW: per_row}) for out, b in map(outputs, (slice(0, 2), slice(2, 8)))
    ]
    assert float(sum(part for part, _ in parts)) == pytest.approx(float(whole), rel=1e-12)
    assert sum(int(n) for _, n in parts) == int(count)
    chosen = labels[::2, 1:]
    likely = cross_entropy(logits[::2, :-1].reshape(-1, 11), chosen.reshape(-1), ignore_index=-100)
    odds = float(whole) / float(count) - float(likely)
    assert 0 < odds < 1


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("cap", [None, 3.0])
def test_chunked_log_probabilities_have_the_gradients_of_the_plain_ones(
    frozen: bool, cap: float | None
) -> None:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(10, 6, generator=draw, dtype=torch.float64, requires_grad=True)
    head = torch.nn.Linear(6, 13).double()
    head.requires_grad_(not frozen)
    labels = torch.randint(0, 13, (10,), generator=draw)
    factors = torch.randn(10, generator=draw, dtype=torch.float64)
    logits = 0.5 * head(hidden)
    logits = logits if cap is None else cap * (logits / cap).tanh()
    plain = logits.log_softmax(-1).gather(1, labels[:, None])[:, 0]
    found = chunked_loss(
        hidden, head, labels, Chunks(LogitTransform(0.5, cap), 4, by_token=True)
    ).log_probs
    assert found is not None
    torch.testing.assert_close(found, plain)
    wanted = [hidden, *([] if frozen else head.parameters())]
    for ours, theirs in zip(
        torch.autograd.grad((found * factors).sum(), wanted),
        torch.autograd.grad((plain * factors).sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_rows_with_one_prompt_stay_in_one_set() -> None:
    rows = [{**row, "prompt": f"Say it, {n // 2}"} for n, row in enumerate(pairs(40))]
    plan = surefit.check(data=rows, eval_share=0.3, **OPTIONS)
    sides = [
        {rows[n]["prompt"] for n in store.source_row}
        for store in (plan.job.train, plan.job.validation)
    ]
    assert not sides[0] & sides[1]
    assert divide_preference(TRANSCRIPTS[0])[0][0][0]["content"] == "Hi 0"


def test_a_pairwise_method_is_refused_for_single_answers() -> None:
    with pytest.raises(UsageError, match=r"preference.method is dpo"):
        surefit.check(data=JUDGED, preference={"method": "dpo"}, **OPTIONS)


def of_two_batches(metric: Any, logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> float:
    """The figure of a metric with β = 0.1 by DPO or, for single answers, KTO."""
    settings = Settings(preference=Preference("kto" if "good" in batch else "dpo", 0.1))
    named = as_metric(metric, Encoder("preference", {}, settings=settings))
    one, other = (
        named.sums(SimpleNamespace(logits=logits[at]), {k: v[at] for k, v in batch.items()})
        for at in (slice(0, 8), slice(8, None))
    )
    return float(named.figure({name: one[name] + other[name] for name in one}))


@pytest.mark.parametrize("judged", [False, True])
def test_metrics_are_those_of_a_loop_over_rows(judged: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 6, 11, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, 11, (40, 6), generator=draw)
    for number, labelled in enumerate(labels):
        labelled[: 1 + number**2 // 3 % 5] = -100
    known = torch.randn(40, generator=draw, dtype=torch.float64) - 6
    good = torch.arange(20) % 3 == 0
    batch = {"labels": labels, "side": torch.arange(40) % 2, "reference": known}
    log_probs, lengths = [], []
    for scores, row in zip(logits.numpy(), labels.tolist(), strict=True):
        chances = [np.exp(s) / np.exp(s).sum() for s in scores]
        found = [np.log(chances[at - 1][row[at]]) for at in range(1, 6) if row[at] != -100]
        log_probs.append(sum(found))
        lengths.append(len(found))
    made = np.array(log_probs).reshape(-1, 2)
    ratios = made - known.numpy().reshape(-1, 2)
    expected = {"chosen_log_prob": made[:, 0].mean(), "rejected_log_prob": made[:, 1].mean()}
    if judged:  # every good answer is compared with every bad one
        batch["good"] = good.long().repeat_interleave(2)
        expected["reward_accuracy"] = roc_auc_score(good.numpy(), ratios[:, 0])
        expected["length_accuracy"] = roc_auc_score(good.numpy(), lengths[::2])
        expected["reward_margin"] = np.where(good.numpy(), 0.1, -0.1) @ ratios[:, 0] / 20
        expected["log_ratio"] = ratios[:, 1].mean()
    else:
        longer = [(a > b) + (a == b) / 2 for a, b in zip(lengths[::2], lengths[1::2], strict=True)]
        expected["reward_accuracy"] = np.mean(ratios[:, 0] > ratios[:, 1])
        expected["length_accuracy"] = np.mean(longer)
        expected["reward_margin"] = 0.1 * (ratios[:, 0] - ratios[:, 1]).mean()
        expected["log_ratio"] = ratios.mean()
    assert {*expected} == {*METRICS}
    for name, figure in expected.items():
        assert of_two_batches(METRICS[name], logits, batch) == pytest.approx(figure, rel=1e-5), name


def test_metrics_of_a_reward_model_are_those_of_a_loop_over_rows() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 1, generator=draw)
    logits[1] = logits[0]  # neither is better
    mask = (torch.arange(9) < torch.randint(1, 9, (40, 1), generator=draw)).long()
    scores, lengths = logits.reshape(-1, 2).tolist(), mask.sum(1).reshape(-1, 2).tolist()

    def share(rows: list[list[Any]]) -> float:
        return float(np.mean([(one > other) + (one == other) / 2 for one, other in rows]))

    expected = {
        "reward_accuracy": share(scores),
        "reward_margin": np.mean([one - other for one, other in scores]),
        "length_accuracy": share(lengths),
    }
    assert {*expected} == {*REWARD_METRICS}
    for name, figure in expected.items():
        found = of_two_batches(REWARD_METRICS[name], logits, {"attention_mask": mask})
        assert found == pytest.approx(figure, rel=1e-5), name


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (pairs(), {}),
        (pairs(), {"lora_r": 4}),
        (pairs(), {"preference": {"method": "kto"}}),
        (pairs(), {"preference": {"method": "orpo"}}),
    ],
)
def test_a_run_learns_the_preference_and_is_evaluated_as_in_training(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    out = tmp_path / "run"
    given = {**OPTIONS, **options, "lr": 3e-3, "generate": {"rows": 1}, "eval_share": 0.3}
    run = surefit.train(data=written(tmp_path, rows), output=str(out), epochs=3, **given)
    metrics = run.metrics
    assert metrics["reward_accuracy"] > 0.5
    assert surefit.evaluate(out, quiet=True)["loss"] == pytest.approx(metrics["loss"], rel=1e-4)
    asked = [{"prompt": row["prompt"]} for row in rows[:2]]
    assert len(surefit.predict(out, data=asked, quiet=True)) == 2


def test_the_reference_is_the_model_before_training_and_is_resumed(tmp_path: Path) -> None:
    given = {**OPTIONS, "eval_share": 0.2, "generate": {"rows": 0}, "batch_size": 4}
    given |= {"data": written(tmp_path, pairs()), "schedule": "constant", "warmup": 0}
    whole = surefit.train(output=str(tmp_path / "a"), epochs=2, **given)
    assert whole.history[0]["loss"] == pytest.approx(np.log(2), rel=1e-5)
    half = surefit.train(output=str(tmp_path / "b"), epochs=1, **given)
    more = surefit.train(resume=str(half.path), epochs=2, quiet=True)

    def of(run: Any) -> list[tuple[Any, ...]]:
        events = [event for event in run.history if event["event"] in ("step", "eval")]
        return [(e["step"], e.get("loss"), e.get("metrics")) for e in events]

    assert of(more) == of(whole)
    known = json.loads((half.path / "reference.json").read_text(encoding="utf-8"))
    assert known == json.loads((whole.path / "reference.json").read_text(encoding="utf-8"))


def test_accumulated_micro_batches_give_the_loss_of_one_batch(tmp_path: Path) -> None:
    losses = []
    for name, size, accum in (("one", 8, 1), ("four", 2, 4)):
        run = surefit.train(
            data=pairs(),
            output=str(tmp_path / name),
            batch_size=size,
            grad_accum=accum,
            max_steps=4,
            eval_share=0,
            preference={"method": "orpo"},
            **OPTIONS,
        )
        losses.append([event["loss"] for event in run.history if event["event"] == "step"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("rows", [pairs(), JUDGED])
def test_answers_that_share_their_prompt_have_the_loss_of_two_rows(
    tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    losses = []
    for name in ("on", "off"):
        given = {**OPTIONS, "padding_free": name, "max_steps": 4, "eval_share": 0}
        run = surefit.train(data=rows, output=str(tmp_path / name), **given)
        shared = run.plan["choices"].get("shared_prompts", False)
        assert shared == (name == "on")
        losses.append([event["loss"] for event in run.history if event["event"] == "step"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("window", [None, 3])
def test_answers_that_share_their_prompt_do_not_see_each_other(window: int | None) -> None:
    draw = torch.Generator().manual_seed(0)
    parts = [torch.randn(9 + 7, 2, 4, generator=draw) for _ in range(3)]
    asked, rows = Attention(window=window), Rows((9, 7), None, ((4, 3), (2, 5)))
    found = attend_by_row(*parts, rows, asked)
    for start, prompt, first, length in ((0, 4, 3, 9), (9, 2, 5, 7)):
        ids = torch.arange(start, start + length)
        for own in (ids[: prompt + first], torch.cat([ids[:prompt], ids[prompt + first :]])):
            alone = attend_by_row(*(p[own] for p in parts), Rows((len(own),)), asked)
            torch.testing.assert_close(found[own[prompt:]], alone[prompt:])


def test_a_reward_model_scores_answers(tmp_path: Path) -> None:
    options = {**OPTIONS, "task": "reward"}
    run = surefit.train(data=pairs(), output=str(tmp_path / "run"), epochs=2, **options)
    assert run.history[-1]["metrics"]["reward_accuracy"] > 0.5
    rows = [{"prompt": row["prompt"], "chosen": row["chosen"]} for row in pairs(2)]
    made = surefit.predict(run.path, data=rows, quiet=True)
    assert all(isinstance(each["prediction"], float) for each in made)


def test_a_reference_of_another_model_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = reference.Reference.values
    others = iter([1.0])  # what the first block is changed by; the fresh pass finds the truth
    monkeypatch.setattr(
        reference.Reference, "values", lambda *given: computed(*given) + next(others, 0.0)
    )
    given = {**OPTIONS, "eval_share": 0, "cache": str(tmp_path / "cache")}
    with pytest.raises(FindingError) as refused:
        surefit.train(data=pairs(), output=str(tmp_path / "run"), max_steps=1, **given)
    assert refused.value.findings[0].code == "SF874"


def test_a_run_is_not_compared_with_another_model_than_it_began_with(tmp_path: Path) -> None:
    given = {**OPTIONS, "max_steps": 1, "generate": {"rows": 0}}
    out = tmp_path / "run"
    surefit.train(data=written(tmp_path, pairs()), output=str(out), **given)
    (out / "reference.json").write_text('{"weights": "of another model"}', encoding="utf-8")
    with pytest.raises(FindingError) as refused:
        surefit.evaluate(out, quiet=True)
    assert refused.value.findings[0].code == "SF875"


def begun(row: dict[str, Any], text: str) -> dict[str, Any]:
    """A row whose answers begin with their prompt, as `text` writes both."""
    sides = ("chosen", "rejected")
    return {side: text.format(row["prompt"], row[side]) for side in sides}


@pytest.mark.parametrize("text", ["{} {}", "\n\nHuman: {}\n\nAssistant: {}"])
def test_a_run_predicts_for_the_rows_that_it_was_trained_on(tmp_path: Path, text: str) -> None:
    rows = [begun(row, text) for row in pairs()]
    given = {**OPTIONS, "preference": {"method": "simpo"}, "eval_share": 0, "max_steps": 1}
    run = surefit.train(data=written(tmp_path, rows), output=str(tmp_path / "run"), **given)
    made = surefit.predict(run.path, data=rows[:2], quiet=True)
    asked = [row["prompt"] for row in pairs()[:2]]
    assert [each["prompt"] for each in made] == asked
    alone = surefit.predict(run.path, data=[{"prompt": prompt} for prompt in asked], quiet=True)
    assert [each["prediction"] for each in alone] == [each["prediction"] for each in made]
    with pytest.raises(FindingError, match="has no column 'chosen'"):
        surefit.predict(run.path, data=[{"other": 1, "more": 2}], quiet=True)


class Drawn(torch.utils.data.Dataset[dict[str, Any]]):
    """Pairs with another word behind their prompt at each reading."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, place: int) -> dict[str, Any]:
        row = pairs()[place]
        return {**row, "prompt": f"{row['prompt']} {random.choice(WORDS)}"}


def test_live_pairs_are_trained_on_without_a_reference_and_refused_with_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rows of Drawn are drawn anew") as refused:
        surefit.check(data=Drawn(), **OPTIONS)
    assert "simpo" in str(refused.value)
    given = {**OPTIONS, "preference": {"method": "simpo"}, "eval_share": 0, "max_steps": 2}
    run = surefit.train(data=Drawn(), output=str(tmp_path / "run"), batch_size=4, **given)
    assert [e["step"] for e in run.history if e["event"] == "step"] == [1, 2]


def test_new_tokens_and_modules_in_full_are_no_other_reference(tmp_path: Path) -> None:
    more = {"lora": {"r": 2, "modules_to_save": ["norm"]}, "add_tokens": ["<say>"]}
    rows = {"data": written(tmp_path, pairs()), "output": str(tmp_path / "run")}
    run = surefit.train(**OPTIONS, **rows, **more, max_steps=2, eval_share=0)
    assert "reward_accuracy" in surefit.evaluate(run.path, pairs(30)[24:])


@pytest.mark.processes
def test_two_processes_prefer_as_one_does(tmp_path: Path) -> None:
    written(tmp_path, pairs())
    options = ["--data", "rows.jsonl", "--model", "tiny:llama", "--task", "preference"]
    options += ["--lora-r", "4", "--batch-size", "2", "--max-steps", "4", "--lr", "0.01"]
    for count in (1, 2):
        accumulated = ["--grad-accum", str(4 // count), "--processes", str(count)]
        output = ["--output", f"run-{count}", "--set", "eval_every=2"]
        code, _, said = run_python(
            tmp_path, "-m", "surefit", "train", *options, *accumulated, *output
        )
        assert code == 0, said[-3000:]
    alone, both = (events_of(tmp_path / f"run-{count}") for count in (1, 2))
    assert [event["event"] for event in alone] == [event["event"] for event in both]
    assert {event["event"] for event in alone} == {"step", "eval"}
    for one, other in zip(alone, both, strict=True):
        figures = [each.get("metrics", {"loss": each.get("loss")}) for each in (one, other)]
        assert figures[0].keys() == figures[1].keys()
        for name, value in figures[0].items():
            assert figures[1][name] == pytest.approx(value, abs=1e-5), name
    steps = [event["loss"] for event in alone if event["event"] == "step"]
    assert steps[-1] < steps[0]


def test_a_reward_is_predicted_for_the_tokens_that_were_trained_on() -> None:
    rows = [begun(row, "{} {}") for row in pairs()]
    plan = surefit.check(data=rows, eval_share=0, **{**OPTIONS, "task": "reward"})
    row = plan.job.train.row(0)
    predicting = plan.job.pipeline.for_prediction
    (scored,) = predicting.row_encoder(rows[int(plan.job.train.source_row[0])])
    trained = row["input_ids"][: int(row["prompt_length"]) + int(row["first_length"])]
    assert scored.columns["input_ids"].tolist() == trained.tolist()
    with pytest.raises(RowFaultError, match="no rejected answer"):
        predicting.row_encoder({"chosen": rows[0]["chosen"]})
    (spoken,) = predicting.row_encoder({"chosen": TRANSCRIPTS[0]["chosen"]})
    assert len(spoken.columns["input_ids"])
