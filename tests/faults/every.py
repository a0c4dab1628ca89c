"""All cases, by kind."""

from __future__ import annotations

from faults import (
    columns,
    dialogues,
    files,
    healthy,
    healthy_dialogues,
    healthy_learning,
    healthy_models,
    labels,
    learning,
    meant_columns,
    misread,
    models,
    scale,
    sequences,
    settings,
    sounds,
    splits,
    tables,
    tokens,
    unknown,
    unrendered,
)
from faults.case import Case

FAULTS: dict[str, list[Case]] = {
    "files": files.CASES,
    "tokens": tokens.CASES + tokens.LABELS + unknown.CASES,
    "labels": labels.LABELS,
    "numbers": labels.NUMBERS,
    "dialogues": dialogues.CASES + unrendered.CASES,
    "columns": columns.CASES + meant_columns.CASES,
    "features": sequences.FEATURES,
    "pictures": sequences.PICTURES,
    "sounds": sounds.CASES,
    "misread files": misread.FILES,
    "leaks": misread.LEAKS,
    "splits": splits.CASES,
    "models": models.CASES,
    "learning": learning.MODELS,
    "rates": learning.RATES,
    "classes": learning.LABELS,
    "images of other scales": scale.IMAGES,
    "numbers of other scales": scale.NUMBERS,
    "encodings": scale.ENCODINGS,
    "constants": scale.CONSTANTS,
    "tables": tables.CASES,
}
USAGE = settings.CASES
HEALTHY = [
    *healthy.CASES,
    *healthy_dialogues.CASES,
    *healthy_models.CASES,
    *healthy_learning.CASES,
    *scale.HEALTHY,
    *columns.HEALTHY,
    *meant_columns.HEALTHY,
    *misread.HEALTHY,
    *sounds.HEALTHY,
    *splits.HEALTHY,
    *tables.HEALTHY,
    *unknown.HEALTHY,
]
