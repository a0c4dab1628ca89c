"""What is silenced while a model is loaded is afterwards as the user had it."""

from __future__ import annotations

import pytest
from transformers.utils import logging

from surefit.models.quiet_transformers import quiet_transformers


@pytest.mark.parametrize("bars", [True, False])
def test_bars_and_verbosity_are_put_back(bars: bool) -> None:
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    (logging.enable_progress_bar if bars else logging.disable_progress_bar)()
    logging.set_verbosity_info()
    try:
        with quiet_transformers():
            assert not logging.is_progress_bar_enabled()
            assert logging.get_verbosity() == logging.ERROR
        assert logging.is_progress_bar_enabled() == bars
        assert logging.get_verbosity() == logging.INFO
    finally:
        (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
        logging.set_verbosity(verbosity)
