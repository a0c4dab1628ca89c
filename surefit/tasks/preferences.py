"""Tasks on preferences: tuning a language model by them, and a model that scores answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from surefit.batches.branches import FIRST, PROMPT
from surefit.batches.field import Field
from surefit.data.column_values import holds_answers
from surefit.data.roles import Role
from surefit.data.stored_messages import as_messages
from surefit.inputs.chat.chat_reading import divide_answer, encode_dialogue
from surefit.inputs.chat.dialogue_rows import split_answer
from surefit.inputs.chat.pair_rows import (
    CHOSEN,
    REJECTED,
    encode_judged,
    encode_pair,
    encode_scored,
    fit_pairs,
    read_prompt,
    read_transcript,
)
from surefit.inputs.encoded_row import Encoding
from surefit.inputs.encoder import Encoder
from surefit.targets import pairs, tokens
from surefit.targets.generation import Generate
from surefit.targets.metrics.token_metrics import next_token, token_loss
from surefit.targets.pair_rules import check_pairs
from surefit.targets.task_spec import Figures, Head, Reads, TaskSpec, TextUse
from surefit.tasks.language_models import continue_text

PAIR_ROLES = (
    Role(
        CHOSEN,
        ("chosen", "preferred", "chosen_response", "response_chosen", "accepted", "winner"),
        lambda kind, named: holds_answers(kind),
    ),
    Role(
        REJECTED,
        ("rejected", "dispreferred", "rejected_response", "response_rejected", "loser"),
        lambda kind, named: holds_answers(kind),
    ),
)
JUDGEMENT = Role("label", ("label", "labels", "kto_tag", "desirable", "is_good", "thumbs_up"))
CONTEXT = ("prompt", "messages", "input", "system", "history", "tools")


def encode_preference(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """Return both answers of a row, or one that is good or bad; to predict, its prompt."""
    if encoder.predicting:
        row = read_prompt(row, encoder)
        label = partial(tokens.label_next_tokens, row=row, encoder=encoder)
        return encode_dialogue(row, encoder, label)
    return encode_judged(row, encoder) if pairs.is_judged(encoder) else encode_pair(row, encoder)


def encode_reward(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """Return both answers of a row; to predict, the one whose reward is asked for."""
    return encode_scored(row, encoder) if encoder.predicting else encode_pair(row, encoder)


def divide_preference(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the prompt of a row and its answers; a prompt may be what both answers begin with.

    >>> divide_preference({"chosen": "Sky? Blue.", "rejected": "Sky? Red."})
    (['Sky?'], ['Blue.', 'Red.'])
    """
    if CHOSEN not in row:
        given, target = divide_answer({n: v for n, v in row.items() if n != "label"})
        return given, [target, row.get("label")]
    answers = [as_messages(row.get(name)) for name in (CHOSEN, REJECTED)]
    before = [row[name] for name in CONTEXT if row.get(name) is not None]
    if any(name in row for name in ("prompt", "messages")):
        return before, answers
    texts = all(isinstance(answer, str) for answer in answers)
    turns: list[Any] = [read_transcript(a) or a for a in answers] if texts else answers
    if all(isinstance(each, str) for each in turns):
        prompt, chosen = split_answer(turns[0], turns[1])
        return [prompt, *before], [chosen, split_answer(turns[1], turns[0])[1]]
    if not all(isinstance(each, list) for each in turns):
        return before, answers
    least = min(map(len, turns)) - 1
    same = next((n for n in range(least) if turns[0][n] != turns[1][n]), least)
    return [turns[0][:same], *before], [each[same:] for each in turns]


PREFERENCE = TaskSpec(
    name="preference",
    summary="preference tuning (DPO, IPO, SimPO, ORPO, KTO): chosen and rejected answers, or "
    "answers that are good or bad",
    needs=((CHOSEN, REJECTED), ("messages", "label"), ("prompt", "answer", "label")),
    optional=CONTEXT,
    targets=(CHOSEN, REJECTED, "answer", "label"),
    roles=(*PAIR_ROLES, JUDGEMENT),
    reads=Reads(
        by_name=True,
        mixes=("prompt", "messages", CHOSEN, REJECTED),
        divide=divide_preference,
        exact_targets=False,
        check_rows=check_pairs,
        link=pairs.link_others,
    ),
    text=TextUse(adapt_tokenizer=continue_text),
    fields=pairs.pair_fields,
    fit=fit_pairs,
    encode=encode_preference,
    loss=token_loss(next_token),
    metrics=pairs.METRICS,
    count_targets=pairs.count_first,
    head=Head(auto_class="AutoModelForCausalLM", predicts="next_token", by_token=True),
    generate=Generate(
        pairs.answer_pairs,
        tokens.answer_scores,
        ("token_f1", "exact_match", "rouge_l"),
        tokens.can_generate,
        settings=tokens.generation_settings,
    ),
    figures=Figures(
        loss_by=pairs.preference_loss, best="reward_accuracy", baselines=pairs.length_baseline
    ),
)


def _decode(outputs: Any, batch: Mapping[str, Any], encoder: Encoder) -> list[dict[str, Any]]:
    return [{"prediction": score} for score in outputs.logits.reshape(-1).tolist()]


REWARD = TaskSpec(
    name="reward",
    summary="a reward model: a score per answer, learned from chosen and rejected answers",
    needs=((CHOSEN, REJECTED),),
    optional=CONTEXT,
    targets=(REJECTED,),
    roles=(PAIR_ROLES[0], replace(PAIR_ROLES[1], may_be_missing=True)),
    reads=Reads(
        by_name=True,
        mixes=("prompt", "messages", REJECTED),
        divide=divide_preference,
        exact_targets=False,
        check_rows=check_pairs,
    ),
    text=TextUse(adapt_tokenizer=continue_text),
    fields={
        "input_ids": tokens.FIELDS["input_ids"],
        PROMPT: Field((), "int64"),
        FIRST: Field((), "int64"),
    },
    fit=fit_pairs,
    encode=encode_reward,
    loss=pairs.reward_loss,
    metrics=pairs.REWARD_METRICS,
    count_targets=lambda columns: 1,
    decode=_decode,
    head=Head(
        auto_class="AutoModelForSequenceClassification", config=lambda encoder: {"num_labels": 1}
    ),
    figures=Figures(
        loss_by=lambda encoder: pairs.reward_loss,
        best="reward_accuracy",
        baselines=pairs.length_baseline,
    ),
)
