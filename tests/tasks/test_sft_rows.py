"""sft rows: every form of them, bad ones that do not stop the rest, and those that are too long."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import surefit
from builders import encode_one, write_jsonl
from chats import chat_tokenizer, said
from surefit.cli import run as command
from surefit.data.open_data import open_table
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedInput, TemplateState
from surefit.tasks.choose_task import choose_task
from surefit.tasks.language_models import encode_answers as encode

TURNS = said("Hi", "Hello", "So?", "So.")
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "input and target": ({"input": "Hi", "target": "Hello"}, "Hi\nHello</s>"),
    "prompt and completion": ({"prompt": "Hi", "completion": "Hello"}, "Hi\nHello</s>"),
    "instruction and output": ({"instruction": "Hi", "output": "Hello"}, "Hi\nHello</s>"),
    "instruction, input and output": (
        {"instruction": "Add.", "input": "1 2", "output": "3"},
        "Add.\n1 2\n3</s>",
    ),
    "question and answer": ({"question": "Hi", "answer": "Hello"}, "Hi\nHello</s>"),
    "an answer that is a number": ({"question": "1+2", "answer": 3}, "1+2\n3</s>"),
    "an answer that is a fraction": ({"question": "1/2", "answer": 0.5}, "1/2\n0.5</s>"),
    "messages": ({"id": "a", "tags": ["x"], "messages": TURNS}, "Hi\nHello</s>So?\nSo.</s>"),
    "a system message": ({"messages": said("Hi", "Hello", system="Ah")}, "Ah\nHi\nHello</s>"),
    "content in parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "H"}, "i"]}, TURNS[1]]},
        "Hi\nHello</s>",
    ),
    "content in parts as LLaMA-Factory has them": (
        {
            "messages": [
                {**turn, "content": [{"type": "text", "value": turn["content"]}]} for turn in TURNS
            ]
        },
        "Hi\nHello</s>So?\nSo.</s>",
    ),
    "a transcript": (
        {"conversation": "Human: Hi\n\nAssistant: Hello\n\nHuman: So?\n\nAssistant: So."},
        "Hi\nHello</s>So?\nSo.</s>",
    ),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
        "Hi\nHello</s>",
    ),
    "a last word that is not answered": ({"messages": [*TURNS[:2], TURNS[2]]}, "Hi\nHello</s>"),
    "a tool": (
        {
            "messages": [
                TURNS[0],
                {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "n": 1}]},
                {"role": "tool", "content": "7"},
                TURNS[3],
            ]
        },
        'Hi\n[{"name": "f", "n": 1}]</s>7\nSo.</s>',
    ),
}


@pytest.mark.parametrize("source", ["python", "jsonl"])
@pytest.mark.parametrize("form", FORMS)
def test_form_of_rows(tmp_path: Path, form: str, source: str) -> None:
    row, text = FORMS[form]
    data = [row] if source == "python" else write_jsonl(tmp_path / "rows.jsonl", [row])
    table = open_table(data)
    task, roles = choose_task(table, None, {}, frozenset({"AutoModelForCausalLM"}))
    assert task.name == "sft"
    tokenizer = chat_tokenizer("mistral", adds_bos=False)
    encoder = Encoder("sft", roles, tokenizer)
    encoded = encode_one(encode, encoder.read(table.row(0)), encoder)
    assert tokenizer.decode(encoded.columns["input_ids"]) == text


BAD: dict[str, tuple[list[dict[str, Any]], str]] = {
    "no messages": ([], "SF270"),
    "no answer": (TURNS[:1], "SF270"),
    "an empty answer": (said("Hi", " "), "SF270"),
    "an answer first, and none after": (TURNS[1:3], "SF272"),
    "a late system message": ([*TURNS[:2], {"role": "system", "content": "x"}], "SF272"),
    "content that is a number": ([{"role": "user", "content": 5}, TURNS[1]], "SF272"),
    "content that is a picture": (
        [{"role": "user", "content": [{"type": "image", "url": "x"}]}, TURNS[1]],
        "SF272",
    ),
    "no content": ([{"role": "user", "content": None}, TURNS[1]], "SF272"),
    "an unknown role": ([{"role": "narrator", "content": "x"}, TURNS[1]], "SF272"),
    "no role at all": ([{"content": "x"}, TURNS[1]], "SF272"),
    "no role": ([{"role": None, "content": "x"}, TURNS[1]], "SF272"),
}


def test_bad_messages_are_findings_and_do_not_stop_the_rest(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"messages": said(f"Hi {n}", f"Hello {n}")} for n in range(20)]
    for turns, _ in BAD.values():
        rows.append({"messages": turns})
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    with path.open("ab") as file:
        for text in (b"\xff\xfe", b"caf\xe9", "fine: é".encode()):
            file.write(b'{"messages": [{"role": "user", "content": "' + text + b'"}, ')
            file.write(b'{"role": "assistant", "content": "Yo"}]}\n')
    plan = surefit.check(data=path, model="tiny:llama", eval_share=0.0)
    assert plan.ok
    found = {f.code: (f.where["row"], f.message) for f in plan.findings if "row" in f.where}
    expected = dict.fromkeys(code for _, code in BAD.values())
    codes = [code for _, code in BAD.values()]
    for code in expected:
        row, message = found[code]
        assert row == 20 + codes.index(code)
        more = codes.count(code) + (2 if code == "SF272" else 0) - 1  # text that is not UTF-8, too
        assert f"({more} more rows like it: " in message
    row, message = found["SF273"]
    assert row == 20 + len(BAD)
    assert "byte 0xff" in message
    assert "1 more row like it" in message
    assert plan.ledger is not None
    assert plan.ledger.dropped_rows == {"empty": 3, "bad_messages": 10}
    assert plan.ledger.used_rows == 21
    assert "SF215" not in found  # each cause is named already


@pytest.mark.parametrize(
    ("tools", "fits"),
    [
        ('[{"name": "f"}]', True),
        ('{"name": "f"}', True),
        ("", True),
        (None, True),
        ("no JSON", False),
        ('{"a": 1}', False),
    ],
)
def test_tools_of_a_row(tools: str | None, fits: bool) -> None:
    tokenizer = chat_tokenizer("mistral", adds_bos=False)
    text = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    state = FittedInput(template=TemplateState("own", text, "</s>"))
    roles = {"messages": "messages", "tools": "tools"}
    encoder = Encoder("sft", roles, tokenizer, input=state)
    row = {"messages": TURNS[:2], "tools": tools}
    if not fits:
        with pytest.raises(RowFaultError, match="bad_messages"):
            encode(row, encoder)
        return
    shown = tokenizer.decode(encode_one(encode, row, encoder).columns["input_ids"])
    written = '[{"type": "function", "function": {"name": "f"}}]' if tools else "null"
    assert shown == f"{written}Hi</s>Hello</s>"


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small untrained Llama with a tokenizer that has a chat template; eos is not its end."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("chat") / "model"
    tokenizer = chat_tokenizer("gemma")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_chat_model_is_trained_evaluated_and_asked_by_its_template(
    tmp_path: Path, chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"messages": said("Say", "Hello", f"And {n}?", "Paris")} for n in range(40)]
    run = surefit.train(
        data=write_jsonl(tmp_path / "rows.jsonl", rows),
        model=str(chat_model),
        epochs=12,
        batch_size=4,
        lr=5e-3,
        output="run",
        generate={"max_new_tokens": 12},
    )
    assert run.metrics["exact_match"] == 1.0  # so it stops at the end of the turn
    asked = [
        {"messages": [*rows[0]["messages"][:2], {"role": "user", "content": "And 7?"}]},
        rows[3],
    ]
    for given, answer in zip(asked, surefit.predict("run", asked), strict=True):
        assert answer["prediction"] == "Paris"
        assert answer["prompt"] == given["messages"][: len(answer["prompt"])]
    assert command(["predict", "run", "--text", "And 7?"]) == 0
    state = json.loads((tmp_path / "run/model/encoder.json").read_text())
    assert state["input"]["template"]["end"] == "<end_of_turn>"
    assert surefit.evaluate("run")["exact_match"] == 1.0


def test_pairs_are_written_by_the_chat_template(chat_model: Path) -> None:
    rows = [{"prompt": f"Hi {n}", "completion": "Hello"} for n in range(4)]
    tokenizer = chat_tokenizer("gemma")
    texts = {}
    for template in (None, "plain", "{% for m in messages %}<{{ m.content }}>{% endfor %}"):
        plan = surefit.check(data=rows, model=str(chat_model), eval_share=0.0, template=template)
        assert plan.job is not None
        texts[template] = tokenizer.decode(plan.job.train.row(0)["input_ids"])
    assert list(texts.values()) == [
        "<bos><start_of_turn>user\nHi 0<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>",
        "<bos>Hi 0\nHello<eos>",
        "<bos><Hi 0><Hello<eos>",
    ]


def test_template_file_is_read_and_named_in_full(
    tmp_path: Path, chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}"
    Path("mine.jinja").write_text(text)
    rows = [{"prompt": f"Hi {n}", "completion": "Hello"} for n in range(12)]
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    run = surefit.train(
        data=data, model=str(chat_model), template="mine.jinja", max_steps=1, output="run"
    )
    assert run.config.template == str(tmp_path / "mine.jinja")
    assert surefit.evaluate("run")["loss"] == pytest.approx(run.metrics["loss"])  # the same rows


@pytest.mark.slow
def test_inspect_shows_what_is_learned_and_why_a_row_is_dropped(
    tmp_path: Path, chat_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"messages": said("Hi", "Hello", f"{'and ' * n}?", "Paris é😀")} for n in range(20)]
    rows.append({"messages": said("Hi")})
    path = write_jsonl(tmp_path / "rows.jsonl", rows)

    def shown(row: int, *more: str) -> str:
        arguments = ["inspect", str(path), "--model", str(chat_model), "--row", str(row), *more]
        assert command(arguments) == 0
        return capsys.readouterr().out

    text = shown(0)
    assert "⟦Hello⟧⟦‹<end_of_turn>›⟧\n‹<start_of_turn>›user\n?‹<end_of_turn>›" in text
    assert "⟦Paris é😀⟧⟦‹<end_of_turn>›⟧" in text
    sides = {json.loads(shown(row, "--json"))["side"] for row in range(20)}
    assert sides == {"training", "evaluation"}
    assert "no message is an assistant's" in shown(20)
    cut = json.loads(shown(19, "--json", "--set", "max_seq_length=30"))
    kinds = [token["kind"] for token in cut["tokens"]]
    assert len(cut["input_ids"]) + kinds.count("truncated") == len(kinds)
    assert len(cut["input_ids"]) <= 30 < len(kinds)
    assert "⟨cut: " in shown(19, "--set", "max_seq_length=30")


def learned_text(turns: list[dict[str, Any]], loss_on: str) -> str:
    """The text of the labels of a dialogue."""
    plan = surefit.check(
        data=[{"messages": turns}] * 10,
        model="tiny:llama",
        loss_on=loss_on,
        eval_share=0,
        generate={"rows": 0},
        quiet=True,
    )
    assert plan.job is not None
    labels = plan.job.train.row(0)["labels"]
    return str(plan.job.pipeline.encoder.tokenizer.decode(labels[labels != -100]))


def test_only_the_last_answer_is_learned_where_that_is_asked_for() -> None:
    assert learned_text(TURNS, "answers") == "Hello<|end|>So.<|end|>"
    assert learned_text(TURNS, "last") == "So.<|end|>"


def test_a_greeting_is_context_and_two_users_in_a_row_are_read() -> None:
    greeting = {"role": "assistant", "content": "Welcome."}
    assert learned_text([greeting, TURNS[0], *TURNS[:2]], "answers") == learned_text(
        TURNS[:2], "answers"
    )


def test_several_messages_in_the_plain_template_are_named() -> None:
    def notes(turns: list[dict[str, Any]], **options: Any) -> str:
        rows = [{"messages": turns}] * 12
        return " ".join(surefit.check(data=rows, model="tiny:llama", quiet=True, **options).notes)

    assert "to have that written: --set template=chatml" in notes(TURNS)
    assert "does not write who" not in notes(TURNS[:2])
    assert "does not write who" not in notes(TURNS, template="chatml")


OTHER_NAMES: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("messages", {"role": "content"}, {"client": "user", "agent": "assistant"}),
    ("dialogue", {"speaker": "utterance"}, {"client": "user", "agent": "assistant"}),
    ("messages", {"from": "value"}, {"client": "human", "agent": "gpt"}),
]


@pytest.mark.parametrize(("column", "names", "roles"), OTHER_NAMES)
def test_roles_and_fields_of_messages_may_have_other_names(
    column: str, names: dict[str, str], roles: dict[str, str]
) -> None:
    [(who, what)] = names.items()
    rows = [
        {column: [{who: "client", what: f"Hi {n}"}, {who: "agent", what: f"Yes {n}"}]}
        for n in range(9)
    ]
    plan = surefit.check(data=rows, model="tiny:llama", quiet=True)
    assert any("--set read.roles.client=user" in found.message for found in plan.findings)
    plan = surefit.check(data=rows, model="tiny:llama", read={"roles": roles}, quiet=True)
    assert plan.ledger is not None
    assert plan.ledger.used_rows == 9
    known = surefit.check(
        data=[{"messages": said(f"Hi {n}", f"Yes {n}")} for n in range(9)],
        model="tiny:llama",
        quiet=True,
    )
    assert known.ledger == plan.ledger


def test_loss_weight_is_the_weight_of_a_message() -> None:
    weighed = [TURNS[0], {**TURNS[1], "loss_weight": 0.0}, TURNS[2], {**TURNS[3], "weight": 1}]
    assert learned_text(weighed, "answers") == "So.<|end|>"


def test_a_message_with_the_weight_0_is_not_learned_and_other_weights_are_refused() -> None:
    weighed = [TURNS[0], {**TURNS[1], "weight": 0}, TURNS[2], {**TURNS[3], "weight": 1}]
    assert learned_text(weighed, "answers") == "So.<|end|>"
    half = [TURNS[0], {**TURNS[1], "weight": 0.5}]
    rows = [{"messages": turns} for turns in (*[TURNS] * 20, half)]
    plan = surefit.check(data=rows, model="tiny:llama", quiet=True)
    [found] = [found.message for found in plan.findings if found.code == "SF272"]
    assert "message 1 (assistant) has the weight 0.5; expected 0 or 1" in found


def test_tokens_lost_to_truncation_are_a_warning_with_the_length_that_keeps_them() -> None:
    """Few rows are too long, but they have many of the tokens."""
    rows = [{"prompt": f"word {n}", "completion": "x"} for n in range(95)]
    rows += [{"prompt": "word " * n, "completion": "y"} for n in (300, 310, 320, 400, 480)]
    options: dict[str, Any] = {"data": rows, "model": "tiny:llama", "eval_share": 0, "quiet": True}
    plan = surefit.check(max_seq_length=200, **options)
    [lost] = [found.message for found in plan.findings if found.code == "SF215"]
    [shown] = re.findall(r"A max_seq_length of ([\d,]+) keeps 99% of them", lost)
    length = int(shown.replace(",", ""))
    whole = surefit.check(max_seq_length=512, **options)
    assert whole.job is not None
    lengths = whole.job.train.lengths
    assert [f for f in whole.findings if f.code == "SF215"] == []
    assert np.maximum(lengths - length, 0).sum() <= 0.01 * lengths.sum()
    assert np.maximum(lengths - length * 4 // 5, 0).sum() > 0.01 * lengths.sum()
