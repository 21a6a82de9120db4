"""Fields, defaults and behaviour of the models that published modules rely on."""

import json
import pickle
from dataclasses import fields as dataclass_fields
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticUndefined

from amplifier_core import content_models, interfaces, message_models, models
from amplifier_core.content_models import ContentBlockType, TextContent, ToolResultContent
from amplifier_core.message_models import (
    ChatRequest,
    ChatResponse,
    ContentBlockUnion,
    ImageBlock,
    Message,
    TextBlock,
    ToolCall,
    Usage,
)
from amplifier_core.models import HookResult, ModelInfo, ProviderInfo, SessionStatus, ToolResult

X: Any = PydanticUndefined

PNG = "iVBORw0KGgo="

TABLES: dict[tuple[Any, str], dict[str, Any]] = {
    (models, "ToolResult"): {"success": True, "output": None, "error": None, "content": None},
    (models, "HookResult"): {
        "action": "continue",
        "data": None,
        "reason": None,
        "context_injection": None,
        "context_injection_role": "system",
        "ephemeral": False,
        "approval_prompt": None,
        "approval_options": None,
        "approval_timeout": 300.0,
        "approval_default": "deny",
        "suppress_output": False,
        "user_message": None,
        "user_message_level": "info",
        "user_message_source": None,
        "append_to_last_tool_result": False,
        "context_injections": [],
        "changes": [],
    },
    (models, "ContextInjection"): {
        "content": X,
        "role": "system",
        "ephemeral": False,
        "append_to_last_tool_result": False,
        "hook_name": "unknown",
        "event": "",
    },
    (models, "ProviderInfo"): {
        "id": X,
        "display_name": X,
        "credential_env_vars": [],
        "capabilities": [],
        "defaults": {},
        "config_fields": [],
    },
    (models, "ModelInfo"): {
        "id": X,
        "display_name": X,
        "context_window": X,
        "max_output_tokens": X,
        "capabilities": [],
        "defaults": {},
        "pricing": None,
    },
    (models, "ConfigField"): {
        "id": X,
        "display_name": X,
        "prompt": X,
        "field_type": "text",
        "env_var": None,
        "choices": None,
        "required": True,
        "default": None,
        "show_when": None,
        "requires_model": False,
    },
    (models, "Pricing"): {
        "input_per_million": X,
        "output_per_million": X,
        "cache_read_per_million": None,
        "cache_write_per_million": None,
        "currency": "USD",
    },
    (models, "ModuleInfo"): {
        "id": X,
        "name": X,
        "version": X,
        "type": X,
        "mount_point": X,
        "description": X,
        "config_schema": None,
    },
    (message_models, "TextBlock"): {"visibility": None, "type": "text", "text": X},
    (message_models, "ThinkingBlock"): {
        "visibility": None,
        "type": "thinking",
        "thinking": X,
        "signature": None,
        "content": None,
    },
    (message_models, "RedactedThinkingBlock"): {
        "visibility": None,
        "type": "redacted_thinking",
        "data": X,
    },
    (message_models, "ToolCallBlock"): {
        "visibility": None,
        "type": "tool_call",
        "id": X,
        "name": X,
        "input": X,
    },
    (message_models, "ToolResultBlock"): {
        "visibility": None,
        "type": "tool_result",
        "tool_call_id": X,
        "output": X,
    },
    (message_models, "ImageBlock"): {"visibility": None, "type": "image", "source": X},
    (message_models, "ReasoningBlock"): {
        "visibility": None,
        "type": "reasoning",
        "content": X,
        "summary": X,
    },
    (message_models, "Message"): {
        "role": X,
        "content": X,
        "name": None,
        "tool_call_id": None,
        "metadata": None,
    },
    (message_models, "ToolSpec"): {"name": X, "parameters": X, "description": None},
    (message_models, "ToolCall"): {"id": X, "name": X, "arguments": X},
    (message_models, "Usage"): {
        "input_tokens": X,
        "output_tokens": X,
        "total_tokens": X,
        "reasoning_tokens": None,
        "cache_read_tokens": None,
        "cache_write_tokens": None,
        "cost_usd": None,
    },
    (message_models, "Degradation"): {"requested": X, "actual": X, "reason": X},
    (message_models, "ResponseFormatText"): {"type": "text"},
    (message_models, "ResponseFormatJson"): {"type": "json"},
    (message_models, "ResponseFormatJsonSchema"): {
        "type": "json_schema",
        "json_schema": X,
        "strict": None,
    },
    (message_models, "ChatRequest"): {
        "messages": X,
        "tools": None,
        "response_format": None,
        "temperature": None,
        "top_p": None,
        "max_output_tokens": None,
        "conversation_id": None,
        "stream": False,
        "metadata": None,
        "model": None,
        "tool_choice": None,
        "stop": None,
        "reasoning_effort": None,
        "timeout": None,
    },
    (message_models, "ChatResponse"): {
        "content": X,
        "tool_calls": None,
        "usage": None,
        "degradation": None,
        "finish_reason": None,
        "metadata": None,
    },
    (interfaces, "ApprovalRequest"): {
        "tool_name": X,
        "action": X,
        "risk_level": X,
        "details": {},
        "timeout": None,
    },
    (interfaces, "ApprovalResponse"): {"approved": X, "reason": None, "remember": False},
}


