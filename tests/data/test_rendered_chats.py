"""Chats as one text are read as their messages, whatever template wrote them; other texts stay."""

from __future__ import annotations

import pytest

from chats import said
from surefit.data.rendered_chats import read_rendered
from surefit.data.stored_messages import as_messages

KIND = said("Hi", "Hello", system="Be kind")
CHATS = {
    "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\nHello<|im_end|>\n": KIND,
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>": KIND[1:],
    "<s>[INST] <<SYS>>\nBe kind\n<</SYS>>\n\nHi [/INST] Hello </s>": KIND,
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n": KIND[1:],
    "<|user|>\nHi</s>\n<|assistant|>\nHello</s>": KIND[1:],
    "Below is a task.\n\n### Instruction:\nAdd\n\n### Input:\n1 2\n\n### Response:\n3": (
        said("Add\n1 2", "3")
    ),
    "\n\nHuman: Hi\n\nAssistant: Hello": KIND[1:],
}


@pytest.mark.parametrize("text", CHATS)
def test_a_rendered_chat_is_its_messages(text: str) -> None:
    assert as_messages(text) == CHATS[text]


@pytest.mark.parametrize(
    "text", ["They wrote:\nUser: hi\nAssistant: ho", "Human: only asked", "A [INST] in a text", ""]
)
def test_other_texts_are_no_chats(text: str) -> None:
    assert read_rendered(text) is None
    assert as_messages(text) == text
