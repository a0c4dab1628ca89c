"""sft: instruction fine-tuning with completion-only loss: labels are on the answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import IGNORE_INDEX, Field
from surefit.data.column_types import is_text_list
from surefit.data.roles import Role
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import (
    Encoded,
    Encoding,
    Remark,
    SkipRowError,
    refuse_overlong,
)
from surefit.encode.encoder import Encoder
from surefit.encode.text.batch_tokenizing import Tokenized
from surefit.encode.text.dialogues import (
    TOKENIZED_IN_PARTS,
    Dialogue,
    DialogueTokens,
    fit_template,
)
from surefit.encode.text.messages import (
    EMPTY_PROMPT_OR_ANSWER,
    Message,
    is_answer,
    read_dialogue,
    read_tools,
)
from surefit.encode.text.template_rendering import TemplateError
from surefit.findings import rule
from surefit.tasks.baselines import token_baselines
from surefit.tasks.causal_text import (
    answer,
    can_generate,
    count_targets,
    ends_with_eos,
    generation_settings,
    is_overlong,
    read_ids,
    read_text,
    store_references,
)
from surefit.tasks.metrics.text_scores import exact_match, rouge_l, token_f1
from surefit.tasks.metrics.token_metrics import next_token, token_loss, token_metrics
from surefit.tasks.task_spec import Generate, Head, Sample, TaskSpec

OVERLONG_ROW_DROPPED = rule(
    "SF279",
    "warning",
    "overlong row dropped",
    why="An answer without its end teaches the model never to stop, so it is not cut.",
    fix="Raise max_seq_length if the model allows it, or shorten the row.",
)

ANSWER_PART_NOT_RENDERED = rule(
    "SF280",
    "warning",
    "template leaves a part of an answer out",
    why="Some templates render only the last answer in full. The rendered part has labels.",
    fix="Make one row per answer whose reasoning should have labels.",
)

MESSAGES_AFTER_LAST_ANSWER = rule(
    "SF281",
    "info",
    "messages behind the last answer",
    why="No answer follows these messages, so no token of theirs has a label. They are dropped.",
    fix="Nothing to do.",
)

SYSTEM_MESSAGE_JOINED = rule(
    "SF283",
    "fixed",
    "system message joined to the first prompt",
    why="The template takes no system message.",
    fix="Nothing to do.",
)


SAMPLED_ROWS = 64

REFERENCES = Role(
    "references",
    accepts=lambda kind, named: is_text_list(kind),
    may_be_missing=True,
)
"""All answers that are right, as SQuAD's files have them; the best match is scored. A column
`answers` is not recognised: it may be the choices of a question."""


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """The dialogue as its template writes it; only the answers and their ends carry labels.

    Over the limit, the oldest turns go first, then the beginning of the prompt, and never the end
    of an answer.
    """
    if "input_ids" in row:
        return Encoding(lambda tokens: _encode_tokens(row, encoder))
    dialogue = _dialogue(row, encoder)
    coder, predicting = encoder.dialogues, bool(encoder.settings.get("predicting"))
    try:
        parts = coder.cut(*dialogue, generation=predicting)
    except TemplateError as fault:
        raise _unsuited(fault) from None

    def finish(made: list[Tokenized]) -> Encoded:
        tokens = coder.join(parts, made, *dialogue, generation=predicting)
        return _encoded(row, dialogue, tokens, encoder)

    return Encoding(finish, coder.asked(parts), special=False, ends=coder.asks_for_ends)


def _encoded(
    row: Mapping[str, Any], dialogue: Dialogue, tokens: DialogueTokens, encoder: Encoder
) -> Encoded:
    predicting = bool(encoder.settings.get("predicting"))
    length = len(tokens.ids)
    if is_overlong(length, encoder):
        try:
            tokens = _shorten(dialogue, tokens, encoder)
        except TemplateError as fault:
            raise _unsuited(fault) from None
    labels = _labels(tokens, "nothing" if predicting else encoder.settings["loss_on"])
    columns = {"input_ids": tokens.ids, "labels": labels, "prompt_length": tokens.last_answer}
    columns |= _references(row, encoder)
    remarks = tuple(_remarks(row, dialogue[0], tokens, encoder))
    truncated = length - len(tokens.ids)
    return Encoded(columns, truncated, learns_eos=bool(labels[-1] != IGNORE_INDEX), remarks=remarks)


def _unsuited(fault: TemplateError) -> SkipRowError:
    message = f"the template does not suit: {fault.message}"
    return SkipRowError(DropReason.TEMPLATE, Remark(fault.rule, message))


def _dialogue(row: Mapping[str, Any], encoder: Encoder) -> Dialogue:
    """The row's messages and tools; prompt and answer are a user's and an assistant's."""
    predicting = bool(encoder.settings.get("predicting"))
    if "messages" in row:
        messages = read_dialogue(row["messages"], encoder.column_of("messages"), predicting)
        return messages, read_tools(row.get("tools"), encoder.column_of("tools"))
    prompt, answer = read_text(row, "prompt", encoder), read_text(row, "answer", encoder)
    context = read_text(row, "input", encoder)
    if not (prompt or "").strip():
        raise SkipRowError(
            DropReason.EMPTY,
            Remark(EMPTY_PROMPT_OR_ANSWER, "the prompt is missing or empty", "prompt"),
        )
    asked: Message = {"role": "user", "content": f"{prompt}\n{context}" if context else prompt}
    if context:  # a template may tell the input of instruction, input and output apart
        asked |= {"instruction": prompt, "input": context}
    if predicting:
        return [asked], None
    if not (answer or "").strip():
        raise SkipRowError(
            DropReason.EMPTY,
            Remark(EMPTY_PROMPT_OR_ANSWER, "the answer is missing or empty", "answer"),
        )
    return [asked, {"role": "assistant", "content": answer}], None


