"""`surefit tasks` and `surefit cache`: what there is to train, and what is kept."""

from __future__ import annotations

from typing import Annotated

import typer


def tasks(
    models: Annotated[
        bool, typer.Option("--models", help="List the architectures of tiny:ARCH instead.")
    ] = False,
) -> int:
    """List the tasks, the columns they need and their metrics."""
    if models:
        from surefit.models.tiny import tiny_families

        for family, names in tiny_families().items():
            print(f"{family} ({len(names)}): {' '.join(names)}")
        return 0
    from surefit.tasks import TASKS

    for name, task in TASKS.items():
        needs = " or ".join(" + ".join(option) for option in task.needs) or "any, under their names"
        print(f"{name}\n  {task.summary}")
        print(f"  columns  {needs}\n  metrics  {', '.join(task.metric_names)}")
    return 0


def cache(
    action: Annotated[
        str | None, typer.Argument(help="clean: remove entries.", show_default=False)
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(help="With clean: only entries not used for this many days.", min=0),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Show the size and the entries of the cache; `surefit cache clean` removes entries.

    Entries are made again when they are needed. Those that a running process uses stay.
    """
    from surefit.cli.display import print_json
    from surefit.data.cache import cache_folder
    from surefit.data.cache_contents import clean_cache, describe_cache
    from surefit.errors import UsageError
    from surefit.gigabytes import show_size

    if action not in (None, "clean"):
        raise UsageError(f"cache does not know {action!r}.", "Write surefit cache clean.")
    if action is None:
        if older_than is not None:
            raise UsageError("--older-than belongs to clean.", "Write surefit cache clean.")
        about = describe_cache()
        if json:
            print_json(about)
            return 0
        for kind, held in sorted(about["kinds"].items()):
            print(f"{kind:<16}{held['entries']:>8,} entries{show_size(held['bytes']):>14}")
        print(f"{'total':<16}{len(about['entries']):>8,} entries{show_size(about['bytes']):>14}")
        print(f"{'folder':<16}{about['folder']}")
        return 0
    entries, num_bytes = clean_cache(older_than)
    if json:
        print_json({"ok": True, "removed_entries": entries, "removed_bytes": num_bytes})
    else:
        print(f"{entries:,} entries, {show_size(num_bytes)} removed from {cache_folder()}")
    return 0
