"""When the steps and tool calls of a session ran, from the log of its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Literal, NamedTuple, cast

from amplifier_app.runtime.event_log import time_of
from amplifier_support.fields import mapping_of
from amplifier_support.usage import dollars, token_count


class Span(NamedTuple):
    """Something that took time.

    Attributes:
        kind: A model call, a tool call, or a sub-agent.
        name: The model, the tool, or the agent.
        start: Seconds since the epoch.
        end: Seconds since the epoch.
        is_ok: Whether it succeeded.
        tokens: Tokens of a model call.
        cost: US dollars of a model call; None if unknown.
    """

    kind: Literal["model", "tool", "agent"]
    name: str
    start: float
    end: float
    is_ok: bool = True
    tokens: int = 0
    cost: Decimal | None = None


class Turn(NamedTuple):
    """The spans between a prompt and its answer."""

    start: float
    end: float
    spans: list[Span]


_ENDS = {
    "llm:response": ("model", True),
    "provider:error": ("model", False),
    "tool:post": ("tool", True),
    "tool:error": ("tool", False),
}


def turns_of(events: Iterable[Mapping[str, Any]]) -> list[Turn]:
    """The turns of a session, in order; events that are incomplete are left out."""
    turns: list[Turn] = []
    begun: dict[tuple[str, str], float] = {}
    for event in events:
        name, time = str(event.get("event")), time_of(event)
        raw = event.get("data")
        if time is None or not isinstance(raw, dict):
            continue
        data = cast("dict[str, Any]", raw)
        if name == "prompt:submit":
            turns.append(Turn(time, time, []))
        elif name in ("llm:request", "provider:request"):
            begun.setdefault(("model", _key(data)), time)
        elif name == "tool:pre":
            begun[("tool", _key(data))] = time
        elif name in _ENDS and turns:
            kind, is_ok = _ENDS[name]
            start = begun.pop((kind, _key(data)), None)
            if start is not None:
                turns[-1].spans.append(_span(kind, data, start, time, is_ok))
        if turns and name in (*_ENDS, "prompt:complete", "execution:end"):
            turns[-1] = turns[-1]._replace(end=max(turns[-1].end, time))
    return turns


def _span(kind: str, data: Mapping[str, Any], start: float, end: float, is_ok: bool) -> Span:
    if kind == "tool":
        result = data.get("tool_result")
        failed = isinstance(result, dict) and cast("dict[str, Any]", result).get("success") is False
        name = str(data.get("tool_name") or "tool")
        return Span("agent" if name == "task" else "tool", name, start, end, is_ok and not failed)
    used = mapping_of(data.get("usage"))
    return Span(
        "model",
        str(data.get("model") or data.get("provider") or "model"),
        start,
        end,
        is_ok,
        token_count(used.get("total_tokens")) or 0,
        dollars(used.get("cost_usd")),
    )


def _key(data: Mapping[str, Any]) -> str:
    return str(data.get("tool_call_id") or data.get("span_id"))
