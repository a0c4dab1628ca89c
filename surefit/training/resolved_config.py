"""The config of a run with everything inferred filled in, as the run's folder keeps it."""

from __future__ import annotations

from glob import has_magic
from pathlib import Path
from typing import Any

from surefit.config import RunConfig
from surefit.data.further_columns import list_columns
from surefit.data.remote.remote_url import is_url
from surefit.encode.text.templates import is_file_name
from surefit.plan.plan import Plan


def resolve_config(plan: Plan, folder: Path) -> RunConfig:
    """The config with everything inferred filled in, as the run's folder keeps it."""
    assert plan.model is not None
    assert plan.task is not None
    assert plan.job is not None
    config = plan.config
    overlong = plan.job.pipeline.encoder.settings["overlong"]
    known: dict[str, Any] = {
        "lr": plan.model.lr,
        "task": config.task or plan.task.name,
        "columns": list_columns(plan.roles) if plan.task.needs else config.columns,
        "output": str(folder.resolve()),
        "overlong": overlong,
    }
    return with_absolute_paths(config).model_copy(update=known)


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Local paths in full, so that the run can be used from any folder."""

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
        "data": tuple(full(path) for path in config.data),
        "eval_data": tuple(full(path) for path in config.eval_data),
        "cache": str(Path(config.cache).absolute()) if config.cache else None,
        "model": full(config.model) if config.model else config.model,
        "tokenizer": full(config.tokenizer) if config.tokenizer else None,
        "augment": config.augment.model_copy(update={"synonyms": synonyms}),
        "template": full(template) if template and is_file_name(template) else template,
    }
    return config.model_copy(update=known)
