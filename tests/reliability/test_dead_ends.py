"""What comes from outside and cannot be used ends in one sentence, not in an internal error."""

from __future__ import annotations

import pwd
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surefit.config import RunConfig, make_config
from surefit.core.files import home_folder
from surefit.data.formats.numpy_files import arrays_to_arrow
from surefit.data.remote_url import clean_url, is_url
from surefit.errors import FindingError, UsageError
from surefit.inputs.model_hints import from_processor


@pytest.mark.parametrize("url", ["http://[::1", "http://[x]y/a", "https://"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"is no URL|names no host"):
        clean_url(url)


def test_a_file_with_two_colons_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_url("zip::x.jsonl")
    Path("zip::x.jsonl").write_text("{}")
    assert not is_url("zip::x.jsonl")
    assert is_url("s3://bucket/zip::x.jsonl")


@pytest.mark.parametrize("key", ["model", "tokenizer", "output", "cache"])
@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_has_is_refused(key: str, name: str) -> None:
    with pytest.raises(UsageError, match="no name of a file has"):
        make_config({key: name})
    assert RunConfig(output="\udcff").output == "\udcff"  # a byte that is not UTF-8


def test_a_user_without_a_home_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(UsageError, match="has no home folder"):
        home_folder()


@pytest.mark.parametrize(
    "settings",
    [
        {"size": {"height": -1, "width": 10}},
        {"size": {"height": 10**9, "width": 10}},
        {"size": "x"},
        {"do_normalize": True, "image_mean": "x", "image_std": [1.0]},
    ],
)
def test_a_processor_of_the_wrong_shape_is_an_error_at_the_door(settings: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        from_processor(settings)


def test_an_archive_of_too_many_arrays_is_refused() -> None:
    arrays = {f"a{n}": np.zeros(1) for n in range(20_000)}
    with pytest.raises(FindingError, match="has 20000 columns; surefit reads up to 10000"):
        arrays_to_arrow(arrays, "x.npz")
