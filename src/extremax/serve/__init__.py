"""``extremax serve``: answer questions to saved models over HTTP.

`create_app` gives an ASGI application, `run_server` runs it.  Both need ``pip install extremax[serve]``.
"""

from __future__ import annotations

from typing import Any

from extremax.serve.settings import ServeConfig

__all__ = ["ServeConfig", "create_app", "run_server"]


def __getattr__(name: str) -> Any:
    # FastAPI is imported when it is used.
    if name == "create_app":
        from extremax.serve.app import create_app

        return create_app
    if name == "run_server":
        from extremax.serve.server import run_server

        return run_server
    raise AttributeError(f"module 'extremax.serve' has no attribute {name!r}")
