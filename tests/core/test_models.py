"""The data models: fields, defaults, validation and string forms, which published modules rely on."""

import base64
import json
import pickle
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined

from amplifier_core import content_models, interfaces, message_models, models
from amplifier_core.message_models import (
    ChatRequest,
    ChatResponse,
    ImageBlock,
    Message,
    ResponseFormatJsonSchema,
    TextBlock,
    ToolCall,
    Usage,
)
from amplifier_core.models import (
    IMAGE_OMITTED,
    HookResult,
    ModelInfo,
    Pricing,
    ProviderInfo,
    SessionStatus,
    ToolResult,
)

PNG = base64.b64encode(b"\x89PNG").decode()


def image(**source: Any) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", **source}}


X: Any = PydanticUndefined

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


def test_models_can_be_pickled_and_have_a_schema() -> None:
    request = ChatRequest(messages=[Message(role="user", content="x", extra=1)], other=2)  # type: ignore[call-arg]
    assert pickle.loads(pickle.dumps(request)) == request
    assert ChatRequest.model_json_schema()["required"] == ["messages"]
    assert pickle.loads(pickle.dumps(ToolResult(output={"a": 1}))) == ToolResult(output={"a": 1})


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


@pytest.mark.parametrize("timeout", [0, -1])
def test_an_approval_timeout_must_be_positive(timeout: float) -> None:
    with pytest.raises(ValidationError):
        interfaces.ApprovalRequest(tool_name="t", action="a", risk_level="r", timeout=timeout)


# ToolResult


def test_a_result_is_successful_by_default() -> None:
    result = ToolResult(output={"a": 1}, unknown=1)  # type: ignore[call-arg]
    assert (result.success, result.is_error, result.error) == (True, False, None)
    assert result.model_dump() == {"success": True, "output": {"a": 1}, "error": None}


def test_is_error_is_the_opposite_of_success() -> None:
    denied = ToolResult(is_error=True, output="denied")  # type: ignore[call-arg]
    assert (denied.success, denied.is_error) == (False, True)
    assert ToolResult(is_error=False).success  # type: ignore[call-arg]
    assert ToolResult(is_error=True, success=True).success  # type: ignore[call-arg]


def test_an_error_is_a_dict_and_assignments_are_checked() -> None:
    with pytest.raises(ValidationError) as caught:
        ToolResult(error="text")  # type: ignore[arg-type]
    assert "input_value" not in str(caught.value)
    result = ToolResult()
    with pytest.raises(ValidationError):
        result.success = "perhaps"  # type: ignore[assignment]
    result.output = "new"
    assert result.output == "new"


@pytest.mark.parametrize(
    ("fields", "text", "serialized"),
    [
        ({"output": "done"}, "done", "done"),
        ({"output": 0}, "Success", "0"),
        ({"output": ""}, "Success", ""),
        ({}, "Success", "Success"),
        ({"output": {"a": Decimal("1.5")}}, "{'a': Decimal('1.5')}", '{"a": "1.5"}'),
        ({"output": [1, "ü"]}, "[1, 'ü']", '[1, "\\u00fc"]'),
        ({"output": "a\x00\x1b\x9f\tb\r\n\ud800"}, "a\x00\x1b\x9f\tb\r\n\ud800", "a\tb\r\n"),
        ({"success": False, "error": {"message": "m"}}, "Error: m", "m"),
        ({"success": False, "error": {"code": 1}}, "Error: Unknown error", "Error: Unknown error"),
        ({"success": False}, "Failed", "Error: Failed"),
        ({"success": False, "output": "o"}, "Failed", "o"),
        ({"success": False, "output": "o", "error": {"message": "m"}}, "Error: m", "o"),
    ],
)
def test_a_result_as_string(fields: dict[str, Any], text: str, serialized: str) -> None:
    result = ToolResult(**fields)
    assert str(result) == text
    assert result.get_serialized_output() == serialized


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("\x1b[1;31mred\x1b[0m text", "red text"),
        ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x07 \x1b(Bx", "link x"),
        ("cut off \x1b[", "cut off ["),
        ("bell\x07 and \ud800", "bell and "),
    ],
)
def test_the_model_gets_no_escape_sequences(output: str, text: str) -> None:
    assert ToolResult(output=output).get_serialized_output() == text


def test_output_that_is_not_json_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="object cannot be serialized as JSON"):
        ToolResult(output=[object()]).get_serialized_output()


