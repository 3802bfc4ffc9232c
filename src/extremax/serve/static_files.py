"""Files of the pages: read once when the server starts, so that no path of a request reaches the disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).with_name("static")
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src"
    " 'self' data:; connect-src 'self'; font-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".json": "application/json",
}
_PAGES = {"/": "index.html", "/model": "model.html", "/favicon.ico": "favicon.svg"}
DOCS_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 14px/1.45 ui-monospace, monospace; }
pre { padding: .75rem; overflow-x: auto; border: 1px solid #8886; border-radius: 6px; }
section { border-top: 1px solid #8886; padding: 1rem 0; }
h2 { font-size: 1.1rem; }
.method { display: inline-block; min-width: 3.5rem; font-weight: 700; }
table { border-collapse: collapse; }
td, th { padding: .25rem .75rem .25rem 0; text-align: left; vertical-align: top; }
"""


@dataclass(frozen=True)
class StaticFile:
    """Content, type and tag of a file."""

    content: bytes
    media_type: str
    etag: str


def read_static(folder: Path = FOLDER) -> dict[str, StaticFile]:
    """Return the files of a folder by their paths inside it; those of other types are left out."""
    found = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        media_type = _TYPES.get(path.suffix)
        if media_type is not None and path.is_file():
            content = path.read_bytes()
            etag = f'"{sha256(content).hexdigest()[:16]}"'
            found[path.relative_to(folder).as_posix()] = StaticFile(content, media_type, etag)
    return found


def find(files: Mapping[str, StaticFile], path: str) -> StaticFile | None:
    """Return the file of a path of the server; None where there is none."""
    return files.get(_PAGES.get(path, path.removeprefix("/static/")))
