"""The server of the page: who may ask, what is answered, and what is sent when it changes."""

from __future__ import annotations

import hmac
import ipaddress
import json
import queue
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from anyio import sleep, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefit.core.locks import ask_to_stop
from surefit.errors import SurefitError, UsageError
from surefit.report.compare import compared
from surefit.report.drawn_rows import text_of
from surefit.report.page import table
from surefit.ui import pages, started_jobs
from surefit.ui.started_jobs import Jobs
from surefit.ui.talks import Talks
from surefit.ui.watched_runs import Runs
from surefit.user_code.run_code import recall

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
POLL_SECONDS = 0.5
QUIET_SECONDS = 15.0
"""Between comments that keep a silent connection open."""
MOST_BYTES = 1 << 20
"""Of a request."""
COUNTED = ("error", "warning")
"""Severities that the verdict of a check counts."""
STATIC = {
    **{f"{name}.css": "text/css" for name in ("page", "ui")},
    **{f"{name}.js": "text/javascript" for name in ("page", "ui")},
}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
        "img-src data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Values of the data have no way to run: scripts and styles are files of the server's own."""


@dataclass(frozen=True)
class Access:
    """Who may ask what: the address that is listened on, and the token."""

    host: str
    port: int
    token: str

    @property
    def is_local(self) -> bool:
        """Return whether only this machine can reach the page."""
        return self.host in ("127.0.0.1", "::1", "localhost")

    @property
    def cookie(self) -> str:
        """Return the name of the cookie with the token; ports of one host share their cookies."""
        return f"surefit-{self.port}"

    def knows(self, token: str | None) -> bool:
        """Return whether this is the token."""
        return token is not None and hmac.compare_digest(token.encode(), self.token.encode())

    def serves(self, host: str) -> bool:
        """Return whether the page is asked for by a name of its own.

        A name that a stranger's DNS leads here would make this page one of the stranger's site.
        """
        if self.is_local:
            return host in {f"{name}:{self.port}" for name in LOOPBACK}
        name = urlsplit(f"//{host}").hostname or ""
        return name == self.host or _is_address(name)

    def refuse(self, request: Request) -> Response | None:
        """Return the answer to a request that may not be answered otherwise; None for others."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if not self.serves(host):
            return PlainTextResponse("This page is not served under that name.", 421)
        if origin is not None and urlsplit(origin).netloc != host:
            return PlainTextResponse("Another site may not ask here.", 403)
        changes = request.method not in ("GET", "HEAD")
        if changes and origin is None:
            return PlainTextResponse("Only the page itself may change something.", 403)
        if (changes or not self.is_local) and not self.knows(request.cookies.get(self.cookie)):
            if request.method == "GET" and self.knows(request.query_params.get("token")):
                return None
            return PlainTextResponse("Open the address with the token that was printed.", 403)
        length = request.headers.get("content-length", "0" if not changes else "")
        if not length.isdecimal() or int(length) > MOST_BYTES:
            return PlainTextResponse("The request is too large.", 413)
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Gate:
    """Answers who may not ask, and gives every answer the headers that keep data from running."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)

        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(key.encode(), value.encode()) for key, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        refusal = self.access.refuse(request)
        if refusal is None and "token" in request.query_params:
            refusal = self._enter(request)
        await (refusal or self.app)(scope, receive, send_safe)

    def _enter(self, request: Request) -> Response:
        """Take the token from the address into a cookie that no script reads."""
        answer = RedirectResponse(request.url.path, 303)
        if self.access.knows(request.query_params["token"]):
            answer.set_cookie(
                self.access.cookie, self.access.token, httponly=True, samesite="strict"
            )
        return answer