@pytest.mark.parametrize(
    ("home", "name", "expected"), [(home, name, table) for (home, name), table in TABLES.items()]
)
def test_the_fields_of_a_model(home: Any, name: str, expected: dict[str, Any]) -> None:
    model: type[BaseModel] = getattr(home, name)
    found = {
        field: X if info.is_required() else info.get_default(call_default_factory=True)
        for field, info in model.model_fields.items()
    }
    assert found == expected


@pytest.mark.parametrize(
    ("model", "keeps"),
    [
        (models.HookResult, False),
        (models.ConfigField, False),
        (models.ModelInfo, False),
        (message_models.ResponseFormatText, False),
        (message_models.ResponseFormatJson, False),
        (message_models.TextBlock, True),
        (message_models.ChatRequest, True),
        (message_models.ChatResponse, True),
        (message_models.ToolCall, True),
        (message_models.Usage, True),
    ],
)
def test_undeclared_fields_are_kept_or_ignored(model: type[BaseModel], keeps: bool) -> None:
    given: dict[type[BaseModel], dict[str, Any]] = {
        models.ConfigField: {"id": "i", "display_name": "d", "prompt": "p"},
        models.ModelInfo: {
            "id": "i",
            "display_name": "d",
            "context_window": 1,
            "max_output_tokens": 1,
        },
        message_models.TextBlock: {"text": "t"},
        message_models.ChatRequest: {"messages": []},
        message_models.ChatResponse: {"content": []},
        message_models.ToolCall: {"id": "i", "name": "n", "arguments": {}},
        message_models.Usage: {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
    }
    made = model(**given.get(model, {}), unheard_of=1)
    assert hasattr(made, "unheard_of") is keeps
    assert ("unheard_of" in made.model_dump()) is keeps


@pytest.mark.parametrize("name", ["TextBlock", "Message", "ToolResult", "HookResult", "Usage"])
def test_models_do_not_accept_positional_arguments(name: str) -> None:
    model = getattr(models, name, None) or getattr(message_models, name)
    with pytest.raises(TypeError):
        model("x")


def test_models_can_be_pickled_and_have_a_schema() -> None:
    request = ChatRequest(messages=[Message(role="user", content="x", extra=1)], other=2)  # type: ignore[call-arg]
    assert pickle.loads(pickle.dumps(request)) == request
    assert ChatRequest.model_json_schema()["required"] == ["messages"]
    assert pickle.loads(pickle.dumps(ToolResult(output={"a": 1}))) == ToolResult(output={"a": 1})


# ToolResult


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"output": 0}, "Success"),
        ({"output": ""}, "Success"),
        ({"output": [1]}, "[1]"),
        ({"success": False, "error": {"message": "m"}}, "Error: m"),
        ({"success": False, "error": {"type": "t"}}, "Error: Unknown error"),
        ({"success": False}, "Failed"),
    ],
)
def test_a_result_as_text(fields: dict[str, Any], text: str) -> None:
    assert str(ToolResult(**fields)) == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"output": {"d": Decimal("1.50")}}, '{"d": "1.50"}'),
        ({"output": "a\x00b\x1b[0m\t\n\r\x7f\x9fc\ud800"}, "ab\t\n\rc"),
        ({"output": 0}, "0"),
        ({"output": "", "success": False}, ""),
        ({"output": "out", "success": False, "error": {"message": "m"}}, "out"),
        ({"success": False, "error": {"message": "m"}}, "m"),
        ({"success": False, "error": {"type": "t"}}, "Error: Unknown error"),
        ({"success": False}, "Error: Failed"),
        ({}, "Success"),
    ],
)
def test_a_result_as_the_model_receives_it(fields: dict[str, Any], text: str) -> None:
    assert ToolResult(**fields).get_serialized_output() == text


def test_the_keys_of_a_dumped_result() -> None:
    assert set(ToolResult().model_dump()) == {"success", "output", "error"}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/x", "data": PNG}}
    result = ToolResult(content=[{"type": "text", "text": "", "visibility": "user"}, image])  # type: ignore[list-item]
    assert result.model_dump()["content"] == [{"type": "text", "text": ""}, image]
    assert json.loads(result.model_dump_json())["content"] == result.model_dump()["content"]
    assert isinstance(result.content and result.content[1], ImageBlock)
    shown = result.safe_hook_presentation()["content"]
    assert [block["type"] for block in shown] == ["text", "text"]
    assert PNG not in str(shown)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"type": "url", "url": "https://x"}, "invalid tool result image source"),
        (
            {"type": "base64", "media_type": "IMAGE/png", "data": PNG},
            "invalid tool result image media type",
        ),
        (
            {"type": "base64", "media_type": "image/", "data": PNG},
            "invalid tool result image media type",
        ),
        (
            {"type": "base64", "media_type": "image/png", "data": "-_8="},
            "invalid tool result image data",
        ),
        (
            {"type": "base64", "media_type": "image/png", "data": "aGk"},
            "invalid tool result image data",
        ),
        (
            {"type": "base64", "media_type": "image/png", "data": "aG k="},
            "invalid tool result image data",
        ),
    ],
)
def test_an_invalid_image_is_rejected(source: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text) as caught:
        ToolResult(content=[{"type": "image", "source": source}])  # type: ignore[list-item]
    assert "input_value" not in str(caught.value)


