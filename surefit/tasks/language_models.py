"""Tasks of language models: an input of text or chat, and tokens or a sequence as the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from surefit.config import set_option
from surefit.data.column_values import is_metadata, words_of
from surefit.data.roles import get_role
from surefit.data.table import Table
from surefit.data.unread_columns import SUBJECTS
from surefit.findings import Finding, rule
from surefit.inputs.chat.chat_reading import (
    divide_answer,
    encode_dialogue,
    fit_chat,
    misread_dialogues,
)
from surefit.inputs.chat.dialogue_rows import CHOICES
from surefit.inputs.encoded_row import Encoding
from surefit.inputs.encoder import Encoder
from surefit.inputs.text.text_reading import encode_given_answers, encode_running_text
from surefit.inputs.tokenizer import Reload, add_nothing_behind
from surefit.targets import masked_tokens, sequence, tokens
from surefit.targets.generation import Generate
from surefit.targets.metrics.token_metrics import learned_tokens, next_token, same_token
from surefit.targets.task_spec import Head, Reads, TaskSpec, TextUse

PROMPTS_WITHOUT_ANSWERS = rule(
    "SF133",
    "error",
    "prompts without answers",
    why="A model trained on prompts alone learns to write prompts, not to answer them.",
    fix="Add a column with the answers, or train on the prompts as text: --set accept=SF133.",
    accept="The prompts are trained on as plain text.",
)


def prompts_without_answers(
    table: Table, roles: Mapping[str, str], chosen: Mapping[str, str]
) -> Iterator[Finding]:
    """Prompts that would be trained on as text, because the data has no answers."""
    column = roles.get("text")
    if column is None or "text" in chosen or column.lower() not in get_role("prompt").names:
        return
    others = [name for name in table.columns if name != column and not is_metadata(name)]
    known = f"is known to have the answers (besides it: {', '.join(others)})"
    message = (
        f"Column {column!r} has {table.num_rows} prompts, and no column "
        f"{known if others else 'has answers'}."
    )
    texts = [n for n in others if table.profile(n).is_prose and SUBJECTS.isdisjoint(words_of(n))]
    named = ""
    if texts:
        named = f", or name their column: --task sft {set_option('columns.answer', texts[0])}"
    yield PROMPTS_WITHOUT_ANSWERS.finding(
        message,
        fix=f"Add a column 'answer' with the answers{named}. To train on the prompts as text: "
        "--set accept=SF133.",
        file=table.sources[0].file,
        column=column,
    )


def encode_text(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """Running text, all of it learned, or token ids with the labels that they have."""
    return encode_running_text(
        row, encoder, lambda read: tokens.label_next_tokens(read, row, encoder)
    )


def encode_answers(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """Return a dialogue or its token ids; only the answers and their ends carry labels."""
    encode = encode_given_answers if "input_ids" in row else encode_dialogue
    return encode(row, encoder, lambda read: tokens.label_next_tokens(read, row, encoder))


def continue_text(tokenizer: Any, roles: Mapping[str, str], reload: Reload) -> Any:
    """Return the tokenizer without special tokens behind a text, which a causal model continues."""
    return add_nothing_behind(tokenizer, reload)


NEXT_TOKEN: dict[str, Any] = {
    "count_targets": tokens.count_targets,
    "head": Head(auto_class="AutoModelForCausalLM", predicts="next_token"),
    **learned_tokens(next_token),
}
"""What tasks of causal models share."""

CAUSAL_LM = TaskSpec(
    name="causal-lm",
    summary="the next token of plain text: a text column, or input_ids",
    needs=(("input_ids",), ("text",)),
    optional=("labels", "mask"),
    targets=("labels",),
    reads=Reads(misread=prompts_without_answers, last_resort=True, exact_targets=False),
    text=TextUse(adapt_tokenizer=continue_text, splits_rows=True),
    fields=tokens.FIELDS,
    encode=encode_text,
    generate=Generate(
        tokens.answer, possible=tokens.can_generate, settings=tokens.generation_settings
    ),
    **NEXT_TOKEN,
)

SFT = TaskSpec(
    name="sft",
    summary="answers to prompts: prompt and answer columns, messages, or input_ids and labels",
    needs=(
        ("input_ids",),
        ("messages",),
        ("prompt", "choices", "answer"),
        ("prompt", "answer"),
        ("messages", "answer"),
    ),
    optional=("labels", "mask", "input", "system", "history", "tools", "references", "rejected"),
    reads=Reads(
        tokens.takes_answers,
        misread_dialogues,
        mixes=("messages", "prompt", "answer"),
        divide=divide_answer,
        exact_targets=False,
    ),
    text=TextUse(adapt_tokenizer=continue_text, augments=("prompt", "messages")),
    roles=(tokens.REFERENCES, CHOICES),
    targets=("answer", "labels", "references", "rejected"),
    fields=tokens.answer_fields,
    fit=fit_chat,
    encode=encode_answers,
    generate=Generate(
        tokens.answer,
        tokens.answer_scores,
        ("token_f1", "exact_match", "rouge_l"),
        tokens.can_generate,
        settings=tokens.generation_settings,
    ),
    **NEXT_TOKEN,
)

MASKED_LM = TaskSpec(
    name="masked-lm",
    summary="masked tokens of plain text: a text column, or input_ids",
    needs=(("input_ids",), ("text",)),
    optional=("mask",),
    targets=(),
    reads=Reads(last_resort=True),
    text=TextUse(special_tokens=("mask_token",)),
    fields=tokens.FIELDS,
    fit=masked_tokens.fit_masking,
    encode=masked_tokens.encode_masked,
    count_targets=masked_tokens.count_chosen,
    prepare=masked_tokens.hide,
    **learned_tokens(same_token),
    decode=masked_tokens.fill,
    head=Head(auto_class="AutoModelForMaskedLM", predicts="same_token"),
)

SEQ2SEQ = TaskSpec(
    name="seq2seq",
    summary="a text for a text: source and target columns, or prompt and answer",
    needs=(("source", "target"), ("prompt", "answer")),
    optional=("input",),
    targets=("target", "answer"),
    reads=Reads(tokens.takes_answers, exact_targets=False),
    # a decoder has to see where the source ends
    text=TextUse(special_tokens=("eos_token",), augments=("source", "prompt")),
    fields=sequence.FIELDS,
    encode=sequence.encode_sequences,
    **learned_tokens(same_token),
    generate=Generate(
        sequence.write,
        sequence.sequence_scores,
        ("rouge_l", "bleu", "chrf"),
        tokens.can_generate,
        sequence.together,
        sequence.sequence_settings,
    ),
    head=Head(
        auto_class="AutoModelForSeq2SeqLM",
        config=lambda encoder: {"decoder_start_token_id": sequence.start_token(encoder)},
        predicts="same_token",
    ),
)
