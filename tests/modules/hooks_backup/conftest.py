"""A session with real tools on a real folder, whose turns are played as a loop plays them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.models import HookResult, ToolResult
from amplifier_core.testing import MockCoordinator
from amplifier_modules import hooks_backup, tool_bash, tool_filesystem

Step = tuple[str, dict[str, Any]]


class Session:
    """One run of a program: what is kept is in `session`, the files are in `folder`."""

    calls = itertools.count()

    def __init__(self, folder: Path, session: Path | None) -> None:
        self.folder = folder
        self.session = session
        self.coordinator = MockCoordinator()
        self.coordinator.register_capability("session.working_dir", str(folder))
        if session is not None:
            self.coordinator.register_capability("session.dir", str(session))
        self.events: list[tuple[str, dict[str, Any]]] = []
        for name in ("backup:created", "backup:restored"):
            self.coordinator.hooks.register(name, self._note)
        self.said: HookResult | None = None
        self.turns = 0
        self._close: list[Any] = []

    async def _note(self, event: str, data: dict[str, Any]) -> None:
        self.events.append((event, dict(data)))

    async def mount(self, **config: Any) -> Session:
        for module, settings in ((hooks_backup, config), (tool_filesystem, {}), (tool_bash, {})):
            cleanup = await module.mount(self.coordinator, settings)
            if cleanup is not None:
                self._close.append(cleanup)
        return self

    async def close(self) -> None:
        """The program ends."""
        for cleanup in reversed(self._close):
            pending = cleanup()
            if pending is not None:
                await pending
        self._close = []

    # -- a turn ----------------------------------------------------------------------------

    async def turn(self, prompt: str, *steps: Step) -> list[ToolResult]:
        """A turn of one call after the other."""
        ids = await self.begin(prompt)
        results = [await self.call(name, values, **ids) for name, values in steps]
        await self.coordinator.hooks.emit("execution:end", ids)
        return results

    async def begin(self, prompt: str) -> dict[str, Any]:
        ids = {"turn_id": f"{next(self.calls):032x}"}
        self.said = await self.coordinator.hooks.emit("prompt:submit", {"prompt": prompt, **ids})
        return ids

    async def call(self, name: str, values: dict[str, Any], **ids: Any) -> ToolResult:
        data = await self.pre(name, values, **ids)
        return await self.run(data)

    async def pre(self, name: str, values: dict[str, Any], **ids: Any) -> dict[str, Any]:
        """What comes before a call runs; the data of its events."""
        data = {"tool_name": name, "tool_call_id": f"call-{next(self.calls)}", **ids}
        data |= {"tool_input": values, "input": values}
        self.said = await self.coordinator.hooks.emit("tool:pre", data)
        return data

    async def run(self, data: dict[str, Any]) -> ToolResult:
        tool = self.coordinator.get("tools", data["tool_name"])
        result = await tool.execute(data["tool_input"])
        await self.coordinator.hooks.emit("tool:post", {**data, "result": result})
        return result

    # -- what the module offers ------------------------------------------------------------

    async def undo(self, **how: Any) -> dict[str, Any]:
        """What was undone, paths relative to the folder."""
        undone = await self.coordinator.get_capability("backup.undo")(**how)
        assert undone is not None
        for key in ("restored", "removed"):
            undone[key] = [self.name(path) for path in undone[key]]
        undone["refused"] = {self.name(item["path"]): item["reason"] for item in undone["refused"]}
        return undone

    async def nothing_to_undo(self, **how: Any) -> bool:
        return await self.coordinator.get_capability("backup.undo")(**how) is None

    def listed(self) -> list[dict[str, Any]]:
        return self.coordinator.get_capability("backup.list")()

    def name(self, path: str) -> str:
        found = Path(path)
        return str(found.relative_to(self.folder)) if found.is_relative_to(self.folder) else path

    # -- files -----------------------------------------------------------------------------

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def files(self) -> dict[str, str]:
        return {
            self.name(str(path)): path.read_text()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }


def wrote(path: str, content: str) -> Step:
    return "write_file", {"file_path": path, "content": content}


def edited(path: str, old: str, new: str) -> Step:
    return "edit_file", {"file_path": path, "old_string": old, "new_string": new}


def ran(command: str, **more: Any) -> Step:
    return "bash", {"command": command, **more}


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Any]:
    """Starts a run; `saved=False` one of a session that is not saved."""
    sessions: list[Session] = []
    folder, kept = tmp_path / "ws", tmp_path / "session"
    folder.mkdir()
    kept.mkdir()

    async def begin(*, saved: bool = True, **config: Any) -> Session:
        session = Session(folder, kept if saved else None)
        sessions.append(session)
        if not saved:
            session.coordinator.register_capability("cache.dir", str(tmp_path / "cache"))
        return await session.mount(**config)

    yield begin
    for session in sessions:
        await session.close()
