"""Turn server responses into results for models: text, images, and files for other data."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from amplifier_core.models import ToolResult
from amplifier_modules._shared.process.output import OutputCapture
from amplifier_support.private_files import open_private_in

_SPILL_LIMIT = 64 * 1024 * 1024
_PIECE = 1 << 20
_IMAGES = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
"""Image types that models accept, and their first bytes."""

_LARGEST_IMAGE = 5 * 1024 * 1024
_MOST_IMAGES = 20

Block = dict[str, Any]


class Results:
    """Create results.

    Args:
        max_output: Bytes of text in one result.
        folder: Returns the folder for long results and other data.
    """

    def __init__(self, max_output: int, folder: Callable[[], Path]) -> None:
        self._max_output = max_output
        self._folder = folder

    def of_call(self, answer: Any) -> ToolResult:
        """The result of a call."""
        blocks = [self._block(content) for content in answer.content]
        structured = answer.structured_content
        if not blocks and structured is not None:
            text = json.dumps(structured, ensure_ascii=False, indent=1, default=str)
            blocks = [_text(text)]
        return self._result(blocks, failed=bool(answer.is_error))

    def of_resource(self, answer: Any) -> ToolResult:
        """The result of reading a resource."""
        return self._result([self._resource(contents) for contents in answer.contents])

    def of_prompt(self, answer: Any) -> ToolResult:
        """The result of filling in a prompt: the messages by role."""
        blocks: list[Block] = [_text(answer.description)] if answer.description else []
        for message in answer.messages:
            blocks += [_text(f"[{message.role}]"), self._block(message.content)]
        return self._result(blocks)

    def of_text(self, text: str) -> ToolResult:
        return self._result([_text(text)])

    # -- parts -------------------------------------------------------------------------

    def _result(self, blocks: list[Block], *, failed: bool = False) -> ToolResult:
        more = sum(block["type"] == "image" for block in blocks) - _MOST_IMAGES
        if more > 0:
            blocks = [*blocks, _text(f"[{more} more images left out]")]
        text = self._shortened("\n".join(_texts(blocks)))
        error = {"message": text or "the tool failed", "type": "ToolError"} if failed else None
        images = [block for block in blocks if block["type"] == "image"][:_MOST_IMAGES]
        content: Any = [*([_text(text)] if text else []), *images] if images else None
        output = text if text or images else "(no output)"
        return ToolResult(success=not failed, output=output, error=error, content=content)

    def _shortened(self, text: str) -> str:
        if (
            len(text) <= self._max_output
            and len(text.encode("utf-8", "replace")) <= self._max_output
        ):
            return text
        capture = OutputCapture(
            limit=self._max_output,
            spill_limit=_SPILL_LIMIT,
            new_file=lambda: self._new_file("txt"),
        )
        for start in range(0, len(text), _PIECE):
            capture.feed(text[start : start + _PIECE].encode("utf-8", "replace"))
        capture.close()
        shown = capture.captured()
        kept = f"its full text is in {shown.file}" if shown.file else f"not kept: {shown.problem}"
        return f"{shown.text}\n[the result has {shown.total} bytes; {kept}]"

    def _block(self, content: Any) -> Block:
        match content.type:
            case "text":
                return _text(content.text)
            case "image":
                return self._media(content.data, content.mime_type)
            case "audio":
                return self._media(content.data, content.mime_type)
            case "resource":
                return self._resource(content.resource)
            case "resource_link":
                about = ", ".join(filter(None, (content.name, content.mime_type)))
                return _text(f"[resource {content.uri}: {about}]")
            case other:
                return _text(f"[content of the unknown type {other!r}]")

    def _resource(self, contents: Any) -> Block:
        text = getattr(contents, "text", None)
        if text is not None:
            return _text(f"[resource {contents.uri}]\n{text}")
        return self._media(contents.blob, contents.mime_type or "application/octet-stream")

    def _media(self, encoded: str, mime_type: str) -> Block:
        """Return an image as such; save other media in a file."""
        kind = mime_type.partition(";")[0].strip().lower()
        try:
            data = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            return _text(f"[{kind}: its data is not valid base64]")
        # A service refuses a request with invalid data, and every later one.
        if data.startswith(_IMAGES.get(kind, ())) and len(data) <= _LARGEST_IMAGE:
            source = {"type": "base64", "media_type": kind, "data": encoded}
            return {"type": "image", "source": source}
        try:
            path = self._saved(data, kind)
        except OSError as error:
            return _text(f"[{kind}, {len(data)} bytes, could not be saved: {error.strerror}]")
        return _text(f"[{kind}, {len(data)} bytes, saved as {path}]")

    def _saved(self, data: bytes, kind: str) -> Path:
        path = self._new_file((mimetypes.guess_extension(kind) or ".bin").lstrip("."))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(open_private_in(path.parent, path.name, flags), "wb") as file:
            file.write(data)
        return path

    def _new_file(self, extension: str) -> Path:
        return self._folder() / f"mcp-{secrets.token_hex(6)}.{extension}"


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _texts(blocks: Iterable[Block]) -> Iterable[str]:
    return (block["text"] for block in blocks if block["type"] == "text")