class Pages:
    """What is answered, over the runs of a folder."""

    def __init__(self, folder: Path, access: Access) -> None:
        self.runs, self.access = Runs(folder), access
        self.jobs, self.talks = Jobs(self.runs.folder), Talks()

    def may_change(self, request: Request) -> bool:
        """Return whether the request has the token."""
        return self.access.knows(request.cookies.get(self.access.cookie))

    def overview(self, request: Request) -> Response:
        """Return the list of runs."""
        body = pages.list_body(self.runs.summaries())
        return _page(f"Runs in {self.runs.folder.name}", body, self.may_change(request), "/live")

    def run(self, request: Request) -> Response:
        """Return the page of a run."""
        name = request.path_params["name"]
        parts = self.parts(name, self.may_change(request))
        live = pages.run_address(name, "live")
        return _page(name, pages.drawn_parts(parts), self.may_change(request), live)

    def parts(self, name: str, may_change: bool) -> list[pages.Part]:
        """Return the parts of a run's page, as they are now."""
        job = self.jobs.started.get(name)
        with self.runs.lock:
            try:
                run = self.runs.get(name)
            except UsageError:
                if job is None:
                    raise
                return pages.run_parts(None, (), job, may_change)
            summary = run.summary()
            if summary.fault:
                fault = f"<p class=error>{text_of(summary.fault)}</p>"
                return [("state", fault)]
            return pages.run_parts(summary, run.drawn()[1], job, may_change)

    def compare(self, request: Request) -> Response:
        """Return a page that compares runs."""
        names = list(dict.fromkeys(request.query_params.getlist("run")))[:8]
        if len(names) < 2:
            raise UsageError("Two runs or more are compared.", "Choose them in the list.")
        with self.runs.lock:
            about = {name: self.runs.get(name).subject() for name in names}
        parts = pages.as_parts(compared(about))
        return _page(" / ".join(names), pages.drawn_parts(parts), self.may_change(request))

    def new(self, request: Request) -> Response:
        """Return the form of a new run, filled in with the settings of another one."""
        values, left_out = dict[str, str](), list[str]()
        if "from" in request.query_params:
            opened = self.runs.get(request.query_params["from"]).open()
            is_own = recall(opened.plan.get("run_id")) is not None
            values, left_out = started_jobs.filled_in(opened.config, is_own)
        body = pages.form_body(values, time.strftime("%Y-%m-%d-%H%M%S"), left_out)
        return _page("New run", body, self.may_change(request))

    def chat(self, request: Request) -> Response:
        """Return the page of a conversation with a run's model."""
        name = request.path_params["name"]
        self.runs.get(name)
        body = pages.chat_body() if self.may_change(request) else ""
        return _page(f"Chat with {name}", body, self.may_change(request))

    async def live(self, request: Request) -> Response:
        """Send what changes on a page, as events."""
        name = request.path_params.get("name")
        may_change = self.may_change(request)

        def parts() -> list[pages.Part]:
            if name is None:
                return [("rows", pages.list_rows(self.runs.summaries()))]
            return self.parts(name, may_change)

        return StreamingResponse(changes(parts), media_type="text/event-stream")

    async def check(self, request: Request) -> Response:
        """Check what the form says, and return findings by the fields that they concern."""
        return JSONResponse(await to_thread.run_sync(_checked, await _values(request)))

    async def train(self, request: Request) -> Response:
        """Start the run that the form describes."""
        values = await _values(request)
        name = values.pop(":name", "").strip()
        self.jobs.train(name, values)
        return JSONResponse({"go": pages.run_address(name)})

    def stop(self, request: Request) -> Response:
        """Ask the process that trains a run to stop after its step."""
        ask_to_stop(self.runs.get(request.path_params["name"]).open().path)
        return JSONResponse({})

    def resume(self, request: Request) -> Response:
        """Start a process that resumes a run."""
        run = self.runs.get(request.path_params["name"])
        self.jobs.resume(run.name, run.open().path)
        return JSONResponse({})

    async def say(self, request: Request) -> Response:
        """Send the answer of a run's model, as it is made."""
        run, asked = self.runs.get(request.path_params["name"]), await request.json()
        key = run.name, run.signature()

        def answer(write: Callable[[str], None]) -> None:
            self.talks.answer(run.open(), key, asked, write)

        return StreamingResponse(written(answer), media_type="text/plain; charset=utf-8")


def _page(title: str, body: str, may_change: bool, live: str = "") -> Response:
    return HTMLResponse(pages.shell(title, body, may_change, live))


async def _values(request: Request) -> dict[str, str]:
    given = await request.json()
    if not isinstance(given, dict) or not all(isinstance(v, str) for v in given.values()):
        raise UsageError("Expected the fields of the form.", "Load the page again.")
    return given