def _shorten(dialogue: Dialogue, tokens: DialogueTokens, encoder: Encoder) -> DialogueTokens:
    """What is left of a row over the limit, as the user wants it."""
    length, limit = len(tokens.ids), encoder.max_length
    assert limit is not None
    predicting = bool(encoder.settings.get("predicting"))
    overlong = Remark(OVERLONG_ROW_DROPPED, f"{length} tokens, but the limit is {limit}")
    if not predicting:
        try:
            refuse_overlong(length, encoder)
        except SkipRowError as skip:
            raise SkipRowError(skip.reason, overlong) from None
    shorter = encoder.dialogues.shorten(dialogue, tokens, limit, predicting)
    if shorter is not None:
        return shorter
    if predicting:
        kept = tokens.ids[-limit:]
        return DialogueTokens(kept, [False] * len(kept), len(kept), ())
    why = f"; its last answer does not fit ({length - tokens.last_answer} tokens and its frame)"
    raise SkipRowError(DropReason.OVERLONG, Remark(OVERLONG_ROW_DROPPED, overlong.message + why))


def _labels(tokens: DialogueTokens, loss_on: str) -> npt.NDArray[np.int64]:
    if loss_on == "all":
        return np.array(tokens.ids)
    return np.where(
        tokens.labelled, tokens.ids if loss_on == "answers" else IGNORE_INDEX, IGNORE_INDEX
    )


def _remarks(
    row: Mapping[str, Any], messages: Sequence[Message], tokens: DialogueTokens, encoder: Encoder
) -> Iterator[Remark]:
    """What the user should know of a row that is used."""
    column = encoder.column_of("messages")
    if tokens.in_parts:
        yield Remark(TOKENIZED_IN_PARTS, "the tokens differ from those of the whole text")
    if not tokens.whole:
        yield Remark(
            ANSWER_PART_NOT_RENDERED, "the template leaves a part of an answer out", column
        )
    if messages[0]["role"] == "system" and encoder.dialogues.template.joins_system:
        yield Remark(
            SYSTEM_MESSAGE_JOINED, "the system message is put before the first user's", column
        )
    given = row.get("messages")
    if given is not None and len(given) > len(messages) and not encoder.settings.get("predicting"):
        left = len(given) - len(messages)
        what = "message is" if left == 1 else "messages are"
        yield Remark(
            MESSAGES_AFTER_LAST_ANSWER, f"{left} {what} left out behind the last answer", column
        )


