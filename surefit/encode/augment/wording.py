"""wording: the same instruction or question with other words around it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np

from surefit.encode.augment.words import free_words

QUESTIONS = (
    "Question: {}",
    "Q: {}",
    "Please answer this question: {}",
    "I have a question. {}",
    "Answer the following question.\n{}",
    "{}\nPlease answer.",
)
REQUESTS = (
    "Please {}",
    "Could you {}",
    "I would like you to {}",
)
ANY = (
    "Task: {}",
    "Here is the task:\n{}",
    "Please answer the following.\n{}",
    "{}\nThank you.",
    "Instruction: {}",
)
_ASKS = re.compile(
    r"(who|whose|whom|what|when|where|which|why|how|is|are|was|were|do|does|did|can|could|will|"
    r"would|should|has|have|had|may|might)\b",
    re.IGNORECASE,
)
_VERBS = re.compile(
    r"(add|analy[sz]e|answer|arrange|calculate|change|choose|classify|compare|complete|compose|"
    r"compute|convert|correct|count|create|decide|define|describe|design|determine|discuss|edit|"
    r"estimate|evaluate|explain|extract|fill|find|fix|generate|give|identify|list|make|match|name|"
    r"order|outline|pick|predict|propose|provide|rank|recommend|replace|rephrase|respond|reverse|"
    r"rewrite|say|select|show|simplify|solve|sort|state|suggest|summari[sz]e|tell|translate|turn|"
    r"use|write)\s",
    re.IGNORECASE,
)


def change_wording(
    text: str, kept: Collection[str], rng: np.random.Generator, frames: Sequence[str] = ()
) -> str:
    """The text in one of the frames that fit it, or in one of the user's `frames`.

    >>> change_wording("Name a river.", (), np.random.default_rng(0), ())
    'Could you name a river?'
    """
    stripped = text.strip()
    suited = frames or _frames_for(stripped)
    frame = suited[int(rng.integers(len(suited)))]
    inside = stripped
    if not frames and frame in REQUESTS and free_words(stripped, kept)[:1]:
        inside = stripped[0].lower() + stripped[1:]
        if frame.startswith("Could"):
            inside = re.sub(r"\.\Z", "?", inside)
    return frame.replace("{}", inside, 1)


def _frames_for(text: str) -> tuple[str, ...]:
    if text.endswith("?") or _ASKS.match(text):
        return QUESTIONS
    return (*ANY, *REQUESTS) if _VERBS.match(text) else ANY
