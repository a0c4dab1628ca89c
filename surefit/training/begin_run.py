"""The folder of a run that begins, with its resolved config, its plan and a record of its code."""

from __future__ import annotations

import logging
import os
import time
from glob import has_magic
from pathlib import Path
from typing import Any

from surefit.config import RunConfig, name_sources
from surefit.core import files
from surefit.data.remote_url import is_url
from surefit.data.several_columns import list_columns
from surefit.findings import rule
from surefit.inputs.templates import is_file_name
from surefit.plan.plan import Plan
from surefit.processes import from_main, gather, host_name, is_main, name_process, num_processes
from surefit.report.examples import begin_examples, make_examples
from surefit.report.page import write_report
from surefit.run.run_folder import EXAMPLES, Run, create_run
from surefit.speed.precision import resolve_precision
from surefit.user_code.named_code import code_names, names_of
from surefit.user_code.run_code import CodeRecord, files_of, hash_folder, remember


def begin_run(plan: Plan, run_id: str, folder: Path) -> Run:
    """Make the folder of a run with the resolved config, the plan and the report of what is
    trained on."""
    assert plan.task is not None
    assert plan.job is not None
    examples = make_examples(plan.job)
    stored = {
        **plan.as_dict(),
        "run_id": run_id,
        "num_processes": num_processes(),
        "precision": resolve_precision(plan.config.precision),
        **({"examples": examples} if examples else {}),
    }
    run = create_run(folder, resolve_config(plan, folder), stored, plan.task)
    files.write_json(folder / EXAMPLES, begin_examples(plan.job))
    write_report(run)
    return run


def resolve_config(plan: Plan, folder: Path) -> RunConfig:
    """Return the config with everything inferred filled in, as the run's folder keeps it."""
    assert plan.model is not None
    assert plan.task is not None
    assert plan.job is not None
    config = plan.config
    overlong = plan.job.pipeline.encoder.settings.overlong
    known: dict[str, Any] = {
        "lr": plan.model.lr,
        "task": config.task or plan.task.name,
        "columns": list_columns(plan.roles) if plan.task.needs else config.columns,
        "output": str(folder.resolve()),
        "overlong": overlong,
    }
    return with_absolute_paths(config).model_copy(update=known)


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Write local paths in full, so that the run can be used from any folder."""

    def full(name: str) -> str:
        if is_url(name):
            return name
        if has_magic(name):
            return str(Path(name).absolute())
        return str(Path(name).resolve()) if Path(name).exists() else name

    synonyms = config.augment.synonyms
    synonyms = full(synonyms) if isinstance(synonyms, str) else synonyms
    template = config.template
    known = {
        "data": tuple(
            each.model_copy(update={"path": full(each.path)}) for each in name_sources(config.data)
        )
        if name_sources(config.data)
        else tuple(map(full, config.data_paths)),
        "eval_data": {name: full(path) for name, path in config.eval_data.items()}
        if isinstance(config.eval_data, dict)
        else tuple(full(path) for path in config.eval_data),
        "cache": str(Path(config.cache).absolute()) if config.cache else None,
        "model": full(config.model) if config.model else config.model,
        "tokenizer": full(config.tokenizer) if config.tokenizer else None,
        "augment": config.augment.model_copy(update={"synonyms": synonyms}),
        "template": full(template) if template and is_file_name(template) else template,
    }
    return config.model_copy(update=known)


def remember_code(plan: Plan, run_id: str, run: Path, model: Path | None = None) -> None:
    """Record the files of the code that the plan runs, and of `model`, outside the run's folder.

    To be called before the run or its model gets its name: one killed in between could otherwise
    not be opened by its own user.
    """
    named = [*code_names(plan.config).values()]
    if plan.model is not None and "function" in plan.model.source.recipe:
        named.append(plan.model.source.recipe["function"])  # of a trained module's folder
    code = {name: found for name in named if (found := files_of(name))}
    remote = _remote_code(plan, model)
    if not code and not remote:
        return
    try:
        remember(run_id, CodeRecord(str(run.resolve()), code, remote))
    except OSError as error:  # the run itself does not depend on it
        logging.getLogger(__name__).warning(
            "The code of %s could not be recorded (%s); opening the run will ask for --trust-code.",
            run,
            error,
        )


def _remote_code(plan: Plan, model: Path | None) -> tuple[str, ...]:
    """Return digests of the model folders whose code the plan runs, and of the saved model's."""
    if plan.model is None or not plan.model.source.trust_remote_code:
        return ()
    source = plan.model.source
    places = [source.name, source.base or "", plan.config.tokenizer or "", str(model or "")]
    found = {hash_folder(Path(place)) for place in places if place and names_of(place)}
    return tuple(sorted(digest for digest in found if digest is not None))


NO_COMMON_FOLDER = rule(
    "SF873",
    "error",
    "the processes do not share the run's folder",
    why="Each process writes its share of a checkpoint, and reads the shares that others wrote. On "
    "hosts without a common file system, no checkpoint would be whole.",
    fix="Choose an --output on a file system that all hosts share, such as NFS.",
)
SECONDS = 5.0
"""How long a network file system may take to show a new file."""


def check_common_folder(folder: Path) -> None:
    """Refuse a folder that is not the same one in all processes; it need not exist yet."""
    place = folder.absolute()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    probe = from_main(lambda: files.temporary_folder(place / "common"))
    seen = gather((_can_see(probe), host_name()))
    if is_main():
        files.delete(probe)
    blind = [name_process(rank, host) for rank, (sees, host) in enumerate(seen) if not sees]
    if blind:
        raise NO_COMMON_FOLDER.error(
            f"Process 0 of host {seen[0][1]} made a folder in {probe.parent}; "
            f"{', '.join(blind[:4])} cannot see it.",
            file=str(folder),
        )


def _can_see(probe: Path) -> bool:
    end = time.monotonic() + SECONDS
    while probe.name not in os.listdir(probe.parent) if probe.parent.is_dir() else True:
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
