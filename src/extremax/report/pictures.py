"""Pictures of the pages, for documentation: taken by a Chromium, if one is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from extremax.report.document import Document
from extremax.report.page import ModelPage
from extremax.report.report import answer_html, report_html

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# As root there is no sandbox, and the pages are our own; the others keep the browser from calling its maker.
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--virtual-time-budget=4000",
)
_SECONDS = 120
_MAX_NODES = 20_000  # nodes of the tree from which pictures are taken


def find_browser() -> str | None:
    """Return the path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


def take_pictures(
    clf: Any,
    document: Document,
    folder: str | os.PathLike[str],
    *,
    text: str,
    branch_of: str | None = None,
    title: str = "Model",
) -> list[Path]:
    """Write pictures of an answer and of the report: ``answer.png``, ``label-tree.png``, ``report.png``.

    Parameters
    ----------
    clf : TextClassifier
        The model.
    document : dict
        Its analysis, from `make_document`.
    folder : path-like
        Where the pictures go.
    text : str
        The text whose answer is shown.
    branch_of : str, optional
        The text whose label is shown in its branch of the tree; by default the same.
    title : str
        Headline of the report.

    Returns
    -------
    list of Path
        The pictures.
    """
    browser = find_browser()
    if browser is None:
        raise FileNotFoundError("pictures need a Chromium on the path, and there is none; install one.")
    page = ModelPage(clf, document)
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    report = report_html(page, title=title, max_nodes=_MAX_NODES)
    shown = {node["id"] for node in page.excerpt(_MAX_NODES)}
    label = clf.explain(text if branch_of is None else branch_of, 1).label
    path = page.path(int(clf.label_ids([label])[0]))
    deepest = [node["id"] for node in path if node["id"] in shown][-1]
    shots = {
        "answer.png": (answer_html(clf, page, text), "", (1000, 1130)),
        "label-tree.png": (report, f"#node={deepest}", (1000, 690)),
        "report.png": (report, "", (1000, 1290)),
    }
    for name, (html, fragment, size) in shots.items():
        _take(browser, html, fragment, out / name, size)
    return [out / name for name in shots]


def _take(browser: str, html: str, fragment: str, path: Path, size: tuple[int, int]) -> None:
    """Let the browser draw a page of its own, and put the picture in place when it is complete."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "page.html").write_text(html, encoding="utf-8")
        command = [
            *(browser, *_FLAGS, f"--user-data-dir={place / 'user'}", f"--window-size={size[0]},{size[1]}"),
            *(f"--screenshot={place / 'picture.png'}", (place / "page.html").as_uri() + fragment),
        ]
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        if not (place / "picture.png").is_file():
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise OSError(f"{browser} drew no picture: {' '.join(last) or 'it said nothing'}")
        stage = path.with_name(f".{path.name}.part")
        shutil.copyfile(place / "picture.png", stage)
        os.replace(stage, path)
