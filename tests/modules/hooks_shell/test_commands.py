"""Commands on events, as real processes: what they are given, what they answer, how they fail."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.models import HookResult, ToolResult
from amplifier_core.testing import MockCoordinator
from amplifier_modules import hooks_shell
from tests.support.processes import is_alive
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

CALL = {"tool_name": "bash", "tool_call_id": "c1", "tool_input": {"command": "ls"}}


class Session:
    """Hooks mounted in a folder, and the events they emitted."""

    def __init__(self, coordinator: MockCoordinator) -> None:
        self.coordinator = coordinator
        self.reported: list[dict[str, Any]] = []
        for name in ("shell_hook:completed", "shell_hook:failed"):
            coordinator.hooks.register(name, self._note)

    def _note(self, event: str, data: dict[str, Any]) -> None:
        self.reported.append({"is": event.partition(":")[2], **data})

    async def emit(self, event: str = "tool:pre", data: Any = None) -> HookResult:
        given = {**CALL, "input": CALL["tool_input"]} if data is None else data
        return await self.coordinator.hooks.emit(event, given)


@asynccontextmanager
async def hooks(folder: Path, *specs: dict[str, Any] | str) -> AsyncGenerator[Session]:
    coordinator = MockCoordinator()
    coordinator.register_capability("session.working_dir", str(folder))
    entries = [{"command": spec} if isinstance(spec, str) else spec for spec in specs]
    config = {"hooks": [{"event": "tool:pre", **entry} for entry in entries]}
    close = await hooks_shell.mount(coordinator, config)
    await hooks_shell.on_session_ready(coordinator)
    try:
        yield Session(coordinator)
    finally:
        await close()


async def answer(folder: Path, spec: dict[str, Any] | str, event: str = "tool:pre") -> HookResult:
    async with hooks(folder, spec) as session:
        return await session.emit(event)


def saying(value: Any) -> str:
    return f"cat <<'E'\n{json.dumps(value)}\nE"


async def test_a_command_gets_the_event_on_stdin(tmp_path: Path) -> None:
    async with hooks(
        tmp_path, "cat > got; echo $AMPLIFIER_EVENT $AMPLIFIER_TOOL_NAME $PWD > said"
    ) as session:
        result = await session.emit()
    got = json.loads((tmp_path / "got").read_text())
    assert (got["event"], got["session_id"], got["working_dir"]) == (
        "tool:pre",
        "test-session",
        str(tmp_path),
    )
    assert {key: got[key] for key in CALL} == CALL
    assert (tmp_path / "said").read_text() == f"tool:pre bash {tmp_path}\n"
    assert result.action == "continue"
    (reported,) = session.reported
    assert (reported["is"], reported["decision"], reported["tool_call_id"]) == (
        "completed",
        "continue",
        "c1",
    )
    assert reported["exit_code"] == 0


async def test_whatever_the_data_is_it_arrives_as_json(tmp_path: Path) -> None:
    data = {
        "tool_name": "x\udc80\x00\n",
        "tool_result": ToolResult(output={"a": b"\xff", "f": float("inf")}),
        "odd": object(),
    }
    async with hooks(tmp_path, {"event": "tool:post", "command": "cat > got"}) as session:
        await session.emit("tool:post", data)
        assert session.reported[0]["is"] == "completed"
        got = json.loads((tmp_path / "got").read_text())
        assert got["tool_result"]["output"] == {"a": "<1 bytes>", "f": "inf"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("true", {"action": "continue"}),
        (saying({"decision": "allow"}), {"action": "continue"}),
        (saying({"decision": "deny", "reason": "no"}), {"action": "deny", "reason": "no"}),
        (saying({"action": "block"}), {"action": "deny"}),
        ("echo because >&2; exit 2", {"action": "deny", "reason": "because"}),
        ("exit 2", {"action": "deny"}),
        (
            saying({"decision": "ask", "reason": "Sure?"}),
            {"action": "ask_user", "approval_prompt": "Sure?", "approval_default": "deny"},
        ),
        (
            saying({"context": "Mind the gap."}),
            {"action": "inject_context", "context_injection": "Mind the gap."},
        ),
        (
            saying({"contextInjection": "x", "systemMessage": "shown"}),
            {"action": "inject_context", "context_injection": "x", "user_message": "shown"},
        ),
    ],
)
async def test_a_commands_answer_decides_on_the_event(
    tmp_path: Path, command: str, expected: dict[str, Any]
) -> None:
    result = await answer(tmp_path, command)
    assert {key: getattr(result, key) for key in expected} == expected
    if result.action == "deny":
        assert result.reason


async def test_a_command_changes_the_input_under_both_of_its_names(tmp_path: Path) -> None:
    async with hooks(
        tmp_path, saying({"data": {"tool_input": {"command": "pwd"}}}), "cat > second"
    ) as session:
        result = await session.emit()
    assert result.action == "modify"
    assert result.data is not None
    assert result.data["tool_input"] == result.data["input"] == {"command": "pwd"}
    assert result.data["tool_call_id"] == "c1"
    # The next command sees what the one before has made of it.
    assert json.loads((tmp_path / "second").read_text())["input"] == {"command": "pwd"}


async def test_the_first_that_refuses_decides(tmp_path: Path) -> None:
    async with hooks(tmp_path, "exit 2", "touch second") as session:
        assert (await session.emit()).action == "deny"
    assert not (tmp_path / "second").exists()


FAILING = {
    "exit code": ("exit 7", "exited with code 7"),
    "signal": ("kill -9 $$", "signal 9"),
    "no such program": (["no-such-program-anywhere"], "not found"),
    "not executable": (["./README"], "Permission denied"),
    "not JSON": ("echo yes", "not JSON: 'yes"),
    "no object": ("echo '[true]'", "not an object"),
    "two objects": ("echo '{}{}'", "not JSON"),
    "deep": ("head -c 100000 /dev/zero | tr '\\0' '['", "not JSON"),
    "not UTF-8": ('printf \'{"reason": "\\377"}\'', "not UTF-8"),
    "misspelt": (saying({"descision": "deny"}), "unknown key 'descision'"),
    "unknown decision": (saying({"decision": "perhaps"}), "'perhaps'"),
    "odd decision": (saying({"decision": ["deny"]}), "its decision is"),
    "twice": (saying({"decision": "allow", "action": "deny"}), "two names"),
    "odd reason": (saying({"reason": 5}), "its 'reason' is int"),
    "odd data": (saying({"data": [1]}), "its 'data' is list"),
    "ids": (saying({"data": {"tool_call_id": "c2"}}), "tool_call_id"),
    "unused": (saying({"decision": "ask", "data": {"a": 1}}), "have no effect"),
    "flood": ("yes", "more than 1048576 bytes"),
    "hangs": ("sleep 100", "within 0.5 s"),
}


@pytest.mark.parametrize("name", FAILING)
async def test_one_that_fails_refuses_a_call_and_lets_other_events_pass(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    command, why = FAILING[name]
    (tmp_path / "README").write_text("not found")
    limit = {"timeout": 0.5} if name == "hangs" else {}
    spec = {"event": ["tool:pre", "prompt:submit"], "command": command, **limit}
    async with hooks(tmp_path, spec) as session:
        before = time.monotonic()
        call = await session.emit()
        prompt = await session.emit("prompt:submit", {"prompt": "hi"})
    assert call.action == "deny"
    assert why in str(call.reason)
    assert prompt.action == "continue"
    # Reported in either case, to people and programs.
    assert [reported["is"] for reported in session.reported] == ["failed", "failed"]
    assert [reported["outcome"] for reported in session.reported] == ["deny", "allow"]
    assert [why in record.getMessage() for record in caplog.records] == [True, True]
    assert time.monotonic() - before < 20


async def test_the_effect_of_a_failure_is_configurable(tmp_path: Path) -> None:
    open_one = {"command": "exit 1", "on_failure": "allow"}
    closed = {"event": "prompt:submit", "command": "exit 1", "on_failure": "deny"}
    assert (await answer(tmp_path, open_one)).action == "continue"
    assert (await answer(tmp_path, closed, "prompt:submit")).action == "deny"
    # Refusing is not a failure.
    refusing = {"command": "exit 2", "on_failure": "allow"}
    assert (await answer(tmp_path, refusing)).action == "deny"


async def test_a_command_that_reads_nothing_does_not_hang(tmp_path: Path) -> None:
    async with hooks(tmp_path, "exec 0<&-; true") as session:
        data = {**CALL, "tool_input": {"text": "x" * 5_000_000}}
        async with asyncio.timeout(20):
            assert (await session.emit(data=data)).action == "continue"


async def test_a_flood_of_errors_is_kept_at_its_end(tmp_path: Path) -> None:
    command = "head -c 30000000 /dev/zero | tr '\\0' x >&2; echo the end >&2; exit 2"
    result = await answer(tmp_path, command)
    assert result.action == "deny"
    assert str(result.reason).endswith("xxxthe end")
    assert len(str(result.reason)) < 20_000


@pytest.mark.parametrize(
    "left",
    [
        "(trap '' TERM; echo $BASHPID >> pids; sleep 300) & wait",
        "setsid bash -c 'echo $$ >> pids; exec sleep 300' & wait",
        "(setsid bash -c 'trap \"\" TERM; echo $$ >> pids; sleep 300' &); sleep 300",
    ],
)
async def test_nothing_outlives_the_time_limit(tmp_path: Path, left: str) -> None:
    spec = {"command": ["bash", "-c", left], "timeout": 1}
    async with hooks(tmp_path, spec) as session:
        assert (await session.emit()).action == "deny"
        (pid,) = map(int, (tmp_path / "pids").read_text().split())
        assert not is_alive(pid)


async def test_background_processes_end_with_the_session(tmp_path: Path) -> None:
    async with hooks(tmp_path, "sleep 300 & echo $! > pids") as session:
        async with asyncio.timeout(20):
            assert (await session.emit()).action == "continue"
        pid = int((tmp_path / "pids").read_text())
        assert is_alive(pid)
    assert not is_alive(pid)


async def test_an_interrupt_ends_the_command(tmp_path: Path) -> None:
    async with hooks(tmp_path, "echo $$ > pids; sleep 300") as session:
        task = asyncio.create_task(session.emit())
        pids = tmp_path / "pids"
        await eventually(lambda: pids.exists() and pids.read_text())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not is_alive(int(pids.read_text()))


async def test_keys_are_not_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-of-the-provider")
    monkeypatch.setenv("COPY", "has sk-named-value in it")
    monkeypatch.setenv("NAMED", "sk-named-value")
    monkeypatch.setenv("DEPLOY_TOKEN", "passed-on")
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}::bin")
    spec = {"command": "env > got", "env_passthrough": ["DEPLOY_*"], "environment": {"MINE": "a=b"}}
    coordinator = MockCoordinator()
    coordinator.register_capability("session.working_dir", str(tmp_path))
    coordinator.register_capability("secrets.variables", ("NAMED",))
    close = await hooks_shell.mount(coordinator, {"hooks": [{"event": "tool:pre", **spec}]})
    await coordinator.hooks.emit("tool:pre", CALL)
    await close()
    got = dict(
        line.split("=", 1) for line in (tmp_path / "got").read_text().splitlines() if "=" in line
    )
    assert not {"ANTHROPIC_API_KEY", "COPY", "NAMED"} & got.keys()
    assert (got["DEPLOY_TOKEN"], got["MINE"]) == ("passed-on", "a=b")
    assert all(entry.startswith("/") for entry in got["PATH"].split(":"))


async def test_it_runs_on_the_events_and_tools_it_means(tmp_path: Path) -> None:
    specs: list[dict[str, Any]] = [
        {"event": "tool:*", "tool": "write_*", "command": "echo writes >> log"},
        {"event": ["session:start", "tool:pre"], "command": "echo named >> log"},
        {"event": "own:*", "command": "echo contributed >> log"},
        {"event": "*", "tool": ["bash", "glob"], "command": "echo all >> log"},
    ]
    coordinator = MockCoordinator()
    coordinator.register_capability("session.working_dir", str(tmp_path))
    coordinator.register_contributor("observability.events", "x", lambda: ["own:event"])
    coordinator.register_contributor("observability.events", "odd", lambda: 7)
    coordinator.register_capability("observability.events", ["own:old_style"])
    close = await hooks_shell.mount(coordinator, {"hooks": specs})
    await hooks_shell.on_session_ready(coordinator)
    log = tmp_path / "log"

    async def ran(event: str, **data: Any) -> list[str]:
        log.write_text("")
        await coordinator.hooks.emit(event, data)
        return log.read_text().split()

    assert await ran("tool:pre", tool_name="write_file") == ["writes", "named"]
    assert await ran("tool:post", tool_name="bash") == ["all"]
    assert await ran("session:start") == ["named"]
    assert await ran("own:event") == ["contributed"]
    assert await ran("own:old_style") == ["contributed"]
    # Those come by the thousand, and would have to be named; its own would never end.
    assert await ran("content_block:delta", tool_name="bash") == []
    await close()
    assert await ran("session:start") == []


async def test_output_can_be_text_for_the_model_or_nothing(tmp_path: Path) -> None:
    text = {"event": "prompt:submit", "command": "printf 'It is\\377 noon'", "output": "context"}
    result = await answer(tmp_path, text, "prompt:submit")
    assert (result.action, result.context_injection) == ("inject_context", "It is\ufffd noon")
    silent = {"event": "prompt:submit", "command": "true", "output": "context"}
    assert (await answer(tmp_path, silent, "prompt:submit")).action == "continue"
    ignored = {"command": "echo anything", "output": "ignore"}
    assert (await answer(tmp_path, ignored)).action == "continue"
    assert (await answer(tmp_path, {**ignored, "command": "exit 2"})).action == "deny"


async def test_messages_reach_the_user_when_the_event_is_allowed(tmp_path: Path) -> None:
    spec = {"command": saying({"message": "formatted"}), "name": "format"}
    async with hooks(tmp_path, spec) as session:
        assert (await session.emit()).action == "continue"
        display: Any = session.coordinator.display_system
        assert display.show_message.call_args.args == ("formatted", "info", "hook:format")


@pytest.mark.parametrize("data", [None, "text", 5, []])
async def test_events_without_data_do_not_hurt(tmp_path: Path, data: Any) -> None:
    async with hooks(tmp_path, "cat > got") as session:
        result = await session.coordinator.hooks.emit("tool:pre", data)
        assert result.action == "continue"
        assert json.loads((tmp_path / "got").read_text())["value"] == data


async def test_a_missing_folder_denies_the_call(tmp_path: Path) -> None:
    result = await answer(tmp_path / "gone", "true")
    assert result.action == "deny"
    assert "No such file" in str(result.reason)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"command": "true"}, "'hooks\\[0\\].event' is required"),
        ({"event": "tool:pre", "command": ""}, "empty"),
        ({"event": [], "command": "true"}, "empty"),
        ({"event": "tool:pre", "command": "a\0b"}, "NUL"),
        ({"event": "tool:pre", "command": "true", "timeout": 0}, "timeout"),
        ({"event": "tool:pre", "command": "true", "environment": {"A=": "b"}}, "'A='"),
    ],
)
async def test_settings_that_mean_nothing_are_errors(spec: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        await hooks_shell.mount(MockCoordinator(), {"hooks": [spec]})
