"""All cases, by kind."""

from __future__ import annotations

from faults import (
    columns,
    dialogues,
    files,
    healthy,
    healthy_models,
    labels,
    models,
    sequences,
    settings,
    tokens,
)
from faults.case import Case

FAULTS: dict[str, list[Case]] = {
    "files": files.CASES,
    "tokens": tokens.CASES + tokens.LABELS,
    "labels": labels.LABELS,
    "numbers": labels.NUMBERS,
    "dialogues": dialogues.CASES,
    "columns": columns.CASES,
    "features": sequences.FEATURES,
    "pictures": sequences.PICTURES,
    "models": models.CASES,
}
USAGE = settings.CASES
HEALTHY = healthy.CASES + healthy_models.CASES + columns.HEALTHY
