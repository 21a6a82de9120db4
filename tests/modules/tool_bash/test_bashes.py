"""`/bashes`: what a person sees of background commands, and how to end one."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.coordinator import ModuleCoordinator
from amplifier_modules.tool_bash import mount


async def test_they_are_listed_with_their_last_line_and_can_be_ended(tmp_path: Path) -> None:
    coordinator = ModuleCoordinator()
    for name in ("session.dir", "session.working_dir"):
        coordinator.register_capability(name, str(tmp_path))
    close = await mount(coordinator, {"sandbox": False})
    (command,) = await coordinator.collect_contributions("chat.commands")
    (bashes,) = command
    ask: Any = bashes["handler"]
    assert (bashes["name"], bashes["during_turn"]) == ("bashes", True)
    assert await ask("") == "No background commands."
    bash = coordinator.get("tools", "bash")
    line = "for i in 1 2 3; do echo line $i; done; sleep 100"
    started = await bash.execute({"command": line, "run_in_background": True})
    assert started.success

    async with asyncio.timeout(30):
        while "line 3" not in (listed := await ask("")):  # noqa: ASYNC110 - output has no event
            await asyncio.sleep(0.02)
    assert re.fullmatch(r"b1  running for \d+ s  for i in .*; sleep 100\n    line 3", listed)
    assert (await ask("b1")).endswith("\nline 1\nline 2\nline 3")
    assert await ask("b2") == "no background command 'b2'; known ids: b1"
    for wrong in ("b1 b2", "stop b1 b2"):
        assert (await ask(wrong)).startswith("/bashes lists them")
    assert await ask("stop b1") == "b1 killed, with everything it had started"
    assert "killed" in await ask("")
    await close()


async def test_without_background_commands_there_is_no_command() -> None:
    coordinator = ModuleCoordinator()
    close = await mount(coordinator, {"max_background": 0, "sandbox": False})
    assert await coordinator.collect_contributions("chat.commands") == []
    await close()


async def test_a_command_of_the_user_runs_among_them_without_the_sandbox(tmp_path: Path) -> None:
    coordinator = ModuleCoordinator()
    outside = tmp_path / "outside"
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("session.dir", "session.working_dir"):
        coordinator.register_capability(name, str(folder))
    close = await mount(coordinator, {"sandbox": "workspace", "max_background": 1})
    start: Any = coordinator.get_capability("bash.start_background")
    listing: Any = coordinator.get("tools", "bash_output")
    running = "b1 is running in the background; /bashes b1 shows its output"
    # On a busy machine it may not have ended yet.
    assert await start("exit 3") in ("b1 ended: exit code 3", running)
    for _ in range(600):
        if "b1: running" not in str((await listing.execute({})).output):
            break
        await asyncio.sleep(0.05)
    line = f"touch {outside}; sleep 100"
    assert await start(line) == "b2 is running in the background; /bashes b2 shows its output"
    assert f"b2: running for 0 s: {line}" in str((await listing.execute({})).output)
    with pytest.raises(Exception, match="1 background commands are already running"):
        await start("true")
    # The model is not told that they have ended.
    bash = coordinator.get("tools", "bash")
    assert "b1" not in str((await bash.execute({"command": "true"})).output)
    await close()
    assert outside.exists()
