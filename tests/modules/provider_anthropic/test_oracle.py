"""Anthropic's own SDK as the oracle: equal bodies go out, equal messages come back."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from amplifier_core.message_models import ChatResponse
from tests.modules.provider_anthropic.support import playing
from tests.support.llm.anthropic_rules import sign
from tests.support.llm_server import (
    Item,
    RedactedThinking,
    Reply,
    ScriptedLLM,
    Text,
    Thinking,
    ToolCall,
    Usage,
)

if TYPE_CHECKING:
    import anthropic


MODEL = "claude-haiku-4-5"
MARK = {"cache_control": {"type": "ephemeral"}}
READ = {
    "name": "read",
    "description": "Reads a file.",
    "input_schema": {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
    },
}
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
URL = {"type": "url", "url": "https://images.example.invalid/x.png"}
SIGNED = {"type": "thinking", "thinking": "so that", "signature": sign("so that")}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


@asynccontextmanager
async def sdk(server: ScriptedLLM) -> AsyncGenerator[anthropic.AsyncAnthropic]:
    # Its import costs more than the collection of a tenth of the suite.
    import anthropic

    client = anthropic.AsyncAnthropic(
        api_key="test-key", base_url=server.base_url, max_retries=0, timeout=30
    )
    async with client:
        yield client


# Each feature: our request, our config, and the parameters a user of the SDK would write.
FEATURES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "text": (
        {"messages": [{"role": "user", "content": "hello ä😀"}]},
        {},
        {"messages": [user(text("hello ä😀"))], "max_tokens": 32_000},
    ),
    "conversation": (
        {
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "developer", "content": "be kind"},
                {
                    "role": "user",
                    "content": [
                        text("look"),
                        {"type": "image", "source": PNG},
                        {"type": "image", "source": URL},
                    ],
                },
                {
                    "role": "assistant",
                    "content": [
                        SIGNED,
                        text("reading"),
                        {"type": "tool_call", "id": "t1", "name": "read", "input": {"path": "x"}},
                    ],
                },
                {"role": "tool", "tool_call_id": "t1", "content": "no such file", "is_error": True},
                {"role": "user", "content": "again"},
            ],
            "tools": [READ],
            "tool_choice": "auto",
            "max_output_tokens": 9000,
            "stop": ["END"],
            "metadata": {"user_id": "u1"},
        },
        {"thinking": {"budget_tokens": 2048}, "prompt_caching": True},
        {
            "system": [text("be brief"), text("be kind", **MARK)],
            "messages": [
                user(
                    text("look"),
                    {"type": "image", "source": PNG},
                    {"type": "image", "source": URL, **MARK},
                ),
                assistant(
                    SIGNED,
                    text("reading"),
                    {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "x"}},
                ),
                user(
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": "no such file",
                        "is_error": True,
                    },
                    text("again", **MARK),
                ),
            ],
            "tools": [{**READ, **MARK}],
            "tool_choice": {"type": "auto"},
            "thinking": {"type": "enabled", "budget_tokens": 2048},
            "max_tokens": 9000,
            "stop_sequences": ["END"],
            "metadata": {"user_id": "u1"},
        },
    ),
    "schema and effort": (
        {
            "messages": [{"role": "user", "content": "hello"}],
            "reasoning_effort": "xhigh",
            "response_format": {
                "type": "json_schema",
                "schema": {"type": "object", "properties": {}, "additionalProperties": False},
            },
        },
        {"thinking": "adaptive", "model": "claude-opus-4-8"},
        {
            "model": "claude-opus-4-8",
            "messages": [user(text("hello"))],
            "thinking": {"type": "adaptive", "display": "summarized"},
            "output_config": {
                "effort": "xhigh",
                "format": {
                    "type": "json_schema",
                    "schema": {"type": "object", "properties": {}, "additionalProperties": False},
                },
            },
            "max_tokens": 32_000,
        },
    ),
}


@pytest.mark.parametrize("feature", FEATURES)
async def test_equal_bodies_go_out(feature: str):
    ours, config, theirs = FEATURES[feature]
    settings = {"model": MODEL, "prompt_caching": False, **config}
    async with playing("x", "x", **settings) as setting, sdk(setting.server) as client:
        await setting.provider.complete(ours)
        await client.messages.create(stream=True, **{"model": MODEL, **theirs})
        mine, reference = setting.server.requests
        assert setting.server.rejections == []
    assert mine.body == reference.body
    assert mine.path == reference.path
    for header in ("anthropic-version", "content-type"):
        assert mine.headers[header] == reference.headers[header]


REPLIES: dict[str, Reply] = {
    "text": Reply("hello there, ä😀", chars_per_delta=3),
    "empty": Reply(),
    "thinking": Reply("done", thinking="let me think about this", chars_per_delta=5),
    "redacted": Reply(blocks=[RedactedThinking(), Text("done")]),
    "everything": Reply(
        blocks=[
            Thinking("one"),
            RedactedThinking("opaque"),
            Text("first"),
            ToolCall("read", {"path": "x", "n": [1, 2.5, None, True, {"a": "ä"}]}),
            Thinking("two"),
            Text("second"),
            ToolCall("read"),
        ],
        chars_per_delta=4,
        pings=3,
    ),
    "byte by byte": Reply(
        "ä€😀 and so on", tool_calls=[ToolCall("read", {"p": "ü"})], split_bytes=1
    ),
    "cut by length": Reply("unfini", stop_reason="max_tokens"),
    "stopped": Reply("until", stop_reason="stop_sequence"),
    "refused": Reply("I", stop_reason="refusal"),
    "cached": Reply("x", usage=Usage(3, 4, cache_read=500, cache_creation=60)),
}
NAMES = {"tool_use": "tool_call"}


def as_ours(message: Any) -> list[dict[str, Any]]:
    """The SDK's content in the kernel's words."""
    keys = ("type", "text", "thinking", "signature", "data", "id", "name", "input")
    blocks = [{k: v for k, v in block.to_dict().items() if k in keys} for block in message.content]
    return [{**block, "type": NAMES.get(block["type"], block["type"])} for block in blocks]


@pytest.mark.parametrize("reply", REPLIES)
async def test_equal_messages_come_back(reply: str):
    answer: Item = REPLIES[reply]
    request = {"messages": [{"role": "user", "content": "hello"}], "tools": [READ]}
    async with playing(answer, answer, model=MODEL) as setting, sdk(setting.server) as client:
        ours: ChatResponse = (await setting.stream(request))[1]
        async with client.messages.stream(
            model=MODEL,
            max_tokens=9000,
            messages=[{"role": "user", "content": "hello"}],
            tools=[READ],  # pyright: ignore[reportArgumentType]
        ) as stream:
            theirs = await stream.get_final_message()
    assert [block.model_dump(exclude_none=True) for block in ours.content] == as_ours(theirs)
    assert ours.metadata is not None
    assert ours.metadata["stop_reason"] == theirs.stop_reason
    assert ours.usage is not None
    counts = theirs.usage
    assert ours.usage.output_tokens == counts.output_tokens
    assert ours.usage.cache_read_tokens == counts.cache_read_input_tokens
    assert ours.usage.cache_write_tokens == counts.cache_creation_input_tokens
    assert ours.usage.input_tokens == counts.input_tokens + sum(
        (counts.cache_read_input_tokens or 0, counts.cache_creation_input_tokens or 0)
    )
