"""The settings and the base of the four tools: guards for the allowed folders, events, and errors for the model.

FileProblem                  (these three are in `_shared.files`)
├── NotAFile                 a folder, a device, a pipe
├── FileTooLarge             more than the operation takes at once
├── NotAFolder               a folder was asked for
├── BinaryFile               the file is not text
├── ImageTooLarge            an image, too large to be shown
├── PastTheEnd               the file has fewer lines
├── TextNotFound             the text to replace is missing
├── TextNotUnique            it occurs more than once
├── NothingToChange          old and new text are the same
└── NotEncodable             the file's encoding cannot represent the text
"""

import asyncio
import codecs
import errno
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from amplifier_modules._shared.files import FileProblem as FileProblem
from amplifier_modules._shared.files import (
    FileTooLarge,
    Grants,
    InvalidPath,
    Location,
    PathError,
    PathGuard,
    off_loop,
    read_whole,
    write_whole,
)
from amplifier_modules._shared.module.config import ModuleConfig, Published, refused
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.module.tools import CheckedTool
from amplifier_modules._shared.output import known_output_dir
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import EDITOR_FILES, MENTIONS, SESSION_DIR
from amplifier_support.text import lazy_pattern


class FilesystemConfig(ModuleConfig):
    """Settings of tool-filesystem.

    Attributes:
        allowed_read_paths: Folders or files that may be read, absolute or relative to the working
            directory; `~` is expanded. By default the working directory.
        allowed_write_paths: The same for writing. `.git`, `.amplifier` and shell start-up files
            inside them are refused unless a path here names them, as in `[".", ".git"]`.
        denied_write_paths: Folders or files that may not be written, even inside
            `allowed_write_paths`.
        max_bytes: Bytes of text one call may return.
        max_image_bytes: Bytes of the largest image shown to the model. The default is 5 MB as
            base64, the limit of some services.
    """

    published: ClassVar[Mapping[str, Published]] = {
        "working_dir": refused(
            "relative paths start at the session's working directory, which hooks rely on; run "
            "amplifier there",
            ".",
        ),
    }

    allowed_read_paths: list[str] | None = None
    allowed_write_paths: list[str] | None = None
    denied_write_paths: list[str] = Field(default_factory=list[str])
    max_bytes: int = Field(default=100_000, ge=1000)
    max_image_bytes: int = Field(default=3_750_000, ge=1000)


