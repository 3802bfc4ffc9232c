"""Arrays of a model folder by name, read without extremax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load_file

Arrays = dict[str, NDArray[Any]]


def read_folder(folder: Path) -> Arrays:
    """Read all arrays of a model folder by their names."""
    paths = sorted(Path(folder).rglob("*.safetensors"))
    return {name: array for path in paths for name, array in load_file(path).items()}
