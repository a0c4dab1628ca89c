"""Dialogues to tokens; no token crosses the start or the end of an answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from surefit.encode.text.messages import Message
from surefit.encode.text.template_rendering import (
    ANSWERS_NOT_FOUND,
    DATE,
    TEMPLATE_REFUSES_ROW,
    AnswerSpan,
    Template,
    TemplateError,
)
from surefit.encode.text.templates import choose_template
from surefit.encode.text.tokenizer import adds_bos
from surefit.findings import Finding, rule

UNUSABLE_TEMPLATE = rule(
    "SF274",
    "error",
    "unusable template",
    why="It is not valid Jinja, needs what the sandbox forbids, or fails on a dialogue.",
    fix="Correct it, or choose another one with template.",
)

TEMPLATE_CANNOT_BE_MASKED = rule(
    "SF275",
    "error",
    "answers not found in the template",
    why="For completion-only loss, the exact position of every answer must be known.",
    fix="Let the template write answers unchanged, or mark them with {% generation %}.",
)

TEMPLATE_USED = rule(
    "SF278",
    "info",
    "template",
    why="It determines the text that the model is trained on, and is saved with the model.",
    fix="Set template to plain, chat or another one if this one is wrong.",
)

EOS_ADDED = rule(
    "SF282",
    "fixed",
    "eos added after answers",
    why="Without a labelled end token, the model never learns to stop.",
    fix="Nothing to do, or use a template that writes the tokenizer's eos token.",
)


Dialogue = tuple[Sequence[Message], Any]
"""Messages, and the tools offered in them."""

Part = tuple[str, AnswerSpan | None]
"""A part of a text, and its AnswerSpan if it is an answer."""

_SAMPLE = 8
_QUESTION: Message = {"role": "user", "content": "Hi"}
_ANSWER: Message = {"role": "assistant", "content": "Hello"}


@dataclass(frozen=True)
class DialogueTokens:
    """A dialogue's tokens, which of them have a label, and where the last answer starts.

    If an answer is to be generated, it starts after all of them.
    """

    ids: list[int]
    labelled: list[bool]
    last_answer: int
    sizes: tuple[int, ...]
    """The number of tokens before the first answer, in it, between it and the next, and so on."""
    whole: bool = True
    """Whether the text contains every answer completely."""


class DialogueTokenizer:
    """Turns dialogues into tokens with one template.

    The text is split at the start and the end of every answer, and each part is tokenized
    separately, so that prompts have the same tokens in training and generation. An answer ends
    with the template's end token, else with eos. A text starts with at most one bos.
    """

    def __init__(self, template: Template) -> None:
        self.template = template
        self._tokenizer = template.tokenizer
        self._bos = [self._tokenizer.bos_token_id] if adds_bos(self._tokenizer) else []
        newline, joined, alone = self.plain_ids(["\n", "\na", "a"])
        self._puts_space_first = joined != newline + alone
        self._known_leads: dict[str, list[int]] = {}

    def plain_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, without special tokens."""
        ids = self._tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return [list(row) for row in ids]

    def _part_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each part of one text."""
        return self._own_ids(texts, self.plain_ids(self.asked(texts)))

    def asked(self, texts: Sequence[str]) -> list[str]:
        """The text to tokenize for each part of one text.

        SentencePiece adds a space before a text, so a part is tokenized after a lead: the special
        token that ends the previous part, else a line break.
        """
        return [lead + text for lead, text in zip(self._leads(texts), texts, strict=True)]

    def _leads(self, texts: Sequence[str]) -> list[str]:
        if not self._puts_space_first:
            return [""] * len(texts)
        return ["", *(self._end_of(text) for text in texts[:-1])]

    def _own_ids(self, texts: Sequence[str], asked: Sequence[list[int]]) -> list[list[int]]:
        """The tokens of each part, from those of its `asked` text."""
        if not self._puts_space_first:
            return list(asked)
        leads = [self._lead_ids(lead) for lead in self._leads(texts)]
        return [
            ids[len(lead) :] if ids[: len(lead)] == lead else self.plain_ids([text])[0]
            for text, lead, ids in zip(texts, leads, asked, strict=True)
        ]

    def _lead_ids(self, lead: str) -> list[int]:
        if lead not in self._known_leads:
            self._known_leads[lead] = self.plain_ids([lead])[0] if lead else []
        return self._known_leads[lead]

    def _end_of(self, text: str) -> str:
        known = self.template.special_tokens
        return next((token for token in known if text.endswith(token)), "\n")

    def tokenize(
        self,
        messages: Sequence[Message],
        tools: Any = None,
        generation: bool = False,
        limit: int | None = None,
    ) -> DialogueTokens:
        """The tokens of a dialogue; with `limit`, the start of the user's text is truncated.

        If that text is too short, the row is still longer than the limit.
        """
        cuts = self.cut(messages, tools, generation)
        ids = self.plain_ids(self.asked([part for part, _ in cuts]))
        return self.join(cuts, ids, messages, tools, generation, limit)

    def cut(self, messages: Sequence[Message], tools: Any, generation: bool) -> list[Part]:
        """The text of a dialogue, split where answers start and end."""
        text, turns = self.template.find_answers(
            self.template.prepared(messages), tools, generation
        )
        if turns and not generation:  # nothing after the last answer is read
            text = text[: turns[-1].end]
        return list(_cut(text, turns))

    def join(
        self,
        cuts: Sequence[Part],
        ids: Sequence[list[int]],
        messages: Sequence[Message],
        tools: Any,
        generation: bool,
        limit: int | None = None,
    ) -> DialogueTokens:
        """The tokens of a dialogue from those of the `asked` texts of its parts."""
        messages = self.template.prepared(messages)
        parts = self._own_ids([part for part, _ in cuts], ids)
        for place, (_, turn) in enumerate(cuts):
            if turn is not None and not turn.ended:
                parts[place] = [*parts[place], self._tokenizer.eos_token_id]
        if parts[0][:1] != self._bos:
            parts[0] = self._bos + parts[0]
        if limit is not None:
            over = sum(map(len, parts)) - limit
            parts[0] = self._without_beginning(cuts[0][0], parts[0], over, messages, tools)
        tokens = _join(parts, [turn for _, turn in cuts], messages)
        return replace(tokens, last_answer=len(tokens.ids)) if generation else tokens

    def _without_beginning(
        self, text: str, ids: list[int], over: int, messages: Sequence[Message], tools: Any
    ) -> list[int]:
        """The tokens of the first part without the first `over` tokens of the user's content."""
        user = next(p for p, message in enumerate(messages) if message["role"] == "user")
        before, content = self.template.find_prompt(messages[: user + 1], user, tools)
        if not text.startswith(before + content):
            raise TemplateError(
                ANSWERS_NOT_FOUND, "the prompt to truncate is not found in the text"
            )
        rest, behind = text[len(before) :], text[len(before) + len(content) :]
        head, tail, kept = self._part_ids([before, rest, behind])
        if head[:1] != self._bos:
            head = self._bos + head
        over += len(head) + len(tail) - len(ids)  # split in two, it may have other tokens
        return head + tail[min(max(over, 0), len(tail) - len(kept)) :]

    def shorten(
        self, dialogue: Dialogue, tokens: DialogueTokens, limit: int, generation: bool
    ) -> DialogueTokens | None:
        """The dialogue within the limit: without its oldest turns, then the start of the prompt.

        The system message and the last answer are kept; None if these are too long.
        """
        messages, tools = dialogue
        system = [message for message in messages[:1] if message["role"] == "system"]
        users = [place for place, message in enumerate(messages) if message["role"] == "user"]
        for place in users[1:]:
            answers = sum(message["role"] == "assistant" for message in messages[:place])
            if len(tokens.ids) - sum(tokens.sizes[: 2 * answers]) > limit:
                continue  # too long even without the system message
            shorter = self.tokenize([*system, *messages[place:]], tools, generation)
            if len(shorter.ids) <= limit:
                return shorter
        rest = [*system, *messages[users[-1] :]]
        shorter = self.tokenize(rest, tools, generation, limit)
        return shorter if len(shorter.ids) <= limit else None


