"""One Chromium for all tests of the pages; without one they are skipped, or fail where one is required."""

from __future__ import annotations

import os
import shutil

import pytest

# As root there is no sandbox; the others keep the browser from calling its maker.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PATIENCE = 60_000  # milliseconds that nothing takes, on a machine that has much else to do
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def missing():
    """Say what the tests lack; None where they can run."""
    if next(filter(None, map(shutil.which, NAMES)), None) is None:
        return "the pages are not tested: no Chromium is installed (apt-get install chromium)"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "the pages are not tested: playwright is not installed (pip install playwright)"
    return None


@pytest.fixture(scope="session")
def browser():
    problem = missing()
    if problem is not None:
        if os.environ.get("EXTREMAX_BROWSER") == "required":
            pytest.fail(problem)
        pytest.skip(problem)
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, NAMES)))
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=list(FLAGS), timeout=2 * PATIENCE)
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser):
    """Return a function that opens a page and notes errors; all pages are closed at the end."""
    contexts, problems = [], []

    def open_one(address, *, route=None, width=1100, height=800, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        if route is not None:
            context.route("**/*", route)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.goto(address)
        return page

    open_one.problems = problems
    yield open_one
    for context in contexts:
        context.close()
    expected = ("401", "404")  # Chromium notes every such answer
    assert [text for text in problems if not any(f"status of {code}" in text for code in expected)] == []
