"""The tools that change files: `write_file` and `edit_file`."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from amplifier_core.models import ToolResult
from amplifier_modules._shared.files.guarded_files import exists, read_whole, write_whole
from amplifier_modules._shared.files.off_loop import off_loop
from amplifier_modules._shared.files.roots import Location
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.module.tool_input import InvalidInput
from amplifier_modules.tool_filesystem.diff import unified_diff
from amplifier_modules.tool_filesystem.editing import Edit, Edited, apply_edits
from amplifier_modules.tool_filesystem.errors import FileProblem
from amplifier_modules.tool_filesystem.reading import WHOLE
from amplifier_modules.tool_filesystem.text import (
    Coding,
    all_crlf,
    decode,
    for_model,
    with_line_end,
)
from amplifier_modules.tool_filesystem.tool import FILE_ALIASES, PATH, FilesystemTool
from amplifier_modules.tool_filesystem.workspace import Workspace

LARGEST_EDIT = 64 * 1024 * 1024
"""Bytes of the largest file that can be edited: it is held in memory several times."""

_LONGEST_DIFF = 20_000

_EDIT: dict[str, Any] = {
    "old_string": {
        "type": "string",
        "minLength": 1,
        "description": "Text to replace, exactly as in the file",
    },
    "new_string": {"type": "string", "description": "Replacement text"},
    "replace_all": {
        "type": "boolean",
        "description": "Replace every occurrence; default: false",
    },
}


class ChangingTool(FilesystemTool):
    """A tool that changes a file, and can tell before that a call will fail."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._failed: dict[str, ToolResult] = {}

    @abstractmethod
    async def rehearse(self, values: dict[str, Any]) -> ToolResult:
        """Do what `run` does without changing anything."""

    async def check(self, input: Mapping[str, Any], span: str | None = None) -> bool:
        """The capability `*.check`: true if a call cannot succeed."""
        # Hooks get aliases, too.
        known = {
            name: value for name, value in input.items() if name in self.input_schema["properties"]
        }
        result = await self.run_checked(self.rehearse, known)
        if span is not None and not result.success:
            self._failed[span] = result
        return not result.success

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        failed = self._failed.pop(str(event_ids().get("span_id")), None)
        return await super().execute(input) if failed is None else failed


class WriteFile(ChangingTool):
    name = "write_file"
    description = (
        "Write a whole text file: create it, with its folders, or replace it. Use "
        "edit_file to change part of a file."
    )
    input_aliases: ClassVar[Mapping[str, str]] = FILE_ALIASES
    input_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "file_path": PATH,
            "content": {"type": "string", "description": "The complete new content"},
        },
        "required": ["file_path", "content"],
        "additionalProperties": False,
    }

    async def rehearse(self, values: dict[str, Any]) -> ToolResult:
        locate = self._workspace.locate_for_writing
        # Missing folders are created.
        with contextlib.suppress(FileNotFoundError), locate(values["file_path"]) as location:
            _like_the_old_file(location, values["content"])
        return ToolResult()

    async def run(self, values: dict[str, Any]) -> ToolResult:
        locate = self._workspace.locate_for_writing
        async with self._workspace.changing:
            with locate(values["file_path"], create_parents=True) as location:
                data, kept = _like_the_old_file(location, values["content"])
                done = "replaced" if kept is not None else "created"
                staging = self._workspace.staging
                await off_loop(len(data), lambda: write_whole(location, data, staging=staging))
                path = location.path
        await self._workspace.report_write(path, len(data))
        note = f"; kept its {kept}" if kept else ""
        return ToolResult(output=f"{done} {values['file_path']} ({len(data)} bytes{note})")


