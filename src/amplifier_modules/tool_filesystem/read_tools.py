"""The read-only tools: `read_file` and `list_directory`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, ClassVar

from amplifier_core.models import ToolResult
from amplifier_modules._shared.files.off_loop import off_loop
from amplifier_modules.tool_filesystem.listing import list_folder
from amplifier_modules.tool_filesystem.reading import ImageFile, Limits, Page, read_file
from amplifier_modules.tool_filesystem.tool import FILE_ALIASES, PATH, FilesystemTool

DEFAULT_LINES = 2000


class ReadFile(FilesystemTool):
    name = "read_file"
    description = (
        "Read a file. Returns up to 2000 lines of text by default; a note at the end says if "
        "there is more and how to continue. PNG, JPEG, GIF and WebP images are shown to you."
    )
    input_aliases: ClassVar[Mapping[str, str]] = FILE_ALIASES
    input_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "file_path": PATH,
            "offset": {
                "type": "integer",
                "minimum": 1,
                "description": "First line to read, counting from 1",
            },
            "limit": {"type": "integer", "minimum": 1, "description": "Number of lines to read"},
        },
        "required": ["file_path"],
        "additionalProperties": False,
    }

    async def run(self, values: dict[str, Any]) -> ToolResult:
        config = self._workspace.config
        limits = Limits(
            first=values.get("offset", 1),
            lines=values.get("limit", DEFAULT_LINES),
            text=config.max_bytes,
            image=config.max_image_bytes,
        )
        with self._workspace.locate_for_reading(values["file_path"]) as location:
            size = location.stat().st_size
            found = await off_loop(size, lambda: read_file(location, limits))
            await self._workspace.report_read(location.path, found.size)
        if isinstance(found, ImageFile):
            return _shown(found)
        return ToolResult(output=_text(found))


class ListDirectory(FilesystemTool):
    name = "list_directory"
    description = "List a folder: folders end in '/', files show their size, links their target."
    input_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "path": {**PATH, "description": "The folder; default: the working directory"},
        },
        "additionalProperties": False,
    }

    async def run(self, values: dict[str, Any]) -> ToolResult:
        with self._workspace.locate_for_reading(values.get("path", ".")) as location:
            listing = list_folder(location)
        if not listing.lines:
            return ToolResult(output="[the folder is empty]")
        text = "\n".join(listing.lines)
        rest = listing.total - len(listing.lines)
        more = f"\n\n[{rest} more not shown]" if rest else ""
        return ToolResult(output=text + more)


def _text(page: Page) -> str:
    if not page.text:
        return "[the file is empty]"
    if not page.note:
        return page.text
    text = page.text.removesuffix("\n")
    return f"{text}\n\n[{page.note}]"


def _shown(file: ImageFile) -> ToolResult:
    source = {
        "type": "base64",
        "media_type": file.image.media_type,
        "data": base64.b64encode(file.data).decode("ascii"),
    }
    note = f"[{file.image.described}, {file.size} bytes]"
    content: Any = [{"type": "text", "text": note}, {"type": "image", "source": source}]
    return ToolResult(output=note, content=content)
