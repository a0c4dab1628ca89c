"""Faults of dialogues: answers lost or never learned, templates, views."""

from __future__ import annotations

from typing import Any

from builders import echo_rows
from chats import said
from faults.case import Case, Chat

ALL = "--set eval_share=0"
QWEN = "--tokenizer tok"


def prompts(place: int, **odd: Any) -> list[dict[str, Any]]:
    """Prompts and answers, one row odd."""
    rows: list[dict[str, Any]] = list(echo_rows(20))
    rows[place] = {**rows[place], **odd}
    return rows


def chats(*odd: Any) -> list[dict[str, Any]]:
    """Good dialogues and, from row 20 on, odd ones."""
    good = [said(f"Hello {n}", "Paris.") for n in range(20)]
    return [{"messages": messages} for messages in [*good, *odd]]


def templated(name: str, code: str, template: str, *odd: Any) -> Case:
    """Dialogues written by a template of one's own, the odd ones of which are at fault."""
    files = {"a.jsonl": chats(*odd), "tok": Chat("chatml"), "t.jinja": template}
    row, options = (20, f" {ALL}") if odd else (None, "")
    return Case(name, code, files, options=f"{QWEN} --set template=t.jinja{options}", row=row)


UPPER = "{% for m in messages %}{{ m.role }}: {{ m.content | upper }}\n{% endfor %}"
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
PICKY = (
    "{% for m in messages %}{{ m.role }}: {% if messages[0].content == 'Bad' and "
    "m.role == 'assistant' %}{{ raise_exception('no') }}{% else %}{{ m.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
MARKED = (
    "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' and m.content != 'Odd' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}"
    "<|im_end|>{% endif %}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
REFUSES = "{{ raise_exception('no') }}"
CASES = [
    Case("answer missing", "SF270", prompts(4, completion=None), options=ALL, row=4),
    Case("every answer empty", "SF401", [{**r, "completion": ""} for r in echo_rows(20)], row=0),
    Case(
        "most answers empty",
        "SF204",
        [{**r, "completion": "" if n > 5 else "a"} for n, r in enumerate(echo_rows(20))],
        options=ALL,
    ),
    Case(
        "answer cut off by the limit",
        "SF279",
        prompts(4, completion="red sun " * 60),
        options=f"--max-seq-length 24 {ALL}",
        row=4,
    ),
    Case(
        "overlong rows are to be an error",
        "SF212",
        prompts(4, completion="red sun " * 60),
        options=f"--max-seq-length 24 --set overlong=error {ALL}",
        row=4,
    ),
    Case(
        "answers that are numbers",
        "SF213",
        [{**r, "completion": n} for n, r in enumerate(echo_rows(20))],
        options=f"--task sft {ALL}",
        row=0,
        column="completion",
    ),
    Case(
        "prompt without answer column",
        "SF202",
        [{"prompt": r["prompt"]} for r in echo_rows(20)],
        options="--task sft",
        process=True,
    ),
    Case("pad is eos", "SF311", {"a.jsonl": prompts(0), "tok": Chat("chatml")}, options=QWEN),
    Case(
        "template without an end",
        "SF282",
        {"a.jsonl": chats(), "tok": Chat("chatml")},
        options=f"{QWEN} --set template='{PLAIN.strip()}'",
    ),
    templated("template that changes answers", "SF275", UPPER),
    templated("template that is no Jinja", "SF274", "{% for m in %}"),
    templated("template that refuses every row", "SF274", REFUSES),
    templated(
        "template that reaches out of its sandbox", "SF274", "{{ messages.__class__.__mro__ }}"
    ),
    templated("row that the template refuses", "SF276", PICKY, said("Bad", "b")),
    templated("answer that the template does not mark", "SF277", MARKED, said("a", "Odd")),
    Case(
        "thoughts that the template leaves out",
        "SF280",
        {"a.jsonl": chats(said("a", "<think>\nx y\n</think>\n\nb", "c", "d")), "tok": Chat("qwen")},
        options=f"{QWEN} {ALL}",
        row=20,
    ),
    Case(
        "system message the template refuses",
        "SF283",
        {"a.jsonl": chats(said("Hello", "Paris.", system="Be kind.")), "tok": Chat("gemma")},
        options=f"{QWEN} {ALL}",
        row=20,
    ),
    Case("answers in a wrong order", "SF272", chats(said("a", "b")[::-1]), options=ALL, row=20),
    Case(
        "role nobody knows",
        "SF272",
        chats([{"role": "wizard", "content": "a"}, *said("a", "b")]),
        options=ALL,
        row=20,
    ),
    Case("dialogue without messages", "SF270", chats([]), options=ALL, row=20),
    Case(
        "messages as text",
        "SF202",
        [{"messages": f"hello {n}"} for n in range(20)],
        options="--task sft",
    ),
    Case(
        "augmenting function that fails",
        "SF286",
        {"a.jsonl": prompts(0), "own_fails.py": "def change(text, rng):\n    return text[1000]\n"},
        options="--augmentation-factor 2 --set augment.function=own_fails:change",
        row=0,
    ),
    Case("changes without a factor", "SF289", prompts(0), options="--set augment.changes=typos"),
    Case(
        "scorer that fails",
        "SF296",
        {"a.jsonl": prompts(0), "own_scorer.py": "def score(expected, got):\n    return 1 / 0\n"},
        options="--set generate.scorer=own_scorer:score",
    ),
]
