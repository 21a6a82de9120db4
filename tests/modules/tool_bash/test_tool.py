"""The tool `bash`: what the model gets, and what a command can and cannot do."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.models import ToolResult
from amplifier_core.testing import MockCoordinator
from amplifier_modules import tool_filesystem
from amplifier_modules._shared.sandbox import command_environment
from tests.support.processes import is_alive
from tests.support.thorough import Scale
from tests.support.waiting import eventually

Run = Callable[..., Awaitable[ToolResult]]


async def test_output_and_exit_code_are_reported(start: Any) -> None:
    session = await start()
    result = await session.run("echo out; echo err >&2")
    assert (result.success, result.output) == (True, "out\nerr\n[exit code 0]")
    result = await session.run("printf 'no line end'; exit 3")
    assert (result.success, result.output) == (False, "no line end\n[exit code 3]")
    assert result.error == {"message": "exit code 3", "type": "ExitStatus", "exit_code": 3}
    assert (await session.run("true")).output == "(no output)\n[exit code 0]"
    assert "killed by signal 15 (SIGTERM)" in (await session.run("kill $$")).output


async def test_it_runs_in_the_working_directory(start: Any) -> None:
    session = await start()
    (session.folder / "sub").mkdir()
    assert (await session.run("pwd; echo $PWD")).output.startswith(
        f"{session.folder}\n{session.folder}\n"
    )
    result = await session.run("pwd", working_directory="sub")
    assert result.output.startswith(f"{session.folder}/sub\n")


async def test_working_directories_outside_are_refused(start: Any, tmp_path: Path) -> None:
    session = await start()
    (tmp_path / "ws-evil").mkdir()
    (session.folder / "link").symlink_to(tmp_path)
    (session.folder / "file").touch()
    for folder in ("..", "/", "../ws-evil", "link", "link/ws-evil"):
        result = await session.run("touch made", working_directory=folder)
        assert result.error is not None
        assert result.error["type"] == "OutsideRoots"
    assert not list(tmp_path.rglob("made"))
    for folder, kind in (("missing", "FileNotFoundError"), ("file", "NotADirectoryError")):
        result = await session.run("true", working_directory=folder)
        assert result.error is not None
        assert result.error["type"] == kind
    granted = await start({"allowed_paths": [str(tmp_path / "ws-evil")]})
    assert (await granted.run("pwd", working_directory="../ws-evil")).success
    assert (await granted.run("pwd")).output.startswith(f"{session.folder}\n")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "the parameter 'command' is required"),
        ({"command": " \n"}, "the command is empty or contains a NUL character"),
        ({"command": "a\0b"}, "the command is empty or contains a NUL character"),
        ({"command": "true", "timeout": 0}, "'timeout' must be greater than 0 seconds"),
        ({"command": "true", "timeout": "9"}, "'timeout' must be of type number, not str"),
        ({"cmd": "true"}, "unknown parameter 'cmd'"),
    ],
)
async def test_invalid_input_is_a_failed_result(
    start: Any, values: dict[str, Any], message: str
) -> None:
    result = await (await start()).tool.execute(values)
    assert not result.success
    assert message in result.error["message"]
    assert result.error["type"] == "InvalidInput"


async def test_a_command_too_long_is_a_failed_result(start: Any) -> None:
    result = await (await start()).run(f": {'x' * 3_000_000}")
    assert result.error == {
        "message": "the command is too long for the system to start it",
        "type": "CommandNotStarted",
    }


async def test_a_time_limit_keeps_the_output_and_kills_everything(start: Any) -> None:
    session = await start({"timeout": 60, "max_timeout": 1})
    command = "echo before; trap '' TERM; (setsid sleep 300 & echo $! >> pids); echo $$ >> pids; sleep 300"
    result = await session.run(command, timeout=1000)
    assert result.output == (
        "before\n[killed after the time limit of 1 s, with everything it had started]"
    )
    assert result.error is not None
    assert result.error["type"] == "TimedOut"
    pids = [int(line) for line in (session.folder / "pids").read_text().split()]
    assert len(pids) == 2
    assert not any(map(is_alive, pids))


async def test_cancellation_kills_everything(start: Any) -> None:
    session = await start()
    run = asyncio.create_task(session.run("setsid sleep 300 & echo $! > pid; sleep 300"))
    pid = session.folder / "pid"
    await eventually(lambda: pid.exists() and pid.read_text().strip())
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not is_alive(int((session.folder / "pid").read_text()))


async def test_processes_left_running_are_listed_logged_and_killed_at_the_end(
    start: Any, tmp_path: Path
) -> None:
    session = await start(session_dir=str(tmp_path))
    result = await session.run(
        "echo one; (until [ -e go ]; do sleep 0.02; done; echo two; sleep 300) & echo $! > pid"
    )
    pid = int((session.folder / "pid").read_text())
    (log,) = (tmp_path / "tool-output").iterdir()
    assert result.success
    lines = result.output.split("\n")
    assert lines[0] == "one"
    assert lines[1].startswith(f"[still running in the background: {pid}")
    assert lines[1].endswith(f"its further output goes to {log}]")
    (session.folder / "go").touch()
    await eventually(lambda: log.read_text() == "one\ntwo\n")
    await session.coordinator.cleanup()
    assert not is_alive(pid)


async def test_processes_that_end_shortly_after_are_not_reported(start: Any) -> None:
    result = await (await start()).run("sleep 0.01 & echo done")
    assert result.output == "done\n[exit code 0]"


async def test_long_output_is_cut_and_can_be_read_from_a_file(start: Any) -> None:
    session = await start({"max_output": 1000})
    await tool_filesystem.mount(session.coordinator)
    result = await session.run("seq 100000")
    assert result.success
    assert len(result.output) < 1300
    assert result.output.startswith("1\n2\n3\n")
    *_, last, spill, end = result.output.split("\n")
    assert (last, end) == ("100000", "[exit code 0]")
    size = sum(len(str(n)) + 1 for n in range(1, 100_001))
    head, _, path = spill.strip("[]").partition("all of it is in ")
    assert head == f"the output has {size} bytes; "
    read = session.coordinator.get("tools", "read_file")
    page = await read.execute({"file_path": path, "offset": 54_321, "limit": 1})
    assert page.output.startswith("54321\n")


async def test_a_flood_of_output_is_cut_in_bounded_memory(tmp_path: Path, scale: Scale) -> None:
    """100 MB by default, 1 GB in a thorough run."""
    size = scale(100_000_000, 1_000_000_000)
    program = """
        import asyncio, json, os, resource, sys
        from amplifier_core.testing import MockCoordinator
        from amplifier_modules import tool_bash

        async def main():
            coordinator = MockCoordinator()
            coordinator.register_capability("session.dir", os.getcwd())
            close = await tool_bash.mount(coordinator)
            tool = coordinator.get("tools", "bash")
            await tool.execute({"command": "true"})
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            result = await tool.execute({"command": f"head -c {sys.argv[1]} /dev/zero | tr '\\\\0' x; echo end"})
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            await close()
            print(json.dumps([after - before, result.success, result.output[-200:]]))

        asyncio.run(main())
    """
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", textwrap.dedent(program), str(size)],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    kilobytes, success, end = json.loads(done.stdout)
    assert kilobytes < 50_000
    assert success
    (spill,) = (tmp_path / "tool-output").iterdir()
    assert spill.stat().st_size == 64 * 1024 * 1024
    assert f"the output has {size + 4} bytes; the first 67108864 of them are in {spill}" in end


async def test_any_bytes_become_text(start: Any) -> None:
    result = await (await start()).run('for n in {0..255}; do printf "\\\\x$(printf %x $n)"; done')
    text = result.get_serialized_output()
    assert text.encode()
    assert "\ufffd" in text
    assert " !\"#$%&'()*+" in text


# -- the environment -------------------------------------------------------------------------------

PLANTED = [
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "openai_api_key",
    "ANTHROPIC_AUTH_TOKEN",
    "AZURE_OPENAI_KEY",
    "AZURE_OPENAI_API_KEY_2",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_APPLICATION_CREDENTIALS_JSON",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_BEARER_TOKEN_BEDROCK",
    "HF_TOKEN",
    "GITHUB_TOKEN",
    "NPM_TOKEN",
    "CLIENT_SECRET",
    "DB_PASSWORD",
    "PGPASSWORD",
    "APIKEY",
    "TOKEN",
    "SIGNING_PRIVATE_KEY",
    "GPG_PASSPHRASE",
    "SERVICE_ACCOUNT_KEY",
]


async def test_commands_do_not_see_keys(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PLANTED:
        monkeypatch.setenv(name, f"planted-{name}")
    for name in ("KEYBOARD", "TOKENIZERS_PARALLELISM", "SSH_AUTH_SOCK", "AMPLIFIER_HOME"):
        monkeypatch.setenv(name, "kept")
    session = await start()
    seen = (
        await session.run("env; cat /proc/self/environ | tr '\\0' '\\n'; cat /proc/$PPID/environ")
    ).output
    assert "planted" not in seen
    for name in ("KEYBOARD", "TOKENIZERS_PARALLELISM", "SSH_AUTH_SOCK", "AMPLIFIER_HOME"):
        assert f"{name}=kept" in seen


async def test_keys_can_be_passed_on_by_name(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "wanted")
    monkeypatch.setenv("NPM_TOKEN", "planted")
    session = await start({"env_passthrough": ["GITHUB_*"]})
    seen = (await session.run("env")).output
    assert "GITHUB_TOKEN=wanted" in seen
    assert "planted" not in seen


def test_keys_providers_are_configured_with_are_known_by_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = {
        "providers": [
            {"module": "provider-x", "config": {"api_key": "sk-configured", "model": "harmless"}},
            {"module": "provider-y", "config": {"nested": {"auth_token": "tok-configured"}}},
            {"module": "provider-z", "config": {"signing_key": "sig-configured"}},
            {"module": "provider-z", "config": {"token_env": "NAME_OF_A_VARIABLE"}},
        ]
    }
    own = {"MY_LLM": "sk-configured", "HEADER": "Bearer tok-configured", "M": "harmless"}
    own |= {"SIGNED": "by sig-configured", "READ": "NAME_OF_A_VARIABLE"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    coordinator = MockCoordinator()
    coordinator.config.update(plan)
    passed_on = command_environment(coordinator, ())
    assert own.keys() & passed_on.keys() == {"M", "READ"}
    assert own.keys() <= command_environment(MockCoordinator(), ()).keys()


async def test_configured_keys_are_left_out_of_the_environment(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNSUSPICIOUS", "sk-configured-1")
    session = await start()
    session.coordinator.config["providers"] = [
        {"module": "provider-x", "config": {"api_key": "sk-configured-1"}}
    ]
    assert "sk-configured" not in (await session.run("env")).output


async def test_a_folder_offers_no_programs(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "evil/ls"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho ran\n")
    program.chmod(0o755)
    session = await start()
    for path in (f".:{os.environ['PATH']}", f":{os.environ['PATH']}", ".", ""):
        monkeypatch.setenv("PATH", path)
        result = await session.run(f"cd {tmp_path}/evil && ls")
        assert result.output.startswith("ls\n"), path


async def test_there_is_no_terminal_and_no_input(start: Any) -> None:
    session = await start()
    result = await session.run("cat; tty; (echo x > /dev/tty) 2>/dev/null || echo no terminal")
    assert result.output == "not a tty\nno terminal\n[exit code 0]"


async def test_without_a_shell_the_mount_fails(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(RuntimeError, match="no POSIX shell"):
        await start()
