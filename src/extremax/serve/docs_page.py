"""The page at ``/docs``: the OpenAPI document as HTML, without a script and without outside requests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any


def render_docs(document: Mapping[str, Any]) -> str:
    """Return a page on all paths of the document."""
    info = document["info"]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<title>{escape(info["title"])}</title><link rel="stylesheet" href="/docs.css"></head><body>',
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>",
        '<p>This page as data: <a href="/openapi.json">/openapi.json</a> (OpenAPI 3.1).',
        "Questions to a model also exist below <code>/models/NAME</code>.</p>",
        "<pre>curl http://HOST:PORT/predict",
        """  -d '{"inputs": "fell off a ladder", "parameters": {"top_k": 3}}'</pre>""",
    ]
    for path, calls in document["paths"].items():
        if path.startswith("/models/"):
            continue
        for method, call in calls.items():
            parts += _operation(path, method, call)
    parts.append("<h1>Objects</h1>")
    for name, schema in document["components"]["schemas"].items():
        shown = escape(json.dumps(schema, indent=2))
        parts.append(f'<section id="{escape(name)}"><h2>{escape(name)}</h2><pre>{shown}</pre></section>')
    parts.append("</body></html>")
    return "\n".join(parts)


def _operation(path: str, method: str, call: Mapping[str, Any]) -> Iterator[str]:
    yield f'<section><h2><span class="method">{method.upper()}</span> <code>{escape(path)}</code></h2>'
    yield f"<p>{escape(call['summary'])}</p>"
    if call.get("parameters"):
        yield "<table><tr><th>query</th><th>meaning</th></tr>"
        for parameter in call["parameters"]:
            meaning = escape(parameter.get("description", ""))
            yield f"<tr><td><code>{escape(parameter['name'])}</code></td><td>{meaning}</td></tr>"
        yield "</table>"
    if "requestBody" in call:
        yield f"<p>Body: {_link(call['requestBody']['content']['application/json']['schema'])}</p>"
    answers = []
    for status, answer in call["responses"].items():
        schema = answer.get("content", {}).get("application/json", {}).get("schema")
        name = answer["$ref"].rsplit("/", 1)[-1] if "$ref" in answer else "text"
        answers.append(f"{escape(status)} {_link(schema) if schema else escape(name)}")
    yield f"<p>Answers: {', '.join(answers)}</p></section>"


def _link(schema: Mapping[str, Any]) -> str:
    name = escape(schema["$ref"].rsplit("/", 1)[-1])
    return f'<a href="#{name}">{name}</a>'