def _cut(text: str, turns: Sequence[AnswerSpan]) -> Iterator[Part]:
    """The parts of the text: before the first answer, the answer, between it and the next, …"""
    place = 0
    for turn in turns:
        yield text[place : turn.start], None
        yield text[turn.start : turn.end], turn
        place = turn.end
    if place < len(text) or not turns:
        yield text[place:], None


def _join(
    parts: Sequence[list[int]], turns: Sequence[AnswerSpan | None], messages: Sequence[Message]
) -> DialogueTokens:
    answers = (message for message in messages if message["role"] == "assistant")
    ids: list[int] = []
    labelled: list[bool] = []
    last = None
    for part, turn in zip(parts, turns, strict=True):
        wanted = turn is not None and next(answers).get("weight") != 0
        last = last if turn is None else len(ids)
        ids += part
        labelled += [wanted] * len(part)
    whole = all(turn is None or turn.whole for turn in turns)
    sizes = tuple(len(part) for part in parts)
    return DialogueTokens(ids, labelled, len(ids) if last is None else last, sizes, whole)


def fit_template(
    asked: str | None, tokenizer: Any, dialogues: Iterable[Dialogue]
) -> tuple[dict[str, Any], list[Finding]]:
    """The template as an Encoder keeps it, tested on a few rows, and findings about it."""
    name, text = choose_template(asked, tokenizer)
    template = Template(text, tokenizer=tokenizer)
    try:
        end = _find_end(template)
        template = replace(template, end=end, joins_system=_refuses_system(template))
    except TemplateError as fault:
        broken = (
            UNUSABLE_TEMPLATE if fault.rule == TEMPLATE_REFUSES_ROW else TEMPLATE_CANNOT_BE_MASKED
        )
        raise broken.error(f"The template {name!r} cannot be used: {fault.message}.") from None
    date = f"; the current date is always {DATE}" if template.asks_for_the_date else ""
    ending = repr(end or tokenizer.eos_token)
    message = f"The template is {name!r}; answers end with {ending}{date}."
    found = [TEMPLATE_USED.finding(message)]
    if end is None:
        if tokenizer.eos_token_id is None:
            message = f"The template {name!r} writes no end token, and the tokenizer has no eos."
            raise TEMPLATE_CANNOT_BE_MASKED.error(message)
        message = f"The template {name!r} ends answers without a special token; eos is added."
        found.append(EOS_ADDED.finding(message))
    _test_template(template, name, dialogues)
    return {"name": name, "text": text, "end": end, "joins_system": template.joins_system}, found


