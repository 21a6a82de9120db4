"""Export spans and metrics: a private provider, never the global one, and exporters that can be abandoned.

Metrics are named as in OpenTelemetry's conventions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from amplifier_extras.hooks_otel.attributes import FIRST_CHUNK, USAGE, Attributes
from amplifier_extras.hooks_otel.config import MODULE_ID, OtelConfig
from amplifier_support.files import make_private_folder, open_regular

logger = logging.getLogger(__name__)

DEFAULT_SERVICE = "amplifier"

_CAUSE = re.compile("Transient error (.*) encountered while")


class Ids(RandomIdGenerator):
    """Give spans the ids of the session's events.

    Attributes:
        next_span: Id of the next span; random if None.
    """

    next_span: int | None = None

    def generate_span_id(self) -> int:
        span, self.next_span = self.next_span, None
        return super().generate_span_id() if span is None else span


class Watched(SpanExporter):
    """Wrap an exporter and record what it delivered, and why it failed.

    Args:
        inner: The exporter.

    Attributes:
        taken: Spans handed over.
        delivered: Of those, how many arrived.
        reason: The last thing the exporter complained about.
    """

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner
        self._thread: int | None = None
        self._has_reported = self._ended = False
        self._logger = logging.getLogger(type(inner).__module__)
        self._logger.addFilter(self._hear)
        self.taken = 0
        self.delivered = 0
        self.reason = ""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._ended:
            return SpanExportResult.FAILURE
        self._thread, self.reason = threading.get_ident(), ""
        try:
            result = self._inner.export(spans)
        # Any exception of an exporter would end up as a traceback on the terminal.
        except Exception as error:
            self.reason = f"{type(error).__name__}: {error}"
            result = SpanExportResult.FAILURE
        finally:
            self._thread = None
            if self._ended:
                self._logger.removeFilter(self._hear)
        if result is SpanExportResult.SUCCESS:
            self.delivered += len(spans)
        elif not self._has_reported:
            self._has_reported = True
            logger.warning(
                "%s: cannot deliver spans: %s. The session continues without them.",
                MODULE_ID,
                self.reason or "unknown reason",
            )
        return result

    def shutdown(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._thread is None:
            self._logger.removeFilter(self._hear)
        self._inner.shutdown()

    def loss_message(self) -> str | None:
        """A message on spans that were not delivered; None if all were."""
        missing = self.taken - self.delivered
        if not missing or self._has_reported:
            return None
        self._has_reported = True
        return f"{missing} of {self.taken} spans were not delivered"

    def _hear(self, record: logging.LogRecord) -> bool:
        """Filter: keep our exporter's log, one line for each retry, off the terminal."""
        if record.thread != self._thread:
            return True
        # That it gave up says less than why the attempt before failed.
        if not self.reason or record.levelno < logging.ERROR:
            message = record.getMessage()
            cause = _CAUSE.search(message)
            self.reason = cause[1] if cause else message
        return False


class _Counter(SpanProcessor):
    """Count the spans to deliver: those a sampler left out never end here."""

    def __init__(self, exporter: Watched) -> None:
        self._exporter = exporter

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        if context is not None and context.trace_flags.sampled:
            self._exporter.taken += 1


