"""The types of the events of a prompt: the lines of `--output stream-json`, as `schemas/events.schema.json` describes them.

Each is a dictionary; type checkers distinguish them by `event["type"]`, too.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class RequestEvent(TypedDict):
    """A model call starts."""

    type: Literal["request"]
    provider: str | None
    model: str | None


class TextEvent(TypedDict):
    """More text or thinking of the model."""

    type: Literal["text", "thinking"]
    delta: str


class ToolStartEvent(TypedDict):
    """A tool call starts; `input` is what the model has sent."""

    type: Literal["tool_start"]
    id: str | None
    name: str | None
    input: Any


class ToolEndEvent(TypedDict):
    """A tool call has ended, or did not run because it was denied or invalid."""

    type: Literal["tool_end"]
    id: str | None
    name: str | None
    success: bool
    output: str
    duration_ms: int | None


class SubSessionStartEvent(TypedDict):
    """A sub-agent starts a task, in its own session."""

    type: Literal["sub_session_start"]
    session_id: str
    parent_id: str
    agent: str
    depth: int
    resumed: bool
    instruction: str


class Cost(TypedDict):
    """An amount of money in US dollars."""

    usd: float


class SubSessionEndEvent(TypedDict):
    """A sub-agent has ended."""

    type: Literal["sub_session_end"]
    session_id: str
    parent_id: str
    agent: str
    status: Literal["success", "incomplete", "cancelled", "error"]
    steps: int
    usage: dict[str, int]
    cost: Cost | None
    duration_ms: int


class RetryEvent(TypedDict):
    """The provider failed; the request is sent again after `delay_ms`."""

    type: Literal["retry"]
    provider: str | None
    model: str | None
    attempt: int | None
    max_retries: int | None
    delay_ms: int | None
    error_type: str | None


class FallbackEvent(TypedDict):
    """A provider is unavailable and another one is used instead."""

    type: Literal["fallback"]
    provider: str | None
    fallback: str | None
    error_type: str | None


class SwitchedEvent(TypedDict):
    """Another model than the requested one answers, or, without a cause, the requested one again."""

    type: Literal["switched"]
    provider: str | None
    model: str | None
    requested_provider: str | None
    requested_model: str | None
    cause: Literal["fallback", "hook", "service"] | None
    reason: str | None
    until: Literal["next_prompt", "next_request"] | None
    price: dict[str, float] | None


class CompactedEvent(TypedDict):
    """The conversation was shortened."""

    type: Literal["compacted"]
    before_tokens: int | None
    after_tokens: int | None
    before_messages: int | None
    after_messages: int | None


class CheckEvent(TypedDict):
    """A check of the answer has run."""

    type: Literal["check"]
    name: str
    command: str
    passed: bool
    exit_code: int | None
    duration_ms: int
    output: str
    runs: int


class NoticeEvent(TypedDict):
    """A message that `amplifier run` writes to stderr."""

    type: Literal["notice"]
    level: Literal["info", "warning", "error"]
    message: str
    source: str


class ErrorFields(TypedDict):
    """An error, and what to do next."""

    message: str
    hint: str | None
    retry_after_ms: int | None


class ResultEvent(TypedDict):
    """The end of the prompt, always the last event; `amplifier schema result` describes the fields."""

    type: Literal["result"]
    schema_version: int
    outcome: str
    exit_code: int
    error: ErrorFields | None
    response: str
    data: Any
    reason: str | None
    limit: dict[str, Any] | None
    session_id: str | None
    plan_digest: str | None
    provider: str | None
    model: str | None
    answered_models: dict[str, int]
    prompts: int
    steps: int
    usage: dict[str, int]
    cost: Cost | None
    tools: list[dict[str, Any]]
    denied: list[dict[str, Any]]
    waiting: list[dict[str, Any]]
    sub_sessions: list[dict[str, Any]]
    sandbox: dict[str, Any] | None
    checks: list[dict[str, Any]]
    duration_ms: int


Event = (
    RequestEvent
    | TextEvent
    | ToolStartEvent
    | ToolEndEvent
    | SubSessionStartEvent
    | SubSessionEndEvent
    | RetryEvent
    | FallbackEvent
    | SwitchedEvent
    | CompactedEvent
    | CheckEvent
    | NoticeEvent
    | ResultEvent
)
