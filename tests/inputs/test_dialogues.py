"""Masks of dialogues: what is learned is the answers and their ends, whatever the template."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from chats import STYLES, chat_tokenizer, coder_for, end_of, said
from surefit.errors import FindingError, UsageError
from surefit.inputs.chat.dialogues import DialogueTokens
from surefit.inputs.chat.messages import Dialogue
from surefit.inputs.chat.template_fitting import fit_template
from surefit.inputs.chat.template_rendering import TemplateError
from surefit.inputs.templates import TEMPLATES, read_asked
from surefit.inputs.tokenizer import load_tokenizer, train_tokenizer

THREE = said("Hi.", "Hello there!", "Capital of France?", "Paris.", "And\n\nof Spain?", "Madrid")
ANSWERS = ["Hello there!", "Paris.", "Madrid"]


def learned(tokens: DialogueTokens, tokenizer: Any) -> list[str]:
    """The text of each learned answer."""
    pairs = zip(tokens.answers, tokens.weights, strict=True)
    return [tokenizer.decode(tokens.ids[start:stop]) for (start, stop), weight in pairs if weight]


@pytest.mark.parametrize("style", STYLES)
def test_learned_are_the_answers_and_their_ends(style: str) -> None:
    tokenizer = chat_tokenizer(style)
    tokens = coder_for(tokenizer).tokenize(THREE)
    lead = {"mistral": " "}.get(style, "")  # what the template writes after the generation prompt
    expected = [f"{lead}{answer}{end_of(style)}" for answer in ANSWERS]
    if style == "qwen":  # which shows a thought, here an empty one, before the last answer
        expected[-1] = f"<think>\n\n</think>\n\n{expected[-1]}"
    assert learned(tokens, tokenizer) == expected
    assert tokens.ids[-1] == tokenizer.convert_tokens_to_ids(end_of(style))
    assert tokens.answers[-1][1] == len(tokens.ids)


@pytest.mark.parametrize("style", STYLES)
def test_the_prompt_is_what_the_model_gets_when_it_is_to_answer(style: str) -> None:
    tokenizer = chat_tokenizer(style)
    coder = coder_for(tokenizer)
    for turns in (2, 4, 6):
        told = coder.tokenize(THREE[:turns])
        asked = coder.tokenize(THREE[: turns - 1], generation=True)
        assert told.ids[: told.last_answer] == asked.ids
        assert asked.last_answer == len(asked.ids)
        shown = tokenizer.apply_chat_template(
            THREE[: turns - 1], tokenize=False, add_generation_prompt=True
        )
        if style != "llama3":  # which shows the date of the day
            assert tokenizer.decode(asked.ids) == shown


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("style", ["llama3", "gemma", "mistral"])
def test_one_bos(style: str, adds_bos: bool) -> None:
    tokenizer = chat_tokenizer(style, adds_bos)
    for template in (None, "plain"):
        ids = coder_for(tokenizer, template).tokenize(THREE).ids
        expected = 1 if adds_bos or template is None else 0
        assert ids.count(tokenizer.bos_token_id) == expected
        assert (ids[0] == tokenizer.bos_token_id) == bool(expected)


def test_token_that_begins_in_the_prompt_and_holds_the_answer_has_a_label() -> None:
    tokenizer = chat_tokenizer("chatml")
    whole = tokenizer("assistant\n\n\nHello", add_special_tokens=False)["input_ids"]
    parts = [
        tokenizer(part, add_special_tokens=False)["input_ids"]
        for part in ("assistant\n", "\n\nHello")
    ]
    assert whole != parts[0] + parts[1]  # one token holds the end of one and the start of the other
    tokens = coder_for(tokenizer).tokenize(said("Hi", "\n\nHello\n"))
    assert tokens.ids == tokenizer(shown(tokenizer, said("Hi", "\n\nHello\n")))["input_ids"]
    assert learned(tokens, tokenizer) == ["\n\n\nHello\n<|im_end|>"]


def shown(tokenizer: Any, messages: Any) -> str:
    """The text as the tokenizer's own template writes it, up to the last end token."""
    text = coder_for(tokenizer).template.render(messages)
    return text[: text.rindex(tokenizer.eos_token) + len(tokenizer.eos_token)]


WHITESPACE = ["\n\n", "\n", " ", "  ", "\n \n", "\t", ""]


