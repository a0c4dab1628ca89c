"""A trained module as an ONNX file, compared with the module before it is called written."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from surefit.data.table import Table
from surefit.encode.encoded_row import RowFaultError, SkipRowError
from surefit.errors import UsageError, describe_error
from surefit.models.call import Call, Names, match_arguments
from surefit.pipeline.pipeline import Pipeline

NEEDED = ("onnx", "onnxruntime", "onnxscript")
BATCHES = (2, 3)
"""Rows of the batches that the file is compared with the module on."""
LOOK_AT = 64
TOLERANCE = 1e-4
"""Largest difference of an output, relative to the largest output."""
ONE_FILE_BYTES = 1 << 30
"""A file of the format holds up to 2 GB; larger weights are put in files beside it."""


def require_onnx() -> None:
    """Refuse to begin without the packages that write and run ONNX."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"To write ONNX needs {', '.join(missing)}, which {_is(missing)} not installed.",
            "Install the extra: pip install 'surefit[onnx]'",
        )


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def write_onnx(pipeline: Pipeline, table: Table, path: Path) -> float:
    """Write the module with a free batch size and sequence length; gives the largest difference.

    The difference is that of the file's outputs, computed by onnxruntime, and the module's, on
    two batches of the table's rows, relative to the largest output.
    """
    batches = [*_batches(pipeline, table)]
    module, call = pipeline.module.eval(), _call(pipeline, batches[0])
    columns = list(dict.fromkeys(call.arguments.values()))
    given = [{name: batch[name] for name in columns if name in batch} for batch in batches]
    expected = [_outputs(module, call, batch) for batch in given]
    _convert(module, call, given[-1], [*expected[0]], pipeline, path)
    differences = [
        _compare(path, batch, wanted) for batch, wanted in zip(given, expected, strict=True)
    ]
    return max(differences)


def _batches(pipeline: Pipeline, table: Table) -> Iterator[dict[str, Any]]:
    """Batches of different sizes, of rows as they are read to predict for."""
    predicting = pipeline.for_prediction
    accepted = predicting.accept(table)
    rows: list[Mapping[str, Any]] = []
    encode = replace(predicting, encoder=accepted.encoder).encode_row
    for raw in accepted.table.rows(range(min(LOOK_AT, accepted.table.num_rows))):
        try:
            rows.append(encode(raw)[0].columns)
        except (SkipRowError, RowFaultError):
            continue
    if not rows:
        raise UsageError("No row can be read to try the file with.", "Pass rows with --data.")
    rows.sort(key=lambda row: max((len(v) for v in row.values() if np.ndim(v)), default=1))
    for size, chosen in zip(BATCHES, (rows, rows[::-1]), strict=True):  # short rows, and long ones
        yield predicting.collate([chosen[n % len(chosen)] for n in range(size)])


def _call(pipeline: Pipeline, batch: Mapping[str, Any]) -> Call:
    """Which columns the module's forward is given, without what only training computes."""
    return match_arguments(pipeline.module, list(batch), Names(pipeline.call.arguments))[0]


def _outputs(module: Any, call: Call, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors that the module returns, by name; one alone is the logits."""
    import torch

    with torch.no_grad():
        made = call(module, batch)
    raw = getattr(made, "raw", made)
    if isinstance(raw, torch.Tensor):
        return {"logits": raw}
    parts = raw.items() if isinstance(raw, Mapping) else enumerate(raw)
    named = {n if isinstance(n, str) else f"output_{n}": part for n, part in parts}
    return {name: part for name, part in named.items() if isinstance(part, torch.Tensor)}


def _convert(
    module: Any,
    call: Call,
    batch: Mapping[str, Any],
    outputs: Sequence[str],
    pipeline: Pipeline,
    path: Path,
) -> None:
    import torch

    class Plain(torch.nn.Module):
        """The module with its columns as positions, and its tensors as a tuple."""

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *columns: Any) -> Any:
            made = _outputs(self.module, call, dict(zip(batch, columns, strict=True)))
            return tuple(made[name] for name in outputs)

    num_bytes = sum(w.numel() * w.element_size() for w in module.parameters())
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            torch.onnx.export(
                Plain().eval(),
                tuple(batch.values()),
                str(path),
                input_names=list(batch),
                output_names=list(outputs),
                dynamic_shapes={
                    "columns": tuple(_free_axes(n, v, pipeline) for n, v in batch.items())
                },
                external_data=num_bytes > ONE_FILE_BYTES,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # torch raises its own of many kinds
        raise UsageError(
            f"torch cannot write {type(module).__name__} as ONNX: {describe_error(error)[:300]}",
            "Replace the operation that it names in the module's forward.",
        ) from error


def _free_axes(name: str, value: Any, pipeline: Pipeline) -> dict[int, Any]:
    """The axes of a column that differ from batch to batch: rows, and steps of sequences."""
    import torch

    spec = pipeline.fields.get(name)
    axes = spec.axes if spec is not None else ("time",) * (value.ndim - 1)  # of a mask
    steps = [place for place, axis in enumerate(axes, start=1) if "time" in axis]
    return {place: torch.export.Dim.AUTO for place in (0, *steps) if place < value.ndim}


def _compare(path: Path, batch: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """The largest difference between what the file and the module compute."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    read = {node.name for node in session.get_inputs()}
    arrays = {name: value.cpu().numpy() for name, value in batch.items() if name in read}
    shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in arrays.items())
    try:
        made = session.run(list(expected), arrays)
    except Exception as error:
        raise UsageError(
            f"The ONNX file does not run on {shapes}: {describe_error(error)[:300]}",
            "Do not fix the batch size or the length in the module's forward.",
        ) from error
    worst = 0.0
    for (name, wanted), got in zip(expected.items(), made, strict=True):
        right = wanted.cpu().numpy().astype(np.float64)
        if right.shape != got.shape:
            worst = float("inf")
            found = f"has the shape {list(got.shape)}, the module's {list(right.shape)}"
        else:
            size = max(float(np.abs(right).max(initial=0)), 1e-6)
            worst = max(worst, float(np.abs(got - right).max(initial=0)) / size)
            found = f"differs from the module's by {worst:.2g} of the largest value"
        if not worst <= TOLERANCE:
            raise UsageError(
                f"The ONNX file's {name} {found}, on {shapes}.",
                "Look for values in the module's forward that Python computes from the data.",
            )
    return worst
