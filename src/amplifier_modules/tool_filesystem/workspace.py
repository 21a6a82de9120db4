"""What the four tools share: guards for the allowed folders, and the events they emit."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from amplifier_core.events import ARTIFACT_READ, ARTIFACT_WRITE
from amplifier_modules._shared.files.grants import Grants
from amplifier_modules._shared.files.roots import InvalidPath, Location, PathGuard
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.process.output_dir import known_output_dir
from amplifier_modules.tool_filesystem.config import FilesystemConfig
from amplifier_support.session_capabilities import MENTIONS, SESSION_DIR


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

    @property
    def staging(self) -> str | None:
        """The session's folder, which is cleaned when the session is opened."""
        return SESSION_DIR.of(self._coordinator)

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
        namespace, found = self._in_namespace(path)
        if found is None:
            return self.reading().locate(path)
        in_base = found.is_relative_to(os.path.realpath(self.base))
        # What is in the working directory may have been replaced with a link out of it.
        if self.config.allowed_read_paths is not None or in_base:
            return self.reading().locate(str(found))
        folders = [str(folder) for folder in namespace.source_base_paths]
        guard = PathGuard(folders, base=self.base, writing=False, setting="namespaces")
        return guard.locate(str(found))

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

    async def report_read(self, path: str, size: int) -> None:
        """Emit `artifact:read`; `size` in bytes."""
        await self._emit(ARTIFACT_READ, path, size)

    async def report_write(self, path: str, size: int) -> None:
        """Emit `artifact:write`; `size` in bytes."""
        await self._emit(ARTIFACT_WRITE, path, size)

    async def _emit(self, event: str, path: str, size: int) -> None:
        await self._coordinator.hooks.emit(event, {"path": path, "bytes": size, **event_ids()})
