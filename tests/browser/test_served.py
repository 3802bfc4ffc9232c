"""The pages against a running `extremax serve`: every request of theirs is one that the server knows."""

from __future__ import annotations

import pytest

from extremax import TextClassifier

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
live = pytest.importorskip("serve.live", reason="this package has no server")

PLACES = ("ladder", "roof", "stairs", "bed", "tree", "horse", "bridge", "chair", "wall", "boat")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    texts = [
        f"{verb} {place}" for place in PLACES for verb in ("fell off a", "fall from the", "dropped by a")
    ]
    labels = [place for place in PLACES for _ in range(3)]
    clf = TextClassifier().fit(texts, labels)
    clf.save(folder / "falls")
    with live.running({"falls": folder / "falls"}) as server:
        yield f"http://127.0.0.1:{server.port}"


def test_pages_of_a_running_server(open_page, served):
    answers = []
    page = open_page(served)
    page.on("response", lambda answer: answers.append((answer.status, answer.url.removeprefix(served))))
    page.fill("#text", "fell off the ladder")
    page.wait_for_selector(".marked mark")
    assert page.text_content(".answers li:first-child .label") == "ladder"
    page.click("text=Many texts")
    page.fill("#texts", "fell off a roof\nfall from a horse")
    page.click("text=Classify")
    page.wait_for_selector("text=2 texts classified.")
    page.goto(f"{served}/model")
    page.wait_for_selector(".cell")
    page.fill("#find", "boat")
    page.wait_for_selector("#hits .label")
    page.keyboard.press("Enter")
    page.wait_for_selector(".cell.found")
    assert "boat" in page.text_content("#facts")
    page.goto(f"{served}/model?model=falls")
    page.wait_for_selector(".cell")
    assert [found for found in answers if found[0] not in (200, 304)] == []
    assert {"/explain", "/predict", "/analysis"} <= {path for _, path in answers}