class Workspace:
    """The allowed folders of one session.

    Attributes:
        config: The module's settings.
        changing: Held from reading a file until it is written back, so that parallel edits do not
            undo each other.
    """

    def __init__(self, coordinator: Any, config: FilesystemConfig) -> None:
        self.config = config
        self.changing = asyncio.Lock()
        self._saved: dict[str, int] = {}  # hashes of the texts that the editor last had as saved
        self._coordinator = coordinator
        self._readable = Grants(
            coordinator, config.allowed_read_paths, setting="allowed_read_paths"
        )
        self._writable = Grants(
            coordinator,
            config.allowed_write_paths,
            setting="allowed_write_paths",
            writing=True,
            denied=config.denied_write_paths,
        )

    @property
    def base(self) -> str:
        """The working directory, absolute."""
        return self._readable.base

    def reading(self) -> PathGuard:
        """The guard for reading, which also allows other tools' long output."""
        guard, output = self._readable.guard, known_output_dir(self._coordinator)
        return guard if output is None else guard.also(output)

    def locate_for_reading(self, path: str) -> Location:
        """The place of a path, or of `@NAME:path` in a namespace of the plan.

        `allowed_read_paths` holds for both.

        Raises:
            PathError: It is outside the allowed folders.
            OSError: It does not exist or cannot be reached.
        """
        namespace, place = self._in_namespace(path)
        if place is None:
            return self.reading().locate(path)
        in_base = place.is_relative_to(os.path.realpath(self.base))
        # What is in the working directory may have been replaced with a link out of it.
        if self.config.allowed_read_paths is not None or in_base:
            return self.reading().locate(str(place))
        folders = [str(folder) for folder in namespace.source_base_paths]
        guard = PathGuard(folders, base=self.base, writing=False, setting="namespaces")
        return guard.locate(str(place))

    def locate_for_writing(self, path: str, *, create_parents: bool = False) -> Location:
        """The place of a path.

        Raises:
            PathError: It is outside the allowed folders, or in a namespace of the plan.
            OSError: It cannot be reached.
        """
        if self._in_namespace(path)[0] is not None:
            raise InvalidPath(f"{path!r} can only be read; to change the file, use its own path")
        return self._writable.guard.locate(path, create_parents=create_parents)

    def _in_namespace(self, path: str) -> tuple[Any, Path | None]:
        """The namespace of `@NAME:path`, and the file or folder if it exists there."""
        mentions = MENTIONS.of(self._coordinator)
        name, colon, _ = path.partition(":")
        if mentions is None or not colon or not name.startswith("@"):
            return None, None
        namespace = mentions.bundles.get(name[1:])
        return namespace, None if namespace is None else mentions.resolve(path)

    async def read_unsaved(self, location: Location, *, to_change: bool = False) -> str | None:
        """Return the text of a file that was changed in the user's editor and is not saved, else None.

        Raises:
            FileTooLarge: It is to be changed, and too large to find out.
            OSError: The editor does not answer.
        """
        if (editor := EDITOR_FILES.of(self._coordinator)) is None:
            return None
        try:
            data = await off_loop(location.stat().st_size, lambda: read_whole(location, WHOLE))
            saved = for_model(decode(data)[0])
        except FileProblem as problem:
            if to_change and isinstance(problem, FileTooLarge):
                raise FileTooLarge(
                    f"it has more than {WHOLE} bytes, so changes that are not saved in the user's editor "
                    "would be lost; ask the user to change it"
                ) from None
            return None  # Editors have texts only.
        if (text := await editor.read(location.path)) is None:
            return None
        shown = for_model(text).rstrip("\n")
        if shown == saved.rstrip("\n"):
            self._saved[location.path] = hash(shown)
        editor.unsaved.pop(location.path, None)
        # An editor takes a moment to notice that the file on the disk has changed.
        if self._saved.get(location.path) == hash(shown):
            return None
        editor.unsaved[location.path] = for_model(text)
        return text

    async def write(self, location: Location, data: bytes, text: str, unsaved: str | None) -> None:
        """Write a file, through the editor if it has an unsaved text there; see `read_unsaved`.

        Raises:
            OSError: It cannot be written; the old file is untouched.
        """
        if unsaved is not None and (editor := EDITOR_FILES.of(self._coordinator)) is not None:
            await editor.write(location.path, text)
            editor.unsaved.pop(location.path, None)
        else:
            write = partial(write_whole, location, data, staging=SESSION_DIR.of(self._coordinator))
            await off_loop(len(data), write)

    async def report(self, event: str, path: str, size: int) -> None:
        """Emit `artifact:read` or `artifact:write`; `size` in bytes."""
        await self._coordinator.hooks.emit(event, {"path": path, "bytes": size, **event_ids()})


class BinaryFile(FileProblem):
    """The file is not text."""


class NotAFolder(FileProblem):
    """The path is not a folder."""


class ImageTooLarge(FileProblem):
    """The image has more bytes or pixels than may be shown to models."""


class PastTheEnd(FileProblem):
    """The file has fewer lines than asked for."""


class TextNotFound(FileProblem):
    """The text to replace is missing from the file."""


class TextNotUnique(FileProblem):
    """The text to replace occurs in the file more than once."""


class NothingToChange(FileProblem):
    """The replacement is the same as the text to replace."""


class NotEncodable(FileProblem):
    """The file's encoding cannot represent the text."""


_REASONS = {
    errno.ENOENT: "no such file or folder",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOTDIR: "part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder",
    errno.ELOOP: "too many links, or it was replaced with a link meanwhile",
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.ENAMETOOLONG: "a name in the path is too long",
}


