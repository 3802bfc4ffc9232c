"""The README keeps its word: targets, links and extras exist, and every file names one version;
test_docs.py runs it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


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
    sections = re.findall(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert sections[0] == "Unreleased"  # a release gets a section of its own below it
    assert version.endswith(".dev0") or sections[1] == version
