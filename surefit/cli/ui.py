"""`surefit ui`: serve a local page over a folder of runs."""

from __future__ import annotations

import secrets
import socket
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

PORT = 8765


def ui(
    folder: Annotated[Path, typer.Argument(help="The folder of the runs.")] = Path("runs"),
    port: Annotated[
        int, typer.Option(help="The port; 0: any that is free.", min=0, max=65535)
    ] = PORT,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Others than this machine need the token.")
    ] = "127.0.0.1",
) -> int:
    """Show a folder of runs as a local page: live curves, findings, batches, a form, chat."""
    from surefit.errors import UsageError

    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise UsageError("surefit ui needs Starlette and uvicorn.", "pip install 'surefit[ui]'")
    import uvicorn

    from surefit.ui.server import Access, make_app

    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder.", "Give the folder of the runs.")
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    with listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except OSError as error:
            raise UsageError(
                f"Cannot listen on {host}, port {port}: {error.strerror}.",
                "Choose another --port; 0 is any that is free.",
            ) from None
        access = Access(host, listening.getsockname()[1], secrets.token_urlsafe(24))
        named = f"[{host}]" if ":" in host else host
        print(f"http://{named}:{access.port}/?token={access.token}", flush=True)
        print("Ctrl-C ends the page; runs that it started go on.", file=sys.stderr)
        config = uvicorn.Config(
            make_app(folder, access),
            log_level="warning",
            lifespan="off",
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run([listening])
    return 0
