"""A trained module as an ONNX file, compared with the module before it is called written."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from surefit.data.table import Table
from surefit.errors import UsageError, describe_error
from surefit.inputs.encoded_row import RowFaultError
from surefit.models.call import Call, refuse_without_targets
from surefit.pipeline.pipeline import Pipeline

NEEDED = ("onnx", "onnxruntime", "onnxscript")
BATCHES = (2, 3)
"""Rows of the batches that the file is compared with the module on."""
LOOK_AT = 64
TOLERANCE = 1e-4
"""Largest difference of an output, relative to the largest output."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ONE_FILE_BYTES = 1 << 30
"""A file of the format holds up to 2 GB; larger weights are put in files beside it."""


def require_onnx() -> None:
    """Refuse to begin without the packages that write and run ONNX."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"To write ONNX needs {', '.join(missing)}, not installed here.",
            "Install the extra: pip install 'surefit[onnx]'",
        )


def write_onnx(pipeline: Pipeline, table: Table, path: Path) -> float:
    """Write the module with a free batch size and sequence length; gives the largest difference.

    The difference is that of the file's outputs, computed by onnxruntime, and the module's, on
    two batches of the table's rows, relative to the largest output.
    """
    refuse_without_targets(pipeline.call, pipeline.module)
    batches = [*_batches(pipeline, table)]
    module, call = pipeline.module.eval(), pipeline.for_prediction.call
    columns = list(dict.fromkeys(call.arguments.values()))
    given = [{name: batch[name] for name in columns if name in batch} for batch in batches]
    expected = [_outputs(module, call, batch) for batch in given]
    _convert(module, call, given[-1], [*expected[0]], pipeline, path)
    differences = [
        _compare(path, batch, wanted) for batch, wanted in zip(given, expected, strict=True)
    ]
    return max(differences)


def _batches(pipeline: Pipeline, table: Table) -> Iterator[dict[str, Any]]:
    """Yield batches of different sizes, of rows as they are read to predict for."""
    predicting = pipeline.for_prediction
    accepted = predicting.accept(table)
    rows: list[Mapping[str, Any]] = []
    encode = replace(predicting, encoder=accepted.encoder).encode_row
    for raw in accepted.table.rows(range(min(LOOK_AT, accepted.table.num_rows))):
        try:
            rows.append(encode(raw)[0].columns)
        except RowFaultError:
            continue
    if not rows:
        raise UsageError("No row can be read to try the file with.", "Pass rows with --data.")
    rows.sort(key=lambda row: max((len(v) for v in row.values() if np.ndim(v)), default=1))
    for size, chosen in zip(BATCHES, (rows, rows[::-1]), strict=True):  # short rows, and long ones
        yield predicting.collate([chosen[n % len(chosen)] for n in range(size)])


def _outputs(module: Any, call: Call, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors that the module returns, by name; the one that predictions use is the
    first.

    Without names, that one is `logits`, and the others are numbered.
    """
    import torch

    with torch.no_grad():
        made = call(module, batch)
    picked = call.reads.pick(getattr(made, "raw", made))
    used = {} if picked.key is None else {picked.key: picked.tensors[picked.key]}
    return {
        key if isinstance(key, str) else "logits" if key in used else f"output_{key}": part
        for key, part in {**used, **picked.others}.items()
    }


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
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), _quiet_torch():
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
            f"torch cannot write {type(module).__name__} as ONNX: {_first_cause(error)}",
            "Replace the operation that it names in the module's forward.",
        ) from error


@contextmanager
def _quiet_torch() -> Iterator[None]:
    """Hide the log of torch's exporter, which lists operations of libraries that are absent."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _first_cause(error: BaseException) -> str:
    """Return the error that the others were raised from, in one line without colours."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(COLOURS.sub("", describe_error(error)).split())[:300]


def _free_axes(name: str, value: Any, pipeline: Pipeline) -> dict[int, Any]:
    """Return the axes of a column that differ from batch to batch: rows, and steps of sequences."""
    import torch

    spec = pipeline.fields.get(name)
    axes = spec.axes if spec is not None else ("time",) * (value.ndim - 1)  # of a mask
    steps = [place for place, axis in enumerate(axes, start=1) if "time" in axis]
    return {place: torch.export.Dim.AUTO for place in (0, *steps) if place < value.ndim}


def _compare(path: Path, batch: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Return the largest difference between what the file and the module compute."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # its errors are raised as well
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    read = {node.name for node in session.get_inputs()}
    arrays = {name: value.cpu().numpy() for name, value in batch.items() if name in read}
    shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in arrays.items())
    try:
        made = session.run(list(expected), arrays)
    except Exception as error:
        raise UsageError(
            f"The ONNX file does not run on {shapes}: {_first_cause(error)}",
            "Do not fix the batch size or the length in the module's forward, and leave out layers "
            "that torch writes for one size of the input only, such as AdaptiveMaxPool2d.",
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