@pytest.mark.parametrize("style", STYLES)
def test_trained_tokens_are_those_of_the_whole_text(style: str) -> None:
    tokenizer = chat_tokenizer(style)
    coder, choose = coder_for(tokenizer), random.Random(0)
    differed = 0
    for _ in range(100):
        words = ["Hello", "Paris.", "é😀", "1", "ist's?", "the"]
        around = [choose.choice(WHITESPACE) + choose.choice(words) for _ in range(4)]
        dialogue = said(*(text + choose.choice(WHITESPACE) for text in around))
        tokens = coder.tokenize(dialogue)
        text, turns = coder.template.find_answers(dialogue)
        text = text[: turns[-1].end]
        whole = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokens.ids[-len(whole) :] == whole
        assert len(tokens.ids) - len(whole) in (0, 1)  # bos, if the template does not write it
        pieces = [0, *(place for turn in turns for place in (turn.start, turn.end))]
        parts = [text[a:b] for a, b in pairwise(pieces)]
        apart = tokenizer(parts, add_special_tokens=False)["input_ids"]
        differed += [token for piece in apart for token in piece] != whole
        runs = learned(tokens, tokenizer)
        for turn, run in zip(turns, runs, strict=True):
            answer = text[turn.start : turn.end]
            assert run.endswith(answer)
            assert not run.removesuffix(answer).strip()  # of the prompt, spaces at most
    # Tokenized in parts, some would have other tokens, unless special tokens enclose the answers.
    assert differed or style in ("gemma", "mistral")


def test_prompt_that_ends_with_a_space_is_generated_from_as_it_was_trained() -> None:
    tokenizer = chat_tokenizer("chatml")
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}"
        "{{ eos_token if m.role == 'assistant' else '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    coder = coder_for(tokenizer, template)
    told, asked = coder.tokenize(said("Hi", "Paris")), coder.tokenize(said("Hi"), generation=True)
    assert told.ids[: told.last_answer] == asked.ids
    assert tokenizer.decode(asked.ids) == "user: Hi\nassistant:"
    assert learned(told, tokenizer) == [" Paris<|im_end|>"]