class _Lines(SpanExporter):
    """Writes each span as a line of JSON."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        # ASCII-only JSON: nothing in it has a meaning to a terminal.
        self._write(b"".join(span.to_json(indent=None).encode("ascii") + b"\n" for span in spans))
        return SpanExportResult.SUCCESS


class Pipeline:
    """The span provider of one session with its exporters.

    Args:
        config: Where spans go.
        working_dir: Where relative paths start.

    Attributes:
        ids: What the next span is called.
        tracer: Makes spans.
        resource: What the spans are of.
        exporter: Where they go.
    """

    def __init__(self, config: OtelConfig, working_dir: str) -> None:
        self._config = config
        self.ids = Ids()
        self.resource = _resource(config)
        self.exporter = Watched(_exporter(config, working_dir))
        self._provider = TracerProvider(
            resource=self.resource, id_generator=self.ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(_Counter(self.exporter))
        processor = BatchSpanProcessor if config.exporter == "otlp" else SimpleSpanProcessor
        self._provider.add_span_processor(processor(self.exporter))
        self.tracer = self._provider.get_tracer("amplifier")

    async def close(self, more: Callable[[], None] | None) -> None:
        """Send what is left, within the configured time; the loss of the rest is reported.

        Args:
            more: Something else to end, which may take as long.
        """

        def end() -> None:
            self._provider.shutdown()
            if more is not None:
                more()

        # A daemon thread: the process does not wait for it.
        thread = threading.Thread(target=end, name=MODULE_ID, daemon=True)
        thread.start()
        limit = self._config.flush_timeout
        await asyncio.to_thread(thread.join, limit)
        lost = self.exporter.loss_message()
        if lost is not None:
            why = f" ({self.exporter.reason})" if self.exporter.reason else ""
            within = f" within {limit:g} s" if thread.is_alive() else ""
            logger.warning("%s: %s%s%s", MODULE_ID, lost, within, why)
        if thread.is_alive():
            with contextlib.suppress(Exception):
                self.exporter.shutdown()


def _resource(config: OtelConfig) -> Resource:
    own = Resource.create({key: value for key, value in config.resource.items() if key and value})
    named = own.attributes.get(SERVICE_NAME)
    if config.service_name:
        name: Any = config.service_name
    elif SERVICE_NAME in config.resource or os.environ.get("OTEL_SERVICE_NAME"):
        name = named
    else:
        # The SDK's own default is `unknown_service`.
        known = isinstance(named, str) and not named.startswith("unknown_service")
        name = named if known else DEFAULT_SERVICE
    return own.merge(Resource({SERVICE_NAME: name}))


def _exporter(config: OtelConfig, working_dir: str) -> SpanExporter:
    if config.exporter == "console":
        return _Lines(_write_on_stderr)
    if config.exporter == "file":
        path = Path(working_dir) / Path(config.path or "").expanduser()
        return _Lines(lambda data: _append(path, data))
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(**otlp_settings(config, "traces"))


def otlp_settings(config: OtelConfig, signal: str) -> dict[str, Any]:
    """Arguments of an OTLP exporter; settings missing from the config come from the environment."""
    settings: dict[str, Any] = {}
    if config.endpoint is not None:
        settings["endpoint"] = f"{config.endpoint}/v1/{signal}"
    if config.headers:
        settings["headers"] = dict(config.headers)
    if config.timeout is not None:
        settings["timeout"] = config.timeout
    return settings


def _write_on_stderr(data: bytes) -> None:
    sys.stderr.write(data.decode("ascii"))
    sys.stderr.flush()


def _append(path: Path, data: bytes) -> None:
    """Add to a file that is the owner's alone, never through a link."""
    make_private_folder(path.parent)
    descriptor = open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with open(descriptor, "wb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) or 0 :]


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
        # The other exporters work without OTLP's package.
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        self._complaints = _First()
        self._logger = logging.getLogger(OTLPMetricExporter.__module__)
        self._logger.addFilter(self._complaints)
        exporter = OTLPMetricExporter(**otlp_settings(config, "metrics"))
        reader = PeriodicExportingMetricReader(exporter)
        if not _names_instance(config):
            # A series has one writer, but a process may have several sessions.
            resource = resource.merge(Resource({SERVICE_INSTANCE_ID: str(uuid.uuid4())}))
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


def _names_instance(config: OtelConfig) -> bool:
    variable = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return SERVICE_INSTANCE_ID in config.resource or SERVICE_INSTANCE_ID in variable


class _First(logging.Filter):
    """Pass only the first error; an exporter logs every attempt, every minute."""

    _passed = False

    def filter(self, record: logging.LogRecord) -> bool:
        if self._passed or record.levelno < logging.ERROR:
            return False
        self._passed = True
        return True
