"""The list a model keeps: what it gets back, what others see, what a resumed session has."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.models import HookResult, ToolResult
from amplifier_core.testing import MockCoordinator
from amplifier_modules.tool_todo import mount
from tests.support import planted

STEPS = [
    {"content": "Read the code", "status": "completed"},
    {"content": "Run the tests", "status": "in_progress", "activeForm": "Running the tests"},
    {"content": "Fix it", "status": "pending"},
]


async def mounted(folder: Path | None = None, **config: Any) -> MockCoordinator:
    coordinator = MockCoordinator()
    if folder is not None:
        coordinator.register_capability("session.dir", str(folder))
    await mount(coordinator, config)
    return coordinator


async def call(coordinator: MockCoordinator, **values: Any) -> ToolResult:
    return await coordinator.get("tools", "todo").execute(values)


async def test_a_list_is_created_updated_and_returned() -> None:
    coordinator = await mounted()
    created = await call(coordinator, action="create", todos=STEPS)
    assert created.success
    assert created.output == {
        "status": "created",
        "count": 3,
        "pending": 1,
        "in_progress": 1,
        "completed": 1,
        "todos": STEPS,
    }
    done = [{**step, "status": "completed"} for step in STEPS]
    assert (await call(coordinator, action="update", todos=done)).output["status"] == "updated"
    listed = await call(coordinator, action="list")
    assert listed.output["todos"] == done
    assert listed.output["completed"] == 3


async def test_others_see_the_list() -> None:
    coordinator = await mounted()
    assert coordinator.todo_state == []
    seen: list[dict[str, Any]] = []

    async def note(event: str, data: dict[str, Any]) -> HookResult:
        seen.append(data)
        return HookResult()

    coordinator.hooks.register("todo:updated", note)
    await call(coordinator, action="create", todos=STEPS)
    assert coordinator.todo_state == STEPS
    assert coordinator.get_capability("todo.items")() == STEPS
    assert [data["todos"] for data in seen] == [STEPS]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "'action' must be one of create, update, list, not None"),
        ({"action": "delete"}, "not 'delete'"),
        ({"action": "create"}, "'todos' must be a list"),
        ({"action": "create", "todos": "Run the tests"}, "'todos' must be a list"),
        ({"action": "create", "todos": [{"status": "pending"}]}, "todos[0].content"),
        (
            {"action": "update", "todos": [{"content": "  ", "status": "pending"}]},
            "todos[0].content",
        ),
        ({"action": "update", "todos": [{"content": "a", "status": "done"}]}, "todos[0].status"),
        ({"action": "create", "todos": [STEPS[0], {**STEPS[1], "note": 1}]}, "todos[1].note"),
        ({"action": "create", "todos": ["Run the tests"]}, "todos[0]"),
        ({"action": "create", "todos": STEPS * 2}, "6 items are too many, the limit is 4"),
    ],
)
async def test_invalid_lists_change_nothing(values: dict[str, Any], message: str) -> None:
    coordinator = await mounted(max_items=4)
    await call(coordinator, action="create", todos=STEPS)
    result = await call(coordinator, **values)
    assert not result.success
    assert result.error is not None
    assert message in result.error["message"]
    assert (await call(coordinator, action="list")).output["todos"] == STEPS


async def test_input_that_is_not_an_object_is_a_failure() -> None:
    coordinator = await mounted()
    result = await coordinator.get("tools", "todo").execute(["list"])
    assert not result.success


async def test_a_resumed_session_has_the_list(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        await call(await mounted(tmp_path), action="create", todos=STEPS)
    finally:
        os.umask(before)
    [file] = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    resumed = await mounted(tmp_path)
    assert (await call(resumed, action="list")).output["todos"] == STEPS
    assert resumed.todo_state == STEPS


async def test_a_list_is_saved_without_secrets(tmp_path: Path) -> None:
    first = await mounted(tmp_path)
    texts = [text[:1900] for text in planted.PLANTED.values()]
    steps = [{"content": f"Try {text}", "status": "pending"} for text in texts]
    assert (await call(first, action="create", todos=steps)).output["todos"] == steps
    saved = (tmp_path / "todo.json").read_text()
    assert saved.count("[REDACTED:") >= len(steps)
    assert planted.SECRETS["github-classic"] not in saved


async def test_saving_can_be_turned_off(tmp_path: Path) -> None:
    await call(await mounted(tmp_path, save=False), action="create", todos=STEPS)
    assert list(tmp_path.iterdir()) == []


async def test_a_damaged_list_is_reported_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "todo.json").write_text('[{"content": "Read')
    coordinator = await mounted(tmp_path)
    assert (await call(coordinator, action="list")).output["count"] == 0
    assert "cannot read the to-do list in" in caplog.text
    await call(coordinator, action="create", todos=STEPS)
    assert (await mounted(tmp_path)).get_capability("todo.items")() == STEPS


async def test_a_list_that_cannot_be_saved_is_kept_and_reported(tmp_path: Path) -> None:
    coordinator = await mounted(tmp_path / "gone")
    result = await call(coordinator, action="create", todos=STEPS)
    assert result.success
    assert "could not be saved" in result.output["note"]
    assert (await call(coordinator, action="list")).output["todos"] == STEPS
