"""All cases, by kind."""

from __future__ import annotations

from faults import (
    dialogues,
    files,
    healthy,
    healthy_learning,
    healthy_models,
    labels,
    learning,
    models,
    sequences,
    settings,
    tokens,
)
from faults.case import Case

FAULTS: dict[str, list[Case]] = {
    "files": files.CASES,
    "tokens": tokens.CASES,
    "labels": labels.LABELS,
    "numbers": labels.NUMBERS,
    "dialogues": dialogues.CASES,
    "features": sequences.FEATURES,
    "pictures": sequences.PICTURES,
    "models": models.CASES,
    "learning": learning.MODELS,
    "rates": learning.RATES,
    "classes": learning.LABELS,
}
USAGE = settings.CASES
HEALTHY = healthy.CASES + healthy_models.CASES + healthy_learning.CASES
