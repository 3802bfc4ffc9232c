"""extremax as a backend of Annif.

Annif has a fixed list of backends. `register` adds ``extremax`` to it, and the command ``annif-extremax`` is
the command ``annif`` with that backend: all its subcommands are there.
"""

from __future__ import annotations

from typing import Any


def _load_backend() -> Any:
    from annif_extremax.backend import ExtremaxBackend

    return ExtremaxBackend


def register() -> None:
    """Make ``backend=extremax`` known to Annif in this process; calling it again changes nothing."""
    from annif import backend

    try:
        known = backend._backend_fns
    except AttributeError:
        raise ImportError(
            "this version of Annif keeps its backends elsewhere; annif-extremax works with Annif 1.3 and 1.4."
        ) from None
    known.setdefault("extremax", _load_backend)


def create_app(config_name: str | None = None) -> Any:
    """Return Annif's web application with the backend; uvicorn takes it as a factory."""
    import annif

    register()
    return annif.create_cx_app(config_name)


def main() -> None:
    """Run Annif's command line with the backend."""
    register()
    from annif.cli import cli

    cli()
