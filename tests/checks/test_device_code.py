"""Code of one's own on an emulated device: what is said, where, and what is left alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertModel

from surefit.checks.device_code import check_device_code, has_own_code

X = torch.randn(3, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.body(x))


def found(module: nn.Module, **batch: Any) -> list[tuple[str, int | None]]:
    given = batch or {"x": X}
    notes = check_device_code(module, lambda model, b: model(**b), given, None)
    return [(each.code, each.where.get("line")) for each in notes]


def test_a_module_is_left_as_it_was() -> None:
    module = Net().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    assert found(module) == []
    assert not module.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_what_a_library_does_inside_is_not_reported() -> None:
    """transformers reads values of an attention mask; the module that calls it cannot help it."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2}
            config = BertConfig(**sizes, num_hidden_layers=1, intermediate_size=8)
            self.bert, self.head = BertModel(config), nn.Linear(8, 2)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            hidden = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
            return self.head(hidden[:, 0])

    ids = torch.tensor([[3, 4, 5], [6, 7, 0]])
    assert found(Head(), input_ids=ids, attention_mask=(ids != 0).long()) == []
    assert has_own_code(Head())
    assert not has_own_code(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def test_a_line_is_named_once_and_every_line_is_named() -> None:
    class Waits(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = x * x.sum().item()
            return super().forward(x + torch.ones(4))

    first = Waits.forward.__code__.co_firstlineno
    assert found(Waits()) == [("SF736", first + 2), ("SF735", first + 3)]


def test_a_forward_that_cannot_be_emulated_is_said() -> None:
    class Exports(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.utils.dlpack.to_dlpack(x.detach())
            return super().forward(x)

    assert [code for code, _ in found(Exports())] == ["SF738"]


def test_one_row_is_tried_without_training() -> None:
    """A batch norm refuses one row in training."""
    assert found(Net(), x=X[:1]) == []
