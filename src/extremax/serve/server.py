"""Run the application under uvicorn: sockets, signals, and clients that are slow to ask."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from extremax.serve.settings import ServeConfig

_SWITCH_SECONDS = 0.0002  # a thread that runs Python gives way after this time: answers do not wait for it
_BACKLOG = 2048
_LINGER_SECONDS = 0.2  # time for requests that were sent before a client heard of the end
_LATE = b'{"error":"the head of the request did not arrive in time."}'
_BAD = b'{"error":"the request is not HTTP/1.1."}'


def _raw_answer(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (status, len(body)) + body


class Protocol(H11Protocol):
    """HTTP/1.1 with a time limit for the head of each request; uvicorn has none."""

    head_seconds = ServeConfig.head_seconds
    _head_timer: asyncio.TimerHandle | None = None
    _is_stopping = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Start the clock at the first byte of a request, and stop it when its head is complete."""
        if self._is_between_requests:
            self._await_head()
        super().data_received(data)
        if not self._is_between_requests:
            self._stop_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_stopping and not self.transport.is_closing():
            self.loop.call_later(_LINGER_SECONDS, self._close_if_idle)
        if not self._is_between_requests:  # the next request was there already
            self._stop_clock()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP with a sentence."""
        self.transport.write(_raw_answer(b"400 Bad Request", _BAD))
        self.transport.close()

    def shutdown(self) -> None:
        """Close the connection after its answer, or soon: a request may be on its way."""
        self._is_stopping = True
        if self._is_between_requests:
            self.loop.call_later(_LINGER_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self._is_between_requests and not self.transport.is_closing():
            self.transport.close()

    @property
    def _is_between_requests(self) -> bool:
        cycle: Any = self.cycle
        return cycle is None or bool(cycle.response_complete)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._give_up)

    def _stop_clock(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if self._is_between_requests and not self.transport.is_closing():
            self.transport.write(_raw_answer(b"408 Request Timeout", _LATE))
            self.transport.close()


class Server(uvicorn.Server):
    """A server that SIGTERM and Ctrl-C stop in order, once; a second Ctrl-C ends it at once."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell clients to ask elsewhere, take the connections that are there, answer, and end."""
        app: Any = self.config.app
        app.state.stop()
        await asyncio.sleep(_LINGER_SECONDS)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while the server runs; the process then ends as if the command were done."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raise OSError with one sentence if the address is taken or unknown."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OSError(f"the host {host!r} is unknown: {error.strerror}.") from None
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":  # there it would let two servers share a port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        why = {
            errno.EADDRINUSE: f"port {port} of {host} is in use by another process; choose another: --port N",
            errno.EACCES: f"port {port} may not be used by this user; choose one above 1023: --port N",
            errno.EADDRNOTAVAIL: f"{host} is not an address of this machine; use 127.0.0.1 or 0.0.0.0",
        }.get(error.errno or 0, f"{host}:{port} cannot be listened to: {error.strerror}")
        raise OSError(f"{why}.") from None
    listening.setblocking(False)
    return listening


def make_server(app: Any, config: ServeConfig) -> Server:
    """Return a server for an application."""
    protocol = type("LimitedProtocol", (Protocol,), {"head_seconds": config.head_seconds})
    return Server(
        uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            server_header=False,
            limit_concurrency=config.max_connections,
            timeout_keep_alive=max(1, round(config.idle_seconds)),
            timeout_graceful_shutdown=max(1, round(config.stop_seconds)),
            h11_max_incomplete_event_size=32 << 10,
            proxy_headers=False,
        )
    )


def run_server(
    app: Any, listening: socket.socket, config: ServeConfig, *, log: Callable[[str], None] = lambda text: None
) -> None:
    """Serve an application on a socket until SIGTERM or Ctrl-C; running requests are answered first."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # a collection amid a request need not look at models and modules, which stay
    try:
        make_server(app, config).run(sockets=[listening])
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before)
        listening.close()
    log("stopped.")
