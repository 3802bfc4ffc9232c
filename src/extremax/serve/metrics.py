"""Figures of a running server for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from extremax.serve.models import Slot

_LATENCIES = (0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """Counters, histograms and gauges of one server; each server has a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.requests = counter("extremax_requests", "Requests by path and status.", ["path", "status"])
        self.seconds = histogram(
            "extremax_request_seconds", "Time from head to answer.", ["path"], buckets=_LATENCIES
        )
        self.waits = histogram("extremax_queue_seconds", "Time in the queue.", buckets=_LATENCIES)
        self.batches = histogram("extremax_batch_rows", "Rows of one call of a model.", buckets=_ROWS)
        self.model_seconds = histogram(
            "extremax_model_seconds", "Time of one call of a model.", buckets=_LATENCIES
        )
        self.rows = counter("extremax_rows", "Texts or vectors answered.", ["model"])
        self.unknown = counter("extremax_unknown_rows", "Texts that say nothing to the model.", ["model"])
        self.top = counter(
            "extremax_top_probability", "Sum of the probabilities of the first label.", ["model"]
        )
        self.reloads = counter("extremax_reloads", "Models that were loaded again.", ["model", "outcome"])
        self.active = gauge("extremax_active_requests", "Requests that are being answered.")
        self.queued = gauge("extremax_queued_rows", "Rows that wait for a model.")
        self.loaded = gauge("extremax_loaded_timestamp_seconds", "When the model was loaded.", ["model"])
        by_statistic = ["model", "statistic"]
        self.evidence = gauge(
            "extremax_drift_evidence",
            "Log of the greatest e-value of the test for drift, by statistic.",
            by_statistic,
        )
        self.alarm = gauge(
            "extremax_drift_alarm",
            "1 after the test for drift has given an alarm, at its false-alarm rate.",
            by_statistic,
        )
        self.distance = gauge(
            "extremax_drift_distance",
            "Total variation distance between recent rows and held-out rows of training.",
            by_statistic,
        )
        self._lock = threading.Lock()

    def count_rows(self, model: str, n_rows: int, n_unknown: int, top_prob: float) -> None:
        """Count rows that a model has answered."""
        self.rows.labels(model).inc(n_rows)
        self.unknown.labels(model).inc(n_unknown)
        self.top.labels(model).inc(top_prob)

    def count_batch(self, n_rows: int, seconds: float) -> None:
        """Count one call of a model."""
        self.batches.observe(n_rows)
        self.model_seconds.observe(seconds)

    def text(self, n_queued: int, slots: Sequence[Slot]) -> bytes:
        """Return all figures in the text format of Prometheus."""
        with self._lock:
            self.queued.set(n_queued)
            for gauge in (self.evidence, self.alarm, self.distance):
                gauge.clear()  # a reloaded model may have no monitor
            for slot in slots:
                self._look_at(slot)
            return generate_latest(self.registry)

    def _look_at(self, slot: Slot) -> None:
        """Set the gauges of a model."""
        model = slot.current
        if model is None:
            return
        self.loaded.labels(slot.name).set(model.loaded_at.timestamp())
        report = model.monitor_report()
        for name, found in (report or {"statistics": {}})["statistics"].items():
            self.evidence.labels(slot.name, name).set(found["max_log_evidence"])
            self.alarm.labels(slot.name, name).set(float(found["alarm"]))
            self.distance.labels(slot.name, name).set(found["recent_distance"])
