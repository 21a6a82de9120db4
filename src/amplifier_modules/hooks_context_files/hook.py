"""The hook: when files are read, and where their text goes."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from amplifier_core.models import HookResult
from amplifier_modules.hooks_context_files import text
from amplifier_modules.hooks_context_files.config import LOADED, MODULE_ID, ContextFilesConfig
from amplifier_modules.hooks_context_files.files import ContextFile, Reader
from amplifier_modules.hooks_context_files.folders import (
    is_shared,
    nested_folders,
    project_folders,
)
from amplifier_support.session_capabilities import CONFIG_DIR, WORKING_DIR

logger = logging.getLogger(__name__)

_CARRIED = ("session_id", "turn_id", "span_id", "parent_span_id", "iteration", "tool_call_id")
_PATHS = ("path", "file_path", "folder", "directory", "notebook_path")
_FRAME = 1000
"""Most characters of text around all files."""


class ContextFilesHook:
    """Add the text of context files to the conversation, once for each state of the files.

    Args:
        coordinator: See `amplifier_core.coordinator.ModuleCoordinator`.
        config: Which files, and how much of them.
    """

    def __init__(self, coordinator: Any, config: ContextFilesConfig) -> None:
        self._coordinator = coordinator
        self._config = config
        self._nested: set[str] = set()
        self._warned: set[str] = set()

    async def on_prompt(self, event: str, data: Any) -> HookResult:
        """Handle `prompt:submit`: add the files if the conversation lacks their current state.

        Stored messages stay where they are, so that all requests start the same and providers can
        use their caches.
        """
        given = text.already_given(await self._messages())
        self._nested = set(given.folders)
        reader = Reader(self._config, self._most())
        files = self._files(reader)
        digest = text.digest_of(files)
        self._warn(reader.problems)
        if digest == given.digest:
            return HookResult()
        again = given.digest != text.NONE
        reason = ("changed" if again else "start") if files else "gone"
        await self._emit_loaded(data, files, digest, reason, reader.problems)
        return _injection(text.as_text(files, again=again), "system")

    async def on_tool(self, event: str, data: Any) -> HookResult:
        """Handle `tool:post`: add the files of a folder when a tool first names a path in it."""
        touched = dict.fromkeys(self._folders_named_in(data))
        folders = [folder for folder in touched if text.shown(folder) not in self._nested]
        if not folders:
            return HookResult()
        known = project_folders(self._working_dir)
        reader = Reader(self._config, self._most())
        texts: list[str] = []
        files: list[ContextFile] = []
        for folder in folders:
            if folder in known or is_shared(folder):
                continue
            file = reader.folder(folder, known[0], "nested")
            # If there is none, look again next time: it is cheap, and one may appear.
            if file is not None:
                self._nested.add(text.shown(folder))
                files.append(file)
                texts.append(text.as_nested_text(folder, file))
        self._warn(reader.problems)
        if not files:
            return HookResult()
        await self._emit_loaded(data, files, text.digest_of(files), "nested", reader.problems)
        return _injection("\n".join(texts), "user")

    def _files(self, reader: Reader) -> list[ContextFile]:
        """All files, the most general first; read in reverse, as the nearest matter most."""
        own = CONFIG_DIR.of(self._coordinator) if self._config.user else None
        user = reader.folder(own, own, "user") if own else None
        folders = project_folders(self._working_dir) if self._config.project else []
        found = [reader.folder(folder, folders[0], "project") for folder in folders[::-1]]
        return [file for file in (user, *found[::-1]) if file is not None]

    def _folders_named_in(self, data: Any) -> list[str]:
        """Folders of the project in which the call names a path."""
        if not isinstance(data, Mapping):
            return []
        values = cast("Mapping[str, Any]", data).get("tool_input")
        roots = project_folders(self._working_dir)
        if not isinstance(values, Mapping) or not roots:
            return []
        named = [cast("Mapping[str, Any]", values).get(key) for key in _PATHS]
        return [
            folder
            for path in named
            if isinstance(path, str) and path and "\0" not in path
            for folder in nested_folders(roots[0], os.path.join(self._working_dir, path))
        ]

    @property
    def _working_dir(self) -> str:
        return WORKING_DIR.of(self._coordinator) or os.getcwd()

    def _most(self) -> int:
        limit = getattr(self._coordinator, "injection_size_limit", None)
        if not isinstance(limit, int):
            return self._config.max_bytes
        # The kernel refuses a longer text completely.
        return max(0, min(self._config.max_bytes, limit - _FRAME))

    async def _messages(self) -> list[Any]:
        get = getattr(self._coordinator.get("context"), "get_messages", None)
        messages: Any = get() if callable(get) else []
        if inspect.isawaitable(messages):
            messages = await messages
        return list(messages or ())

    def _warn(self, problems: Iterable[str]) -> None:
        for problem in problems:
            if problem not in self._warned:
                self._warned.add(problem)
                logger.warning("%s: %s", MODULE_ID, problem)

    async def _emit_loaded(
        self,
        data: Any,
        files: Sequence[ContextFile],
        digest: str,
        reason: str,
        problems: Sequence[str],
    ) -> None:
        given: dict[str, Any] = (
            {key: data[key] for key in _CARRIED if key in data} if isinstance(data, Mapping) else {}
        )
        listed = [
            {"path": file.path, "from": file.origin, "chars": len(file.text)} for file in files
        ]
        facts = {"reason": reason, "digest": digest, "files": listed, "problems": list(problems)}
        await self._coordinator.hooks.emit(LOADED, {**given, **facts})


def _injection(content: str, role: Any) -> HookResult:
    return HookResult(
        action="inject_context",
        context_injection=content,
        context_injection_role=role,
        suppress_output=True,
    )