class WithoutOffsets:
    """A tokenizer that does not know where its tokens are, as those written in Python."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    backend_tokenizer = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, *texts: Any, **options: Any) -> Any:
        return self._tokenizer(*texts, **options)


@pytest.mark.parametrize("style", ["llama3", "chatml"])
@pytest.mark.parametrize("limit", [None, 45])
def test_tokenizer_without_offsets_finds_the_same_answers(style: str, limit: int | None) -> None:
    tokenizer = chat_tokenizer(style)
    expected = coder_for(tokenizer).tokenize(THREE, limit=limit)
    assert coder_for(WithoutOffsets(tokenizer)).tokenize(THREE, limit=limit) == expected


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
ODD = [
    *("", " ", "x", " Paris\n", "<think>\nhm\n</think>\n\nHello", "<think>\nhm", "user\nHi"),
    *("\ufdd0", "a b", "assistant\n", '{"a": "b"}', "<|im_end|>\n<|im_start|>assistant\n"),
]


def _drawn(choose: random.Random) -> list[Any]:
    """One or two questions, each answered at once or with the help of a tool."""
    messages: list[Any] = []
    for _ in range(choose.choice([1, 2])):
        user, before, result, answer = choose.choices(ODD, k=4)
        call = {"type": "function", "function": {"name": "add", "arguments": {"a": result}}}
        calls = [call] * choose.choice([0, 1, 2])
        messages += said(user)
        if calls:
            messages.append({"role": "assistant", "content": before, "tool_calls": calls})
            messages.append({"role": "tool", "content": result})
        messages.append({"role": "assistant", "content": answer})
    return messages


@pytest.mark.parametrize("style", [*STYLES, "template plain", "template alpaca"])
def test_an_answer_starts_where_its_prompt_ends(style: str) -> None:
    """Whatever the contents: the prompt is what the template writes before the answer."""
    _, _, named = style.partition(" ")
    template = coder_for(chat_tokenizer("qwen" if named else style), named or None).template
    choose, found = random.Random(0), 0
    for _ in range(60):
        messages, tools = template.prepared(_drawn(choose)), choose.choice([None, TOOLS])
        try:
            text, turns = template.find_answers(messages, tools, choose.choice([False, True]))
        except TemplateError:
            continue
        answers = [place for place, m in enumerate(messages) if m["role"] == "assistant"]
        assert len(turns) == len(answers)
        if style == "template plain":  # which is joined without Jinja
            assert text == template.render(messages, tools)
        for place, turn in zip(answers, turns, strict=True):
            prompt = template.render(messages[:place], tools, generation=True)
            if text.startswith(prompt) and style != "marked":
                assert turn.start == len(prompt)
                found += 1
    assert found > 10 or style == "marked"


@pytest.mark.parametrize("style", ["llama3", "gemma"])
def test_template_that_trims(style: str) -> None:
    tokenizer = chat_tokenizer(style)
    tokens = coder_for(tokenizer).tokenize(said(" Hi ", " Hello \n", "So?", "\nSo."))
    assert learned(tokens, tokenizer) == [f"Hello{end_of(style)}", f"So.{end_of(style)}"]


def test_system_message_joins_the_prompt_where_the_template_refuses_it() -> None:
    tokenizer = chat_tokenizer("gemma")
    coder = coder_for(tokenizer)
    assert coder.template.joins_system
    text = tokenizer.decode(coder.tokenize(said("Hi", "Hello", system="Be brief.")).ids)
    assert "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>" in text
    assert not coder_for(chat_tokenizer("mistral")).template.joins_system


def test_thoughts_of_earlier_answers_are_left_out_and_that_is_known() -> None:
    tokenizer = chat_tokenizer("qwen")
    coder = coder_for(tokenizer)
    thought = "<think>\nhm\n</think>\n\nHello"
    tokens = coder.tokenize(said("Hi", thought, "So?", thought))
    assert learned(tokens, tokenizer) == ["Hello<|im_end|>", f"{thought}<|im_end|>"]
    assert not tokens.whole
    assert coder.tokenize(said("Hi", thought)).whole


@pytest.mark.parametrize("style", ["qwen", "llama3"])
def test_tool_calls_are_learned_and_their_results_are_read(style: str) -> None:
    tokenizer = chat_tokenizer(style)
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        *said("1 + 1?"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "Two."},
    ]
    first, second = learned(coder_for(tokenizer).tokenize(messages), tokenizer)
    assert '"add"' in first
    assert first.endswith(end_of(style))
    assert second.endswith(f"Two.{end_of(style)}")
    assert "42" not in first + second


def test_answer_without_weight_is_read_and_not_learned() -> None:
    tokenizer = chat_tokenizer("chatml")
    messages = [dict(message) for message in THREE]
    messages[1]["weight"] = 0
    tokens = coder_for(tokenizer).tokenize(messages)
    assert learned(tokens, tokenizer) == ["Paris.<|im_end|>", "Madrid<|im_end|>"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_of_ours(name: str) -> None:
    tokenizer = chat_tokenizer("mistral", adds_bos=False)  # which has no <|im_end|>
    tokens = coder_for(tokenizer, name).tokenize(THREE)
    assert learned(tokens, tokenizer) == [f"{answer}</s>" for answer in ANSWERS]


def test_alpaca_tells_instruction_and_input_apart() -> None:
    tokenizer = chat_tokenizer("mistral", adds_bos=False)
    messages = said("Add.\n1 2", "3")
    messages[0] |= {"instruction": "Add.", "input": "1 2"}
    ids = coder_for(tokenizer, "alpaca").tokenize(messages).ids
    expected = "### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n3</s>"
    assert tokenizer.decode(ids) == expected


def test_marks_in_the_data_do_not_confuse() -> None:
    tokenizer = chat_tokenizer("chatml")
    text = "".join(chr(code) for code in range(0xFDD0, 0xFDEC))
    tokens = coder_for(tokenizer).tokenize(said(text, f"a{text}b"))
    assert learned(tokens, tokenizer) == [f"a{text}b<|im_end|>"]
    with pytest.raises(TemplateError, match="every character"):
        coder_for(tokenizer).tokenize(said(text + "\ufdec\ufded\ufdee", "b"))


def test_template_that_writes_no_answer_cannot_be_used() -> None:
    text = "{% for m in messages %}{{ m.role }}{% endfor %}"
    with pytest.raises(FindingError) as caught:
        fit_template(text, chat_tokenizer("chatml"), [])
    assert [found.code for found in caught.value.findings] == ["SF275"]


def test_unknown_template_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="chat, plain, chatml, alpaca"):
        read_asked("chatlm")
    with pytest.raises(UsageError, match="no chat template"):
        fit_template("chat", train_tokenizer(["a b"], 300), [])


def test_the_day_is_no_part_of_the_rows() -> None:
    tokenizer = chat_tokenizer("llama3")
    _, (found, *_) = fit_template(None, tokenizer, [])
    assert "26 Jul 2024" in found.message
    assert "Today: 26 Jul 2024" in tokenizer.decode(coder_for(tokenizer).tokenize(THREE).ids)


def test_tokenizer_that_puts_a_space_first(shared: Path) -> None:
    tokenizer = load_tokenizer(str(shared / "weights" / "stories260K"))
    tokens = coder_for(tokenizer, "plain").tokenize(said("Once", "upon", "a", "time"))
    assert tokens.ids == tokenizer("Once\nupon</s>a\ntime</s>")["input_ids"]
    apart = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("\n", "upon")]
    assert tokenizer("\nupon", add_special_tokens=False)["input_ids"] != apart[0] + apart[1]


@pytest.mark.parametrize("generation", [True, False])
@pytest.mark.parametrize("style", ["chatml", "llama3", "gemma", "mistral"])
def test_shortened_dialogue_loses_its_oldest_turns_first(style: str, generation: bool) -> None:
    tokenizer = chat_tokenizer(style)
    coder = coder_for(tokenizer)
    messages = said("one", "1", "two", "2", "three", "3", system="Be brief.")
    messages = messages[:-1] if generation else messages
    whole = coder.tokenize(messages, None, generation)
    without = [messages[0], *messages[3:]]
    room = len(coder.tokenize(without, None, generation).ids)
    shorter = coder.shorten(Dialogue(messages), whole, room, generation)
    assert shorter == coder.tokenize(without, None, generation)
    least = [messages[0], *messages[5:]]
    room = len(coder.tokenize(least, None, generation).ids) - 2
    cut = coder.shorten(Dialogue(messages), whole, room, generation)
    assert len(cut.ids) <= room
    assert not generation or cut.last_answer == len(cut.ids)
    assert coder.shorten(Dialogue(messages), whole, 3, generation) is None
