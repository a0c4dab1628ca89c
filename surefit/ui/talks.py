"""Conversations of the page with the model of a finished run: the machinery of `surefit chat`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from surefit.errors import UsageError

if TYPE_CHECKING:
    from surefit.pipeline.conversation import Talk
    from surefit.run.run_folder import Run


class Talks:
    """One model to talk to at a time; another run's takes its place in memory."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: tuple[Any, Talk] | None = None

    def answer(
        self, run: Run, key: Any, asked: Mapping[str, Any], write: Callable[[str], None]
    ) -> None:
        """Write the answer to a conversation, as it is made. `key` is another for other weights."""
        from surefit.pipeline.conversation import open_talk

        history = _messages(asked.get("history"))
        if not self._lock.acquire(blocking=False):
            raise UsageError("Another answer is being written.", "Wait until it has ended.")
        try:
            if self._open is None or self._open[0] != key:
                self._open = None  # the memory of the other model
                self._open = key, open_talk(run.open_pipeline(), run.config.generate)
            talk = self._open[1]
            if asked.get("system"):
                talk = talk.with_system(str(asked["system"]))
            talk = replace(talk, history=history if talk.dialogues else history[-1:])
            if talk.answer(write).cut_off:
                write(" (cut off)")
        finally:
            self._lock.release()


def _messages(history: Any) -> tuple[Mapping[str, str], ...]:
    """Return what was said as messages, the last of them the user's."""
    if not isinstance(history, Sequence) or isinstance(history, str) or not history:
        raise UsageError("There is no message to answer.", "Write one.")
    if not all(isinstance(each, str) for each in history) or len(history) % 2 == 0:
        raise UsageError(
            "Expected texts, the first and the last of them the user's.", "Start again."
        )
    roles = ("user", "assistant")
    return tuple({"role": roles[n % 2], "content": text} for n, text in enumerate(history))
