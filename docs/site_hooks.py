"""MkDocs: every page of docs/results/ is in the menu and in the list of results, under the title it has itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def _pages() -> dict[str, str]:
    """File name -> title of each page of results."""
    pages = {}
    for path in sorted(RESULTS.rglob("*.md")):
        heading = next(
            (line for line in path.read_text().splitlines() if line.startswith("# ")), f"# {path.stem}"
        )
        name = path.relative_to(RESULTS).as_posix()
        if name != "index.md":
            pages[name] = heading.removeprefix("# ")
    return pages


def on_config(config: Any) -> Any:
    section = next(entry["Results"] for entry in config["nav"] if "Results" in entry)
    section += [{title: f"results/{name}"} for name, title in _pages().items()]
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri != "results/index.md":
        return markdown
    return markdown + "\n" + "".join(f"- [{title}]({name})\n" for name, title in _pages().items())
