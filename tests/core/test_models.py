"""The data models: defaults, validation and string forms."""

import base64
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from amplifier_core import content_models, message_models, models
from amplifier_core.message_models import (
    ChatRequest,
    ChatResponse,
    ImageBlock,
    Message,
    ResponseFormatJsonSchema,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
    Usage,
)
from amplifier_core.models import (
    IMAGE_OMITTED,
    HookResult,
    ModelInfo,
    Pricing,
    SessionStatus,
    ToolResult,
)

PNG = base64.b64encode(b"\x89PNG").decode()


def image(**source: Any) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", **source}}


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


def test_the_message_of_a_failure_becomes_its_output() -> None:
    assert ToolResult(success=False, error={"message": "m"}).output == "m"
    assert ToolResult(success=False, error={"message": "m"}, output="own").output == "own"
    assert ToolResult(success=True, error={"message": "m"}).output is None
    assert ToolResult(success=False, error={"message": ""}).output is None


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
        ({}, "Success", "Success"),
        ({"output": {"a": Decimal("1.5")}}, "{'a': Decimal('1.5')}", '{"a": "1.5"}'),
        ({"output": [1, "ü"]}, "[1, 'ü']", '[1, "\\u00fc"]'),
        ({"output": "a\x00\x1b\x9f\tb\r\n\ud800"}, "a\x00\x1b\x9f\tb\r\n\ud800", "a\tb\r\n"),
        ({"success": False, "error": {"message": "m"}}, "Error: m", "m"),
        ({"success": False, "error": {"code": 1}}, "Error: Unknown error", "Error: Unknown error"),
        ({"success": False}, "Failed", "Error: Failed"),
        ({"success": False, "output": "o"}, "Failed", "o"),
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
    assert isinstance(result.content[1], ImageBlock)  # type: ignore[index]
    shown = result.safe_hook_presentation()
    assert shown["content"][1] == {"type": "text", "text": IMAGE_OMITTED}
    assert PNG not in str(shown)


def test_no_content_leaves_no_key() -> None:
    assert "content" not in ToolResult(content=[]).model_dump()
    assert ToolResult(content=[]).content is None
    assert "content" not in ToolResult().safe_hook_presentation()
    result = ToolResult(content=[TextBlock(text="t")])
    result.content = None
    assert "content" not in result.model_dump()
    assert set(ToolResult().model_dump(include={"success"})) == {"success"}


@pytest.mark.parametrize(
    "content",
    [
        "text",
        ["text"],
        [{"type": "thinking", "thinking": "t"}],
        [{"type": "text", "text": 1}],
        [{"type": "image", "source": {"type": "url", "url": "u"}}],
        [{"type": "image"}],
        [image(media_type="Image/png", data=PNG)],
        [image(media_type="image/", data=PNG)],
        [image(media_type=None, data=PNG)],
        [image(data="")],
        [image(data="a b")],
        [image(data="abc")],
        [image(data="-_-_")],
    ],
)
def test_invalid_content_is_rejected(content: Any) -> None:
    with pytest.raises(ValidationError, match="invalid tool result"):
        ToolResult(content=content)


def test_copies_are_validated() -> None:
    result = ToolResult(output=[1])
    assert result.model_copy(update={"success": False}).success is False
    assert result.model_copy(deep=True).output is not result.output
    with pytest.raises(ValidationError):
        result.model_copy(update={"error": "text"})


# The other models


def test_a_hook_result_continues_by_default() -> None:
    result = HookResult()
    assert (result.action, result.context_injection_role, result.approval_default) == (
        "continue",
        "system",
        "deny",
    )
    assert result.approval_timeout == 300.0
    with pytest.raises(ValidationError):
        HookResult(action="other")  # type: ignore[arg-type]


@pytest.mark.parametrize("currency", ["usd", "US", "USDX", "U5D", "ÄÖÜ"])
def test_a_currency_is_three_capital_letters(currency: str) -> None:
    with pytest.raises(ValidationError, match="currency"):
        Pricing(input_per_million=1, output_per_million=2, currency=currency)
    assert Pricing(input_per_million=1, output_per_million=2).currency == "USD"


def test_model_info_ignores_unknown_fields() -> None:
    info = ModelInfo(
        id="m",
        display_name="M",
        context_window=1,
        max_output_tokens=1,
        unknown=1,  # type: ignore[call-arg]
    )
    assert info.pricing is None
    assert not hasattr(info, "unknown")


def test_a_status_is_dumped_without_none_values() -> None:
    data = SessionStatus(session_id="s", cost_usd=Decimal("0.10")).to_dict()
    assert data["cost_usd"] == "0.10"
    assert data["status"] == "running"
    assert isinstance(data["started_at"], str)
    assert "ended_at" not in data


# Messages


def test_money_is_exact() -> None:
    def usage(cost: Any) -> Usage:
        return Usage(input_tokens=1, output_tokens=1, total_tokens=2, cost_usd=cost)

    assert usage("0.10").cost_usd == Decimal("0.10")
    assert usage(1).model_dump()["cost_usd"] == "1"
    assert usage(Decimal("0.1")).model_dump(mode="json")["cost_usd"] == "0.1"
    assert usage(None).model_dump()["cost_usd"] is None
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
        Message(role="robot", content="x")  # type: ignore[arg-type]


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


def test_a_request_is_messages_and_options() -> None:
    request = ChatRequest(messages=[{"role": "user", "content": "x"}], custom=1)  # type: ignore
    assert request.messages[0].content == "x"
    assert (request.stream, request.tools, request.custom) == (False, None, 1)  # type: ignore[attr-defined]


def test_a_schema_format_is_dumped_under_the_vendors_name() -> None:
    by_field = ResponseFormatJsonSchema(json_schema={"type": "object"})
    by_alias = ResponseFormatJsonSchema.model_validate({"schema": {"type": "object"}})
    assert by_field == by_alias
    assert by_field.model_dump(by_alias=True)["schema"] == {"type": "object"}
    request = ChatRequest.model_validate({"messages": [], "response_format": {"type": "json"}})
    assert isinstance(request.response_format, message_models.ResponseFormatJson)


def test_providers_may_subclass_responses() -> None:
    class Own(ChatResponse):
        content_blocks: list[Any] | None = None
        text: str | None = None

    own = Own(content=[], text="t", content_blocks=[1])
    assert own.get("text") == "t"
    assert own["content_blocks"] == [1]


def test_thinking_keeps_its_signature() -> None:
    block = ThinkingBlock(thinking="t", signature="sig")
    assert block.model_dump()["signature"] == "sig"
    assert ToolCallBlock(id="1", name="n", input={}).type == "tool_call"


# Content blocks for events


def test_content_blocks_as_data() -> None:
    kind = content_models.ContentBlockType.TEXT
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
    result.error = "e"
    assert result.to_dict()["error"] == "e"


def test_models_lists_its_public_names() -> None:
    assert all(hasattr(models, name) for name in models.__all__)


def test_a_compaction_result_counts_what_was_removed_from_the_view() -> None:
    result = models.CompactionResult(
        strategy="truncate", before_tokens=9, before_messages=5, after_tokens=4, after_messages=2
    )
    assert (result.removed_tokens, result.removed_messages) == (5, 3)
    # A summary can be longer than the messages it replaces.
    assert result.model_copy(update={"after_tokens": 10}).removed_tokens == 0
