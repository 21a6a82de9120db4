"""The result of a tool, and its content blocks."""

import base64
import binascii
import json
from decimal import Decimal
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from amplifier_core.message_models import ImageBlock, TextBlock
from amplifier_core.utils.truncate import sanitize_text

IMAGE_OMITTED = "[image omitted]"
"""Placeholder for an image in results shown to hooks."""


def _plain(block: Any) -> dict[str, Any]:
    if isinstance(block, BaseModel):
        return block.model_dump()
    if isinstance(block, dict):
        return block
    raise ValueError("invalid tool result content: each block must be a text or image block")


def _text_block(block: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(block.get("text"), str):
        raise ValueError("invalid tool result content: a text block needs a string 'text'")
    return {"type": "text", "text": block["text"]}


def _image_block(block: dict[str, Any]) -> dict[str, Any]:
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") != "base64":
        raise ValueError(
            "invalid tool result image source: expected {'type': 'base64', 'media_type', 'data'}"
        )
    media_type, data = source.get("media_type"), source.get("data")
    if (
        not isinstance(media_type, str)
        or not media_type.startswith("image/")
        or media_type == "image/"
    ):
        raise ValueError(
            "invalid tool result image media type: expected 'image/<subtype>' in lower case"
        )
    if not isinstance(data, str) or not data:
        raise ValueError("invalid tool result image data: expected non-empty base64")
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"invalid tool result image data: {error}") from None
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": media_type, "data": data},
    }


_BLOCKS = {"text": _text_block, "image": _image_block}


def _content(value: Any) -> list[dict[str, Any]] | None:
    """`value` as plain text and image blocks; None if there are none."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise ValueError("invalid tool result content: expected a list of text and image blocks")
    blocks: list[dict[str, Any]] = []
    for item in value:
        block = _plain(item)
        normalise = _BLOCKS.get(block.get("type", ""))
        if normalise is None:
            raise ValueError(
                f"invalid tool result content: block type {block.get('type')!r} "
                "is neither 'text' nor 'image'"
            )
        blocks.append(normalise(block))
    return blocks or None


def _json_default(value: Any) -> str:
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be serialized as JSON")


class ToolResult(BaseModel):
    """Outcome of a tool (Tool Contract, Data Models).

    ``ToolResult(is_error=True, …)``, the form of the Orchestrator Contract, means
    ``success=False``. A failure without output uses the message of `error` as its output.

    Attributes:
        success: Whether the call succeeded.
        output: Usually a string or a dict.
        error: ``{"message": str, …}`` of a failure.
        content: Text and base64 image blocks for models that can see.
    """

    model_config = ConfigDict(validate_assignment=True, hide_input_in_errors=True, defer_build=True)

    success: bool = True
    output: Any | None = None
    error: dict[str, Any] | None = None
    content: list[TextBlock | ImageBlock] | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_is_error(cls, data: Any) -> Any:
        if isinstance(data, dict) and "is_error" in data:
            rest = {key: value for key, value in data.items() if key != "is_error"}
            return {"success": not data["is_error"], **rest}
        return data

    @field_validator("content", mode="before")
    @classmethod
    def _normalise_content(cls, value: Any) -> Any:
        return _content(value)

    def model_post_init(self, context: Any, /) -> None:
        if not self.success and self.output is None and self.error and self.error.get("message"):
            vars(self)["output"] = self.error["message"]

    @model_serializer(mode="wrap")
    def _without_empty_content(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data = handler(self)
        if "content" in data:
            content = _content(self.content)
            if content is None:
                del data["content"]
            else:
                data["content"] = content
        return data

    @property
    def is_error(self) -> bool:
        return not self.success

    def model_copy(self, *, update: Any = None, deep: bool = False) -> Self:
        """A validated copy, unlike pydantic's own.

        Raises:
            pydantic.ValidationError: `update` is invalid.
        """
        base = super().model_copy(deep=deep)
        return type(self).model_validate({**base.__dict__, **(update or {})})

    def __str__(self) -> str:
        if self.success:
            return str(self.output) if self.output else "Success"
        if self.error is None:
            return "Failed"
        return f"Error: {self.error.get('message', 'Unknown error')}"

    def get_serialized_output(self) -> str:
        """The text that the model receives: the output, or a placeholder if there is none.

        Raises:
            TypeError: The output is a dict or list that cannot be serialized as JSON.
        """
        return sanitize_text(self._output_text())

    def _output_text(self) -> str:
        if self.output is None:
            if self.success:
                return "Success"
            if self.error is None:
                return "Error: Failed"
            return f"Error: {self.error.get('message', 'Unknown error')}"
        if isinstance(self.output, (dict, list)):
            return json.dumps(self.output, default=_json_default)
        return str(self.output)

    def safe_hook_presentation(self) -> dict[str, Any]:
        """The result as plain data for hooks, with every image replaced by a notice."""
        data: dict[str, Any] = {
            "success": self.success,
            "output": self.output,
            "error": self.error,
        }
        content = _content(self.content)
        if content is not None:
            data["content"] = [
                block if block["type"] == "text" else {"type": "text", "text": IMAGE_OMITTED}
                for block in content
            ]
        return data
