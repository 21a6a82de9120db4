"""Content blocks: prompts of an editor, and saved conversations shown in it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from amplifier_app.base.json_rpc import INVALID_PARAMS, RpcError
from amplifier_app.base.sanitize import visible
from amplifier_app.runtime.attachments import MAX_TEXT_BYTES, AttachedImage, read_attachments
from amplifier_app.runtime.continuation import build_conversation
from amplifier_app.runtime.observers.visibility import shown_blocks
from amplifier_app.sessions.conversation import Call, Note, Prompt, Step
from amplifier_serve.acp.updates import Updates, result_content, text_block

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession


def read_prompt(blocks: Any) -> tuple[str, tuple[AttachedImage, ...]]:
    """The text and the images of a prompt.

    Raises:
        RpcError: A block is of another type, or incomplete.
        UsageError: An image is damaged or too large.
    """
    if not isinstance(blocks, list):
        raise RpcError(INVALID_PARAMS, "'prompt' must be a list of content blocks")
    texts: list[str] = []
    images: list[bytes] = []
    for block in cast("list[Any]", blocks):
        fields = cast("dict[str, Any]", block if isinstance(block, dict) else {})
        match fields:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "resource_link", "uri": str(uri)}:
                texts.append(f"[{fields.get('name') or uri}]({uri})")
            case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
                texts.append(_file(uri, text))
            case {"type": "image", "data": str(data)}:
                images.append(_decoded(data))
            case _:
                kind = fields.get("type")
                raise RpcError(INVALID_PARAMS, f"cannot use a content block of the type {kind!r}")
    attached = read_attachments(images).images
    prompt = "\n".join(texts)
    if not prompt.strip() and not attached:
        raise RpcError(INVALID_PARAMS, "the prompt is empty")
    return prompt, attached


def _file(uri: str, text: str) -> str:
    path = visible(uri.removeprefix("file://"))
    if len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
        raise RpcError(INVALID_PARAMS, f"{path} is larger than {MAX_TEXT_BYTES:,} bytes")
    return f'\n<file path="{path}">\n{text.rstrip()}\n</file>\n'


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RpcError(INVALID_PARAMS, "an image is not valid base64") from error


async def replay(session: OpenSession, updates: Updates) -> None:
    """Send the conversation of a saved session."""
    for item in await build_conversation(session):
        if isinstance(item, Prompt):
            updates.send("user_message_chunk", {"content": text_block(item.text)})
        elif isinstance(item, Step):
            _replay_step(session, item, updates)
        elif isinstance(item, Note) and item.is_attachment:
            for image in _images(item):
                updates.send("user_message_chunk", {"content": image})


def _replay_step(session: OpenSession, step: Step, updates: Updates) -> None:
    content = step.message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    blocks = cast("list[Any]", content if isinstance(content, list) else [])
    for block in shown_blocks(blocks, session.renderer.visibility):
        text, thinking = block.get("text"), block.get("thinking")
        if block.get("type") == "text" and isinstance(text, str) and text:
            updates.send("agent_message_chunk", {"content": text_block(text)})
        elif block.get("type") == "thinking" and isinstance(thinking, str) and thinking:
            updates.send("agent_thought_chunk", {"content": text_block(thinking)})
    for call in step.calls:
        _replay_call(call, updates)


def _replay_call(call: Call, updates: Updates) -> None:
    shown = updates.describe_call(call.name, call.input)
    result = call.shown
    # Not the change of a file, which is another one by now.
    shown["content"] = result_content(result or "")
    status = "failed" if result is None else "completed"
    updates.send(
        "tool_call", {"toolCallId": call.id or f"call-{call.number}", "status": status} | shown
    )


def _images(note: Note) -> Iterator[dict[str, Any]]:
    content = note.message.get("content")
    for block in cast("list[Any]", content if isinstance(content, list) else []):
        match block:
            case {"type": "image", "source": {"data": str(data), "media_type": str(media_type)}}:
                yield {"type": "image", "data": data, "mimeType": media_type}
            case _:
                pass
