"""Background commands: reading their output, waiting for them and killing them by id."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.models import HookResult
from amplifier_modules.tool_bash import tool
from tests.support.lingering import HARDEST, Lingering
from tests.support.processes import is_alive
from tests.support.waiting import eventually


async def begin(session: Any, command: str) -> Any:
    return await session.run(command, run_in_background=True)


async def output_of(session: Any, **values: Any) -> Any:
    return await session.coordinator.get("tools", "bash_output").execute(values)


async def kill(session: Any, id: str) -> Any:
    return await session.coordinator.get("tools", "bash_kill").execute({"id": id})


def pids(session: Any) -> list[int]:
    file: Path = session.folder / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


async def test_output_is_read_piece_by_piece_until_the_end(start: Any) -> None:
    session = await start()
    line = "echo one; until [ -e go ]; do sleep 0.02; done; echo two; exit 3"
    begun = await begin(session, line)
    assert begun.success
    assert begun.output.startswith("one\n[running in the background as b1; its output")
    nothing = await output_of(session, id="b1")
    assert re.fullmatch(r"\(no new output\)\n\[b1: running for \d s\]", nothing.output)
    (session.folder / "go").touch()
    rest = ""
    while "ended" not in rest:
        rest += (await output_of(session, id="b1", wait=10)).output
    assert "two\n" in rest
    assert rest.endswith("[b1: ended: exit code 3]")
    log = Path(re.findall(r"output goes to (.*)]", begun.output)[0])
    assert log.read_text() == "one\ntwo\n"


async def test_waiting_ends_with_new_output(start: Any) -> None:
    session = await start()
    await begin(session, "sleep 0.6; echo news; sleep 300")
    started = time.monotonic()
    assert (await output_of(session, id="b1", wait=30)).output.startswith("news\n")
    assert time.monotonic() - started < 20
    started = time.monotonic()
    assert "(no new output)" in (await output_of(session, id="b1", wait=0.3)).output
    assert 0.25 < time.monotonic() - started < 20


async def test_a_kill_ends_everything(start: Any, tmp_path: Path) -> None:
    session, lingering = await start(), Lingering(tmp_path, HARDEST)
    await begin(session, f"echo begun; {lingering.command}")
    await eventually(lambda: not lingering.missing(), 60)
    for _ in range(2):
        killed = await kill(session, "b1")
        assert killed.output.endswith("[b1: killed, with everything it had started]")
        assert lingering.left() == []


async def test_the_end_of_the_session_kills_every_command(start: Any) -> None:
    session = await start()
    for _ in range(4):
        await begin(session, "trap '' TERM; echo $$ >> pids; while :; do sleep 300; done")
    await eventually(lambda: len(pids(session)) >= 4)
    await session.coordinator.cleanup()
    assert not any(map(is_alive, pids(session)))


async def test_a_command_that_ends_at_once_returns_at_once(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "AT_ONCE_SECONDS", 20.0)
    session = await start()
    failed = await begin(session, "echo no; exit 2")
    assert (failed.success, failed.output) == (False, "no\n[its id was b1]\n[exit code 2]")
    assert (await session.run("true")).output == "(no output)\n[exit code 0]"


async def test_the_next_command_reports_ended_commands_once(start: Any) -> None:
    session = await start()
    await begin(session, "sleep 0.4; exit 5")
    await asyncio.sleep(1)
    reported = await session.run("echo next")
    assert reported.output == "next\n[b1 (sleep 0.4; exit 5) ended: exit code 5]\n[exit code 0]"
    assert (await session.run("true")).output == "(no output)\n[exit code 0]"


async def test_background_commands_are_listed(start: Any) -> None:
    session = await start()
    assert (await output_of(session)).output == "no background commands"
    await begin(session, "sleep 300")
    await begin(session, "exit 1")
    first, second = (await output_of(session)).output.splitlines()
    assert re.fullmatch(r"b1: running for \d s: sleep 300", first)
    assert second == "b2: ended: exit code 1: exit 1"


async def test_long_output_is_kept_in_a_file_and_shown_in_part(start: Any) -> None:
    session = await start({"max_output": 1000})
    begun = await begin(session, "sleep 0.4; seq 100000; echo end")
    await asyncio.sleep(1)
    text = ""
    while "ended" not in text:
        text = (await output_of(session, id="b1", wait=5)).output
    assert len(text) < 1500
    assert "new bytes; all of the output is in" in text
    log = Path(re.findall(r"output goes to (.*)]", begun.output)[0])
    assert log.read_text().splitlines()[-2:] == ["100000", "end"]


async def test_the_number_of_background_commands_is_limited(start: Any) -> None:
    session = await start({"max_background": 2})
    for _ in range(2):
        assert (await begin(session, "sleep 300")).success
    refused = await begin(session, "sleep 300")
    assert refused.error is not None
    assert "(b1, b2); kill one with bash_kill" in refused.error["message"]
    await kill(session, "b2")
    assert (await begin(session, "sleep 300")).success


async def test_disabling_background_commands_removes_their_tools(start: Any) -> None:
    session = await start({"max_background": 0})
    assert list(session.coordinator.get("tools")) == ["bash"]
    refused = await begin(session, "sleep 300")
    assert refused.error is not None
    assert "unknown parameter 'run_in_background'" in refused.error["message"]


@pytest.mark.parametrize("tool", ["bash_output", "bash_kill"])
async def test_an_unknown_id_is_an_error(start: Any, tool: str) -> None:
    session = await start()
    result = await session.coordinator.get("tools", tool).execute({"id": "b7"})
    assert result.error is not None
    assert result.error["message"] == "no background command 'b7'; known ids: none"


async def test_events_report_output_and_background_commands(start: Any) -> None:
    session = await start()
    seen: list[tuple[str, dict[str, Any]]] = []

    async def note(event: str, data: dict[str, Any]) -> HookResult:
        seen.append((event, dict(data)))
        return HookResult()

    for name in ("tool:output", "bash:background_start", "bash:background_end"):
        session.coordinator.hooks.register(name, note)
    await session.run("printf 'h\\xc3'; sleep 0.3; printf '\\xa9 there\\n'; sleep 1; seq 100000")
    texts = [data["text"] for event, data in seen if event == "tool:output"]
    assert "".join(texts).startswith("h\u00e9 there\n")
    assert texts[-1].endswith("100000\n")
    assert max(map(len, texts)) <= 4000
    assert any(data["skipped"] for _, data in seen)
    assert all(data["tool_name"] == "bash" for _, data in seen)
    seen.clear()
    await begin(session, "sleep 0.4; echo late")
    await eventually(lambda: any(event == "bash:background_end" for event, _ in seen))
    about = [(event, data.get("background_id"), data.get("state")) for event, data in seen]
    assert ("bash:background_start", "b1", None) in about
    assert ("tool:output", "b1", None) in about
    assert about[-1] == ("bash:background_end", "b1", "ended: exit code 0")
