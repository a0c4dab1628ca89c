"""The reference of preference tuning: log-probabilities of answers under the model before training.

They are computed once, before step 1, and are one more column of the Store: no second model is in
memory while training. The cache has them by the rows, the weights, the precision and the layout of
batches, block by block, so that a stopped computation resumes and another run need not repeat it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.batches.branches import SIDES
from surefit.batches.field import Field
from surefit.core import files
from surefit.core.foreign import read_json
from surefit.data.cache import fingerprint, hash_bytes
from surefit.data.cache_entry import open_entry
from surefit.errors import FindingError, UsageError
from surefit.findings import rule
from surefit.inputs.store import Store
from surefit.models.lora import adapted_part, is_adapted, without_adapters
from surefit.pipeline.pipeline import Pipeline
from surefit.pipeline.row_groups import row_chunks
from surefit.plan.layout import training_device
from surefit.plan.plan import Plan
from surefit.processes import gather, is_main, num_processes, process_index
from surefit.progress import Progress, silent
from surefit.speed.numerics import preserved_state
from surefit.speed.precision import lower_dtype
from surefit.targets.pairs import REFERENCE, WITH_REFERENCE, read_answers
from surefit.training.watches import fingerprint as number_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from surefit.run.run_folder import Run

Values = npt.NDArray[np.float32]
COLUMNS = tuple(REFERENCE + side for side in SIDES)
FILE = "reference.json"
VALUES = "values.npy"
BLOCK_ROWS = 256
"""Rows that are computed before they are stored."""
CHECKED_ROWS = 8

STALE_REFERENCE = rule(
    "SF874",
    "error",
    "reference log-probabilities are not those of the model",
    why="The loss compares each answer with its log-probability under the model before training. "
    "If these are of another model, the run is pulled towards that one.",
    fix="Clean the cache (surefit cache clean) and start again.",
)
OTHER_REFERENCE = rule(
    "SF875",
    "error",
    "the model that a run was compared with has changed",
    why="Rewards are log-probabilities compared with those of the model before training.",
    fix="Put the old model back under its name.",
)


@dataclass(frozen=True)
class Known:
    """What `reference.json` in a run's folder says."""

    weights: str


def needs_reference(pipeline: Pipeline) -> bool:
    """Return whether the loss compares with the model before training."""
    settings = pipeline.encoder.settings.preference
    return settings is not None and settings.method in WITH_REFERENCE


def with_reference(plan: Plan, run: Path, batch_size: int, progress: Progress = silent) -> Plan:
    """Return the plan whose Stores have the log-probabilities of the untrained module's answers."""
    job = plan.job
    assert job is not None
    if not needs_reference(job.pipeline):
        return plan
    if any(weight.is_meta for weight in job.pipeline.module.parameters()):
        raise UsageError(
            "The reference of preference tuning is computed by each process, and this model is too "
            "large for one.",
            "Use --set preference.method=simpo or orpo, which need no reference.",
        )
    weights = digest(job.pipeline.module)
    compute = Reference(job.pipeline, job.autocast_dtype, weights, batch_size)
    stores = [compute.column(store, progress) for store in (job.train, job.validation)]
    if is_main():
        files.write_json(run / FILE, {"weights": weights})
    pipeline = replace(job.pipeline, fields={**job.pipeline.fields, **FIELDS})
    return replace(plan, job=replace(job, pipeline=pipeline, train=stores[0], validation=stores[1]))


FIELDS = {name: Field((), "float32") for name in COLUMNS}


@dataclass(frozen=True)
class Reference:
    """How the log-probabilities are computed: by which model, and in which precision."""

    pipeline: Pipeline
    dtype: torch.dtype | None
    """The lower precision of mixed precision; None for float32."""
    weights: str
    """The digest of the weights."""
    batch_size: int

    def column(self, store: Store, progress: Progress = silent) -> Store:
        """Return the Store with the two columns, which the processes compute together."""
        starts = range(0, len(store), BLOCK_ROWS)
        mine = starts[process_index() :: num_processes()]
        own = []
        for done, start in enumerate(mine):
            progress("reference log-probabilities", done, len(mine))
            own.append((start, self._block(store, start)))
        progress("reference log-probabilities", len(mine), len(mine))
        made: Values = np.empty((len(store), 2), np.float32)
        for blocks in gather(own):
            for start, values in blocks:
                made[start : start + len(values)] = values
        return store.with_columns({name: made[:, n] for n, name in enumerate(COLUMNS)})

    def _block(self, store: Store, start: int) -> Values:
        """Return the values of a block of rows, from the cache if they are there."""
        rows = np.arange(start, min(start + BLOCK_ROWS, len(store)))
        layout = repr(self.pipeline.layout)
        key = fingerprint("reference", 1, store.key, self.weights, str(self.dtype), layout, start)

        def fill(folder: Path) -> None:
            with (folder / VALUES).open("wb") as file:
                np.save(file, self.values(store, rows))

        def read(folder: Path) -> Values:
            return np.load(folder / VALUES, allow_pickle=False)  # type: ignore[no-any-return]

        return open_entry("reference", key, fill, read)

    def values(self, store: Store, rows: npt.NDArray[np.int64]) -> Values:
        """Compute the log-probabilities of both answers of some rows: (N, 2)."""
        import torch

        module = self.pipeline.module
        made: Values = np.empty((len(rows), 2), np.float32)
        module.to(training_device())
        device = torch.device(self.pipeline.device)
        autocast = torch.autocast(device.type, self.dtype, enabled=self.dtype is not None)
        with preserved_state(module), torch.no_grad(), autocast:
            module.eval()
            for chosen in row_chunks(store.lengths[rows], self.batch_size, None):
                batch = self.pipeline.batch(store, rows[chosen])
                answers = read_answers(self.pipeline.outputs(batch), batch)
                both = torch.stack([answers.first, answers.second], 1)
                made[chosen] = both.float().cpu().numpy()
        return made


