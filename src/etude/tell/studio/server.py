"""The studio as a web server of this machine: fixed files of the page, and answers as JSON or columns."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote

import msgspec

from etude.base.errors import EtudeError, UsageError
from etude.tell.studio.access import StudioAccess
from etude.tell.studio.answers import ColumnsAnswer, FileAnswer
from etude.tell.studio.api import ANSWERS
from etude.tell.studio.folders import StudioFolder
from etude.tell.studio.session import StudioSession

ASSETS: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
FRAMED: Final = "sandbox allow-scripts; form-action 'none'; frame-ancestors 'self'; "
"""Policy of a page in a frame, before that which the page declares: its one style and its one script."""
MOST_BYTES: Final = 1 << 20
"""Of a request."""
EXTRA: Final = "pip install 'etude[studio]'"


def web_libraries() -> tuple[Any, Any]:
    """(starlette's applications, uvicorn), or an error that says how to get them."""
    try:
        import uvicorn
        from starlette import applications
    except ImportError:
        raise UsageError("the studio needs `starlette` and `uvicorn`, which are not installed", hint=EXTRA) from None
    return applications, uvicorn


def studio_app(session: StudioSession, access: StudioAccess) -> Any:
    """The application that answers the page."""
    applications, _ = web_libraries()
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    assets = {name: (body, kind) for name, body, kind in page_files()}

    async def asset(request: Request) -> Response:
        name = request.path_params.get("name") or "index.html"
        if name not in assets:
            return Response("there is no such file", 404, headers=access.headers)
        body, kind = assets[name]
        return Response(body, media_type=kind, headers=access.headers)

    async def answer(request: Request) -> Response:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BYTES:
                return _said(413, "the request is too large", access)
        status, kind, found, more = await run_in_threadpool(answer_to, session, request.path_params["what"], body)
        return Response(found, status, media_type=kind, headers=access.headers | more)

    async def page(request: Request) -> Response:
        status, kind, found, more = await run_in_threadpool(page_of, session, request.path_params["number"])
        return Response(found, status, media_type=kind, headers=access.headers | more)

    routes = [
        Route("/{token}/", asset),
        Route("/{token}/page/{number}", page),
        Route("/{token}/api/{what}", answer, methods=["POST"]),
        Route("/{token}/{name}", asset),
    ]
    return _guarded(applications.Starlette(routes=routes), access)


def answer_to(session: StudioSession, what: str, body: bytes) -> tuple[int, str, bytes, dict[str, str]]:
    """(status, media type, body, more headers) of one question."""
    if what not in ANSWERS:
        return _problem(404, "there is no such question")
    try:
        given = msgspec.json.decode(body or b"{}")
        if not isinstance(given, dict):
            raise UsageError("not an object")
        found = ANSWERS[what](session, given)
    except EtudeError as problem:
        return _problem(400, problem.problem, problem.hint)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _problem(400, "not JSON")
    except Exception:
        logging.getLogger(__name__).exception("`%s` failed", what)
        return _problem(500, f"`{what}` failed: this is a bug in etude")
    if isinstance(found, ColumnsAnswer):
        return 200, "application/octet-stream", found.to_bytes(), {}
    if isinstance(found, FileAnswer):
        told = {"x-etude-name": found.name, "x-etude-command": quote(found.command)}
        return 200, "application/octet-stream", found.content, told
    return 200, "application/json", msgspec.json.encode(found), {}


def page_of(session: StudioSession, number: str) -> tuple[int, str, bytes, dict[str, str]]:
    """The page of a folder that is no run, for a frame of the page: it runs its own script and asks for nothing."""
    at = int(number) if number.isdecimal() and len(number) < 4 else -1
    one = session.runs[at] if 0 <= at < len(session.runs) else None
    if not isinstance(one, StudioFolder) or not one.has_page:
        return _problem(404, "there is no such page")
    try:
        found, policy = one.page()
    except EtudeError as problem:
        return _problem(400, problem.problem, problem.hint)
    return 200, ASSETS[".html"], found, {"content-security-policy": FRAMED + policy}


def _problem(status: int, why: str, hint: str = "") -> tuple[int, str, bytes, dict[str, str]]:
    return status, "application/json", msgspec.json.encode({"problem": why, "hint": hint}), {}


def page_files() -> list[tuple[str, bytes, str]]:
    """(name, content, media type) of the files of the page; colours, tables and findings look as in a report."""
    found = []
    own, shared = files("etude.tell.studio").joinpath("assets"), files("etude.tell.view").joinpath("assets")
    for file in [*own.iterdir(), shared.joinpath("page.css")]:
        suffix = "." + file.name.rpartition(".")[2]
        if suffix in ASSETS:
            found.append((file.name, file.read_bytes(), ASSETS[suffix]))
    return found


def _said(status: int, why: str, access: StudioAccess) -> Any:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(why, status, headers=access.headers)


def _guarded(app: Any, access: StudioAccess) -> Callable[..., Any]:
    """The application behind its access: what is refused never reaches it."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            if (refused := access.refusal(scope["path"], headers)) is not None:
                await _said(*refused, access)(scope, receive, send)
                return
        elif scope["type"] != "lifespan":
            return
        await app(scope, receive, send)

    return guarded


class StudioServer:
    """A server that listens: `address` opens it. `serve` answers until Ctrl-C, `start` from a thread."""

    def __init__(self, session: StudioSession, port: int = 0, *, framed: bool = False) -> None:
        _, uvicorn = web_libraries()
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
            self._socket.listen(128)
        except OSError as problem:
            self._socket.close()
            raise UsageError(f"port {port} is taken: {problem.strerror}", hint="--port 0 takes a free one") from None
        self.access = StudioAccess(self._socket.getsockname()[1], framed=framed)
        config = uvicorn.Config(studio_app(session, self.access), log_level="warning", access_log=False, lifespan="off")
        self._server = uvicorn.Server(config)

    @property
    def address(self) -> str:
        return self.access.address

    def serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def start(self) -> None:
        threading.Thread(target=self.serve, name="etude-studio", daemon=True).start()

    def stop(self) -> None:
        self._server.should_exit = True
