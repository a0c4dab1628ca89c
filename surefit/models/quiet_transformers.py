"""Silences the progress bars and load reports that transformers writes to our streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Turn off the progress bars and load reports of transformers inside the block."""
    from transformers.utils import logging

    before, shows_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if shows_bars:
            logging.enable_progress_bar()
