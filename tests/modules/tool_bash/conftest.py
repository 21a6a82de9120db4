"""A session with the tool mounted."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.models import ToolResult
from amplifier_core.testing import MockCoordinator
from amplifier_modules import tool_bash


class Session:
    """Yield a coordinator with the tool, in a folder."""

    def __init__(self, coordinator: MockCoordinator, folder: Path) -> None:
        self.coordinator = coordinator
        self.folder = folder

    @property
    def tool(self) -> Any:
        return self.coordinator.get("tools", "bash")

    async def run(self, command: str, **values: Any) -> ToolResult:
        return await self.tool.execute({"command": command, **values})


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Session]]]:
    async with AsyncExitStack() as stack:

        async def start(config: dict[str, Any] | None = None, **capabilities: str) -> Session:
            folder = tmp_path / "ws"
            folder.mkdir(exist_ok=True)
            coordinator = MockCoordinator()
            coordinator.register_capability("session.working_dir", str(folder))
            for name, value in capabilities.items():
                coordinator.register_capability(name.replace("_", ".", 1), value)
            stack.push_async_callback(coordinator.cleanup)
            coordinator.register_cleanup(await tool_bash.mount(coordinator, config))
            return Session(coordinator, folder)

        yield start