def check_reference(plan: Plan, batch_size: int) -> None:
    """Raise if a fresh pass over a few rows gives other values than the columns have.

    The model has not been trained yet, and is run as training runs it.
    """
    job = plan.job
    assert job is not None
    if not needs_reference(job.pipeline) or not len(job.train):
        return
    rows = np.unique(np.linspace(0, len(job.train) - 1, CHECKED_ROWS).astype(np.int64))
    fresh = Reference(job.pipeline, job.autocast_dtype, "", batch_size).values(job.train, rows)
    known = np.stack([job.train.values(name)[rows] for name in COLUMNS], 1)
    close = 1e-3 if job.autocast_dtype is None else 3e-2
    apart = np.abs(fresh - known) / np.maximum(np.abs(known), 1.0)
    if not (apart <= close).all():
        place = int(rows[int(apart.max(1).argmax())])
        raise STALE_REFERENCE.error(
            f"Training row {int(job.train.source_row[place])} has the log-probabilities "
            f"{known[rows == place][0].tolist()} under the reference; a fresh pass gives "
            f"{fresh[rows == place][0].tolist()}."
        )


def digest(module: nn.Module) -> str:
    """Return a digest of all weights, whatever their names; without new adapters, which add 0."""
    weights: Mapping[str, Any] = module.state_dict()
    adds = any(".lora_B" in name and bool(value.any()) for name, value in weights.items())
    counted = {  # each value once: peft names some of them twice
        f"{number_of(value)} {tuple(value.shape)}"
        for name, value in weights.items()
        if hasattr(value, "shape") and value.numel() and (adds or not _is_new(name))
    }
    return str(hash_bytes("\n".join(sorted(counted)).encode()))


NEW_WEIGHTS = (
    *(".lora_A", ".lora_B", ".lora_magnitude_vector"),
    *(".modules_to_save.", ".trainable_tokens_"),
)
"""Parts of the names of weights that peft adds, which begin as nothing or as copies."""


def _is_new(name: str) -> bool:
    return any(part in name for part in NEW_WEIGHTS)


def evaluated_with_reference(
    run: Run, pipeline: Pipeline, store: Store, progress: Progress = silent
) -> tuple[Pipeline, Store]:
    """Return the Pipeline and the rows of an evaluation, with the reference that the run had.

    What is not in the cache is computed by the model that training began with, which is opened
    again.
    """
    if not needs_reference(pipeline):
        return pipeline, store
    if not (run.path / FILE).is_file():
        raise UsageError(
            f"{run.path} does not say which model it was compared with, and rewards need it.",
            "Evaluate the run that the model comes from.",
        )
    known = read_json(run.path / FILE, Known)
    config = run.config
    made: list[Pipeline] = []

    def begun() -> Pipeline:
        if not made:
            made.append(_begin_again(run, pipeline, known))
        return made[0]

    dtype = lower_dtype(run.plan.get("precision", config.precision))
    reference = _Late(pipeline, dtype, known.weights, config.micro_batch_rows, begun)
    store = reference.column(store, progress)
    return replace(pipeline, fields={**pipeline.fields, **FIELDS}), store


@dataclass(frozen=True)
class _Late(Reference):
    """A reference whose model is opened once it is needed."""

    begun: Callable[[], Pipeline]

    def values(self, store: Store, rows: npt.NDArray[np.int64]) -> Values:
        """Compute the log-probabilities of both answers of some rows: (N, 2)."""
        of_model = Reference(self.begun(), self.dtype, self.weights, self.batch_size)
        return of_model.values(store, rows)


@contextmanager
def before_training(run: Run, pipeline: Pipeline) -> Iterator[Pipeline]:
    """Give the Pipeline with the model as it was before training."""
    if is_adapted(pipeline.module):
        with without_adapters(adapted_part(pipeline.module)):
            yield pipeline
    else:
        yield _with_module(run, pipeline, open_beginning(run, pipeline).to(pipeline.device).eval())


def _begin_again(run: Run, pipeline: Pipeline, known: Known) -> Pipeline:
    """Return the Pipeline with the model as it was before training."""
    module = open_beginning(run, pipeline)
    if digest(module) != known.weights:
        raise FindingError(
            OTHER_REFERENCE.finding(
                f"{run.config.model} has other weights than when {run.path} began."
            )
        )
    return _with_module(run, pipeline, module)


def _with_module(run: Run, pipeline: Pipeline, module: nn.Module) -> Pipeline:
    from surefit.pipeline.open_pipeline import apply_choices

    call = replace(pipeline.call, head=None)
    return apply_choices(replace(pipeline, module=module, call=call), run.choices)


def open_beginning(run: Run, pipeline: Pipeline) -> nn.Module:
    """Return the model of a run as it was before training."""
    import torch

    from surefit.models.open_model import open_model

    config, encoder = run.config, pipeline.encoder
    if "model" in run.objects:
        raise UsageError(
            f"{run.path} was trained from a model passed from Python, which it does not hold.",
            "For rewards, evaluate on the validation rows while the cache has their reference.",
        )
    if not config.model:
        raise UsageError(
            f"{run.path} does not name the model that training began with.",
            "Use the folder of the run instead of an export.",
        )
    torch.manual_seed(config.seed)
    source = open_model(
        config.model,
        from_scratch=config.from_scratch,
        trust_remote_code=config.trust_remote_code,
        quantize=config.lora.quantize,
        adapter=config.adapter,
        code=run.code,
    )
    torch.manual_seed(config.seed)
    return source.build(pipeline.task.head_for(encoder), encoder).module
