"""A real server on a port of this machine, in a thread, and plain sockets to ask it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from extremax.serve.app import create_app
from extremax.serve.models import Slot
from extremax.serve.server import make_server, open_socket
from extremax.serve.settings import ServeConfig

PATIENCE = 60.0  # seconds that nothing takes, on a machine that has much else to do


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE:.0f} seconds"
        time.sleep(0.005)


def run_in_thread(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end; not here, where the tests of the pages keep a loop of their own."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, main).result()


class Live:
    """The address of a running server, and ways to ask it."""

    def __init__(self, port: int, app: Any, slots: list[Slot]) -> None:
        self.port, self.app, self.slots = port, app, slots
        self.lines: list[str] = []
        self.stop: Any = None

    def ask(
        self, path: str, body: Any = None, *, headers: dict[str, str] | None = None, method: str | None = None
    ) -> tuple[int, Any]:
        """Return status and JSON (or text) of one request."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, headers or {}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                status, content = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, content = error.code, error.read()
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content.decode()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def send(self, *parts: bytes, pause: float = 0.0) -> tuple[int, str]:
        """Send raw bytes; return status and body of the answer (0 where the connection was closed)."""
        with self.connect() as connection:
            for part in parts:
                try:
                    connection.sendall(part)
                except OSError:  # it has answered, and does not listen any more
                    break
                time.sleep(pause)
            return read_answer(connection)

    def is_alive(self) -> bool:
        return self.ask("/health") == (200, {"status": "alive"})


def read_answer(connection: socket.socket) -> tuple[int, str]:
    """Return status and body of one answer."""
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            part = connection.recv(65536)
            if not part:
                break
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:])
        while len(body) < int(fields.get(b"content-length", 0)):
            part = connection.recv(65536)
            if not part:
                break
            body += part
    except ConnectionError:
        return 0, ""
    return (int(head.split()[1]), body.decode()) if head else (0, "")


@contextmanager
def running(folders: dict[str, Path], **options: Any) -> Iterator[Live]:
    """Run a server in a thread while the block runs; it is stopped in order at its end."""
    config = ServeConfig(**options)
    slots = [Slot(name, folder, threads=1) for name, folder in folders.items()]
    lines: list[str] = []
    app = create_app(slots, config, log=lines.append)
    listening = open_socket("127.0.0.1", 0)
    server = make_server(app, config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
    port = listening.getsockname()[1]
    thread.start()
    live = Live(port, app, slots)
    live.lines = lines

    def stop() -> None:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server does not stop"

    live.stop = stop
    try:
        wait_for(lambda: server.started, "the server starts")
        yield live
    finally:
        stop()
