"""What is loaded before a model answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from extremax.serve.models import Predict, ServedModel, Slot
from extremax.serve.settings import ServeConfig


@pytest.mark.parametrize(("search", "tried"), [("beam", {"beam", "exact"}), ("exact", {"exact"})])
def test_loading_makes_what_exact_requests_need(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch, search: str, tried: set[str]
) -> None:
    search_all, seen = ServedModel._search, []

    def noted(model: ServedModel, pieces: Any, work: Predict) -> Any:
        seen.append(work.search)
        return search_all(model, pieces, work)

    monkeypatch.setattr(ServedModel, "_search", noted)
    served = Slot("m", text_folder).load(ServeConfig(search=search), lambda model: None)
    assert set(seen) == tried
    assert "_kept_columns" in served.clf.model_.weights.__dict__