class EditFile(ChangingTool):
    name = "edit_file"
    description = (
        "Replace old_string with new_string in a file. old_string must occur "
        "exactly once unless replace_all is true. Use edits for several changes to one file: each "
        "applies to the result of the one before; all are made or none. Returns a diff."
    )
    input_aliases: ClassVar[Mapping[str, str]] = FILE_ALIASES
    input_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "file_path": PATH,
            **_EDIT,
            "edits": {
                "type": "array",
                "minItems": 1,
                "description": "Several edits, instead of old_string and new_string",
                "items": {
                    "type": "object",
                    "properties": _EDIT,
                    "required": ["old_string", "new_string"],
                    "additionalProperties": False,
                },
            },
        },
        "required": ["file_path"],
        "additionalProperties": False,
    }

    async def rehearse(self, values: dict[str, Any]) -> ToolResult:
        edits = _edits(values)
        with self._workspace.locate_for_writing(values["file_path"]) as location:
            await off_loop(location.stat().st_size, lambda: _edited(location, edits))
        return ToolResult()

    async def run(self, values: dict[str, Any]) -> ToolResult:
        edits = _edits(values)
        async with self._workspace.changing:
            with self._workspace.locate_for_writing(values["file_path"]) as location:
                size = location.stat().st_size
                diff, written = await off_loop(
                    size,
                    lambda: _edit(location, values["file_path"], edits, self._workspace.staging),
                )
                path = location.path
        await self._workspace.report_write(path, written)
        return ToolResult(output=diff)


def _edits(values: dict[str, Any]) -> list[Edit]:
    single = [key for key in _EDIT if key in values]
    if "edits" not in values:
        for key in ("old_string", "new_string"):
            if key not in values:
                raise InvalidInput(f"the parameter {key!r} is required, unless 'edits' is given")
        return [_one(values)]
    if single:
        raise InvalidInput(f"'edits' and {single[0]!r} are mutually exclusive")
    return [_one(edit) for edit in values["edits"]]


def _one(values: dict[str, Any]) -> Edit:
    return Edit(values["old_string"], values["new_string"], values.get("replace_all", False))


def _like_the_old_file(location: Location, content: str) -> tuple[bytes, str | None]:
    """`content` as bytes in the encoding and line ends of the file it replaces.

    Second: None for a new file, otherwise what was preserved, for the model.
    """
    if not exists(location):
        return _encoded_as_new(content), None
    try:
        text, coding = decode(read_whole(location, WHOLE))
    except FileProblem:
        return _encoded_as_new(content), ""
    kept: list[str] = []
    if all_crlf(text) and "\r" not in content and "\n" in content:
        content = with_line_end(content, "\r\n")
        kept.append("CRLF line endings")
    try:
        data = coding.encode(content)
    except FileProblem:
        return _encoded_as_new(content), ", ".join(kept)
    if coding.encoding != "utf-8" and not content.isascii():
        kept.append(f"encoding {coding.encoding}")
    return data, ", ".join(kept)


def _encoded_as_new(content: str) -> bytes:
    return Coding().encode(content)


def _edited(location: Location, edits: list[Edit]) -> tuple[str, Edited, bytes]:
    """Return the text of a file, the outcome of the edits, and that as bytes."""
    text, coding = decode(read_whole(location, LARGEST_EDIT))
    outcome = apply_edits(text, edits)
    return text, outcome, coding.encode(outcome.text)


def _edit(location: Location, path: str, edits: list[Edit], staging: str | None) -> tuple[str, int]:
    """Apply the edits; return their diff and the new size of the file in bytes."""
    text, outcome, data = _edited(location, edits)
    write_whole(location, data, staging=staging)
    diff = for_model(unified_diff(path, text, outcome.changes))
    if len(diff) > _LONGEST_DIFF:
        shown = diff[: diff.rfind("\n", 0, _LONGEST_DIFF) + 1]
        lines = diff.count("\n")
        diff = f"{shown}[{lines - shown.count(chr(10))} of {lines} lines of the diff not shown]\n"
    places = f"{outcome.places} places" if outcome.places > 1 else "1 place"
    return f"edited {path} in {places}\n{diff}", len(data)
