"""What must not change is as recorded; runs and quick plans compare themselves where they are made.

See tests/tasks/test_after_training.py for the runs, tests/faults/test_faults.py for the faults.
"""

from __future__ import annotations

from records.record import compare


def test_commands_of_the_pages_are_recorded() -> None:
    assert compare("commands", None) == []
