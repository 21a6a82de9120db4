"""Metrics: tokens and durations, by the conventions' names."""

from __future__ import annotations

import logging
import os
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from amplifier_extras.hooks_otel.attributes import FIRST_CHUNK, USAGE, Attributes
from amplifier_extras.hooks_otel.config import OtelConfig
from amplifier_extras.hooks_otel.export import otlp_settings

_KEPT = (
    *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"),
    *("gen_ai.response.model", "gen_ai.tool.name", "error.type"),
)

_DURATIONS = {
    "chat": "gen_ai.client.operation.duration",
    "invoke_agent": "gen_ai.invoke_agent.duration",
    "execute_tool": "gen_ai.execute_tool.duration",
}
"""Operation → its histogram."""

_LATEST = "gen_ai_latest_experimental"
"""Entry of OTEL_SEMCONV_STABILITY_OPT_IN for counters of tokens instead of the older histogram."""


class OtlpMetrics:
    """Send metrics to a collector, every minute and at the end.

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
        self._seconds: dict[str, Any] = {
            operation: meter.create_histogram(name, unit="s", description="Duration")
            for operation, name in _DURATIONS.items()
        }
        self._first_chunk: Any = meter.create_histogram(
            "gen_ai.client.operation.time_to_first_chunk",
            unit="s",
            description="Time until the first piece of a streamed answer",
        )
        self._tokens: Any = None
        self._counters: dict[str, Any] = {}
        if _LATEST in os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").replace(" ", "").split(
            ","
        ):
            self._counters = {
                part: meter.create_counter(
                    f"gen_ai.client.inference.usage.{part}", unit="{token}", description="Tokens"
                )
                for part in USAGE.values()
            }
        else:
            self._tokens = meter.create_histogram(
                "gen_ai.client.token.usage", unit="{token}", description="Tokens of a model call"
            )

    def record(self, attributes: Attributes, nanoseconds: int) -> None:
        """Record an operation that has ended."""
        kept = {key: attributes[key] for key in _KEPT if key in attributes}
        operation = attributes["gen_ai.operation.name"]
        self._seconds[operation].record(nanoseconds / 1e9, kept)
        if operation != "chat":
            return
        if FIRST_CHUNK in attributes:
            self._first_chunk.record(attributes[FIRST_CHUNK], kept)
        for part, counter in self._counters.items():
            if count := attributes.get(f"gen_ai.usage.{part}"):
                counter.add(count, kept)
        if self._tokens is None:
            return
        for kind in ("input", "output"):
            count = attributes.get(f"gen_ai.usage.{kind}_tokens")
            if count is not None:
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
