"""The model page as one HTML file: styles, scripts and data inside, no requests to anywhere.

The file is made of the same style sheet and scripts as the page of the server.  A content security policy in
it allows exactly these, by their checksums, so that a label or a text that looks like markup or a script can
do nothing even if it were not escaped; data are JSON in an element that is not run, with every ``<``, ``>``
and ``&`` written as an escape.
"""

from __future__ import annotations

import base64
import json
import os
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from extremax.report.document import Document
from extremax.report.page import ModelPage
from extremax.runtime.atomic_files import write_text

MAX_NODES = 4000  # nodes of the tree in a report: about 2 MB
_SCRIPTS = ("base.js", "icicle.js", "model.js")
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def write_report(
    clf: Any,
    document: Document | None,
    path: str | os.PathLike[str],
    *,
    title: str = "Model",
    max_nodes: int = MAX_NODES,
) -> None:
    """Write the model page as one HTML file, completely or not at all.

    Parameters
    ----------
    clf : ExtremeClassifier or TextClassifier
        The model.
    document : dict or None
        From `make_document` or `load_analysis`.
    path : path-like
        The file.
    title : str
        Headline of the page.
    max_nodes : int
        Nodes of the label tree in the file, those with the most rows first; of the others it says how many
        classes they hold.
    """
    write_text(Path(path), report_html(ModelPage(clf, document), title=title, max_nodes=max_nodes))


def report_html(page: ModelPage, *, title: str, max_nodes: int = MAX_NODES) -> str:
    """Return the text of the file."""
    data = {"title": title, "overview": page.overview(), "nodes": page.excerpt(max_nodes)}
    return page_html(f"{title} – extremax report", data, _SCRIPTS)


def page_html(title: str, data: Any, scripts: tuple[str, ...]) -> str:
    """Return a page of scripts that read `data`."""
    style = _asset("style.css")
    script = "\n".join(_asset(name) for name in scripts)
    policy = (
        f"default-src 'none'; style-src '{_checksum(style)}'; script-src '{_checksum(script)}';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<main id="app" tabindex="-1"><noscript>This page needs JavaScript.</noscript></main>
<script type="application/json" id="report">{_json(data)}</script>
<script>{script}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    """Return a file of the static bundle; it must not end the element that it is put into."""
    text = (files("extremax") / "serve" / "static" / name).read_text("utf-8")
    if "</" in text.replace("</svg>", ""):
        raise ValueError(f"{name} holds '</', which would end the element that a report puts it into.")
    return text


def _checksum(text: str) -> str:
    return "sha256-" + base64.b64encode(sha256(text.encode()).digest()).decode()


def _json(data: Any) -> str:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, written in _ESCAPES.items():
        text = text.replace(character, written)
    # lone surrogates cannot be written as UTF-8
    return text.encode("utf-8", errors="replace").decode()
