"""``extremax serve`` on ICD-10-CM: texts per second in batches, latency of single requests, memory.

    python benchmarks/bench_serve.py                         # fits the model, some minutes
    python benchmarks/bench_serve.py --model FOLDER          # a model that is there
    python benchmarks/bench_serve.py --model FOLDER --minutes 10     # memory at full load
    python benchmarks/bench_serve.py --tiny                  # a model of a few words: does it run at all

The server is a process of its own; the client is this one.  Processor time is that of all threads of the
server.  The answers to the first batch are compared with `predict_topk`.  The figure for single requests is
the time beyond that of the model alone, which is measured first, in a process without a server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil

from timing import make_parser, write_rows

NAME = "bench_serve"
WANTED_RATE = 5000.0  # texts per second
WANTED_EXCESS = 3.0  # milliseconds


def fit_model(folder: Path) -> None:
    from extremax import ExtremeClassifier, TextClassifier
    from extremax.data import load_icd10cm

    data = load_icd10cm()
    clf = TextClassifier(ExtremeClassifier(random_state=0)).fit(*data.rows(data.train))
    clf.describe_classes([data.names.get(str(label), "") for label in clf.classes_])
    clf.save(folder)


def load_texts() -> list[str]:
    from extremax.data import load_icd10cm

    data = load_icd10cm()
    texts = data.rows(data.test)[0]
    random.Random(0).shuffle(texts)
    return texts


def tiny_texts() -> list[str]:
    return [f"{first} {second} {third}" for first in "abcdefgh" for second in "ijkl" for third in "mnop"] * 20


def fit_tiny_model(folder: Path) -> None:
    from extremax import ExtremeClassifier, TextClassifier

    texts = tiny_texts()[:128]
    TextClassifier(ExtremeClassifier(random_state=0)).fit(texts, [text[0] for text in texts]).save(folder)


def measure_model(folder: Path, texts: list[str]) -> dict[str, float]:
    """Return the time of the model alone: of one text in milliseconds, and texts per second in batches."""
    code = (
        "import json, sys, time; import numpy as np; from extremax import load_model\n"
        "clf = load_model(sys.argv[1]); texts = json.load(sys.stdin)\n"
        "clf.predict_topk(texts[:300], 5); single = []\n"
        "for text in texts[:300]:\n"
        "    start = time.perf_counter(); clf.predict_topk([text], 5)\n"
        "    single.append(time.perf_counter() - start)\n"
        "paced = []\n"
        "for text in texts[:160]:\n"
        "    time.sleep(0.025); start = time.perf_counter(); clf.predict_topk([text], 5)\n"
        "    paced.append(time.perf_counter() - start)\n"
        "wall, cpu = time.perf_counter(), time.process_time()\n"
        "for i in range(0, 2048, 256): clf.predict_topk(texts[i:i + 256], 5)\n"
        "wall, cpu = time.perf_counter() - wall, time.process_time() - cpu\n"
        "print(json.dumps({'single_ms': 1e3 * float(np.median(single)), 'single_p95_ms': 1e3 *"
        " float(np.quantile(single, 0.95)), 'paced_ms': 1e3 * float(np.median(paced)), 'paced_p95_ms': 1e3 *"
        " float(np.quantile(paced, 0.95)), 'rate': 2048 / wall, 'cpu_us': 1e6 * cpu / 2048}))\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


class Connection:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Connection:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def post(self, body: bytes) -> tuple[int, bytes]:
        self.writer.write(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(head[9:12]), await self.reader.readexactly(length)


def bodies(texts: list[str], size: int) -> list[bytes]:
    parts = [texts[i : i + size] for i in range(0, len(texts) - size + 1, size)]
    return [json.dumps({"inputs": part}).encode() for part in parts]


async def run_batches(port: int, texts: list[str], size: int, seconds: float, rate: float | None) -> int:
    """Send batches over four connections for some time; return the number of texts answered."""
    asked, done, stop = bodies(texts, size), 0, time.perf_counter() + seconds

    async def work(number: int) -> None:
        nonlocal done
        due = time.perf_counter() + number * size / (rate or 1e9)
        at = number
        async with Connection(port) as connection:
            while time.perf_counter() < stop:
                if rate is not None:
                    await asyncio.sleep(max(0.0, due - time.perf_counter()))
                    due += 4 * size / rate
                status, _ = await connection.post(asked[at % len(asked)])
                at += 4
                assert status == 200, status
                done += size

    await asyncio.gather(*(work(number) for number in range(4)))
    return done


def ask_one(connection: socket.socket, body: bytes) -> int:
    """Send one request and read all of its answer, without a layer in between; return the status."""
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    connection.sendall(head + body)
    data = connection.recv(1 << 16)
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16)
    head, _, rest = data.partition(b"\r\n\r\n")
    missing = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) - len(rest)
    while missing > 0:
        missing -= len(connection.recv(1 << 16))
    return int(head[9:12])


def ask_singles(port: int, texts: list[str], seconds: float, per_second: float) -> list[float]:
    """Send single texts at random times; return their latencies in seconds."""
    found, stop, draw = [], time.perf_counter() + seconds, random.Random(1)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        while time.perf_counter() < stop:
            body = json.dumps({"inputs": draw.choice(texts)}).encode()
            time.sleep(draw.expovariate(per_second))
            started = time.perf_counter()
            status = ask_one(connection, body)
            found.append(time.perf_counter() - started)
            assert status == 200, status
    return found


async def run_singles(port: int, texts: list[str], seconds: float, per_second: float) -> list[float]:
    """Send single texts from a thread of their own: those that send batches do not delay them."""
    return await asyncio.to_thread(ask_singles, port, texts, seconds, per_second)


def start_server(folder: Path, arguments: list[str]) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "extremax", "serve", f"icd={folder}", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        print(f"  {line.rstrip()}", flush=True)
        if line.startswith("serving on"):
            return process, int(line.split(":")[2].split()[0])
    raise SystemExit("the server did not start")


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    used = psutil.Process(process.pid).cpu_times()
    return float(used.user + used.system)


def check_answers(folder: Path, port: int, texts: list[str]) -> None:
    from extremax import load_model

    labels, log_prob = load_model(folder).predict_topk(texts, 5)
    body = json.dumps({"inputs": texts, "parameters": {"function_to_apply": "none"}}).encode()

    async def ask() -> bytes:
        async with Connection(port) as connection:
            return (await connection.post(body))[1]

    found = json.loads(asyncio.run(ask()))
    names = [[entry["label"] for entry in answer] for answer in found]
    scores = np.array([[entry["score"] for entry in answer] for answer in found], np.float32)
    assert names == labels.tolist()
    assert np.array_equal(scores, log_prob), "the server's answers differ from predict_topk"
    print(f"answers to {len(texts)} texts: equal to predict_topk, bit for bit")


def measure(folder: Path, port: int, process: subprocess.Popen[str], arguments: argparse.Namespace) -> None:
    texts = arguments.texts
    check_answers(folder, port, texts[:256])
    own = arguments.own
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    print(
        f"model alone: {own['single_ms']:.2f} ms a single text (median; 95%: {own['single_p95_ms']:.2f}),"
        f" {own['paced_ms']:.2f} ms ({own['paced_p95_ms']:.2f}) if one comes every 25 ms,"
        f" {own['rate']:,.0f} texts/s in batches of 256, {own['cpu_us']:.0f} us of processor time a text"
    )
    before, started, own_cpu = cpu_seconds(process), time.perf_counter(), time.process_time()
    n = asyncio.run(run_batches(port, texts, arguments.batch, arguments.seconds, None))
    wall, cpu = time.perf_counter() - started, cpu_seconds(process) - before
    client = 1e6 * (time.process_time() - own_cpu) / n
    print(
        f"batches of {arguments.batch}: {n / wall:,.0f} texts/s (wanted {WANTED_RATE:,.0f}),"
        f" {1e6 * cpu / n:.0f} us of processor time a text, and {client:.0f} of the client:"
        f" {2e6 / (1e6 * cpu / n + client):,.0f} texts/s on two processors without others; load"
        f" {os.getloadavg()[0]:.1f}"
    )
    rows = [
        {
            "case": "batches",
            "texts/s": n / wall,
            "processor us": 1e6 * cpu / n,
            "client us": client,
            "model alone us": own["cpu_us"],
        }
    ]
    for share in (0.0, 0.5):
        rate = share * min(WANTED_RATE, n / wall)

        async def both(rate: float = rate) -> list[float]:
            tasks = [run_singles(port, texts, arguments.seconds, 40.0)]
            if rate:
                tasks.append(run_batches(port, texts, 32, arguments.seconds, rate))  # type: ignore[arg-type]
            return (await asyncio.gather(*tasks))[0]

        latencies = 1e3 * np.array(asyncio.run(both()))
        excess = np.quantile(latencies, [0.5, 0.95, 0.99]) - own["single_ms"]
        print(
            f"single requests beside {rate:,.0f} texts/s in batches of 32: {np.median(latencies):.2f} ms;"
            f" beyond the model's own time: median {excess[0]:.2f}, 95% {excess[1]:.2f} (wanted"
            f" {WANTED_EXCESS:g}), 99% {excess[2]:.2f} ms ({len(latencies)} requests); load"
            f" {os.getloadavg()[0]:.1f}"
        )
        case = "single requests, half load" if share else "single requests alone"
        rows.append({"case": case, "median excess ms": excess[0], "95% excess ms": excess[1]})
    write_rows(NAME, rows, show=False)


def watch_memory(port: int, process: subprocess.Popen[str], arguments: argparse.Namespace) -> None:
    """Run at full load; print the memory of the server every minute."""
    texts, about = arguments.texts, psutil.Process(process.pid)
    total = 0

    def show(minute: float) -> float:
        size = about.memory_info().rss / 1e6
        print(f"  minute {minute:g}: {size:,.1f} MB resident, {total:,} texts answered", flush=True)
        return float(size)

    total += asyncio.run(run_batches(port, texts, arguments.batch, 20.0, None))
    first = show(0)
    last = first
    for minute in range(1, arguments.minutes + 1):

        async def both() -> int:
            batches, _ = await asyncio.gather(
                run_batches(port, texts, arguments.batch, 60.0, None), run_singles(port, texts, 60.0, 20.0)
            )
            return batches

        total += asyncio.run(both())
        last = show(minute)
    print(f"memory: {first:,.1f} MB at the start, {last:,.1f} MB after {arguments.minutes} minutes")


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, help="a saved model of texts; by default one is fitted")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--batch", type=int, default=256, help="texts of one request")
    parser.add_argument("--minutes", type=int, default=0, help="of full load, to see the memory; 0: figures")
    parser.add_argument("--serve", nargs="*", default=[], help="further options of extremax serve")
    arguments = parser.parse_args(argv)
    if arguments.tiny:
        arguments.seconds = 0.5
    arguments.texts = tiny_texts() if arguments.tiny else load_texts()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.model or Path(scratch) / "model"
        if arguments.model is None:
            (fit_tiny_model if arguments.tiny else fit_model)(folder)
        if not arguments.minutes:
            arguments.own = measure_model(folder, arguments.texts)
        process, port = start_server(folder, arguments.serve)
        try:
            if arguments.minutes:
                watch_memory(port, process, arguments)
            else:
                measure(folder, port, process, arguments)
        finally:
            process.terminate()
            process.wait(20)
            assert process.stderr is not None
            process.stderr.close()


if __name__ == "__main__":
    main()
