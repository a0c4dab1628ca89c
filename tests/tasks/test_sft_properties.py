"""Whatever rows, templates and lengths: only answers are learned, and all of them end."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import encode_one
from chats import STYLES, chat_tokenizer, said
from surefit.inputs.chat.template_fitting import fit_template
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedInput, Settings
from surefit.inputs.templates import TEMPLATES
from surefit.tasks.language_models import encode_answers as encode

NO_THOUGHT = "<think>\n\n</think>\n\n"

words = st.sampled_from(
    ["Hello", " there", "\n", "  ", "Paris.", "<|im_end|>", "[INST]", "é😀", "assistant\n"]
)
contents = st.lists(words, max_size=6).map("".join) | st.text(max_size=12)
dialogues = st.builds(
    lambda texts, last, system: said(*texts, last, system=system),
    st.lists(st.tuples(contents, contents), max_size=3).map(
        lambda pairs: [t for p in pairs for t in p]
    ),
    contents,
    st.none() | contents,
)


@lru_cache
def fitted(style: str, template: str | None) -> FittedInput:
    return FittedInput(template=fit_template(template, chat_tokenizer(style), [])[0])


def encoder_for(style: str, template: str | None, limit: int | None, loss_on: str) -> Encoder:
    chosen = Settings(loss_on=loss_on)
    roles = {"messages": "messages"}
    return Encoder("sft", roles, chat_tokenizer(style), limit, chosen, fitted(style, template))


def answers_in(ids: list[int], learned: list[bool], tokenizer: Any) -> list[list[int]]:
    """The runs of learned tokens."""
    pairs = groupby(zip(learned, ids, strict=True), lambda pair: pair[0])
    return [[token for _, token in run] for kind, run in pairs if kind]


@settings(max_examples=300, deadline=None)
@given(
    style=st.sampled_from(sorted(STYLES)),
    template=st.none() | st.sampled_from(sorted(TEMPLATES)),
    dialogue=dialogues,
    answer=contents,
    limit=st.none() | st.integers(2, 120),
    loss_on=st.sampled_from(["answers", "all"]),
)
def test_only_answers_are_learned_and_all_of_them_end(
    style: str,
    template: str | None,
    dialogue: list[dict[str, Any]],
    answer: str,
    limit: int | None,
    loss_on: str,
) -> None:
    messages = [*dialogue, {"role": "assistant", "content": answer}]
    encoder = encoder_for(style, template, limit, loss_on)
    told = [m["content"].strip() for m in messages if m["role"] == "assistant"]
    asked = [m["content"].strip() for m in messages if m["role"] == "user"]
    encoded, skip = None, None
    try:
        encoded = encode_one(encode, {"messages": messages}, encoder)
    except RowFaultError as raised:
        skip = raised
    if skip is not None:
        assert skip.faults
        assert skip.reason == "empty" or not all(asked) or skip.reason == "overlong"
        assert skip.reason != "empty" or not all(told)
        return
    assert encoded is not None
    ids, labels = (list(encoded.columns[name]) for name in ("input_ids", "labels"))
    assert limit is None or len(ids) <= limit
    assert len(ids) == len(labels)
    assert all(label in (token, -100) for token, label in zip(ids, labels, strict=True))
    if loss_on == "all":
        assert labels == ids
        return
    tokenizer, coder = encoder.tokenizer, encoder.dialogues
    bos = tokenizer.bos_token_id
    assert bos is None or ids[1:2] != [bos]
    runs = answers_in(ids, [label != -100 for label in labels], tokenizer)
    assert runs
    for run, expected in zip(runs, told[-len(runs) :], strict=True):
        assert run[-1] in coder.template.end_ids
        text = tokenizer.decode(run[:-1], clean_up_tokenization_spaces=False)
        assert text.removeprefix(NO_THOUGHT).strip() == expected
    assert encoded.truncated or len(runs) == len(told)
    start = encoded.columns["prompt_length"]
    assert labels[start:] == ids[start:] == runs[-1]
