"""Code of one's own on an emulated device: what is said, where, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
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


def own(forward: Any, **parts: nn.Module) -> nn.Module:
    """A module of one's own with this forward."""
    module = type("Own", (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        setattr(module, name, part)
    return module


def codes(module: nn.Module, **batch: Any) -> list[str]:
    return [code for code, _ in found(module, **batch)]


SEQUENCES = torch.randn(3, 5, 4)


def test_lengths_of_packed_sequences_are_on_the_cpu() -> None:
    def packed(move: Any) -> nn.Module:
        def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
            lengths = move((x[..., 0] < 99).sum(1))
            rows = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return self.rnn(rows)[1][0][-1]

        return own(forward, rnn=nn.LSTM(4, 4, batch_first=True))

    assert codes(packed(lambda lengths: lengths.cpu()), x=SEQUENCES) == ["SF736"]
    assert codes(packed(lambda lengths: [5] * len(lengths)), x=SEQUENCES) == []
    notes = check_device_code(
        packed(lambda lengths: lengths), lambda model, b: model(**b), {"x": SEQUENCES}, None
    )
    assert [each.code for each in notes] == ["SF735"]
    assert "lengths.cpu()" in notes[0].fix


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_first_state_of_the_cpu_is_found(cell: Any) -> None:
    def begun(make: Any) -> nn.Module:
        def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
            first = make(x)
            return self.rnn(x, (first, first) if cell is nn.LSTM else first)[0][:, -1]

        return own(forward, rnn=cell(4, 4, batch_first=True))

    assert codes(begun(lambda x: torch.zeros(1, len(x), 4)), x=SEQUENCES) == ["SF735"]
    assert codes(begun(lambda x: x.new_zeros(1, len(x), 4)), x=SEQUENCES) == []


DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_code_that_follows_what_is_available_is_right() -> None:
    places: list[Any] = [
        lambda x: torch.ones(4, device=DEVICE),
        lambda x: torch.ones(4).to(DEVICE),
        lambda x: torch.ones(4, device="cuda" if x.is_cuda else "cpu"),
        lambda x: torch.ones(4, device="cuda" if torch.cuda.is_available() else "cpu"),
        lambda x: torch.ones(4).cuda() if torch.cuda.is_available() else torch.ones(4),
        lambda x: torch.ones(4, device=x.device.type),
        lambda x: torch.ones(4, device=x.get_device()),
        lambda x: torch.ones(4).type(x.type()),
        lambda x: torch.tensor([1.0] * 4, device=DEVICE),
        lambda x: torch.as_tensor([1.0] * 4, device=x.device),
        lambda x: x.new_tensor([1.0] * 4),
        lambda x: x.new_full((4,), 1.0),
    ]
    for place in places:
        assert codes(own(lambda self, x, place=place: x + place(x))) == [], places.index(place)
    assert codes(own(lambda self, x: x + torch.ones(4, device="cpu"))) == ["SF735"]
    assert torch.cuda.is_available.__module__ == "torch.cuda"


def test_a_scalar_of_the_cpu_is_fine_in_arithmetic_only() -> None:
    two = torch.tensor(2.0)
    for fine in (
        lambda self, x: x * two,
        lambda self, x: torch.where(x > 0, x, two),
        lambda self, x: x.masked_fill(x > 9, two),
        lambda self, x: x.clamp(max=two),
        lambda self, x: x.clone().fill_(two),
    ):
        assert codes(own(fine)) == []
    for mixed in (
        lambda self, x: x * torch.stack([two, x.mean()]).sum(),
        lambda self, x: x * torch.cat([two[None], x[0, :1]]).sum(),
        lambda self, x: x.index_select(1, torch.tensor(0)),
    ):
        assert codes(own(mixed)) == ["SF735"]


def test_printing_a_value_waits() -> None:
    assert codes(own(lambda self, x: (f"{x.mean():.3f}", x)[1])) == ["SF736"]
    assert codes(own(lambda self, x: (repr(x), x)[1])) == ["SF736"]


def test_what_evaluation_alone_does_is_tried() -> None:
    def only_in_evaluation(do: Any) -> nn.Module:
        return own(lambda self, x: x if self.training else do(x))

    assert codes(only_in_evaluation(lambda x: x + torch.zeros(4))) == ["SF735"]
    assert codes(only_in_evaluation(lambda x: (x.numpy(), x)[1])) == ["SF739"]
    assert codes(only_in_evaluation(lambda x: x.cpu())) == []  # evaluation may wait
    assert codes(own(lambda self, x: x if not self.training else x + torch.ones(4))) == ["SF735"]


def test_an_lstm_in_mixed_precision_is_healthy() -> None:
    """A GPU computes it, whatever the kernels of this CPU refuse."""
    module = own(lambda self, x: self.rnn(x)[0], rnn=nn.LSTM(4, 4, batch_first=True))
    batch = {"x": SEQUENCES}
    assert check_device_code(module, lambda model, b: model(**b), batch, torch.bfloat16) == []
