"""`surefit ui`: who may ask, what pages show, what is sent live, the form, stop, resume, chat."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from starlette.testclient import TestClient

import surefit
from builders import echo_rows
from surefit.cli import run as command
from surefit.ui import pages, server, started_jobs
from surefit.ui.server import Access, make_app

PORT, TOKEN = 8765, "s3cret"
HERE = f"http://127.0.0.1:{PORT}"
EVIL = "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served")
    rows = [{**row, "prompt": f"{EVIL} {row['prompt']}"} for row in echo_rows(30)]
    short = {"max_new_tokens": 3, "rows": 2}
    for name in ("echo", "a&<b>"):
        options: dict[str, Any] = {"max_steps": 4, "generate": short, "quiet": True}
        surefit.train(data=rows, model="tiny:llama", output=str(path / name), **options)
    return path


def client(folder: Path, token: bool = True, host: str = "127.0.0.1") -> TestClient:
    app = make_app(folder, Access(host, PORT, TOKEN))
    made = TestClient(app, base_url=HERE, follow_redirects=False)
    if token:
        made.cookies.set(f"surefit-{PORT}", TOKEN)
    return made


def post(asked: TestClient, path: str, body: Any = None, **headers: str) -> Any:
    return asked.post(path, json=body or {}, headers={"origin": HERE, **headers})


def test_pages_show_data_as_data(folder: Path) -> None:
    asked = client(folder)
    for path in ("/", "/run/echo", "/run/a&<b>", "/compare?run=echo&run=a%26%3Cb%3E", "/new"):
        answer = asked.get(path)
        assert answer.status_code == 200, path
        assert "<script>document" not in answer.text
        assert "<img src=x" not in answer.text
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
    assert "&lt;script&gt;document" in asked.get("/run/echo").text
    assert "a&amp;&lt;b&gt;" in asked.get("/").text


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": f"evil.example:{PORT}"}, 421),
        ({"host": "127.0.0.1:1"}, 421),
        ({"host": f"localhost:{PORT}"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": HERE}, 200),
    ],
)
def test_other_names_and_other_sites_are_refused(
    folder: Path, headers: dict[str, str], code: int
) -> None:
    assert client(folder).get("/", headers=headers).status_code == code


def test_changes_need_the_token_and_come_from_the_page_itself(folder: Path) -> None:
    for path in ("/check", "/train", "/do/stop/echo", "/do/resume/echo", "/say/echo"):
        assert post(client(folder, token=False), path).status_code == 403
        assert client(folder).post(path, json={}).status_code == 403  # without an Origin
        assert post(client(folder), path, origin="http://evil.example").status_code == 403
        other = client(folder, token=False)
        other.cookies.set(f"surefit-{PORT}", TOKEN + "x")
        assert post(other, path).status_code == 403
    big = {"data": "x" * (1 << 20)}
    assert post(client(folder), "/check", big).status_code == 413
    assert client(folder).put("/check", json={}, headers={"origin": HERE}).status_code == 405


def test_the_token_becomes_a_cookie_that_no_script_reads(folder: Path) -> None:
    asked = client(folder, token=False)
    assert "Read-only" in asked.get("/").text
    answer = asked.get("/?token=wrong")
    assert "set-cookie" not in answer.headers
    answer = asked.get(f"/?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "Read-only" not in asked.get("/").text


def test_on_another_address_all_needs_the_token(folder: Path) -> None:
    asked = client(folder, token=False, host="0.0.0.0")
    for path in ("/", "/run/echo", "/live", "/static/ui.js"):
        assert asked.get(path).status_code == 403
    assert client(folder, host="0.0.0.0").get("/").status_code == 200
    named = client(folder, host="0.0.0.0").get("/", headers={"host": f"evil.example:{PORT}"})
    assert named.status_code == 421


def test_no_page_leaves_the_folder(folder: Path) -> None:
    asked = client(folder)
    (folder.parent / "outside").mkdir(exist_ok=True)
    for path in (
        "/run/../outside",
        "/run/%2e%2e/outside",
        "/run//etc",
        "/static/..%2fserver.py",
        "/static/pages.py",
        "/chat/none",
        "/new?from=none",
        "/compare?run=echo",
    ):
        answer = asked.get(path)
        assert answer.status_code == 404, path


def events_of(parts: Callable[[], list[pages.Part]], act: Callable[[], None]) -> list[Any]:
    """The first two events; `act` is called between them."""

    async def listen() -> list[Any]:
        found: list[Any] = []
        with anyio.fail_after(5):
            async for text in server.changes(parts):
                found.append(json.loads(text.removeprefix("data: ")))
                if len(found) == 2:
                    break
                act()
        return found

    return anyio.run(listen)


def test_what_changes_is_sent_and_nothing_else(folder: Path) -> None:
    shown = server.Pages(folder, Access("127.0.0.1", PORT, TOKEN))
    event = {"event": "step", "step": 5, "epoch": 1, "loss": 7.25, "lr": 0.1}

    def train_on() -> None:
        line = json.dumps({**event, "tokens": 9999, "seconds": 0.1})
        with (folder / "echo" / "events.jsonl").open("a") as file:
            file.write(line + "\n")

    first, second = events_of(lambda: shown.parts("echo", False), train_on)
    assert all(body for _, body in first)
    changed = {place: body for place, body in second if body is not None}
    assert {"state", "curves"} <= set(changed)
    assert "loss 7.25" in changed["state"]
    assert not {"batches-as-the-model-sees-them", "columns", "findings"} & set(changed)
    assert [place for place, _ in second] == [place for place, _ in first]


def test_a_run_that_goes_away_is_said_in_words(folder: Path) -> None:
    shown = server.Pages(folder, Access("127.0.0.1", PORT, TOKEN))

    def parts() -> list[pages.Part]:
        return shown.parts("gone", False)

    async def first() -> str:
        async for text in server.changes(parts):
            return text
        return ""

    assert "There is no run" in anyio.run(first)


def test_findings_stand_beside_the_fields_that_they_concern(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = {"severity": "error", "message": EVIL, "where": {}}
    findings = [
        {**base, "code": "SF131", "fix": "Accept it: --set accept=SF131, or --task preference."},
        {**base, "code": "SF205", "fix": "Repair it.", "where": {"file": "a.jsonl", "row": 3}},
        {**base, "code": "SF999", "fix": "Restart."},
    ]
    monkeypatch.setattr(
        started_jobs, "check", lambda values: {"ok": False, "findings": findings, "notes": [EVIL]}
    )
    found = post(client(folder), "/check", {"data": "a.jsonl"}).json()
    assert set(found["fields"]) == {"accept", "task", "data", ""}
    assert "SF205" in found["fields"]["data"]
    assert "cannot train" in found["verdict"]
    assert "<script>" not in json.dumps(found)


def test_faults_of_the_config_stand_beside_their_fields(tmp_path: Path) -> None:
    found = server._checked({"lr": "-1", "epochs": "many", ":name": "x"})
    assert set(found["fields"]) >= {"lr", "epochs"}
    assert not found["ok"]


def test_the_form_has_a_field_per_key_with_its_choices(folder: Path) -> None:
    from surefit.config import config_fields

    text = client(folder).get("/new?from=echo").text
    for key in config_fields():
        assert key == "output" or f" name={key} " in text, key
    assert "<option>cosine</option>" in text
    assert 'name=model aria-describedby=f-model-help value="tiny:llama"' in text
    assert " name=max_steps" in text


def test_a_form_from_a_stranger_s_run_names_no_code_and_no_permission(
    folder: Path, tmp_path: Path
) -> None:
    stranger = tmp_path / "runs" / "stranger"
    shutil.copytree(folder / "echo", stranger)
    config = yaml.safe_load((stranger / "config.yaml").read_text())
    config |= {"optimizer": "os:abort", "trust_remote_code": True, "cache": "/x", "lr": 0.125}
    config |= {"columns": {"prompt": "question"}}
    (stranger / "config.yaml").write_text(yaml.safe_dump(config))
    plan = json.loads((stranger / "plan.json").read_text())
    (stranger / "plan.json").write_text(json.dumps({**plan, "run_id": "f" * 32}))
    text = client(tmp_path / "runs").get("/new?from=stranger").text
    assert 'value="0.125"' in text
    assert "{&quot;prompt&quot;: &quot;question&quot;}" in text
    assert "os:abort" not in text
    assert "Fill it in yourself: optimizer" in text
    assert 'value="/x"' not in text
    assert "<option selected>true" not in text


def test_a_run_is_started_with_the_options_of_the_form_and_resumed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    class Started:
        def __init__(self, arguments: list[str], **options: Any) -> None:
            started.append(arguments)
            assert options["start_new_session"]
            options["stdout"].write(b"planning \x1b[2J" + EVIL.encode())
            options["stdout"].flush()

        def poll(self) -> None:
            return None

        def wait(self, timeout: float) -> None:
            raise subprocess.TimeoutExpired("train", timeout)

    monkeypatch.setattr(subprocess, "Popen", Started)
    asked = client(folder)
    form = {"data": "a.csv, b.csv", "lr": "1e-3", "seed": "", ":name": "new one"}
    assert post(asked, "/train", form).json() == {"go": "/run/new%20one"}
    options = ["--set=data=[a.csv, b.csv]", "--set=lr=1e-3", f"--output={folder}/new one"]
    assert started == [[sys.executable, "-P", "-m", "surefit", "train", *options]]
    shown = asked.get("/run/new%20one").text
    assert "planning" in shown
    assert "\x1b" not in shown
    assert "<script>document" not in shown
    for name in ("../x", "", ".hidden", "a/b", "echo"):
        assert post(asked, "/train", {**form, ":name": name}).status_code == 400
    assert post(asked, "/train", {"nonsense": "1", ":name": "y"}).status_code == 400
    assert post(asked, "/do/resume/echo").status_code == 200
    assert started[-1][4:] == ["train", f"--resume={folder}/echo"]
    assert "has been started already" in post(asked, "/do/resume/echo").json()["error"]
    assert "not being trained" in post(asked, "/do/stop/echo").json()["error"]


def test_chat_answers_as_the_command_does(folder: Path) -> None:
    asked = client(folder)
    prompt = f"{EVIL} {echo_rows(1)[0]['prompt']}"
    answer = post(asked, "/say/echo", {"history": [prompt]})
    assert answer.headers["content-type"].startswith("text/plain")
    (made,) = surefit.predict(str(folder / "echo"), [{"prompt": prompt}], quiet=True)
    assert answer.text.removesuffix(" (cut off)").strip() == made["prediction"].strip()
    assert "Start again" in post(asked, "/say/echo", {"history": ["a", "b"]}).text
    assert "no message" in post(asked, "/say/echo", {}).text


def test_what_is_missing_is_named_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("surefit.cli.ui.find_spec", lambda name: None)
    assert command(["ui"]) == 2
    assert "pip install 'surefit[ui]'" in capsys.readouterr().err


def test_a_folder_and_a_port_that_cannot_be_used_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert command(["ui", str(tmp_path / "file")]) == 2
    assert command(["ui", str(tmp_path), "--host", "192.0.2.1"]) == 2
    assert "Choose another --port" in capsys.readouterr().err