def test_assignments_and_copies_of_a_result_are_checked() -> None:
    result = ToolResult(output="x")
    with pytest.raises(ValidationError):
        result.success = "maybe"  # type: ignore[assignment]
    with pytest.raises(ValidationError):
        result.model_copy(update={"error": "text"})
    result.content = []
    assert result.content is None
    copied = result.model_copy(update={"output": ["y"]}, deep=True)
    assert (copied.output, result.output) == (["y"], "x")


# Messages


def test_blocks_are_read_by_their_type() -> None:
    union: TypeAdapter[Any] = TypeAdapter(ContentBlockUnion)
    assert isinstance(union.validate_python({"type": "text", "text": "t"}), TextBlock)
    with pytest.raises(ValidationError):
        union.validate_python({"type": "video"})
    for refused in ("bot", "TOOL"):
        with pytest.raises(ValidationError):
            Message(role=refused, content="x")  # type: ignore[arg-type]
    for missing in (Message, ChatResponse):
        with pytest.raises(ValidationError):
            missing(role="user", content=None)
    with pytest.raises(ValidationError):
        ToolCall(id="i", name="n", arguments='{"a": 1}')  # type: ignore[arg-type]


@pytest.mark.parametrize("cost", ["0.10", Decimal("0.10")])
def test_money_is_text_in_every_dump(cost: Any) -> None:
    usage = Usage(input_tokens=1, output_tokens=1, total_tokens=2, cost_usd=cost)
    assert usage.cost_usd == Decimal("0.10")
    assert usage.model_dump()["cost_usd"] == "0.10"
    assert usage.model_dump(mode="json")["cost_usd"] == "0.10"
    status = SessionStatus(session_id="s", cost_usd=cost)
    assert status.model_dump()["cost_usd"] == status.to_dict()["cost_usd"] == "0.10"
    with pytest.raises(ValidationError):
        SessionStatus(session_id="s", cost_usd=0.1)  # type: ignore[arg-type]


def test_a_session_status_starts_as_running_with_a_local_time() -> None:
    status = SessionStatus(session_id="s")
    assert status.started_at.tzinfo is None
    assert status.model_dump(exclude={"started_at"}) == {
        "session_id": "s",
        "ended_at": None,
        "status": "running",
        "total_messages": 0,
        "tool_invocations": 0,
        "tool_successes": 0,
        "tool_failures": 0,
        "total_input_tokens": 0,
        "total_output_tokens": 0,
        "cost_usd": None,
        "last_activity": None,
        "last_error": None,
    }
    assert datetime.fromisoformat(status.to_dict()["started_at"]) == status.started_at
    assert "ended_at" not in status.to_dict()


def test_defaults_are_not_shared_between_instances() -> None:
    first, second = ProviderInfo(id="a", display_name="a"), ProviderInfo(id="b", display_name="b")
    first.capabilities.append("x")
    assert second.capabilities == []
    assert HookResult().context_injections is not HookResult().context_injections
    info = ModelInfo(id="m", display_name="m", context_window=1, max_output_tokens=1)
    info.display_name = "changed"
    assert info.display_name == "changed"


def test_prices_are_in_any_currency_of_three_capital_letters() -> None:
    price = models.Pricing(input_per_million=1, output_per_million=2, currency="EUR")
    assert price.currency == "EUR"


# Content blocks


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ContentBlock", ["type", "raw"]),
        ("TextContent", ["type", "raw", "text"]),
        ("ThinkingContent", ["type", "raw", "text"]),
        ("ToolCallContent", ["type", "raw", "id", "name", "arguments"]),
        ("ToolResultContent", ["type", "raw", "tool_call_id", "output", "error"]),
    ],
)
def test_the_fields_of_a_content_block_in_order(name: str, expected: list[str]) -> None:
    block = getattr(content_models, name)
    assert [field.name for field in dataclass_fields(block)] == expected


def test_content_blocks_as_data() -> None:
    assert ContentBlockType.TEXT == "text"
    assert isinstance(ContentBlockType.TEXT, str)
    assert TextContent(ContentBlockType.TEXT, {"vendor": 1}, "t").to_dict() == {
        "type": "text",
        "text": "t",
    }
    assert "error" not in ToolResultContent(error="").to_dict()
    assert ToolResultContent(error="e", output=1).to_dict() == {
        "type": "tool_result",
        "tool_call_id": "",
        "output": 1,
        "error": "e",
    }


@pytest.mark.parametrize("timeout", [0, -1])
def test_an_approval_timeout_must_be_positive(timeout: float) -> None:
    with pytest.raises(ValidationError):
        interfaces.ApprovalRequest(tool_name="t", action="a", risk_level="r", timeout=timeout)
