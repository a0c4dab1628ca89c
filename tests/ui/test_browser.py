"""`surefit ui` in a real browser: live curves, the form, stop, chat, hostile data, contrast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import surefit
from browser import Browser, chromium, find_browser
from builders import echo_rows, write_jsonl

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium with its driver here"),
]
EVIL = "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"
PAGES = ("/", "/run/echo", "/new", "/chat/echo", "/compare?run=echo&run=other")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("browsed")
    rows = [{**row, "prompt": f"{EVIL} {row['prompt']}"} for row in echo_rows(40)]
    write_jsonl(path / "train.jsonl", echo_rows(400))
    for name, lr in (("echo", 1e-3), ("other", 1e-2)):
        options: dict[str, Any] = {"epochs": 2, "lr": lr, "quiet": True}
        output = str(path / "runs" / name)
        surefit.train(data=rows, model="tiny:llama", output=output, **options)
    return path


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    arguments = [sys.executable, "-m", "surefit", "ui", "runs", "--port", "0"]
    package = str(Path(surefit.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": package}
    with subprocess.Popen(
        arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as served:
        assert served.stdout is not None
        yield served.stdout.readline().strip()
        served.terminate()
        assert served.wait(10) == 0


@pytest.fixture(scope="module")
def browser(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        opened.open(address)
        opened.problems()
        yield opened


@pytest.fixture(scope="module")
def base(address: str) -> str:
    return address.partition("/?")[0]


def test_pages_have_no_fault_ask_nobody_else_and_run_no_data(browser: Browser, base: str) -> None:
    browser.requested()
    for path in PAGES:
        for width, dark in ((1200, False), (390, True)):
            browser.emulate(width, 800, dark)
            browser.open(base + path)
            assert browser.run("return document.title") != "hacked"
            assert browser.run("return document.documentElement.scrollWidth") <= width, path
            assert browser.problems() == [], path
    asked = {url for url in browser.requested() if url.startswith("http")}
    assert asked
    assert all(url.startswith(base) for url in asked)


@pytest.mark.skipif(find_spec("axe_playwright_python") is None, reason="no axe-core here")
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_serious(browser: Browser, base: str, dark: bool) -> None:
    found = find_spec("axe_playwright_python")
    assert found is not None
    assert found.origin is not None
    axe = Path(found.origin).with_name("axe.min.js").read_text("utf-8")
    for path in PAGES:
        browser.emulate(1200, 800, dark)
        browser.open(base + path)
        browser.run(axe + "; axe.run().then((found) => { window.found = found; });")
        browser.wait("return window.found !== undefined")
        wrong = browser.run(
            "const grave = ['serious', 'critical'];"
            "return found.violations.filter((each) => grave.includes(each.impact))"
            ".map((each) => [each.id, each.nodes.slice(0, 5).map((node) => node.html)])"
        )
        assert wrong == [], path


def test_an_event_is_on_the_page_within_two_seconds(
    browser: Browser, base: str, folder: Path
) -> None:
    event = {"event": "step", "step": 99, "epoch": 2, "loss": 7.25, "lr": 0.1, "tokens": 9999}
    for path, place in (("/run/echo", "state"), ("/", "rows")):
        browser.open(base + path)
        time.sleep(0.7)  # the first event of the connection
        event["loss"] = float(event["loss"]) + 1
        with (folder / "runs" / "echo" / "events.jsonl").open("a") as file:
            file.write(json.dumps({**event, "seconds": 0.1}) + "\n")
        shown = f"return document.getElementById('{place}').innerText.includes('{event['loss']}')"
        assert browser.wait(shown) < 2


def test_the_list_is_sorted_and_filtered_by_keyboard(browser: Browser, base: str) -> None:
    browser.open(base)
    names = "return [...document.querySelectorAll('#rows tr')].filter((row) => !row.hidden)"
    names += ".map((row) => row.children[1].innerText.trim())"
    browser.run("document.querySelector('[data-sort=name]').click()")
    assert browser.run(names) == ["echo", "other"]
    browser.run("document.querySelector('[data-sort=name]').click()")
    assert browser.run(names) == ["other", "echo"]
    browser.run("dispatchEvent(new KeyboardEvent('keydown', { key: '/', cancelable: true }))")
    assert browser.run("return document.activeElement.id") == "filter"
    browser.run(
        "document.activeElement.value = 'ech';"
        "document.activeElement.dispatchEvent(new Event('input'))"
    )
    assert browser.run(names) == ["echo"]
    assert browser.run("return document.getElementById('comparing').disabled")
    browser.run("document.querySelectorAll('#rows input').forEach((box) => box.click())")
    browser.run("document.getElementById('comparing').click()")
    browser.wait("return location.pathname === '/compare'")
    assert browser.run("return document.getElementById('curves') !== null")


def fill(browser: Browser, **values: str) -> None:
    for name, value in values.items():
        place = f"document.querySelector('[name=\"{name}\"]')"
        browser.run(f"{place}.value = arguments[0]", value)


def test_the_form_checks_and_trains_and_the_run_is_stopped_and_resumed(
    browser: Browser, base: str, folder: Path
) -> None:
    browser.open(f"{base}/new")
    fill(browser, data="missing.jsonl", model="tiny:llama", lr="-1")
    browser.run("document.getElementById('check').click()")
    beside = "return document.querySelector('[data-key=lr]').innerText"
    browser.wait(beside, 60)
    assert "greater than 0" in browser.run(beside)
    fill(browser, lr="1e-3", epochs="500")
    browser.run("document.getElementById('check').click()")
    browser.wait("return document.querySelector('[data-key=data]').innerText", 60)
    assert not browser.run(beside)
    fill(browser, **{"data": "train.jsonl", ":name": "made here", "generate.rows": "0"})
    browser.run("document.getElementById('check').click()")
    ready = "return document.getElementById('verdict').innerText.startsWith('ready to train')"
    browser.wait(ready, 60)
    browser.run("document.getElementById('new').requestSubmit()")
    browser.wait("return location.pathname === '/run/made%20here'", 30)
    browser.wait("return document.querySelector('[data-post=stop]') !== null", 60)
    browser.wait("return document.getElementById('curves') !== null", 60)
    browser.run("document.querySelector('[data-post=stop]').click()")
    browser.wait("return document.querySelector('[data-post=resume]') !== null", 60)
    assert (folder / "runs" / "made here" / "checkpoints").is_dir()
    assert "Stopped" in browser.run("return document.getElementById('printed').innerText")
    browser.run("document.querySelector('[data-post=resume]').click()")
    browser.wait("return document.querySelector('[data-post=stop]') !== null", 60)
    browser.run("document.querySelector('[data-post=stop]').click()")
    browser.wait("return document.querySelector('[data-post=resume]') !== null", 60)
    assert browser.problems() == []


def test_the_model_of_a_run_answers(browser: Browser, base: str) -> None:
    browser.open(f"{base}/chat/echo")
    browser.run("document.getElementById('message').value = 'one cat'")
    browser.run("document.getElementById('say').requestSubmit()")
    browser.wait("return !document.querySelector('#say button').disabled", 60)
    assert browser.run("return document.querySelector('#talk .user').innerText") == "one cat"
    answer = browser.run("return document.querySelector('#talk .assistant').innerText")
    assert answer not in ("", "…")
    assert "could not" not in answer
    browser.run("document.getElementById('forget').click()")
    assert browser.run("return document.getElementById('talk').innerText") == ""