def fit(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> Mapping[str, Any]:
    """The template: the asked one, else the tokenizer's own, else plain; tried on a few rows."""
    if encoder.tokenizer is None or "input_ids" in encoder.roles:
        return {}
    asked = encoder.settings.get("template")
    readable = _readable(islice(rows, SAMPLED_ROWS), encoder)
    state, findings = fit_template(asked, encoder.tokenizer, readable)
    return {"template": state, "findings": findings}


def _readable(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> Iterator[Dialogue]:
    for row in rows:
        try:
            yield _dialogue(row, encoder)
        except SkipRowError:
            continue  # it is counted when the row is encoded


def _encode_tokens(row: Mapping[str, Any], encoder: Encoder) -> Encoded:
    """Rows that are tokenized already: `input_ids`, and `labels` where some are masked."""
    ids, labels = read_ids(row, bool(encoder.settings.get("predicting")))
    if len(ids) == 0:
        raise SkipRowError(DropReason.EMPTY)
    length = len(ids)
    if is_overlong(length, encoder):
        refuse_overlong(length, encoder)
        ids, labels = ids[-encoder.max_length :], labels[-encoder.max_length :]  # type: ignore[operator]
    learned = np.flatnonzero(labels != IGNORE_INDEX)
    prompt_length = int(learned[0]) if len(learned) else len(ids)
    columns = {"input_ids": ids, "labels": labels, "prompt_length": prompt_length}
    columns |= _references(row, encoder)
    return Encoded(columns, length - len(ids), ends_with_eos(labels, encoder))


def divide(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """What comes before the last answer, and the rest.

    >>> divide({"prompt": "Hi", "answer": "Hello"})
    (['Hi', None], 'Hello')
    """
    if "input_ids" in row:
        ids, labels = row["input_ids"], row.get("labels")
        if labels is None:
            return [ids], None
        try:
            learned = np.flatnonzero(np.asarray(labels) != IGNORE_INDEX)
            start = int(learned[0]) if len(learned) else len(ids)
            return [ids[:start]], [ids[start:], labels[start:]]
        except (TypeError, ValueError):  # not a label per token, which encoding reports
            return [ids], [labels]
    if "messages" not in row:
        return [row.get("prompt"), row.get("input")], row.get("answer")
    messages = list(row["messages"]) if row["messages"] is not None else []
    answers = [place for place, message in enumerate(messages) if is_answer(message)]
    last = answers[-1] if answers else len(messages)
    return [messages[:last], row.get("tools")], messages[last:]


def _references(row: Mapping[str, Any], encoder: Encoder) -> dict[str, Any]:
    if REFERENCES.name not in encoder.roles:
        return {}
    return {REFERENCES.name: store_references(row.get(REFERENCES.name))}


def fields_of(encoder: Encoder) -> dict[str, Field]:
    """Tokens, labels and the length of the prompt; further answers where the data has them."""
    further = {REFERENCES.name: Field(("reference_time",), "uint8")}
    return {**FIELDS, **(further if REFERENCES.name in encoder.roles else {})}


def scores(sample: Sample) -> dict[str, float]:
    """Token F1, exact match and ROUGE-L of one generated answer; of several, the best match."""
    expected = [sample.expected or "", *sample.references]
    return {
        "token_f1": token_f1(expected, sample.got),
        "exact_match": exact_match(expected, sample.got),
        "rouge_l": rouge_l(expected, sample.got),
    }


FIELDS = {
    "input_ids": Field(("time",), "int64", 0),
    "labels": Field(("time",), "int64", IGNORE_INDEX, "input_ids"),
    "prompt_length": Field((), "int64"),
}

SPEC = TaskSpec(
    name="sft",
    summary="answers to prompts: prompt and answer columns, messages, or input_ids and labels",
    needs=(("input_ids",), ("messages",), ("prompt", "answer")),
    optional=("labels", "mask", "input", "tools", "references"),
    roles=(REFERENCES,),
    targets=("answer", "labels", "references"),
    divide=divide,
    exact_targets=False,
    augments=("prompt", "messages"),
    fields=FIELDS,
    fields_of=fields_of,
    fit=fit,
    encode=encode,
    count_targets=count_targets,
    baselines=token_baselines,
    loss=token_loss(next_token),
    metrics=token_metrics(next_token),
    generate=Generate(
        answer,
        scores,
        ("token_f1", "exact_match", "rouge_l"),
        can_generate,
        settings=generation_settings,
    ),
    head=Head(auto_class="AutoModelForCausalLM", predicts="next_token"),
)
