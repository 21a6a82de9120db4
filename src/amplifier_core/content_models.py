"""Content blocks for events and streaming: lightweight dataclasses.

`raw` holds the vendor's original data and is not included in `to_dict()`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar


class ContentBlockType(str, Enum):  # noqa: UP042 - str() of a member must stay the enum's own
    """Kinds of content block."""

    TEXT = "text"
    THINKING = "thinking"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"


@dataclass
class ContentBlock:
    """Base of the blocks below."""

    # Not all fields: modules add their own to subclasses, which need not be JSON.
    _in_dict: ClassVar[tuple[str, ...]] = ()

    type: ContentBlockType
    raw: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The block as JSON-ready data."""
        return {"type": self.type.value, **{name: getattr(self, name) for name in self._in_dict}}


@dataclass
class TextContent(ContentBlock):
    """Text of an answer."""

    _in_dict = ("text",)

    type: ContentBlockType = ContentBlockType.TEXT
    text: str = ""


@dataclass
class ThinkingContent(ContentBlock):
    """Text of the model's reasoning."""

    _in_dict = ("text",)

    type: ContentBlockType = ContentBlockType.THINKING
    text: str = ""


@dataclass
class ToolCallContent(ContentBlock):
    """A tool call."""

    _in_dict = ("id", "name", "arguments")

    type: ContentBlockType = ContentBlockType.TOOL_CALL
    id: str = ""
    name: str = ""
    arguments: dict[str, Any] | None = None


@dataclass
class ToolResultContent(ContentBlock):
    """The result of a tool call."""

    _in_dict = ("tool_call_id", "output", "error")

    type: ContentBlockType = ContentBlockType.TOOL_RESULT
    tool_call_id: str = ""
    output: Any = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        data = super().to_dict()
        if not self.error:
            del data["error"]
        return data
