"""Names of code that do not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from surefit.errors import UsageError
from surefit.user_code import NamedCode


def test_a_wrong_name_gets_the_nearest_and_all_others(tmp_path: Path) -> None:
    (tmp_path / "own_names.py").write_text("import os\nSPEC = 3\n\n\ndef make():\n    pass\n")
    with pytest.raises(UsageError, match=r"has no 'SPEX'\. Did you mean 'SPEC'\?") as caught:
        NamedCode(tmp_path).find("own_names:SPEX")
    assert caught.value.fix == "It has: SPEC, make."
