"""The mounted tools over a real folder."""

from pathlib import Path
from typing import Any

import pytest

from amplifier_core.models import HookResult, ToolResult
from amplifier_core.testing import MockCoordinator
from amplifier_modules.tool_filesystem import mount


def edit(path: str, old: str, new: str, **more: Any) -> dict[str, Any]:
    """The input of `edit_file`."""
    return {"file_path": path, "old_string": old, "new_string": new, **more}


class Files:
    """The mounted tools, working in a folder."""

    def __init__(self, coordinator: MockCoordinator, folder: Path) -> None:
        self.coordinator = coordinator
        self.folder = folder
        self.events: list[tuple[str, dict[str, Any]]] = []
        for event in ("artifact:read", "artifact:write"):
            coordinator.hooks.register(event, self._note)

    async def _note(self, event: str, data: dict[str, Any]) -> Any:
        self.events.append((event, dict(data)))
        return HookResult()

    async def call(self, name: str, **values: Any) -> ToolResult:
        return await self.coordinator.get("tools", name).execute(values)

    async def ok(self, name: str, **values: Any) -> str:
        result = await self.call(name, **values)
        assert result.success, result.error
        return result.get_serialized_output()

    async def error(self, name: str, kind: str, **values: Any) -> str:
        result = await self.call(name, **values)
        assert not result.success
        assert result.error is not None
        assert result.error["type"] == kind
        return result.error["message"]


@pytest.fixture
def files(tmp_path: Path) -> Any:
    async def start(config: dict[str, Any] | None = None, **capabilities: str) -> Files:
        folder = tmp_path / "ws"
        folder.mkdir(exist_ok=True)
        coordinator = MockCoordinator()
        coordinator.register_capability("session.working_dir", str(folder))
        for name, value in capabilities.items():
            coordinator.register_capability(name.replace("_", ".", 1), value)
        await mount(coordinator, config)
        return Files(coordinator, folder)

    return start