def _os_problem(error: OSError, path: str) -> str:
    """Describe `error` using the path the model gave, not the resolved one."""
    reason = _REASONS.get(error.errno or 0) or error.strerror
    if reason is None:
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
    return f"{path!r}: {reason}"


WHOLE = 8 * 1024 * 1024
"""Files up to this many bytes are read and decoded whole, which detects the encoding best."""

SNIFFED = 8192
"""Bytes at the start of a file that decide whether it is text, as in git."""

# Longer marks first: that of UTF-32 starts with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


_HALVES = lazy_pattern("[\ud800-\udfff]")


class Coding(NamedTuple):
    """The encoding of a file's text, so that it can be written back the same way."""

    encoding: str = "utf-8"
    mark: bytes = b""
    errors: str = "strict"

    def encode(self, text: str) -> bytes:
        """Encode `text`, with the byte order mark. Raises NotEncodable."""
        try:
            return self.mark + text.encode(self.encoding, self.errors)
        except UnicodeEncodeError as error:
            character = text[error.start]
            if self.encoding.startswith("utf"):
                message = f"the text has half a surrogate pair (U+{ord(character):04X})"
            else:
                message = f"the file's encoding, {self.encoding}, cannot represent {character!r}"
            raise NotEncodable(message) from error


def decode(data: bytes) -> tuple[str, Coding]:
    """Decode a file's text and return how to write it back.

    Without a byte order mark it is UTF-8. Invalid UTF-8 is treated as damaged UTF-8 if it has more
    valid multi-byte characters than broken ones, otherwise as the western single-byte encoding;
    either way every byte is written back as it was.

    Raises:
        BinaryFile: There is a NUL near the start, or the text does not match the mark.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return data[len(mark) :].decode(encoding), Coding(encoding, mark)
            except UnicodeDecodeError:
                break
    if b"\0" in data[:SNIFFED]:
        raise BinaryFile("it is a binary file")
    try:
        return data.decode(), Coding()
    except UnicodeDecodeError:
        return _decode_broken(data)


def _decode_broken(data: bytes) -> tuple[str, Coding]:
    text = data.decode("utf-8", "surrogateescape")
    broken = sum("\udc80" <= character <= "\udcff" for character in text)
    whole = sum(character > "\x7f" for character in text) - broken
    if whole > broken:
        return text, Coding(errors="surrogateescape")
    try:
        return data.decode("cp1252"), Coding("cp1252")
    except UnicodeDecodeError:
        return data.decode("latin-1"), Coding("latin-1")


def line_end(text: str) -> str:
    """The first line end of `text`, or LF where it has none."""
    at = text.find("\n")
    return "\r\n" if at > 0 and text[at - 1] == "\r" else "\n"


def all_crlf(text: str) -> bool:
    """Return True if `text` has lines and every one ends in CR LF."""
    ends = text.count("\n")
    return ends > 0 and text.count("\r\n") == ends


def with_line_end(text: str, end: str) -> str:
    """`text` with every line end replaced by `end`."""
    plain = text.replace("\r\n", "\n")
    return plain if end == "\n" else plain.replace("\n", end)


def for_model(text: str) -> str:
    """`text` for the model: LF line ends, invalid bytes as the replacement character."""
    return _HALVES.sub("\ufffd", text.replace("\r\n", "\n"))


PATH = {"type": "string", "description": "Path, absolute or relative to the working directory"}


FILE_ALIASES = {"path": "file_path"}
"""`file_path` is the parameter's name in published tools of the same names."""


class FilesystemTool(CheckedTool):
    """A tool that works on files."""

    description: ClassVar[str]
    failures = (FileProblem, PathError, OSError)

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def describe_failure(self, error: Exception, values: dict[str, Any]) -> str:
        path = values.get("file_path") or values.get("path", ".")
        if isinstance(error, FileProblem):
            return f"{path!r}: {error}"
        return _os_problem(error, path) if isinstance(error, OSError) else str(error)
