"""Remembers the code of a run that this user starts here, so that they can open it again."""

from __future__ import annotations

import logging
from pathlib import Path

from surefit.plan.plan import Plan
from surefit.user_code.code_records import CodeRecord, files_of, hash_folder, remember
from surefit.user_code.named_code import code_names
from surefit.user_code.remote_code import names_of


def remember_code(plan: Plan, run_id: str, run: Path, model: Path | None = None) -> None:
    """Record the files of the code that the plan runs, and of `model`, outside the run's folder.

    To be called before the run or its model gets its name: one killed in between could otherwise
    not be opened by its own user.
    """
    named = [*code_names(plan.config).values()]
    if plan.model is not None and "function" in plan.model.source.recipe:
        named.append(plan.model.source.recipe["function"])  # of a trained module's folder
    code = {name: files for name in named if (files := files_of(name))}
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
    """Digests of the model folders whose own code the plan runs, and of the saved model's."""
    if plan.model is None or not plan.model.source.trust_remote_code:
        return ()
    places = [plan.model.source.name, plan.config.tokenizer or "", str(model or "")]
    found = {hash_folder(Path(place)) for place in places if place and names_of(place)}
    return tuple(sorted(digest for digest in found if digest is not None))
