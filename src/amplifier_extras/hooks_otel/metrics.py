"""Metrics: tokens and durations, by the conventions' names."""

from __future__ import annotations

import logging
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from amplifier_extras.hooks_otel.attributes import Attributes
from amplifier_extras.hooks_otel.config import OtelConfig
from amplifier_extras.hooks_otel.export import otlp_settings

_KEPT = (
    *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"),
    *("gen_ai.response.model", "gen_ai.tool.name", "error.type"),
)


class OtlpMetrics:
    """Send histograms to a collector, every minute and at the end.

    Args:
        config: Where to.
        resource: What they are of.
    """

    def __init__(self, config: OtelConfig, resource: Resource) -> None:
        self._complaints = _First()
        self._logger = logging.getLogger(OTLPMetricExporter.__module__)
        self._logger.addFilter(self._complaints)
        exporter = OTLPMetricExporter(**otlp_settings(config, "metrics"))
        reader = PeriodicExportingMetricReader(exporter)
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("amplifier")
        self._tokens: Any = meter.create_histogram(
            "gen_ai.client.token.usage", unit="{token}", description="Tokens of a model call"
        )
        self._seconds: Any = meter.create_histogram(
            "gen_ai.client.operation.duration", unit="s", description="Duration of an operation"
        )

    def record(self, attributes: Attributes, nanoseconds: int) -> None:
        """Record an operation that has ended."""
        kept = {key: attributes[key] for key in _KEPT if key in attributes}
        self._seconds.record(nanoseconds / 1e9, kept)
        for kind in ("input", "output"):
            count = attributes.get(f"gen_ai.usage.{kind}_tokens")
            if count is not None and attributes["gen_ai.operation.name"] == "chat":
                self._tokens.record(count, {**kept, "gen_ai.token.type": kind})

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
        self._logger.removeFilter(self._complaints)


class _First(logging.Filter):
    """Pass only the first error; an exporter logs every attempt, every minute."""

    _passed = False

    def filter(self, record: logging.LogRecord) -> bool:
        if self._passed or record.levelno < logging.ERROR:
            return False
        self._passed = True
        return True
