"""Train a classifier on a CSV of texts and labels, and answer questions over HTTP.

    python examples/text_csv_to_answers.py tickets.csv --port 8000
    curl -s localhost:8000 -d '{"texts": ["cannot log in"], "k": 3}'

Without arguments it makes up a CSV, trains, serves, asks itself a few questions, and ends.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from extremax import TextClassifier, load_model
from extremax.data import load_dataset


def train(table: Path, folder: Path) -> None:
    """Train on a table and save the model; columns are found by their usual names (text, label, ...)."""
    data = load_dataset(table)
    TextClassifier().fit(data.texts, data.y).save(folder)


class Answers(BaseHTTPRequestHandler):
    """POST {"texts": [...], "k": 5} -> {"answers": [[{"label": ..., "probability": ...}, ...], ...]}."""

    model: TextClassifier  # prediction may be called from several threads at once

    def do_POST(self) -> None:
        try:
            question = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            labels, log_prob = self.model.predict_topk(question["texts"], question.get("k", 5))
        except (ValueError, TypeError, KeyError) as error:
            self.reply(400, {"error": str(error)})
            return
        answers = [
            [{"label": label, "probability": p} for label, p in zip(row, row_p, strict=True)]
            for row, row_p in zip(labels.tolist(), np.exp(log_prob).tolist(), strict=True)
        ]
        self.reply(200, {"answers": answers})

    def reply(self, status: int, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def serve(folder: Path, port: int) -> ThreadingHTTPServer:
    """Return a server for this machine alone; for others, put a full web server in front of it."""
    handler = type("ModelAnswers", (Answers,), {"model": load_model(folder)})
    return ThreadingHTTPServer(("127.0.0.1", port), handler)


def ask(port: int, texts: list[str], k: int) -> list[list[dict[str, object]]]:
    body = json.dumps({"texts": texts, "k": k}).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}", body, timeout=30) as reply:
        return json.load(reply)["answers"]


def make_table(path: Path) -> None:
    """Write the support tickets of a made-up shop: 40 products, each with its own queue."""
    products = [
        f"{kind} {name}" for kind in ("printer", "router", "phone", "camera") for name in "ABCDEFGHIJ"
    ]
    complaints = (
        "does not start",
        "is too loud",
        "lost its settings",
        "arrived broken",
        "needs a new battery",
    )
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(
            [f"my {product} {complaint}", f"queue/{product}"]
            for product in products
            for complaint in complaints
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, nargs="?", help="CSV with a text and a label column")
    parser.add_argument("--model", type=Path, default=Path("model"), help="folder for the model")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    if options.table is not None:
        train(options.table, options.model)
        print(f"answering on http://127.0.0.1:{options.port}; Ctrl-C ends it")
        with contextlib.suppress(KeyboardInterrupt):
            serve(options.model, options.port).serve_forever()
        return
    make_table(Path("tickets.csv"))
    train(Path("tickets.csv"), options.model)
    server = serve(options.model, 0)  # any free port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    texts = ["the printer B is loud", "camera J: battery?"]
    for text, answers in zip(texts, ask(server.server_port, texts, k=2), strict=True):
        print(text, "->", ", ".join(f"{answer['label']} ({answer['probability']:.0%})" for answer in answers))
    server.shutdown()


if __name__ == "__main__":
    main()
