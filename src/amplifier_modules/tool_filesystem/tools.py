"""The four tools as models see them."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from amplifier_core.models import ToolResult
from amplifier_modules._shared.paths import Location, PathError
from amplifier_modules._shared.tool_input import InvalidInput, read_input
from amplifier_modules.tool_filesystem.config import FilesystemConfig
from amplifier_modules.tool_filesystem.editing import apply, changes, unified_diff
from amplifier_modules.tool_filesystem.errors import FileProblem, TextNotFound, os_problem
from amplifier_modules.tool_filesystem.listing import list_folder
from amplifier_modules.tool_filesystem.reading import WHOLE, read_page
from amplifier_modules.tool_filesystem.storage import exists, read_whole, write_whole
from amplifier_modules.tool_filesystem.text import (
    Coding,
    all_crlf,
    decode,
    for_model,
    with_line_end,
)
from amplifier_modules.tool_filesystem.workspace import Workspace

T = TypeVar("T")

DEFAULT_LINES = 2000
LARGEST_EDIT = 64 * 1024 * 1024
"""Bytes of the largest file that is edited: it is held in memory several times."""

_INLINE = 1024 * 1024
_LONGEST_DIFF = 20_000

_PATH = {"type": "string", "description": "Path, absolute or relative to the working directory"}


def filesystem_tools(coordinator: Any, config: FilesystemConfig) -> list[FilesystemTool]:
    """The tools of one session, which share its granted folders."""
    workspace = Workspace(coordinator, config)
    kinds = (ReadFile, WriteFile, EditFile, ListDirectory)
    return [kind(workspace) for kind in kinds]


class FilesystemTool(ABC):
    """A tool on files (Tool Contract): a failure is a result, never an exception."""

    name: ClassVar[str]
    description: ClassVar[str]
    input_schema: ClassVar[dict[str, Any]]

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def get_schema(self) -> dict[str, Any]:
        """JSON schema of the input."""
        return self.input_schema

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        """Run the tool; `error` of a failure has `message` and `type`."""
        path = "."
        try:
            values = read_input(self.input_schema, input)
            path = values.get("path", path)
            return ToolResult(output=await self.run(values))
        except FileProblem as error:
            return _failure(error, f"{path!r}: {error}")
        except (InvalidInput, PathError) as error:
            return _failure(error, str(error))
        except OSError as error:
            return _failure(error, os_problem(error, path))

    @abstractmethod
    async def run(self, values: dict[str, Any]) -> str:
        """The text for the model. Raises what `execute` turns into a failure."""


class ReadFile(FilesystemTool):
    name = "read_file"
    description = (
        "Read a text file. Returns its content, by default up to 2000 lines; a note at the end "
        "says when there is more and how to read on."
    )
    input_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "path": _PATH,
            "offset": {
                "type": "integer",
                "minimum": 1,
                "description": "Number of the first line to read, from 1",
            },
            "limit": {"type": "integer", "minimum": 1, "description": "Number of lines to read"},
        },
        "required": ["path"],
        "additionalProperties": False,
    }

    async def run(self, values: dict[str, Any]) -> str:
        with self._workspace.reading().locate(values["path"]) as location:
            page = await _off_loop(
                location.stat().st_size,
                lambda: read_page(
                    location,
                    values.get("offset", 1),
                    values.get("limit", DEFAULT_LINES),
                    self._workspace.config.max_bytes,
                ),
            )
            await self._workspace.report_read(location.path, page.size)
        if not page.text:
            return "[the file is empty]"
        if not page.note:
            return page.text
        text = page.text.removesuffix("\n")
        return f"{text}\n\n[{page.note}]"


class WriteFile(FilesystemTool):
    name = "write_file"
    description = (
        "Write a whole text file: create it, with its folders, or replace what is there. Use "
        "edit_file to change part of a file."
    )
    input_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "path": _PATH,
            "content": {"type": "string", "description": "The whole new content"},
        },
        "required": ["path", "content"],
        "additionalProperties": False,
    }

    async def run(self, values: dict[str, Any]) -> str:
        guard = self._workspace.writing()
        async with self._workspace.changing:
            with guard.locate(values["path"], create_parents=True) as location:
                data, kept = _like_the_old_file(location, values["content"])
                done = "replaced" if kept is not None else "created"
                await _off_loop(len(data), lambda: write_whole(location, data))
                path = location.path
        await self._workspace.report_write(path, len(data))
        note = f"; kept its {kept}" if kept else ""
        return f"{done} {values['path']} ({len(data)} bytes{note})"


class EditFile(FilesystemTool):
    name = "edit_file"
    description = (
        "Replace exact text in a file. old_string must be in the file exactly once, unless "
        "replace_all is true. Returns a diff of the change."
    )
    input_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "path": _PATH,
            "old_string": {
                "type": "string",
                "minLength": 1,
                "description": "Text to replace, exactly as it stands in the file",
            },
            "new_string": {"type": "string", "description": "Text to put in its place"},
            "replace_all": {
                "type": "boolean",
                "description": "Replace every occurrence; false by default",
            },
        },
        "required": ["path", "old_string", "new_string"],
        "additionalProperties": False,
    }

    async def run(self, values: dict[str, Any]) -> str:
        guard = self._workspace.writing()
        async with self._workspace.changing:
            with guard.locate(values["path"]) as location:
                size = location.stat().st_size
                diff, written = await _off_loop(size, lambda: _edit(location, values))
                path = location.path
        await self._workspace.report_write(path, written)
        return diff


class ListDirectory(FilesystemTool):
    name = "list_directory"
    description = "List a folder: folders end in '/', files have their size, links their target."
    input_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "path": {**_PATH, "description": "The folder; by default the working directory"},
        },
        "additionalProperties": False,
    }

    async def run(self, values: dict[str, Any]) -> str:
        with self._workspace.reading().locate(values.get("path", ".")) as location:
            listing = list_folder(location)
        if not listing.lines:
            return "[the folder is empty]"
        text = "\n".join(listing.lines)
        rest = listing.total - len(listing.lines)
        return f"{text}\n\n[{rest} more entries are not shown]" if rest else text


async def _off_loop(size: int, work: Callable[[], T]) -> T:
    """Run `work` at once when it handles few bytes, which is faster, else in a thread.

    A cancellation waits for the thread, which uses the caller's descriptors.
    """
    if size <= _INLINE:
        return work()
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise


def _like_the_old_file(location: Location, content: str) -> tuple[bytes, str | None]:
    """`content` as bytes in the encoding and line ends of the file it replaces.

    Second: None for a new file, else what is worth telling of what was kept.
    """
    if not exists(location):
        return _encoded_anew(content), None
    try:
        text, coding = decode(read_whole(location, WHOLE))
    except FileProblem:
        return _encoded_anew(content), ""
    kept: list[str] = []
    if all_crlf(text) and "\r" not in content and "\n" in content:
        content = with_line_end(content, "\r\n")
        kept.append("CRLF line ends")
    try:
        data = coding.encode(content)
    except FileProblem:
        return _encoded_anew(content), ", ".join(kept)
    if coding.encoding != "utf-8" and not content.isascii():
        kept.append(f"encoding {coding.encoding}")
    return data, ", ".join(kept)


def _encoded_anew(content: str) -> bytes:
    return Coding().encode(content)


def _edit(location: Location, values: dict[str, Any]) -> tuple[str, int]:
    """The diff of the edit, and the size of the file it was written to, in bytes."""
    data = read_whole(location, LARGEST_EDIT)
    text, coding = decode(data)
    old, new = values["old_string"], values["new_string"]
    if not old:
        raise TextNotFound("old_string is empty; use write_file to write a whole file")
    made = changes(text, old, new, everywhere=values.get("replace_all", False))
    data = coding.encode(apply(text, made))
    write_whole(location, data)
    diff = for_model(unified_diff(values["path"], text, made))
    if len(diff) > _LONGEST_DIFF:
        shown = diff[: diff.rfind("\n", 0, _LONGEST_DIFF) + 1]
        left = diff.count("\n") - shown.count("\n")
        diff = f"{shown}[{left} more lines of the diff are not shown]\n"
    places = f"{len(made)} places" if len(made) > 1 else "1 place"
    return f"edited {values['path']} in {places}\n{diff}", len(data)


def _failure(error: Exception, message: str) -> ToolResult:
    return ToolResult(success=False, error={"message": message, "type": type(error).__name__})
