"""The public names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import surefit

NAMES = [
    "AdaptiveProjection",
    "Collator",
    "Field",
    "Finding",
    "FindingError",
    "RunFailedError",
    "SurefitError",
    "TaskSpec",
    "UsageError",
    "check",
    "evaluate",
    "explain",
    "inspect",
    "load",
    "loaders",
    "open_data",
    "predict",
    "train",
]


def test_exported_names() -> None:
    assert sorted(surefit.__all__) == sorted(NAMES)
    for name in NAMES:
        assert callable(getattr(surefit, name))


def test_functions_are_not_hidden_by_modules_of_the_same_name() -> None:
    import surefit.training.loop

    assert callable(surefit.train)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, surefit, surefit.cli\n"
        "surefit.cli.run(['--help'])\n"
        "surefit.cli.run(['train', '--help'])\n"
        "heavy = {'torch', 'transformers', 'peft', 'accelerate', 'pyarrow', 'numpy', 'plotly'}\n"
        "loaded = heavy & set(sys.modules)\n"
        "sys.exit(f'imported {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--batch-size" in done.stdout
