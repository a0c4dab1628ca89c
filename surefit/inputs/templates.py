"""The setting `template`: a known name, Jinja text, or a file of it."""

from __future__ import annotations

from pathlib import Path

from surefit.errors import UsageError

CHAT = "chat"
PLAIN = "plain"
TEMPLATES = {
    PLAIN: "{% for message in messages %}{{ message.content }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}"
    "{{ eos_token if message.role == 'assistant' else '\\n' }}{% endfor %}",
    "chatml": "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "alpaca": "{% for message in messages %}{% if message.role == 'assistant' %}"
    "{{ '### Response:\\n' + message.content }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}"
    "{{ eos_token + '\\n\\n' }}"
    "{% elif message.role == 'user' %}"
    "{{ '### Instruction:\\n' + (message.instruction or message.content) + '\\n\\n' }}"
    "{% if message.input %}{{ '### Input:\\n' + message.input + '\\n\\n' }}{% endif %}"
    "{% else %}{{ message.content + '\\n\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}",
}
"""The templates with a name; `chat` is the tokenizer's own."""


def is_file_name(asked: str) -> bool:
    """Return whether the value of `template` is a file name."""
    return asked not in (CHAT, *TEMPLATES) and "{{" not in asked and "{%" not in asked


def read_asked(asked: str | None) -> str | None:
    """Return value of `template` in the config: a known name, or Jinja text, read from a file."""
    if asked is None or not is_file_name(asked):
        return asked
    if not Path(asked).is_file():
        raise UsageError(
            f"template is {asked!r}, which is neither a file, nor Jinja text, nor one of "
            f"{', '.join((CHAT, *TEMPLATES))}.",
            "Use one of these names, a file, or Jinja text in quotes.",
        )
    try:
        return Path(asked).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{asked} is not UTF-8 text.", "Save it as UTF-8.") from None
