"""A run folder never brings code; the user's own runs open as before."""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import surefit
from builders import feature_rows, save_ragged, write_module
from surefit.cli import run as command
from surefit.config.settings import config_fields
from surefit.user_code import RunCode
from surefit.user_code.named_code import CODE_KEYS, NamedCode
from surefit.user_code.run_code import files_of, import_recorded, records_folder

CANARY = "from pathlib import Path\nPath({path!r}).touch()\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with data and the user's own module."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.chdir(folder)
    save_ragged(folder / "data.npz", feature_rows(30))
    return folder


@pytest.fixture(autouse=True)
def modules(tmp_path: Path) -> Iterator[None]:
    """Python imports a module once per name; those of the test are dropped after it."""
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def train_here(home: Path, module: str) -> Path:
    run = home / f"run-{module}"
    name = write_module(home, module)
    options = ["--data", "data.npz", "--model", name, "--max-steps", "2", "--output", str(run)]
    assert command(["train", *options]) == 0
    return run


def forget() -> None:
    """As on another machine: no record of the run."""
    shutil.rmtree(records_folder())


def test_own_run_opens_from_any_folder_and_runs_the_recorded_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_here(home, "ownnet")
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "ownnet.py").write_text(CANARY.format(path=str(tmp_path / "it-ran")))
    monkeypatch.chdir(other)
    sys.modules.pop("ownnet")
    data = str(home / "data.npz")
    assert command(["predict", str(run), "--data", data]) == 0
    assert command(["evaluate", str(run)]) == 0
    assert not (tmp_path / "it-ran").exists()
    moved = tmp_path / "moved"
    shutil.move(run, moved)  # the id is what counts, not the place
    assert command(["predict", str(moved), "--data", data]) == 0


def test_changed_file_is_not_run_until_the_command_names_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_here(home, "editednet")
    file = home / "editednet.py"
    file.write_text(CANARY.format(path=str(home / "it-ran")) + file.read_text())
    sys.modules.pop("editednet")
    assert command(["predict", str(run), "--data", "data.npz"]) == 2
    told = capsys.readouterr().err
    assert str(file) in told
    assert "--trust-code editednet:make" in told
    assert not (home / "it-ran").exists()
    assert (
        command(["predict", str(run), "--data", "data.npz", "--trust-code", "editednet:make"]) == 0
    )
    assert (home / "it-ran").exists()


def test_run_of_another_user_asks_and_names_the_file(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_here(home, "theirnet")
    forget()
    sys.modules.pop("theirnet")
    for words in (["predict", str(run), "--data", "data.npz"], ["evaluate", str(run)]):
        assert command(words) == 2
        told = capsys.readouterr().err
        assert str(home / "theirnet.py") in told
        assert "--trust-code theirnet:make" in told
    assert "theirnet" not in sys.modules
    with pytest.raises(surefit.UsageError, match="theirnet:make"):
        surefit.load(run)
    assert surefit.load(run, trust_code="theirnet:make") is not None


def test_stale_bytecode_is_not_run(home: Path) -> None:
    (home / "cached.py").write_text("def make(): return 1\n")
    assert NamedCode().find("cached:make")() == 1
    files = files_of("cached:make")
    sys.modules.pop("cached")
    evil = home / "evil.py"
    evil.write_text("def make(): return 2\n")
    stat = os.stat(home / "cached.py")
    os.utime(evil, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    target = importlib.util.cache_from_source(str(home / "cached.py"))
    py_compile.compile(str(evil), target)
    assert import_recorded("cached:make", files)() == 1


def test_record_covers_modules_that_the_code_imports(home: Path) -> None:
    package = home / "parts"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("WIDTH = 4\n")
    (package / "net.py").write_text(
        "from . import sizes\nimport json\nfrom lone import ONE\n"
        "def make(): return sizes.WIDTH + ONE\n"
    )
    (home / "lone.py").write_text("ONE = 1\n")
    assert NamedCode().find("parts.net:make")() == 5
    files = files_of("parts.net:make")
    assert set(files) == {"parts", "parts.net", "parts.sizes", "lone"}
    (home / "lone.py").write_text("ONE = 2\n")
    record = {"format_version": 1, "run": "x", "code": {"parts.net:make": files}, "remote": []}
    records_folder().mkdir(parents=True)
    (records_folder() / f"{'0' * 32}.json").write_text(json.dumps(record))
    with pytest.raises(surefit.UsageError, match=r"lone\.py changed"):
        RunCode(home, "0" * 32).find("parts.net:make")


@pytest.mark.parametrize("bad", ["../" + "0" * 29, None, 7, "", "0" * 31])
def test_run_id_is_no_path(home: Path, bad: object) -> None:
    with pytest.raises(surefit.UsageError, match="os:system"):
        RunCode(home, bad).find("os:system")


@pytest.mark.slow
def test_resume_runs_what_the_options_name(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train_here(home, "resumednet")
    forget()
    shutil.rmtree(run / "model")
    sys.modules.pop("resumednet")
    assert command(["train", "--resume", str(run)]) == 2
    assert "--trust-code resumednet:make" in capsys.readouterr().err
    assert "resumednet" not in sys.modules
    assert command(["train", "--resume", str(run), "--model", "resumednet:make"]) == 0


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a module of the user's own; its record is another test's."""
    home = tmp_path_factory.mktemp("victim")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("SUREFIT_CACHE", str(home / "cache"))
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        save_ragged(home / "data.npz", feature_rows(30))
        train_here(home, "victimnet")
    return home


def name_code(run: Path, key: str) -> None:
    """Write the name of code to one of the places where a run folder may have it."""
    if key == "module.json":
        recipe = run / "model" / "module.json"
        known = json.loads(recipe.read_text())
        recipe.write_text(json.dumps({**known, "function": "evil:make"}))
        return
    path = run / "config.yaml"
    config = yaml.safe_load(path.read_text())
    section, _, name = key.partition(".")
    if name:
        config[section][name] = "evil:make"
        config["augmentation_factor"] = 2
    else:
        config[key] = "evil:make"
    path.write_text(yaml.safe_dump({**config, "trust_remote_code": True}))


@pytest.mark.parametrize(
    "key", ["task", "generate.scorer", "augment.function", "model", "module.json"]
)
def test_each_key_of_a_run_goes_through_the_gate(home: Path, victim: Path, key: str) -> None:
    run, data = home / "run", str(home / "data.npz")
    shutil.copytree(victim / "run-victimnet", run)
    (home / "evil.py").write_text(CANARY.format(path=str(home / "it-ran")) + "SPEC = make = 1\n")
    name_code(run, key)
    for words in (
        ["predict", str(run), "--data", data],
        ["evaluate", str(run)],
        ["evaluate", str(run), "--data", data],
        ["export", str(run), str(home / "out"), "--merge"],
        ["report", str(run)],
    ):
        command(words)
        shutil.rmtree(home / "out", ignore_errors=True)
    shutil.rmtree(run / "model")
    assert command(["train", "--resume", str(run)]) != 0
    assert not (home / "it-ran").exists()
    assert "evil" not in sys.modules


def test_every_key_that_may_name_code_is_known_as_one() -> None:
    named = {key for key, field in config_fields().items() if "module:" in str(field.description)}
    assert named - {"metrics"} <= {*CODE_KEYS}  # of metrics, each has a name of its own
