"""Folders that change under a running server, what lies beside them, and pages that take long."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extremax import ExtremeClassifier, TextClassifier
from extremax.report import beside, make_document, save_document
from extremax.serve import models
from extremax.serve.models import Slot, watch
from extremax.serve.settings import ServeConfig
from serve.conftest import make_texts
from serve.live import PATIENCE, run_in_thread, running, wait_for

CONFIG = ServeConfig(reload_seconds=0.001)


def ignore(model: Any) -> None:
    """Prepare nothing."""


def loaded(folder: Path, **options: Any) -> Slot:
    slot = Slot("m", folder, threads=1, **options)
    slot.load(CONFIG, ignore)
    return slot


@pytest.fixture
def folder(text_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(text_folder, tmp_path / "model")
    return tmp_path / "model"


def foreign_document(clf: Any) -> Any:
    """Return an analysis whose labels are not those of the classifier."""
    document = make_document(clf, None)
    document["model"]["labels_checksum"] = "0" * len(document["model"]["labels_checksum"])
    return document


@pytest.mark.error
@pytest.mark.parametrize(
    "error", [KeyError("x"), RuntimeError(""), MemoryError("no memory"), OSError("disk")]
)
def test_any_failure_of_a_reload_leaves_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    slot = loaded(folder)
    before = slot.current

    def fail(*args: Any, **options: Any) -> Any:
        raise error

    os.utime(folder / "header.json", ns=(1, 1))
    assert slot.is_replaced
    with monkeypatch.context() as patch:
        patch.setattr(models, "load_model", fail)
        assert not slot.reload(CONFIG, ignore)
    assert slot.current is before
    assert slot.error == (str(error) or type(error).__name__)
    assert not slot.is_replaced  # the same folder is not tried again and again
    os.utime(folder / "header.json", ns=(2, 2))
    assert slot.is_replaced
    assert slot.reload(CONFIG, ignore)
    assert slot.current is not before
    assert slot.error is None


def test_copy_in_progress_is_tried_again_at_its_end(folder: Path, tmp_path: Path) -> None:
    slot = loaded(folder)
    whole = tmp_path / "whole"
    shutil.move(folder, whole)
    folder.mkdir()
    shutil.copy2(whole / "header.json", folder)
    assert slot.is_replaced
    assert not slot.reload(CONFIG, ignore)
    assert not slot.is_replaced
    probe, before = tmp_path / "probe", folder.stat().st_mtime_ns

    def clock_has_moved() -> bool:
        probe.touch()
        return probe.stat().st_mtime_ns > before

    wait_for(clock_has_moved, "the clock of the file system, which may be coarse, moves on")
    for file in sorted(whole.iterdir()):
        if file.name != "header.json":
            shutil.copy2(file, folder)
    assert slot.is_replaced  # by the time of the folder: the header is the same
    assert slot.reload(CONFIG, ignore)
    assert slot.n_reloads == 1


def test_copy_over_the_files_is_tried_again_at_its_end(folder: Path) -> None:
    slot = loaded(folder)
    whole = {file: file.read_bytes() for file in sorted(folder.iterdir()) if file.suffix}
    for file in whole:
        os.truncate(file, 0)
    (folder / "header.json").write_bytes(whole[folder / "header.json"])
    assert slot.is_replaced
    assert not slot.reload(CONFIG, ignore)
    assert not slot.is_replaced
    for file, content in whole.items():
        file.write_bytes(content)
    assert slot.is_replaced
    assert slot.reload(CONFIG, ignore)


CUT = """
import os, sys
from pathlib import Path
from extremax.serve.models import Slot
from extremax.serve.settings import ServeConfig

slot = Slot("m", Path(sys.argv[1]), threads=1)
model = slot.load(ServeConfig(), lambda model: None)
for file in slot.folder.iterdir():
    os.truncate(file, 0)
