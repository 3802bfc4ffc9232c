"""The pages without a server: requests of the browser are answered from a model in this process.

Answers have the shapes that `extremax serve` documents.  A test can hold an answer back, or change it.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import extremax

ORIGIN = "http://extremax.test"
STATIC = Path(extremax.__file__).parent / "serve" / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class Site:
    """Answers to requests, from a classifier and its page."""

    def __init__(self, clf, page, name="falls"):
        self.clf, self.page, self.name = clf, page, name
        self.requests = []  # (path, body) of every request for data
        self.outside = []  # addresses elsewhere
        self.held = {}  # text -> request for it that waits
        self.hold = set()  # texts whose answers wait for `release`
        self.key = None
        self.examples = []

    def route(self, route):
        request = route.request
        if not request.url.startswith(ORIGIN + "/"):
            self.outside.append(request.url)
            return route.abort()
        path = urlsplit(request.url).path
        file = {"/": "index.html", "/model": "model.html"}.get(path, path.removeprefix("/static/"))
        if path in ("/", "/model") or path.startswith("/static/"):
            return route.fulfill(
                body=(STATIC / file).read_bytes(),
                headers={"Content-Type": TYPES[Path(file).suffix], "Content-Security-Policy": POLICY},
            )
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return self.answer(route, 401, {"error": "an API key is needed."})
        body = json.loads(request.post_data) if request.post_data else None
        self.requests.append((request.url.removeprefix(ORIGIN), body))
        text = None if body is None else body["inputs"]
        if isinstance(text, str) and text in self.hold:
            self.held[text] = route
            return None
        return self.respond(route, body)

    def release(self, text):
        route = self.held.pop(text)
        self.respond(route, json.loads(route.request.post_data))

    def respond(self, route, body):
        url = urlsplit(route.request.url)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        try:
            self.answer(route, 200, getattr(self, url.path.rsplit("/", 1)[1])(query, body))
        except ValueError as error:
            self.answer(route, 404, {"error": str(error)})

    def answer(self, route, status, content):
        text = json.dumps(content, allow_nan=False)
        route.fulfill(status=status, body=text, headers={"Content-Type": "application/json"})

    # -- answers ---------------------------------------------------------------------------------------

    def info(self, query, body):
        texts = hasattr(self.clf, "features_")
        return {
            "name": self.name,
            "models": [self.name],
            "n_classes": len(self.clf.classes_),
            "n_samples": self.clf.model_.classes.n_samples,
            "input": "texts" if texts else "vectors",
            "explains": texts,
            "limits": {"texts": 3},
            "examples": self.examples,
        }

    def analysis(self, query, body):
        return self.page.overview()

    def tree(self, query, body):
        if "search" in query:
            return self.page.search(unquote(query["search"]), int(query["limit"]))
        return self.page.tree(int(query["node"]), int(query["depth"]))

    def predict(self, query, body):
        rows = body["inputs"] if isinstance(body["inputs"][0], str) else [body["inputs"]]
        rows = [rows] if isinstance(rows, str) else rows
        labels, log_prob = self.clf.predict_topk(rows, k=body["parameters"]["top_k"])
        found = [self._labels(names, p) for names, p in zip(labels, log_prob, strict=True)]
        return found if isinstance(body["inputs"], list) and isinstance(body["inputs"][0], str) else found[0]

    def explain(self, query, body):
        found = self.clf.explain(body["inputs"], k=body["parameters"]["top_k"]).to_dict()
        names, prob = found.pop("labels"), found.pop("probabilities")
        found["labels"] = [self._label(name, p) for name, p in zip(names, prob, strict=True)]
        label = self.clf.classes_.tolist().index(names[0])
        return {**found, "path": self.page.path(label)}

    def _labels(self, names, log_prob):
        return [
            self._label(name, float(2.718281828459045**p)) for name, p in zip(names, log_prob, strict=True)
        ]

    def _label(self, name, score):
        texts = self.clf.model_.classes.descriptions
        number = self.clf.classes_.tolist().index(name)
        found = {"label": str(name), "score": score, "id": number}
        return found if texts is None else found | {"description": texts.text(number)}
