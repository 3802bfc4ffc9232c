"""Small files that are written completely or not at all."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write a text file under a temporary name, then rename it."""
    stage = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        stage.write_text(text, encoding="utf-8")
        os.replace(stage, path)
    finally:
        stage.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON."""
    write_text(path, json.dumps(content, indent=1, default=str) + "\n")
