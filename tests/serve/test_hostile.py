"""Requests that mean no good: each is answered with a status and a sentence, and the server goes on."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve.live import Live, read_answer, running


@pytest.fixture(autouse=True)
def _alive_afterwards(live: Live) -> Iterator[None]:
    yield
    assert live.is_alive()
    assert live.ask("/predict", {"inputs": "a ladder"})[0] == 200


@pytest.fixture(scope="module")
def impatient(text_folder: Path) -> Iterator[Live]:
    """A server that waits for the head of a request for a second; nobody else asks it."""
    with running({"m": text_folder}, head_seconds=1.0, reload_seconds=0) as found:
        yield found


def post(body: bytes, *, length: int | None = None, path: str = "/predict") -> bytes:
    stated = len(body) if length is None else length
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {stated}\r\n\r\n".encode() + body


def check(found: tuple[int, Any], status: int, part: str) -> None:
    body = json.loads(found[1]) if isinstance(found[1], str) else found[1]
    assert found[0] == status, found
    assert part in body["error"], found
    assert body["error"].endswith(".")
    assert body["error"].count("\n") == 0


@pytest.mark.error
@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"\xff\xfe{}", 400, "not UTF-8"),
        (b'{"inputs": "\xc3"}', 400, "not UTF-8"),
        (b"[" * 90_000, 400, "inside one another"),
        (b'{"inputs":' * 5000 + b"1" + b"}" * 5000, 400, "inside one another"),
        (b"[1]", 422, "a list"),
        (b"null", 422, "null"),
        (b"{}", 422, "inputs is missing"),
        (b'{"inputs": 3}', 422, "a number"),
        (b'{"inputs": null}', 422, "null"),
        (b'{"inputs": {"text": "a"}}', 422, "an object"),
        (b'{"inputs": ["a", 3]}', 422, "inputs[1]"),
        (b'{"inputs": ["a", ["b"]]}', 422, "takes texts"),
        (b'{"inputs": "a", "x": 1}', 422, "'x' is unknown"),
        (b'{"inputs": "a", "parameters": 3}', 422, "parameters"),
        (b'{"inputs": "a", "parameters": {"k": 3}}', 422, "'k' is unknown"),
        (b'{"inputs": "a", "parameters": {"top_k": 0}}', 422, "from 1 to 20"),
        (b'{"inputs": "a", "parameters": {"top_k": true}}', 422, "whole number"),
        (b'{"inputs": "a", "parameters": {"top_k": 2.5}}', 422, "whole number"),
        (b'{"inputs": "a", "parameters": {"top_k": 1e400}}', 422, "whole number"),
        (b'{"inputs": "a", "parameters": {"top_k": ' + b"9" * 4000 + b"}}", 422, "from 1 to 20"),
        (b'{"inputs": "a", "parameters": {"top_k": ' + b"9" * 9000 + b"}}", 400, "not JSON"),
        (b'{"inputs": "a", "parameters": {"search": "all"}}', 422, "search"),
        (b'{"inputs": "a", "parameters": {"search": ["exact"]}}', 422, "search"),
        (b'{"inputs": "a", "parameters": {"function_to_apply": "tanh"}}', 422, "softmax"),
        (b'{"inputs": "a", "parameters": {"function_to_apply": {}}}', 422, "softmax"),
        (b'{"inputs": "a", "model": "none"}', 404, "no model 'none'"),
        (b'{"inputs": "a", "model": 3}', 422, "name of a model"),
        (b'{"inputs": "' + b"a" * 2001 + b'"}', 413, "2,001 characters"),
        (json.dumps({"inputs": ["a"] * 51}).encode(), 413, "at most 50"),
        (b'{"inputs": "' + b"a" * 100_000 + b'"}', 413, "longer than 100,000 bytes"),
        (b'{"model": "vectors", "inputs": [1, 2]}', 422, "vectors of 6"),
        (b'{"model": "vectors", "inputs": "text"}', 422, "a text"),
        (b'{"model": "vectors", "inputs": [1, 2, 3, 4, 5, NaN]}', 400, "NaN"),
        (b'{"model": "vectors", "inputs": [1, 2, 3, 4, 5, -Infinity]}', 400, "-Infinity"),
        (b'{"model": "vectors", "inputs": [1, 2, 3, 4, 5, 1e39]}', 422, "too large"),
        (b'{"model": "vectors", "inputs": [1, 2, 3, 4, 5, 1e999]}', 422, "too large"),
        (b'{"model": "vectors", "inputs": [1, 2, 3, 4, 5, ' + b"9" * 400 + b"]}", 422, "too large"),
        (b'{"model": "vectors", "inputs": [1, 2, 3, 4, 5, null]}', 422, "null"),
        (b'{"model": "vectors", "inputs": [[1, 2, 3, 4, 5, true]]}', 422, "true or false"),
        (b'{"model": "vectors", "inputs": [1, 2, 3, 4, 5, 3e38]}', 422, "overflow"),
        (b'{"model": "vectors", "inputs": {"indices": [6], "values": [1]}}', 422, "from 0 to 5"),
        (b'{"model": "vectors", "inputs": {"indices": [-1], "values": [1]}}', 422, "from 0 to 5"),
        (b'{"model": "vectors", "inputs": {"indices": [1, 1], "values": [1, 2]}}', 422, "twice"),
        (b'{"model": "vectors", "inputs": {"indices": [1], "values": []}}', 422, "1 indices and 0 values"),
        (b'{"model": "vectors", "inputs": {"indices": 1, "values": 1}}', 422, "two fields"),
        (b'{"model": "vectors", "inputs": [{"indices": [], "values": []}, [1,2,3,4,5,6]]}', 422, "one kind"),
    ],
)
def test_bad_body(live: Live, body: bytes, status: int, part: str) -> None:
    check(live.ask("/predict", body), status, part)


@pytest.mark.parametrize("text", ["", "\x00", "\ud800", "\U0010ffff" * 9, "a\r\nb", "﷽" * 50, "e\u0301" * 90])
def test_odd_texts_are_answered(live: Live, text: str) -> None:
    status, found = live.ask("/predict", {"inputs": text})
    assert status == 200
    assert len(found) == 5
    assert live.ask("/explain", {"inputs": text})[0] == 200


@pytest.mark.error
@pytest.mark.parametrize(
    ("path", "status", "part"),
    [
        ("/nothing", 404, "no such path"),
        ("/models/none/info", 404, "no model 'none'"),
        ("/models/..%2f..%2fetc/info", 404, "no "),
        ("/static/../app.py", 404, "no such"),
        ("/static/..%2fapp.py", 404, "no such"),
        ("/static/%2e%2e/app.py", 404, "no such"),
        ("/static//etc/passwd", 404, "no such"),
        ("/static/%00", 404, "no such"),
        ("/model/../../etc/passwd", 404, "no such"),
        ("/labels?limit=0", 422, "limit"),
        ("/labels?limit=abc", 422, "limit"),
        ("/labels?limit=" + "9" * 5000, 422, "limit"),
        ("/labels?limit=%F0%9F%98%80", 422, "limit"),
        ("/labels?limit=1&limit=2", 422, "twice"),
        ("/labels?x=1", 422, "'x' is unknown"),
        ("/tree?node=-1", 422, "node"),
        ("/tree?depth=99", 422, "depth"),
        ("/tree?label=%FF", 404, "labels"),
    ],
)
def test_bad_path(live: Live, path: str, status: int, part: str) -> None:
    check(live.ask(path), status, part)


@pytest.mark.error
def test_wrong_methods(live: Live) -> None:
    check(live.ask("/predict"), 405, "GET")
    check(live.ask("/info", b"{}"), 405, "POST")
    check(live.ask("/predict", b"{}", method="DELETE"), 405, "DELETE")


def test_two_names_must_agree(live: Live) -> None:
    check(live.ask("/models/words/predict", {"inputs": "a", "model": "vectors"}), 422, "two models")
    assert live.ask("/models/words/predict", {"inputs": "a", "model": "words"})[0] == 200


@pytest.mark.error
def test_endless_body_without_length(live: Live) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    piece = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    check(live.send(head, *[piece] * 200), 413, "longer than")


@pytest.mark.error
def test_stated_length_is_refused_before_the_body(live: Live) -> None:
    check(live.send(post(b"", length=10**15)), 413, "longer than")


@pytest.mark.error
def test_body_shorter_than_stated_is_given_up(text_folder: Path) -> None:
    with running({"m": text_folder}, max_seconds=1.0, reload_seconds=0) as other:
        started = time.monotonic()
        check(other.send(post(b'{"inputs": "a"}', length=50)), 408, "did not arrive within 1 second")
        assert time.monotonic() - started > 0.9
        assert other.is_alive()


@pytest.mark.error
def test_slow_head_is_given_up(impatient: Live) -> None:
    started = time.monotonic()
    pieces = [bytes([byte]) for byte in b"POST /predict HTTP/1.1\r\nHost: x\r\nX: "]
    check(impatient.send(*pieces, *[b"a"] * 2000, pause=0.03), 408, "head of the request")
    assert time.monotonic() - started < 50  # all pieces take a minute
    with impatient.connect() as silent:  # not a byte
        check(read_answer(silent), 408, "head of the request")


@pytest.mark.error
def test_second_request_of_a_connection_is_limited_too(impatient: Live) -> None:
    with impatient.connect() as connection:
        connection.sendall(post(b'{"inputs": "a"}'))
        assert read_answer(connection)[0] == 200
        connection.sendall(b"POST /predict HTTP/1.1\r\n")
        check(read_answer(connection), 408, "head of the request")


def test_keep_alive_and_pipelining(live: Live) -> None:
    with live.connect() as connection:
        for _ in range(3):
            connection.sendall(post(b'{"inputs": "a ladder"}'))
            assert read_answer(connection)[0] == 200
    with live.connect() as connection:
        connection.sendall(post(b'{"inputs": "a ladder"}') * 2)
        assert read_answer(connection)[0] == 200


@pytest.mark.error
@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"\r\n\r\n\r\nnonsense\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 2_000_000 + b"\r\n\r\n",
    ],
)
def test_no_http(live: Live, raw: bytes) -> None:
    check(live.send(raw), 400, "not HTTP")


def test_client_that_goes_away(live: Live) -> None:
    for size in (10, 60, 100):
        with live.connect() as connection:
            connection.sendall(post(b'{"inputs": "a ladder"}')[:size])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


def test_many_silent_connections_do_not_stop_others(live: Live) -> None:
    silent = [live.connect() for _ in range(100)]
    try:
        assert live.ask("/predict", {"inputs": "a ladder"})[0] == 200
    finally:
        for connection in silent:
            connection.close()


def test_a_foreign_name_of_this_machine_is_refused(text_folder: Path) -> None:
    with running({"m": text_folder}, hosts=("localhost", "127.0.0.1"), reload_seconds=0) as live:
        question = {"inputs": "fell off a ladder"}
        for host in (
            "evil.example",
            f"evil.example:{live.port}",
            "localhost.evil.example",
            "localhost:80:80",
        ):
            status, found = live.ask("/predict", question, headers={"Host": host})
            assert (status, found["error"][:33]) == (421, "this server answers to localhost,")
        for host in ("localhost", f"127.0.0.1:{live.port}", "LOCALHOST:80"):
            assert live.ask("/predict", question, headers={"Host": host})[0] == 200


def test_no_answer_is_sniffed(live: Live) -> None:
    for path, body in (("/predict", b'{"inputs": "a"}'), ("/info", None)):
        request = urllib.request.Request(f"http://127.0.0.1:{live.port}{path}", body)
        with urllib.request.urlopen(request) as answer:
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
