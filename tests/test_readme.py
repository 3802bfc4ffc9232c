"""The README keeps its word: its examples run, its commands and links exist, and every file names the same version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_examples_run_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    clf, X_test, y_test = names["clf"], names["X_test"], names["y_test"]
    assert names["labels"].shape == names["log_prob"].shape == (2_000, 5)
    assert names["negatives"].shape == names["log_p"].shape == (2_000, 4)
    np.testing.assert_array_equal(names["labels"][:, 0], clf.predict(X_test))
    assert clf.score(X_test, y_test) > 0.9  # the clusters hardly overlap: the nearest centre is the right one for every row
    assert (tmp_path / "model" / "header.json").exists()


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)`", README))
    assert named
    assert named <= targets


def test_links_into_the_repository_exist() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / link.split("#")[0]).exists()


def test_extras_named_exist() -> None:
    named = {
        extra
        for group in re.findall(r"\.\[([a-z,]+)\]|extremax\[([a-z,]+)\]", README)
        for part in group
        for extra in part.split(",")
    }
    assert named - {""} <= PROJECT["optional-dependencies"].keys()


def test_versions_agree() -> None:
    version = PROJECT["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE).group(1) == version  # type: ignore[union-attr]
