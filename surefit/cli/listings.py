"""Commands that list: `tasks`, `rule`, `schema` and `cache`."""

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


def rule(
    code: Annotated[str, typer.Argument(help="Such as SF131, as findings and explain print it.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Print what a finding or a cause of explain means, why it matters, and the fix."""
    from surefit.cli.display import print_json
    from surefit.errors import UsageError
    from surefit.explainer.causes import AREAS
    from surefit.findings import find_rule

    code = code.strip().upper()
    causes = (cause for area in AREAS.values() for cause in area)
    found = next((cause for cause in causes if cause.code == code), None) or find_rule(code)
    if found is None:
        listed = "docs/findings.md lists the findings, docs/causes.md the causes."
        raise UsageError(f"There is no finding or cause {code!r}.", listed)
    names = ("code", "severity", "title", "why", "fix", "accept", "in_surefit", "does_not_help")
    known = {name: getattr(found, name) for name in names if getattr(found, name, "")}
    if json:
        print_json(known)
        return 0
    kind = f" ({known['severity']})" if "severity" in known else ""
    print(f"{code}{kind}: {known['title']}")
    print(known["why"])
    print(f"fix: {known['fix']}")
    if "accept" in known:
        print(f"--set accept={code}: {known['accept']}")
    if "in_surefit" in known:
        print(f"in surefit: {known['in_surefit']}")
    for line in known.get("does_not_help", ()):
        print(f"does not help: {line}")
    return 0


def schema() -> int:
    """Print the JSON Schema of config files, for editors."""
    from surefit.cli.display import print_json
    from surefit.config import config_schema

    print_json(config_schema())
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