def test_content_is_reduced_to_text_and_base64_images() -> None:
    result = ToolResult(
        content=[
            TextBlock(text="t", visibility="user"),
            {**image(data=PNG, extra=1), "visibility": "user"},  # type: ignore[list-item]
            {"type": "text", "text": ""},  # type: ignore[list-item]
        ]
    )
    expected = [{"type": "text", "text": "t"}, image(data=PNG), {"type": "text", "text": ""}]
    assert result.model_dump()["content"] == expected
    assert json.loads(result.model_dump_json())["content"] == expected
    assert isinstance(result.content[1], ImageBlock)  # type: ignore[index]
    shown = result.safe_hook_presentation()
    assert shown["content"][1] == {"type": "text", "text": IMAGE_OMITTED}
    assert PNG not in str(shown)


def test_no_content_leaves_no_key() -> None:
    assert "content" not in ToolResult(content=[]).model_dump()
    assert ToolResult(content=[]).content is None
    assert "content" not in ToolResult().safe_hook_presentation()
    for nothing in (None, []):
        result = ToolResult(content=[TextBlock(text="t")])
        result.content = nothing
        assert "content" not in result.model_dump()
    assert set(ToolResult().model_dump(include={"success"})) == {"success"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("text", "content: expected a list"),
        (["text"], "content: each block"),
        ([{"type": "thinking", "thinking": "t"}], "content: block type 'thinking'"),
        ([{"type": "text", "text": 1}], "content: a text block"),
        ([{"type": "image", "source": {"type": "url", "url": "u"}}], "image source"),
        ([{"type": "image"}], "image source"),
        ([image(media_type="Image/png", data=PNG)], "image media type"),
        ([image(media_type="image/", data=PNG)], "image media type"),
        ([image(media_type=None, data=PNG)], "image media type"),
        ([image(data="")], "image data"),
        ([image(data="a b")], "image data"),
        ([image(data="abc")], "image data"),
        ([image(data="-_-_")], "image data"),
    ],
)
def test_invalid_content_is_rejected(content: Any, text: str) -> None:
    with pytest.raises(ValidationError, match=f"invalid tool result {text}") as caught:
        ToolResult(content=content)
    assert "input_value" not in str(caught.value)


def test_copies_are_validated() -> None:
    result = ToolResult(output=[1])
    assert result.model_copy(update={"success": False}).success is False
    assert result.model_copy(deep=True).output is not result.output
    with pytest.raises(ValidationError):
        result.model_copy(update={"error": "text"})


# The other models


@pytest.mark.parametrize("currency", ["usd", "US", "USDX", "U5D", "ÄÖÜ"])
def test_a_currency_is_three_capital_letters(currency: str) -> None:
    with pytest.raises(ValidationError, match="currency"):
        Pricing(input_per_million=1, output_per_million=2, currency=currency)
    euros = Pricing(input_per_million=1, output_per_million=2, currency="EUR")
    assert euros.currency == "EUR"


# Messages


def test_money_is_exact() -> None:
    def usage(cost: Any) -> Usage:
        return Usage(input_tokens=1, output_tokens=1, total_tokens=2, cost_usd=cost)

    assert usage("0.10").cost_usd == Decimal("0.10")
    assert usage(1).model_dump()["cost_usd"] == "1"
    assert usage(Decimal("0.1")).model_dump(mode="json")["cost_usd"] == "0.1"
    assert usage(None).model_dump()["cost_usd"] is None
    status = SessionStatus(session_id="s", cost_usd=Decimal("0.10"))
    assert status.model_dump()["cost_usd"] == status.to_dict()["cost_usd"] == "0.10"
    with pytest.raises(ValidationError):
        SessionStatus(session_id="s", cost_usd=0.1)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="a float cannot represent money exactly"):
        usage(0.1)


