"""The kernel's models as plain data: what `model_dump` gives."""

from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, field_serializer

from amplifier_core.message_models import (
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    Usage,
)
from amplifier_modules._shared.history.values import plain_block, plain_usage


class Shouting(TextBlock):
    @field_serializer("text")
    def _loud(self, text: str) -> str:
        return text.upper()


class Counts(BaseModel):
    input_tokens: int = 3
    cost_usd: Decimal | None = None


@pytest.mark.parametrize(
    "block",
    [
        TextBlock(text="ä"),
        TextBlock(text="x", visibility="user", citations=[{"a": None}]),  # type: ignore[call-arg]
        ThinkingBlock(thinking="hm", signature="s"),
        RedactedThinkingBlock(data="d"),
        ToolCallBlock(id="1", name="n", input={"a": {"b": None}}),
        ToolResultBlock(tool_call_id="1", output=[TextBlock(text="x")]),
        Shouting(text="loud"),
    ],
)
def test_a_block(block: BaseModel) -> None:
    assert plain_block(block) == block.model_dump(exclude_none=True)


@pytest.mark.parametrize(
    "usage",
    [
        Usage(input_tokens=1, output_tokens=2, total_tokens=3),
        Usage(input_tokens=1, output_tokens=2, total_tokens=3, cost_usd=Decimal("0.10"), tier="a"),  # type: ignore[call-arg]
        Counts(),
    ],
)
def test_a_usage_report(usage: Any) -> None:
    assert plain_usage(usage) == usage.model_dump(exclude_none=True)
