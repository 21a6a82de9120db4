"""Settings of hooks-otel."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from amplifier_modules._shared.module.config import (
    ModuleConfig,
    Published,
    alias_for,
    ignored,
    refused,
    several,
)

MODULE_ID = "hooks-otel"


class OtelConfig(ModuleConfig):
    """Settings of hooks-otel.

    Attributes:
        enabled: Whether to record anything.
        exporter: Where spans go: `otlp`, a collector, over HTTP; `file`, lines of JSON; `console`,
            the same on standard error.
        endpoint: The collector's address without `/v1/traces`; by default that of the
            environment (OTEL_EXPORTER_OTLP_ENDPOINT and the like), else http://localhost:4318.
        headers: HTTP headers for the collector, in addition to those of OTEL_EXPORTER_OTLP_HEADERS.
        path: The file, for `exporter: file`; a relative path starts at the working directory.
        service_name: `service.name` of the resource; by default OTEL_SERVICE_NAME, else
            `amplifier`.
        resource: Further attributes of the resource.
        metrics: Also send metrics: token usage and durations. Only with `otlp`.
        capture_content: Put prompts, answers, and the inputs and results of tools into the spans,
            with secrets replaced.
        max_content_chars: Longer texts are cut to this length, and the oldest messages of a longer
            request are left out.
        timeout: Seconds one request to the collector may take, its retries included; by default
            that of the environment (OTEL_EXPORTER_OTLP_TIMEOUT and the like), else 10.
        flush_timeout: Seconds the end of the session waits for what is not sent yet.
        priority: Order among the hooks of an event at which an operation begins: late, so that the
            time of other hooks is not counted.
    """

    published: ClassVar[Mapping[str, Published]] = {
        "file_path": alias_for("path"),
        "max_attribute_length": alias_for("max_content_chars"),
        **several("service_version user_id team_id", ignored("set it under 'resource'")),
        "capture": ignored("spans are always recorded; set 'metrics' for metrics"),
        **several(
            "sensitive_data filter_sensitive_data",
            ignored("content is left out unless 'capture_content' is true"),
        ),
        **several("payload_limits max_payload_size", ignored("set 'max_content_chars'")),
        **several("batch_delay_ms max_batch_size debug", ignored("not configurable")),
        "sampling_rate": refused("every span is recorded; sample in the collector", 1),
    }

    enabled: bool = True
    exporter: Annotated[
        Literal["otlp", "file", "console"],
        BeforeValidator(
            lambda value: "otlp" if value == "otlp-http" else value,
            json_schema_input_type=Literal["otlp", "otlp-http", "file", "console"],
        ),
    ] = "otlp"
    endpoint: str | None = None
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    path: str | None = None
    service_name: str | None = None
    resource: dict[str, str] = Field(default_factory=dict[str, str])
    metrics: bool = False
    capture_content: bool = False
    max_content_chars: int = Field(default=10_000, ge=100)
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    flush_timeout: float = Field(default=2, ge=0, allow_inf_nan=False)
    priority: int = 100

    @field_validator("endpoint")
    @classmethod
    def _is_http(cls, endpoint: str | None) -> str | None:
        if endpoint is None:
            return None
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it must be a URL with http:// or https://")
        if parts.query or parts.fragment:
            raise ValueError("it must be a URL without '?' and '#'")
        return endpoint.rstrip("/")

    @model_validator(mode="after")
    def _has_a_file(self) -> Self:
        if self.exporter == "file" and not self.path:
            raise ValueError("'exporter: file' needs a 'path'")
        return self


def is_disabled() -> bool:
    """Return True if the environment disables OpenTelemetry."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
