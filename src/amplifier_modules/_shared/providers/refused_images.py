"""Images that a service has refused stay in the conversation, but are not sent to it again.

A model that cannot see, or an image a service finds damaged or too large, would otherwise end every
later request of the conversation as well. In place of such an image the model reads a note.
"""

from __future__ import annotations

from typing import Any, cast

from amplifier_core.llm_errors import InvalidRequestError, LLMError
from amplifier_core.message_models import ChatRequest, Degradation, Message, TextBlock

NOTE = "[an image, which this model or service does not take]"

_ABOUT_IMAGES = ("image", "multimodal", "multi-modal")
# Some servers answer with a status that says it is their own fault.
_CANNOT_SEE = ("image input is not supported", "does not support image")


class RefusedImages:
    """What one provider has learnt not to send."""

    def __init__(self) -> None:
        self._refused: set[int] = set()

    def sendable(self, request: ChatRequest) -> ChatRequest:
        """The request with a note in place of each refused image; the same where there is none."""
        if not self._refused:
            return request
        messages = [self._without_refused(message) for message in request.messages]
        if all(new is old for new, old in zip(messages, request.messages, strict=True)):
            return request
        return request.model_copy(update={"messages": messages})

    def learn(self, request: ChatRequest, error: LLMError) -> bool:
        """Whether `error` refuses images of `request`; they count as refused from now on."""
        text = str(error).lower()
        marks = _ABOUT_IMAGES if isinstance(error, InvalidRequestError) else _CANNOT_SEE
        if not any(mark in text for mark in marks):
            return False
        images = {_digest(block) for message in request.messages for block in _images(message)}
        self._refused |= images
        return bool(images)

    def degradation(self, request: ChatRequest) -> Degradation | None:
        """What to tell of `request`, if images of it are not sent."""
        if self.sendable(request) is request:
            return None
        return Degradation(
            requested="images", actual="a note in their place", reason="the service refused them"
        )

    def _without_refused(self, message: Message) -> Message:
        if not any(_digest(block) in self._refused for block in _images(message)):
            return message
        blocks = [self._note_or(block) for block in cast("list[Any]", message.content)]
        return message.model_copy(update={"content": blocks})

    def _note_or(self, block: Any) -> Any:
        refused = block.type == "image" and _digest(block) in self._refused
        return TextBlock(text=NOTE) if refused else block


def _images(message: Message) -> list[Any]:
    if isinstance(message.content, str):
        return []
    return [block for block in message.content if block.type == "image"]


def _digest(block: Any) -> int:
    source = block.source
    return hash(source.get("data") or source.get("url") or source.get("file_id"))
