"""Content blocks for events and streaming: lightweight dataclasses.

`raw` holds the vendor's original data and is not included in `to_dict()`.
"""

from dataclasses import dataclass, fields
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
        own = [field.name for field in fields(self) if field.name not in ("type", "raw")]
        return {"type": self.type.value, **{name: getattr(self, name) for name in own}}


@dataclass
class TextContent(ContentBlock):
    """Text of an answer."""

    type: ContentBlockType = ContentBlockType.TEXT
    text: str = ""


@dataclass
class ThinkingContent(ContentBlock):
    """Text of the model's reasoning."""

    type: ContentBlockType = ContentBlockType.THINKING
    text: str = ""


@dataclass
class ToolCallContent(ContentBlock):
    """A tool call."""

    type: ContentBlockType = ContentBlockType.TOOL_CALL
    id: str = ""
    name: str = ""
    arguments: dict[str, Any] | None = None


@dataclass
class ToolResultContent(ContentBlock):
    """The result of a tool call."""

    type: ContentBlockType = ContentBlockType.TOOL_RESULT
    tool_call_id: str = ""
    output: Any = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        data = super().to_dict()
        if not self.error:
            del data["error"]
        return data