def _find_end(template: Template) -> str | None:
    """The special token that the template writes after an answer, if there is one."""
    text, turns = template.find_answers([_QUESTION, _ANSWER])
    if len(turns) != 1 or _ANSWER["content"] not in text:
        raise TemplateError(ANSWERS_NOT_FOUND, "its text does not contain the answer")
    inside, behind = text[: turns[0].end], text[turns[0].end :].lstrip()
    for token in template.special_tokens:
        if behind.startswith(token) or inside.endswith(token):
            ids = template.tokenizer(token, add_special_tokens=False)["input_ids"]
            return token if len(ids) == 1 else None
    return None


def _refuses_system(template: Template) -> bool:
    """Whether the template raises on a system message, or omits it."""
    system = "Be brief"
    try:
        return system not in template.render(
            [{"role": "system", "content": system}, _QUESTION, _ANSWER]
        )
    except TemplateError:
        return True


def _test_template(template: Template, name: str, dialogues: Iterable[Dialogue]) -> None:
    """Tokenize a few rows in parts and as a whole: both must have the same text."""
    coder = DialogueTokenizer(template)
    worked, faults = 0, []
    for (messages, tools), _ in zip(dialogues, range(_SAMPLE), strict=False):
        try:
            ids = coder.tokenize(messages, tools).ids
            text, turns = template.find_answers(template.prepared(messages), tools)
        except TemplateError as fault:
            faults.append(fault)
            continue
        worked += 1
        if all(turn.ended for turn in turns):
            whole = coder.plain_ids([text[: turns[-1].end]])[0]
            if _without_spaces(ids, template) != _without_spaces(whole, template):
                message = f"The template {name!r}: tokenized in parts, the text of a row changes."
                raise TEMPLATE_CANNOT_BE_MASKED.error(message)
    if faults and not worked:
        raise TEMPLATE_CANNOT_BE_MASKED.error(
            f"The template {name!r} fails on every row: {faults[0].message}."
        )


def _without_spaces(ids: Sequence[int], template: Template) -> str:
    text = template.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    return "".join(text.replace(template.tokenizer.bos_token or " ", "").split())
