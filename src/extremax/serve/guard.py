"""The outermost layer of the application: API key, time limit, counting, and an answer to every failure."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from extremax.errors import ScoreOverflowError
from extremax.serve.answers import error_response

if TYPE_CHECKING:
    from extremax.serve.app import Application

Message = MutableMapping[str, Any]
# Paths that need no key: they say nothing about the models' data.
OPEN = frozenset(("/", "/model", "/docs", "/openapi.json", "/health", "/ready", "/ping", "/favicon.ico"))
_PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src"
    " 'self' data:; connect-src 'self'; font-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_PORT = re.compile(r":[0-9]*\Z")
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")
_RAW_PAGE_HEADERS = [(name.lower().encode(), value.encode()) for name, value in _PAGE_HEADERS.items()]
_QUICK = ("/predict", "/invocations")  # answered past the routes, which take half the time of a short request
_CLOSE = (b"connection", b"close")


class Guard:
    """ASGI middleware around all paths.

    Parameters
    ----------
    app : callable
        The application inside.
    application : Application
    paths : sequence of str
        Paths to count requests by; others are counted together.
    """

    def __init__(self, app: Any, application: Application, paths: Sequence[str]) -> None:
        self.app, self.application = app, application
        self.config, self.metrics, self.paths = application.config, application.metrics, frozenset(paths)
        key = self.config.api_key
        self.key = None if key is None else key.encode()

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0
        is_post = scope["method"] == "POST"
        # Only the server below must know that the body of an answer to HEAD is left out.
        scope = {**scope, "state": {}, "method": "GET" if scope["method"] == "HEAD" else scope["method"]}

        async def send_in_time(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
                headers = [*message["headers"], *([_NO_SNIFFING] if is_post else _RAW_PAGE_HEADERS)]
                # an unread body may be endless: close the connection
                if (status >= 400 and self._is_unread(scope)) or self.application.is_stopping:
                    headers.append(_CLOSE)
                message = {**message, "headers": headers}
            async with asyncio.timeout(self.config.max_seconds):  # a client may stop reading
                await send(message)

        self.metrics.active.inc()
        try:
            error = await self._answer(scope, receive, send_in_time)
            if error is not None and not status:
                await error_response(error)(scope, receive, send_in_time)
        finally:
            self.metrics.active.dec()
            path = self._counted(scope["path"])
            self.metrics.requests.labels(path, str(status or 500)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - started)

    async def _answer(self, scope: Message, receive: Any, send: Any) -> HTTPException | None:
        """Let the application answer; return the error to answer with where it does not."""
        if not self._has_key(scope):
            sentence = "this server wants its API key: send the header Authorization: Bearer KEY."
            return HTTPException(401, sentence, {"WWW-Authenticate": "Bearer"})
        if not self._has_host(scope):
            known = ", ".join(self.config.hosts or ())
            return HTTPException(421, f"this server answers to {known}; ask it by one of these names.")
        limit = self.config.max_seconds
        seconds = f"{limit:g} second" + ("" if limit == 1 else "s")
        try:
            async with asyncio.timeout(limit):
                if scope["method"] == "POST" and scope["path"] in _QUICK:
                    answer = await self.application.predict(Request(scope, receive))
                    await answer(scope, receive, send)
                else:
                    await self.app(scope, receive, send)
        except ClientDisconnect:
            return None
        except HTTPException as error:
            return error
        except ScoreOverflowError:
            return HTTPException(
                422, "the scores of a row overflow: its numbers are too large for this model."
            )
        except TimeoutError:
            if self._is_unread(scope):
                return HTTPException(408, f"the request did not arrive within {seconds}.")
            return HTTPException(
                504, f"the answer took longer than {seconds}; send fewer texts, or try again later."
            )
        except Exception as fault:
            self.application.log(f"a request failed: {type(fault).__name__}: {fault}")
            return HTTPException(500, "the server failed to answer this request; its log says why.")
        return None

    @staticmethod
    def _is_unread(scope: Message) -> bool:
        return scope["method"] == "POST" and not scope["state"].get("is_read", False)

    def _has_key(self, scope: Message) -> bool:
        """Whether a request carries the key, if it needs one."""
        path = scope["path"]
        if self.key is None or path in OPEN or path.startswith("/static/"):
            return True
        given = b""
        for name, value in scope["headers"]:
            if name == b"x-api-key":
                given = value
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                given = value[7:].strip()
        return hmac.compare_digest(given, self.key)

    def _has_host(self, scope: Message) -> bool:
        """Whether a request names this server as it may be named."""
        if self.config.hosts is None:
            return True
        given = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        return _PORT.sub("", given).lower() in self.config.hosts

    def _counted(self, path: str) -> str:
        """Return the path of a request for metrics: one of few, whatever is asked for."""
        if path.startswith("/models/"):
            path = "/" + path.split("/", 3)[-1]
        if path.startswith("/static/"):
            return "/static"
        return path if path in self.paths else "other"
