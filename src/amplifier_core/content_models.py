"""Content blocks for events and streaming: lightweight dataclasses.

`raw` holds the vendor's original data and is not included in `to_dict()`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any


class ContentBlockType(str, Enum):  # noqa: UP042 - str() of a member must stay the enum's own
    """Kinds of content block."""

    TEXT = "text"
    THINKING = "thinking"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"


@dataclass
class ContentBlock:
    """Base of the blocks below."""

    type: ContentBlockType
    raw: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The block as JSON-ready data."""
        return {"type": self.type.value}


@dataclass
class TextContent(ContentBlock):
    """Text of an answer."""

    type: ContentBlockType = ContentBlockType.TEXT
    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "text": self.text}


@dataclass
class ThinkingContent(ContentBlock):
    """Text of the model's reasoning."""

    type: ContentBlockType = ContentBlockType.THINKING
    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "text": self.text}


@dataclass
class ToolCallContent(ContentBlock):
    """A tool call."""

    type: ContentBlockType = ContentBlockType.TOOL_CALL
    id: str = ""
    name: str = ""
    arguments: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            **super().to_dict(),
            "id": self.id,
            "name": self.name,
            "arguments": self.arguments,
        }


@dataclass
class ToolResultContent(ContentBlock):
    """The result of a tool call."""

    type: ContentBlockType = ContentBlockType.TOOL_RESULT
    tool_call_id: str = ""
    output: Any = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        data = {**super().to_dict(), "tool_call_id": self.tool_call_id, "output": self.output}
        if self.error:
            data["error"] = self.error
        return data