def test_blocks_are_parsed_by_type_and_keep_extra_fields() -> None:
    message = Message(
        role="assistant",
        content=[  # type: ignore[list-item]
            {"type": "thinking", "thinking": "t", "signature": "s", "vendor": 1},
            {"type": "redacted_thinking", "data": "d"},
            {"type": "text", "text": "x", "visibility": "internal"},
            {"type": "tool_call", "id": "1", "name": "n", "input": {}},
            {"type": "tool_result", "tool_call_id": "1", "output": None},
            {"type": "image", "source": {}},
            {"type": "reasoning", "content": [], "summary": []},
        ],
    )
    kinds = [type(block).__name__ for block in message.content]
    assert kinds == [
        "ThinkingBlock",
        "RedactedThinkingBlock",
        "TextBlock",
        "ToolCallBlock",
        "ToolResultBlock",
        "ImageBlock",
        "ReasoningBlock",
    ]
    assert message.content[0].vendor == 1  # type: ignore[union-attr]
    with pytest.raises(ValidationError):
        Message(role="user", content=[{"type": "unknown"}])  # type: ignore[list-item]
    with pytest.raises(ValidationError):
        Message(role="user", content=None)  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        ChatResponse(content=None)  # type: ignore[arg-type]
    for role in ("robot", "TOOL"):
        with pytest.raises(ValidationError):
            Message(role=role, content="x")  # type: ignore[arg-type]


def test_models_also_read_like_dictionaries() -> None:
    response = ChatResponse(content=[TextBlock(text="hi")], vendor={"x": 1})  # type: ignore[call-arg]
    assert response["content"][0].get("text") == "hi"
    assert response["vendor"] == {"x": 1}
    assert response.get("usage", {}) is None
    assert response.get("missing", 5) == 5
    assert "content" in response
    assert "vendor" in response
    assert "missing" not in response
    with pytest.raises(KeyError):
        response["model_dump"]
    with pytest.raises(KeyError):
        ResponseFormatHolder()["missing"]


class ResponseFormatHolder(message_models.MessageModel):
    """A model without extra values."""


def test_the_input_of_a_call_is_its_arguments() -> None:
    call = ToolCall(id="1", name="n", arguments={"a": 1})
    assert call.input is call.arguments
    assert call["input"] == call["arguments"] == {"a": 1}
    assert "input" in call
    assert "input" not in call.model_dump()
    with pytest.raises(ValidationError):
        ToolCall(id="1", name="n", arguments='{"a": 1}')  # type: ignore[arg-type]


def test_a_schema_format_is_dumped_under_the_vendors_name() -> None:
    by_field = ResponseFormatJsonSchema(json_schema={"type": "object"})
    by_alias = ResponseFormatJsonSchema.model_validate({"schema": {"type": "object"}})
    assert by_field == by_alias
    assert by_field.model_dump(by_alias=True)["schema"] == {"type": "object"}
    request = ChatRequest.model_validate({"messages": [], "response_format": {"type": "json"}})
    assert isinstance(request.response_format, message_models.ResponseFormatJson)


# Content blocks for events


def test_content_blocks_as_data() -> None:
    kind = content_models.ContentBlockType.TEXT
    assert kind == "text"
    assert content_models.ContentBlock(kind, {"raw": 1}).to_dict() == {"type": "text"}
    assert content_models.TextContent(text="t").to_dict() == {"type": "text", "text": "t"}
    assert content_models.ThinkingContent(text="t").to_dict() == {"type": "thinking", "text": "t"}
    assert content_models.ToolCallContent(id="1", name="n", arguments={"a": 1}).to_dict() == {
        "type": "tool_call",
        "id": "1",
        "name": "n",
        "arguments": {"a": 1},
    }
    result = content_models.ToolResultContent(tool_call_id="1", output="o")
    assert result.to_dict() == {"type": "tool_result", "tool_call_id": "1", "output": "o"}
    result.error = ""
    assert "error" not in result.to_dict()
    result.error = "e"
    assert result.to_dict()["error"] == "e"


def test_fields_that_a_module_adds_to_a_content_block_are_its_own_business() -> None:
    @dataclass
    class Image(content_models.ContentBlock):
        data: bytes = b""

        def to_dict(self) -> dict[str, Any]:
            return {**super().to_dict(), "size": len(self.data)}

    @dataclass
    class Noted(content_models.TextContent):
        note: object = None

    kind = content_models.ContentBlockType.TEXT
    assert Image(kind, data=b"1").to_dict() == {"type": "text", "size": 1}
    assert Noted(text="t", note=object()).to_dict() == {"type": "text", "text": "t"}


def test_a_compaction_result_counts_what_was_removed_from_the_view() -> None:
    result = models.CompactionResult(
        strategy="truncate", before_tokens=9, before_messages=5, after_tokens=4, after_messages=2
    )
    assert (result.removed_tokens, result.removed_messages) == (5, 3)
    # A summary can be longer than the messages it replaces.
    assert result.model_copy(update={"after_tokens": 10}).removed_tokens == 0
