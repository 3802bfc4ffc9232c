"""The pages and the label tree over HTTP: the static bundle, and nodes on demand."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest

from serve.live import Live

pytest.importorskip("extremax.report")


def test_static_files_are_served(live: Live) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{live.port}/") as answer:
        page, tag, policy = answer.read(), answer.headers["ETag"], answer.headers["Content-Security-Policy"]
    assert b"<!doctype html>" in page.lower()
    assert "script-src 'self'" in policy
    assert live.ask("/", headers={"If-None-Match": tag})[0] == 304
    for path in ("/model", "/static/style.css", "/static/base.js"):
        assert live.ask(path)[0] == 200


def test_tree_over_http(live: Live, text_model: Any) -> None:
    status, top = live.ask("/tree?depth=2")
    assert status == 200
    root = top["root"]
    assert root["id"] == 0
    assert root["n_classes"] == len(text_model.classes_)
    below = next(node for node in top["nodes"] if node["parent"] == 0)
    assert live.ask(f"/tree?node={below['id']}&depth=1")[1]["root"]["id"] == below["id"]
    path = live.ask("/tree?label=W03")[1]["path"]
    assert path[0]["id"] == 0
    assert path[-1]["label"] == "W03"
    assert live.ask("/tree?search=w0&limit=3")[1]["labels"][0]["label"] == "W00"
    status, found = live.ask("/tree?node=99999")
    assert (status, found["error"].endswith(".")) == (404, True)
    status, overview = live.ask("/analysis")
    assert status == 200
    assert overview
    assert live.ask("/info")[1]["has_tree"] is True
    explained = live.ask("/explain", {"inputs": "fell off a ladder"})[1]
    assert explained["path"][-1]["label"] == explained["labels"][0]["label"]
