"""Faults of dialogues: answers lost or never learned, templates, views."""

from __future__ import annotations

from typing import Any

from builders import echo_rows
from chats import said
from faults.case import Case, Chat

ALL = "--set eval_share=0"


def prompts(place: int, **odd: Any) -> list[dict[str, Any]]:
    """Prompts and answers, one row odd."""
    rows: list[dict[str, Any]] = list(echo_rows(20))
    rows[place] = {**rows[place], **odd}
    return rows


def chats(*odd: Any) -> list[dict[str, Any]]:
    """Good dialogues and, from row 20 on, odd ones."""
    good = [said(f"Hello {n}", "Paris.") for n in range(20)]
    return [{"messages": messages} for messages in [*good, *odd]]


def templated(title: str, template: str, *odd: Any) -> Case:
    """Dialogues written by a template of one's own, the odd ones of which are at fault."""
    row, options = (20, ALL) if odd else (None, "")
    more = {"tokenizer": Chat("chatml"), "template": template}
    return Case(title, chats(*odd), options=options, row=row, **more)


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
    Case("SF270 answer missing", prompts(4, completion=None), options=ALL, row=4),
    Case("SF401 every answer empty", [{**r, "completion": ""} for r in echo_rows(20)], row=0),
    Case(
        "SF204 most answers empty",
        [{**r, "completion": "" if n > 5 else "a"} for n, r in enumerate(echo_rows(20))],
        options=ALL,
    ),
    Case(
        "SF279 answer cut off by the limit",
        prompts(4, completion="red sun " * 60),
        options=f"--max-seq-length 24 {ALL}",
        row=4,
    ),
    Case(
        "SF212 overlong rows are to be an error",
        prompts(4, completion="red sun " * 60),
        options=f"--max-seq-length 24 --set overlong=error {ALL}",
        row=4,
    ),
    Case(
        "SF213 answers that are true or false",
        [{**r, "completion": n % 2 == 0} for n, r in enumerate(echo_rows(20))],
        options=f"--task sft {ALL}",
        row=0,
        column="completion",
    ),
    Case(
        "SF213 answers that are objects without messages",
        [{**r, "completion": {"colour": "red", "n": n}} for n, r in enumerate(echo_rows(20))],
        options=f"--task sft {ALL}",
        row=0,
        column="completion",
    ),
    Case(
        "SF202 prompt without answer column",
        [{"prompt": r["prompt"]} for r in echo_rows(20)],
        options="--task sft",
    ),
    Case("SF311 pad is eos", prompts(0), tokenizer=Chat("chatml")),
    Case(
        "SF282 template without an end",
        chats(),
        options=f"--set template='{PLAIN.strip()}'",
        tokenizer=Chat("chatml"),
    ),
    templated("SF275 template that changes answers", UPPER),
    templated("SF274 template that is no Jinja", "{% for m in %}"),
    templated("SF274 template that refuses every row", REFUSES),
    templated("SF274 template that reaches out of its sandbox", "{{ messages.__class__.__mro__ }}"),
    templated("SF276 row that the template refuses", PICKY, said("Bad", "b")),
    templated("SF277 answer that the template does not mark", MARKED, said("a", "Odd")),
    Case(
        "SF280 thoughts that the template leaves out",
        chats(said("a", "<think>\nx y\n</think>\n\nb", "c", "d")),
        options=ALL,
        tokenizer=Chat("qwen"),
        row=20,
    ),
    Case(
        "SF283 system message the template refuses",
        chats(said("Hello", "Paris.", system="Be kind.")),
        options=ALL,
        tokenizer=Chat("gemma"),
        row=20,
    ),
    Case("SF272 answers in a wrong order", chats(said("a", "b")[::-1]), options=ALL, row=20),
    Case(
        "SF272 role nobody knows",
        chats([{"role": "wizard", "content": "a"}, *said("a", "b")]),
        options=ALL,
        row=20,
    ),
    Case("SF270 dialogue without messages", chats([]), options=ALL, row=20),
    Case(
        "SF202 messages as text",
        [{"messages": f"hello {n}"} for n in range(20)],
        options="--task sft",
    ),
    Case(
        "SF286 augmenting function that fails",
        {"a.jsonl": prompts(0), "own_fails.py": "def change(text, rng):\n    return text[1000]\n"},
        options="--augmentation-factor 2 --set augment.function=own_fails:change",
        row=0,
    ),
    Case("SF289 changes without a factor", prompts(0), options="--set augment.changes=typos"),
    Case(
        "SF296 scorer that fails",
        {"a.jsonl": prompts(0), "own_scorer.py": "def score(expected, got):\n    return 1 / 0\n"},
        options="--set generate.scorer=own_scorer:score",
    ),
]
