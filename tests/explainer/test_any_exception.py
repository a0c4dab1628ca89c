"""No exception makes `explain` fail, whatever its class overrides and its frames hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

import surefit
from surefit.explainer import Explanation

MEMORY = "CUDA out of memory"


def check(error: BaseException) -> Explanation:
    """Explain an exception, and print the result in every way."""
    found = surefit.explain(error)
    str(found).encode()
    json.dumps(found.as_dict(), allow_nan=False)
    return found


class FailingTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class FailingCauseError(Exception):
    @property
    def __cause__(self) -> None:  # type: ignore[override]
        raise ValueError("no cause")


@pytest.mark.parametrize("kind", [FailingTextError, FailingCauseError, ValueError])
def test_classes_that_override_anything_are_read(kind: type[Exception]) -> None:
    assert check(kind(MEMORY)).known is (kind is ValueError)
    with pytest.raises(OSError, match="outer") as caught:
        raise_from(kind(MEMORY))
    assert check(caught.value).known is (kind is ValueError)


def raise_from(first: Exception) -> None:
    try:
        raise first
    except Exception as error:
        raise OSError("outer") from error


def test_chains_may_be_cyclic_or_deep() -> None:
    first, second = ValueError("a"), ValueError(MEMORY)
    first.__cause__, second.__cause__ = second, first
    assert check(first).code == "SF650"
    first.__cause__ = first
    assert not check(first).known
    error: BaseException = ValueError(MEMORY)
    for number in range(3000):
        outer = ValueError(str(number))
        outer.__cause__ = error
        error = outer
    assert check(error).code == "SF650"


def test_groups_may_be_deep() -> None:
    group = ExceptionGroup("group", [ValueError(MEMORY)])
    assert check(group).code == "SF650"
    for _ in range(2000):
        group = ExceptionGroup("group", [group])
    check(group)


def test_attributes_may_have_any_type() -> None:
    error = SyntaxError("bad")
    error.text, error.lineno, error.offset = 5, "a", object()  # type: ignore[assignment]
    check(error)
    other = ValueError(MEMORY)
    other.__notes__ = [object(), FailingTextError()]  # type: ignore[list-item]
    assert check(other).code == "SF650"


def test_a_message_of_any_length_is_read() -> None:
    assert check(ValueError("a" * 10_000_000)).evidence.line.startswith("ValueError: aaa")
    try:
        raise ValueError(MEMORY)
    except ValueError as first:
        error = ValueError("x" * 20_000_000)
        error.__cause__ = first
    assert check(error).code == "SF650"  # the first of the chain, however long the last is


class PretendedTensor:
    """A class that seems to be of torch and has no shape."""

    __module__ = "torch.pretended"

    @property
    def shape(self) -> None:
        raise ValueError("no shape")


class RefusingTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no function")


class BatchEncoding:
    """A class of one's own with the name of a batch."""

    def items(self) -> None:
        raise ValueError("no items")


def test_frames_may_hold_anything() -> None:
    def fail() -> None:
        pretended, batch = PretendedTensor(), BatchEncoding()  # noqa: F841
        lazy = nn.LazyLinear(3).weight  # noqa: F841
        nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])  # noqa: F841
        refusing = torch.zeros(2).as_subclass(RefusingTensor)  # noqa: F841
        mapping = {5: torch.zeros(2), "inner": torch.zeros(3, 4)}  # noqa: F841
        plain = torch.zeros(2, 3)  # noqa: F841
        raise ValueError(MEMORY)

    with pytest.raises(ValueError, match=MEMORY) as caught:
        fail()
    found = check(caught.value)
    assert found.code == "SF650"
    assert found.shapes == {"inner": (3, 4), "plain": (2, 3)}
