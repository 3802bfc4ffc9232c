"""The server as a process: full queues, keys, new models under load, and an orderly end."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from extremax import load_model
from extremax.cli.app import app
from serve.conftest import fit_text_model, make_texts
from serve.live import PATIENCE, Live, running, wait_for

KEY = "a-long-key"


def test_full_queue_is_503(text_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running({"m": text_folder}, max_queue_rows=4, max_batch_rows=1, reload_seconds=0) as live:
        model: Any = live.slots[0].current
        go, begun = threading.Event(), threading.Event()
        answer = model.answer

        def slow(pieces: Any, work: Any) -> Any:
            begun.set()
            go.wait(PATIENCE)
            return answer(pieces, work)

        monkeypatch.setattr(model, "answer", slow)
        with ThreadPoolExecutor(8) as pool:
            first = pool.submit(live.ask, "/predict", {"inputs": "a ladder"})
            assert begun.wait(PATIENCE)
            others = [pool.submit(live.ask, "/predict", {"inputs": ["a", "b"]}) for _ in range(2)]
            wait_for(lambda: "extremax_queued_rows 4.0" in live.ask("/metrics")[1], "four rows are queued")
            connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=PATIENCE)
            connection.request("POST", "/predict", b'{"inputs": "c"}')
            refused = connection.getresponse()
            assert refused.status == 503
            assert refused.headers["Retry-After"] == "1"
            assert "queue is full" in json.loads(refused.read())["error"]
            connection.close()
            go.set()
            assert first.result()[0] == 200
            assert [other.result()[0] for other in others] == [200, 200]
        assert live.ask("/predict", {"inputs": "c"})[0] == 200


def test_answer_that_takes_too_long_is_504(text_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running({"m": text_folder}, max_seconds=1.5, reload_seconds=0) as live:
        model: Any = live.slots[0].current
        answer, go = model.answer, threading.Event()
        monkeypatch.setattr(model, "answer", lambda pieces, work: go.wait(PATIENCE) and answer(pieces, work))
        status, found = live.ask("/predict", {"inputs": "a ladder"})
        go.set()
        assert (status, "1.5 seconds" in found["error"]) == (504, True)


def test_failure_of_one_request_is_not_that_of_others(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running({"m": text_folder}, reload_seconds=0) as live:
        model: Any = live.slots[0].current
        answer, started, go = model.answer, threading.Event(), threading.Event()

        def fragile(pieces: Any, work: Any) -> Any:
            started.set()
            go.wait(PATIENCE)
            if any("boom" in piece for piece in pieces):
                raise RuntimeError("boom")
            return answer(pieces, work)

        monkeypatch.setattr(model, "answer", fragile)
        with ThreadPoolExecutor(4) as pool:
            first = pool.submit(live.ask, "/predict", {"inputs": "a"})
            assert started.wait(PATIENCE)
            good = pool.submit(live.ask, "/predict", {"inputs": "a ladder"})
            bad = pool.submit(live.ask, "/predict", {"inputs": "boom"})
            # both wait for the same call
            wait_for(lambda: "extremax_queued_rows 2.0" in live.ask("/metrics")[1], "two rows are queued")
            go.set()
            assert first.result()[0] == 200
            assert good.result()[0] == 200
            status, found = bad.result()
        assert status == 500
        assert "boom" not in found["error"]
        assert any("boom" in line for line in live.lines)


def test_api_key(text_folder: Path) -> None:
    with running({"m": text_folder}, api_key=KEY, reload_seconds=0) as live:
        question = {"inputs": "a ladder"}
        status, found = live.ask("/predict", question)
        assert (status, "API key" in found["error"]) == (401, True)
        for headers in ({"Authorization": "Bearer wrong"}, {"X-API-Key": KEY[:-1]}, {"Authorization": KEY}):
            assert live.ask("/predict", question, headers=headers)[0] == 401
        for headers in ({"Authorization": f"Bearer {KEY}"}, {"X-API-Key": KEY}):
            assert live.ask("/predict", question, headers=headers)[0] == 200
        for path in ("/info", "/labels", "/metrics", "/models", "/models/m/info", "/tree", "/nothing"):
            assert live.ask(path)[0] == 401
        for path in ("/", "/health", "/ready", "/docs", "/openapi.json"):
            assert live.ask(path)[0] == 200
        assert live.ask("/static/x.js")[0] == 404


def test_new_model_is_taken_up_and_no_request_is_lost(tmp_path: Path) -> None:
    texts, labels = make_texts()
    folder = tmp_path / "model"
    old = fit_text_model()
    old.save(folder)
    from extremax import ExtremeClassifier, TextClassifier

    new = TextClassifier(ExtremeClassifier(random_state=0, n_jobs=1))
    new.fit(texts, [f"new {label}" for label in labels])
    with running({"m": folder}, reload_seconds=0.05) as live:
        stop, seen, failed = threading.Event(), [0, 0], []  # answers of the old model, and of the new one

        def ask() -> None:
            while not stop.is_set():
                status, found = live.ask("/predict", {"inputs": texts[:20]})
                kinds = {entry["label"][:3] == "new" for answer in found for entry in answer if status == 200}
                if len(kinds) == 1:
                    seen[kinds.pop()] += 1
                else:
                    failed.append((status, found))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            wait_for(lambda: seen[False] > 0, "the old model answers")
            for i, model in enumerate((new, old, new), start=1):
                model.save(folder)
                wait_for(lambda count=i: live.slots[0].n_reloads >= count, "a new model is taken up")
                before = seen.copy()
                wait_for(lambda kind=model is new, n=before: seen[kind] > n[kind], "it answers")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert failed == []
        assert live.slots[0].n_reloads == 3
        assert live.ask("/predict", {"inputs": texts[0]})[1][0]["label"].startswith("new")
        counted = 'extremax_reloads_total{model="m",outcome="done"} 3.0'
        wait_for(lambda: counted in live.ask("/metrics")[1], "the reloads are counted")


@pytest.mark.error
def test_damaged_new_model_leaves_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    fit_text_model().save(folder)
    with running({"m": folder}, reload_seconds=0.05) as live:
        shutil.copytree(folder, tmp_path / "bad")
        (tmp_path / "bad" / "header.json").write_text("{}")
        os.rename(folder, tmp_path / "old")
        os.rename(tmp_path / "bad", folder)
        wait_for(lambda: bool(live.lines), "the damage is told")
        assert "the old model stays" in live.lines[0]
        assert live.ask("/predict", {"inputs": "a ladder"})[0] == 200
        assert "not an extremax model" in live.ask("/info")[1]["reload_error"]
        time.sleep(0.2)
        assert len(live.lines) == 1  # said once


def start(*arguments: Any) -> tuple[subprocess.Popen[str], int]:
    """Start ``extremax serve`` and return the process and its port."""
    command = [sys.executable, "-m", "extremax", "serve", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("serving on"):
            return process, int(line.split(":")[2].split()[0])
    raise AssertionError("the server did not start")


def wait_for_active(live: Live, count: int) -> None:
    """Wait until so many requests are being answered, besides that for the figures."""
    line = f"extremax_active_requests {count + 1}.0"
    wait_for(lambda: line in live.ask("/metrics")[1], "the requests arrive")


def wait_until_refused(port: int) -> None:
    """Wait until a server takes no new connection."""

    def is_refused() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
        except ConnectionError:
            return True
        return False

    wait_for(is_refused, "the server stops listening")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM")
def test_sigterm_answers_what_is_under_way(text_folder: Path) -> None:
    """The server has the heads of three requests; it gets the rest of their bodies while it stops."""
    process, port = start(text_folder, "--threads", 1)
    try:
        live = Live(port, None, [])
        body = json.dumps({"inputs": ["fell off a ladder"] * 20}).encode()
        connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE) for _ in range(3)]
        for connection in connections:
            connection.putrequest("POST", "/predict")
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body[:100])
        wait_for_active(live, 3)
        process.send_signal(signal.SIGTERM)
        wait_until_refused(port)
        outcomes = []
        for connection in connections:
            connection.send(body[100:])
            answer = connection.getresponse()
            outcomes.append((answer.status, answer.getheader("Connection"), len(json.loads(answer.read()))))
            connection.close()
        _, messages = process.communicate(timeout=PATIENCE)
        assert outcomes == [(200, "close", 20)] * 3
        assert process.returncode == 0, messages
        assert messages.strip().endswith("stopped.")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.error
def test_port_that_is_taken_is_one_sentence(live: Live, text_folder: Path) -> None:
    done = CliRunner().invoke(app, ["serve", str(text_folder), "--port", str(live.port)])
    assert done.exit_code == 1
    assert done.stderr == (
        f"extremax: port {live.port} of 127.0.0.1 is in use by another process; choose another: --port N.\n"
    )


@pytest.mark.error
def test_mistakes_of_the_command_line(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(*arguments: Any) -> str:
        done = CliRunner().invoke(app, ["serve", *map(str, arguments), "--port", "0"])
        assert done.exit_code == 1, done.output
        return " ".join(done.output.split())

    assert "There is no model at" in say(tmp_path / "nothing")
    assert "two models have the name words" in say(text_folder, text_folder)
    assert "cannot be the name of a model" in say(f"a b={text_folder}")
    assert "names the model x, which is not served" in say(text_folder, "--analysis", "x=file.json")
    key = tmp_path / "key"
    key.write_text("two words\n")
    assert "must hold one key" in say(text_folder, "--api-key-file", key)
    assert "unknown" in say(text_folder, "--host", "no.such.host.invalid")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install extremax[serve]" in say(text_folder)


def test_model_of_python_is_the_one_served(text_folder: Path, live: Live) -> None:
    clf: Any = load_model(text_folder)
    assert live.ask("/info")[1]["n_features"] == clf.classifier_.n_features_in_


def test_end_does_not_wait_for_a_page(text_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, begun = threading.Event(), threading.Event()
    with running({"m": text_folder}, reload_seconds=0, stop_seconds=1.0) as live:
        model: Any = live.slots[0].current

        def build() -> Any:
            begun.set()
            release.wait(2 * PATIENCE)

        monkeypatch.setattr(model, "page", build)
        with live.connect() as connection:
            connection.sendall(b"GET /tree HTTP/1.1\r\nHost: x\r\n\r\n")
            assert begun.wait(PATIENCE)
            started = time.monotonic()
            live.stop()
            assert time.monotonic() - started < 30
    release.set()