def _checked(values: dict[str, str]) -> dict[str, Any]:
    values.pop(":name", None)
    found = started_jobs.check(values)
    findings = list(found.get("findings", ()))
    if "error" in found:
        lines = str(found["error"]["message"]).splitlines()
        fault = {"code": "", "severity": "error", "fix": found["error"]["fix"]}
        findings = [{**fault, "message": line} for line in lines]
    findings.sort(key=lambda each: each["severity"] != "error")
    beside: dict[str, list[dict[str, Any]]] = {}
    for each in findings:
        for key in started_jobs.fields_of(each, values) or [""]:
            beside.setdefault(key, []).append(each)
    ok = bool(found["ok"])
    ends = {severity: sum(f["severity"] == severity for f in findings) for severity in COUNTED}
    counts = ", ".join(f"{n} {name}{'s' * (n > 1)}" for name, n in ends.items() if n)
    word = "ready to train" if ok else "cannot train"
    verdict = f"<span class='{'good' if ok else 'error'}'>{word}</span> <small>{counts}</small>"
    notes = table(("",), ([note] for note in found.get("notes", ())))
    plan = "" if "error" in found else pages.drawn_plan(found) + notes
    return {
        "ok": ok,
        "verdict": verdict,
        "plan": plan,
        "fields": {key: pages.drawn_findings(each) for key, each in beside.items()},
    }


async def changes(parts: Callable[[], list[pages.Part]]) -> AsyncIterator[str]:
    """Yield a server-sent event with all ids and the parts that have changed, when some have."""
    known: dict[str, str] | None = None
    quiet_since = time.monotonic()
    while True:
        try:
            now = dict(await to_thread.run_sync(parts))
        except SurefitError as error:
            now = {"state": f"<p class=error>{text_of(error.message)}</p>"}
        if now != known:
            new = [[i, body if (known or {}).get(i) != body else None] for i, body in now.items()]
            yield f"data: {json.dumps(new)}\n\n"
            known, quiet_since = now, time.monotonic()
        elif time.monotonic() - quiet_since > QUIET_SECONDS:
            quiet_since = time.monotonic()
            yield ": nothing new\n\n"
        await sleep(POLL_SECONDS)


def written(answer: Callable[[Callable[[str], None]], None]) -> Iterator[str]:
    """Yield what is written while an answer is made; an error ends it, in words."""
    pieces: queue.Queue[str | None] = queue.Queue()

    def make() -> None:
        try:
            answer(pieces.put)
        except SurefitError as error:
            pieces.put(f"{error.message} {error.fix}")
        except Exception as error:
            pieces.put(f"The answer could not be made: {error}")
        finally:
            pieces.put(None)

    Thread(target=make, daemon=True).start()
    yield from iter(pieces.get, None)


def static(request: Request) -> Response:
    """Return one of the style sheets and scripts."""
    name = request.path_params["file"]
    if name not in STATIC:
        return PlainTextResponse("There is no such file.", 404)
    room = Path(__file__).parent if name.startswith("ui.") else Path(__file__).parents[1] / "report"
    return Response((room / name).read_bytes(), media_type=STATIC[name])


def _on_error(request: Request, error: Exception) -> Response:
    """Return an error in words: as a page, or as JSON to the script."""
    assert isinstance(error, SurefitError)
    if request.method == "POST":
        return JSONResponse({"error": f"{error.message} {error.fix}"}, 400)
    body = f"<p class=error>{text_of(error.message)}</p><p>{text_of(error.fix)}</p>"
    return HTMLResponse(pages.shell("This cannot be shown", body, True), 404)


def _on_damage(request: Request, error: Exception) -> Response:
    return _on_error(request, UsageError("Expected JSON.", "Load the page again."))


def make_app(folder: Path, access: Access) -> Gate:
    """Return the application: the pages of a folder of runs behind the gate."""
    shown = Pages(folder, access)
    get = {
        "/": shown.overview,
        "/run/{name:path}": shown.run,
        "/compare": shown.compare,
        "/new": shown.new,
        "/chat/{name:path}": shown.chat,
        "/live": shown.live,
        "/live/{name:path}": shown.live,
        "/static/{file}": static,
    }
    post = {
        "/check": shown.check,
        "/train": shown.train,
        "/do/stop/{name:path}": shown.stop,
        "/do/resume/{name:path}": shown.resume,
        "/say/{name:path}": shown.say,
    }
    routes = [Route(path, answer, methods=["GET"]) for path, answer in get.items()]
    routes += [Route(path, answer, methods=["POST"]) for path, answer in post.items()]
    known: dict[Any, Any] = {SurefitError: _on_error, json.JSONDecodeError: _on_damage}
    return Gate(Starlette(routes=routes, exception_handlers=known), access)
