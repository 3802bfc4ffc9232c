"""Take the pictures of the documentation: ``python docs/take_pictures.py demo/model``.

It needs the model of ``extremax demo``, Playwright and a Chromium.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from extremax.report import ModelPage, report_html
from extremax.report.report import page_html

MAX_NODES = 20_000  # nodes of the tree from which pictures are taken


def answer_html(clf: Any, page: ModelPage, text: str, k: int = 5) -> str:
    """Return a page with the labels of one text and the words that made them, as one HTML file."""
    found = clf.explain(text, k).to_dict()
    ids = clf.label_ids(found.pop("labels")).tolist()
    found["labels"] = [
        {"label": node["label"], "score": score, "description": node["description"]}
        for score, node in zip(found.pop("probabilities"), map(page.class_node, ids), strict=True)
    ]
    found["path"] = page.path(ids[0])
    data = {"text": text, "found": found, "info": page.about}
    return page_html("extremax", data, ("base.js", "ask.js"))


def take_pictures(
    browser: Any, clf: Any, page: ModelPage, folder: Path, *, text: str, branch_of: str, title: str
) -> list[Path]:
    """Write pictures of an answer, of the branch of a label in the tree, and of the report."""
    report = report_html(page, title=title, max_nodes=MAX_NODES)
    shown = {node["id"] for node in page.excerpt(MAX_NODES)}
    path = page.path(int(clf.label_ids([clf.explain(branch_of, 1).label])[0]))
    deepest = [node["id"] for node in path if node["id"] in shown][-1]
    shots = {
        "answer.png": (answer_html(clf, page, text), "", 1130),
        "label-tree.png": (report, f"#node={deepest}", 690),
        "report.png": (report, "", 1290),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for name, (html, fragment, height) in shots.items():
            file = Path(place) / f"{name}.html"
            file.write_text(html, encoding="utf-8")
            tab = browser.new_page(viewport={"width": 1000, "height": height})
            tab.goto(file.as_uri() + fragment)
            tab.screenshot(path=folder / name)
            tab.close()
    return [folder / name for name in shots]


def main(model: str) -> None:
    """Take the pictures of the demonstration's model."""
    from playwright.sync_api import sync_playwright

    from extremax import analyse, load_model
    from extremax.experiments import demo
    from extremax.report import make_document

    clf: Any = load_model(model)
    page = ModelPage(clf, make_document(clf, analyse(clf, *demo.load_texts(None).test)))
    phrases = {"text": demo.PHRASES[1], "branch_of": demo.PHRASES[-1], "title": "ICD-10-CM"}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        take_pictures(browser, clf, page, Path(__file__).with_name("pictures"), **phrases)


if __name__ == "__main__":
    main(sys.argv[1])
