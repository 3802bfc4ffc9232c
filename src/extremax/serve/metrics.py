"""Figures of a running server for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from extremax.serve.batching import Batcher
from extremax.serve.models import Outcome, ServedModel, Slot

_LATENCIES = (0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters, histograms and gauges of one server; each server has a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        options: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter(
            "extremax_requests", "Requests by path and status.", ["path", "status"], **options
        )
        self.seconds = Histogram(
            "extremax_request_seconds", "Time from head to answer.", ["path"], buckets=_LATENCIES, **options
        )
        self.waits = Histogram("extremax_queue_seconds", "Time in the queue.", buckets=_LATENCIES, **options)
        self.batches = Histogram(
            "extremax_batch_rows", "Rows of one call of a model.", buckets=_ROWS, **options
        )
        self.model_seconds = Histogram(
            "extremax_model_seconds", "Time of one call of a model.", buckets=_LATENCIES, **options
        )
        self.rows = Counter("extremax_rows", "Texts or vectors answered.", ["model"], **options)
        self.unknown = Counter(
            "extremax_unknown_rows", "Texts that say nothing to the model.", ["model"], **options
        )
        self.top = Counter(
            "extremax_top_probability", "Sum of the probabilities of the first label.", ["model"], **options
        )
        self.reloads = Counter(
            "extremax_reloads", "Models that were loaded again.", ["model", "outcome"], **options
        )
        self.active = Gauge("extremax_active_requests", "Requests that are being answered.", **options)
        self._lock = threading.Lock()

    def watch(self, batcher: Batcher, slots: Sequence[Slot]) -> None:
        """Read the queue and the monitors whenever the figures are asked for."""
        self.registry.register(_Live(batcher, slots, self))

    def count_rows(self, model: ServedModel) -> None:
        """Count what the calls of a model give."""
        rows, unknown = self.rows.labels(model.name), self.unknown.labels(model.name)
        top = self.top.labels(model.name)

        def count(outcome: Outcome) -> None:
            rows.inc(outcome.n_rows)
            unknown.inc(outcome.n_unknown)
            top.inc(outcome.top_prob)

        model.on_outcome = count

    def count_batch(self, n_rows: int, seconds: float) -> None:
        """Count one call of a model."""
        self.batches.observe(n_rows)
        self.model_seconds.observe(seconds)

    def text(self) -> bytes:
        """Return all figures in the text format of Prometheus."""
        with self._lock:
            return generate_latest(self.registry)


class _Live:
    """Figures that are read when they are asked for."""

    def __init__(self, batcher: Batcher, slots: Sequence[Slot], metrics: Metrics) -> None:
        self.batcher, self.slots, self.metrics = batcher, slots, metrics

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Any:
        """Yield gauges."""
        queued = GaugeMetricFamily("extremax_queued_rows", "Rows that wait for a model.")
        queued.add_metric([], self.batcher.n_queued)
        yield queued
        names = {
            "mean_top_probability": "Mean probability of the first label.",
            "unknown_share": "Share of texts that say nothing to the model.",
            "loaded_timestamp_seconds": "When the model was loaded.",
        }
        gauges = {
            name: GaugeMetricFamily(f"extremax_{name}", text, labels=["model"])
            for name, text in names.items()
        }
        for slot in self.slots:
            if slot.current is None:
                continue
            n_rows = self.metrics.rows.labels(slot.name)._value.get()
            if n_rows:
                top = self.metrics.top.labels(slot.name)._value.get()
                unknown = self.metrics.unknown.labels(slot.name)._value.get()
                gauges["mean_top_probability"].add_metric([slot.name], top / n_rows)
                gauges["unknown_share"].add_metric([slot.name], unknown / n_rows)
            gauges["loaded_timestamp_seconds"].add_metric([slot.name], slot.current.loaded_at.timestamp())
        yield from gauges.values()
        yield from self._drift()

    def _drift(self) -> Any:
        evidence = GaugeMetricFamily(
            "extremax_drift_evidence",
            "Log of the greatest e-value of the test for drift, by statistic.",
            labels=["model", "statistic"],
        )
        alarm = GaugeMetricFamily(
            "extremax_drift_alarm",
            "1 after the test for drift has given an alarm, at its false-alarm rate.",
            labels=["model", "statistic"],
        )
        distance = GaugeMetricFamily(
            "extremax_drift_distance",
            "Total variation distance between recent rows and held-out rows of training.",
            labels=["model", "statistic"],
        )
        for slot in self.slots:
            model = slot.current
            if model is None or model.monitor is None:
                continue
            with model.monitor_lock:
                report = model.monitor.report()
            for name, found in report["statistics"].items():
                evidence.add_metric([slot.name, name], found["max_log_evidence"])
                alarm.add_metric([slot.name, name], float(found["alarm"]))
                distance.add_metric([slot.name, name], found["recent_distance"])
        yield from (evidence, alarm, distance)
