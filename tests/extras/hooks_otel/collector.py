"""An OTLP/HTTP collector on loopback that decodes what it is sent, or misbehaves."""

import contextlib
import gzip
import threading
from collections.abc import Iterator
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.http_server import QuietHandler, serving


class Collector:
    """What arrived.

    Attributes:
        requests: Path and headers of every request.
        spans: Every span.
        resources: Attributes of each resource.
        metrics: Every metric.
        series: The last point of each series of a histogram, as a backend keeps it: resource, name and
            attributes → count.
        status: What each request is answered with; 0 answers nothing until `release`.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.metrics: list[Any] = []
        self.series: dict[str, int] = {}
        self.status = 200
        self.release = threading.Event()
        self.url = ""

    def take(self, path: str, body: bytes) -> None:
        if path.endswith("/v1/traces"):
            request: Any = ExportTraceServiceRequest.FromString(body)
            for group in request.resource_spans:
                self.resources.append(attributes(group.resource))
                self.spans += [span for scope in group.scope_spans for span in scope.spans]
        else:
            request = ExportMetricsServiceRequest.FromString(body)
            for group in request.resource_metrics:
                metrics = [m for scope in group.scope_metrics for m in scope.metrics]
                self.metrics += metrics
                resource = attributes(group.resource)
                for metric in metrics:
                    for point in metric.histogram.data_points:
                        series = str((sorted(resource.items()), metric.name, attributes(point)))
                        self.series[series] = point.count

    def named(self, name: str) -> Any:
        """The one span of this name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found


def attributes(holder: Any) -> dict[str, Any]:
    """The attributes of a span, an event, a point or a resource."""
    found: dict[str, Any] = {}
    for pair in holder.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        if kind == "array_value":
            value = [getattr(each, each.WhichOneof("value")) for each in value.values]
        found[pair.key] = value
    return found


@contextlib.contextmanager
def running() -> Iterator[Collector]:
    """A collector that runs meanwhile."""
    collector = Collector()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.requests.append((self.path, dict(self.headers)))
            if collector.status == 0:
                collector.release.wait(60)
                return
            if collector.status == 200:
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(self.path, body)
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serving(Handler) as collector.url:
        try:
            yield collector
        finally:
            collector.release.set()