print(model.clf.predict(["word1 word2 word3"]).tolist(), model.explain("word1 word2", "texts", 3)["labels"])
"""


def test_a_copy_over_a_served_model_does_not_end_the_server(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", CUT, str(folder)], check=True)


@pytest.mark.error
def test_watch_goes_on_after_a_report_that_fails(folder: Path) -> None:
    slot, lines, reports = loaded(folder), [], []
    slot.log = lines.append

    def report(slot: Slot, done: bool, seconds: float) -> None:
        reports.append(done)
        raise OSError("the log is full")

    async def look() -> None:
        watching = asyncio.create_task(watch([slot], CONFIG, ignore, report))
        for i in range(1, 3):
            os.utime(folder / "header.json", ns=(i, i))
            deadline = time.monotonic() + PATIENCE
            while len(reports) < i and not watching.done() and time.monotonic() < deadline:
                await asyncio.sleep(0.005)
        assert not watching.done()
        watching.cancel()

    run_in_thread(look())
    assert reports == [True, True]
    assert lines == ["m: the reload cannot be reported: the log is full"] * 2


def test_analysis_beside_the_folder_is_found(folder: Path, text_model: Any) -> None:
    assert loaded(folder).current.document is None  # type: ignore[union-attr]
    save_document(make_document(text_model, None), beside(folder))
    document: Any = loaded(folder).current.document  # type: ignore[union-attr]
    assert document["model"]["n_classes"] == len(text_model.classes_)


@pytest.mark.error
def test_damaged_analysis_beside_the_folder_is_left_out(folder: Path) -> None:
    beside(folder).write_text("{")
    lines: list[str] = []
    slot = loaded(folder, log=lines.append)
    assert slot.current is not None
    assert slot.current.document is None
    assert len(lines) == 1
    assert lines[0].startswith("m: served without the analysis beside it: ")
    with pytest.raises(ValueError):  # one that was asked for must be whole
        loaded(folder, analysis=beside(folder))


def test_analysis_of_other_labels_does_not_hide_the_tree(folder: Path, text_model: Any) -> None:
    save_document(foreign_document(text_model), beside(folder))
    with running({"m": folder}, reload_seconds=0) as live:
        status, top = live.ask("/tree")
        assert (status, top["root"]["n_classes"]) == (200, len(text_model.classes_))
        assert live.ask("/analysis")[0] == 200
        assert live.ask("/info")[1]["has_analysis"] is False
        assert len(live.lines) == 1
        assert "its page has no analysis: the analysis is of another model" in live.lines[0]


@pytest.mark.identity
def test_logarithm_of_zero_is_valid_json(folder: Path) -> None:
    model: Any = loaded(folder).current
    unknown = np.zeros(1, np.bool_)
    ids = np.array([[0, 1, -1]], np.int32)  # a search has found two labels where three were asked for
    log_prob = np.array([[-0.5, -np.inf, -np.inf]], np.float32)

    def refuse(name: str) -> Any:
        raise AssertionError(name)

    for as_log, expected in ((True, [-0.5, float(np.finfo(np.float32).min)]), (False, [np.exp(-0.5), 0.0])):
        (answer,) = model._encode(ids, log_prob, unknown, as_log)
        found = json.loads(answer, parse_constant=refuse)
        assert [entry["score"] for entry in found] == expected
        assert [entry["id"] for entry in found] == [0, 1]


def test_page_that_is_given_up_keeps_its_place(text_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, lock = threading.Event(), threading.Lock()
    running_now, most = 0, 0
    with running({"m": text_folder}, max_seconds=0.2, reload_seconds=0) as live:
        model: Any = live.slots[0].current
        page = model.page()

        def build() -> Any:
            nonlocal running_now, most
            with lock:
                running_now += 1
                most = max(most, running_now)
            release.wait(2 * PATIENCE)
            with lock:
                running_now -= 1
            return page

        monkeypatch.setattr(model, "page", build)
        statuses = []

        def is_full() -> bool:
            statuses.append(live.ask("/tree")[0])
            return running_now == 4

        wait_for(is_full, "four pages are built")
        statuses += [live.ask("/tree")[0] for _ in range(3)]
        assert set(statuses) == {504}
        assert running_now == most == 4  # the others have waited for a place, and found none
        release.set()
        wait_for(lambda: live.ask("/tree")[0] == 200, "a page is answered")
        assert most == 4


def test_a_flood_of_explanations_leaves_the_server_free(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    with running({"m": text_folder}, reload_seconds=0) as live, ThreadPoolExecutor(24) as pool:
        model: Any = live.slots[0].current
        explain = model.explain

        def wait(*arguments: Any) -> Any:
            release.wait(2 * PATIENCE)
            return explain(*arguments)

        monkeypatch.setattr(model, "explain", wait)
        asked = [pool.submit(live.ask, "/explain", {"inputs": "fell off a ladder"}) for _ in range(24)]
        wait_for(lambda: sum(one.done() for one in asked) == 20, "twenty are refused")
        refused = [one.result() for one in asked if one.done()]
        assert {status for status, _ in refused} == {503}
        assert refused[0][1]["error"] == "4 explanations are being made; try again in a second."
        for path in ("/info", "/metrics"):
            assert live.ask(path)[0] == 200
        release.set()
        assert sorted(one.result()[0] for one in asked) == [200] * 4 + [503] * 20
        assert live.ask("/explain", {"inputs": "fell off a ladder"})[0] == 200


@pytest.mark.error
def test_failure_of_the_model_is_answered(text_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running({"m": text_folder}, reload_seconds=0) as live:
        model: Any = live.slots[0].current
        assert live.ask("/predict", {"inputs": "a"})[0] == 200
        with monkeypatch.context() as patch:
            patch.setattr(model, "answer", lambda pieces, work: 1 // 0)
            assert live.ask("/predict", {"inputs": "a"})[0] == 500
        assert live.ask("/predict", {"inputs": "a"})[0] == 200
        assert "extremax_queued_rows 0.0" in live.ask("/metrics")[1]


@pytest.mark.error
def test_lane_without_a_thread_answers_later_requests(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running({"m": text_folder}, reload_seconds=0) as live:
        with monkeypatch.context() as patch:

            def refuse(*arguments: Any) -> Any:
                raise RuntimeError("can't start new thread")

            patch.setattr(ThreadPoolExecutor, "submit", refuse)
            assert live.ask("/predict", {"inputs": "a"})[0] == 500
        assert live.ask("/predict", {"inputs": "a"})[0] == 200


def test_a_flood_of_lists_leaves_the_server_free(text_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    with running({"m": text_folder}, reload_seconds=0) as live, ThreadPoolExecutor(40) as pool:
        model: Any = live.slots[0].current
        find = model.labels

        def wait(*arguments: Any) -> Any:
            release.wait(2 * PATIENCE)
            return find(*arguments)

        monkeypatch.setattr(model, "labels", wait)
        asked = [pool.submit(live.ask, "/labels?contains=a") for _ in range(40)]
        wait_for(lambda: "extremax_active_requests 41.0" in live.ask("/metrics")[1], "all have arrived")
        assert live.ask("/info")[0] == 200
        release.set()
        assert {one.result()[0] for one in asked} == {200}


def test_label_of_half_a_surrogate_pair_is_answered(tmp_path: Path) -> None:
    texts, labels = make_texts()
    odd = [f"{label}\ud800" for label in labels]
    TextClassifier(ExtremeClassifier(random_state=0, n_jobs=1)).fit(texts, odd).save(tmp_path / "m")
    with running({"m": tmp_path / "m"}, reload_seconds=0) as live:
        for path in ("/predict", "/explain"):
            status, found = live.ask(path, {"inputs": texts[0]})
            assert status == 200
            first = found[0] if path == "/predict" else found["labels"][0]
            assert first["label"] == odd[0]
