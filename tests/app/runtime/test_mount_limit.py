"""A module that hangs while it is imported or mounted is stopped and named."""

import json
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.cli import Finished, run_amplifier, start_amplifier
from tests.support.plans import SMALL, mock_plan, module_folder

MODULES = {
    "waits": "import asyncio\nasync def mount(c, config=None):\n    await asyncio.sleep(600)\n",
    "blocks": "import time\nasync def mount(c, config=None):\n    time.sleep(600)\n",
    "imports": "import time\ntime.sleep(600)\nasync def mount(c, config=None): ...\n",
}


IGNORES = """import asyncio
async def mount(c, config=None):
    while True:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            pass
"""


ENDS_LATE = """import asyncio
async def connect():
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(1.5)  # until a server has ended
async def mount(c, config=None):
    try:
        async with asyncio.timeout(0.1):
            await connect()
    except TimeoutError:
        raise ConnectionError("the server does not answer") from None
"""


def plan(folder: Path, name: str, limit: str) -> None:
    code = {**MODULES, "ignores": IGNORES, "ends late": ENDS_LATE}[name]
    (folder / "slow.py").write_text(code, encoding="utf-8")
    (folder / "small.yaml").write_text(SMALL)
    text = f"extends: ./small.yaml\nsession: {{mount_timeout: {limit}}}\ntools: [{{module: slow, source: ./slow.py}}]\n"
    (folder / "plan.yaml").write_text(text, encoding="utf-8")


def amplifier(folder: Path, *arguments: str) -> Finished:
    return run_amplifier(*arguments, "-f", "plan.yaml", cwd=folder)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        *((name, ("run", "hello")) for name in MODULES),
        ("imports", ("plan", "check")),
    ],
)
def test_a_module_has_a_time_limit_and_is_named_with_its_line(
    name: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    plan(tmp_path, name, "0.5")
    ended = amplifier(tmp_path, *command)
    assert ended.code == 3
    assert "plan.yaml:3:10: tool 'slow' cannot be" in ended.stderr
    assert "did not finish within 0.5 s (session.mount_timeout); it was at" in ended.stderr
    assert f"slow.py, line {2 if name == 'imports' else 3}" in ended.stderr
    assert "set a longer session.mount_timeout" in ended.stderr


def test_a_module_that_ignores_its_cancellation_is_left(tmp_path: Path) -> None:
    plan(tmp_path, "ignores", "0.5")
    ended = amplifier(tmp_path, "run", "hello")
    assert ended.code == 3
    assert "plan.yaml:3:10: tool 'slow' cannot be" in ended.stderr
    assert "did not finish within 0.5 s (session.mount_timeout)" in ended.stderr


def test_a_module_may_end_late_after_a_time_limit_of_its_own(tmp_path: Path) -> None:
    plan(tmp_path, "ends late", "60")
    ended = amplifier(tmp_path, "run", "hello")
    assert ended.code == 3
    assert "the server does not answer" in ended.stderr


def test_the_time_limit_of_a_run_applies_while_mounting(tmp_path: Path) -> None:
    arguments = ("run", "hello", "-f", "plan.yaml", "--timeout", "3")
    running: list[subprocess.Popen[bytes]] = []
    for name in MODULES:
        (tmp_path / name).mkdir()
        plan(tmp_path / name, name, "null")
        running.append(start_amplifier(*arguments, cwd=tmp_path / name))
    for process in running:
        _, stderr = process.communicate()
        assert process.returncode == 7, stderr
        assert b"time limit of 3 s reached while mounting 'slow'" in stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_mounting_ends_the_run_and_names_the_module(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    plan(tmp_path, "waits", "null")
    mark = tmp_path / "mounting"
    text = (
        (tmp_path / "slow.py")
        .read_text()
        .replace("    await", f"    open({str(mark)!r}, 'w')\n    await")
    )
    (tmp_path / "slow.py").write_text(text, encoding="utf-8")
    process = start_amplifier("run", "hello", "-f", "plan.yaml", cwd=tmp_path)
    while not mark.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == code, stderr
    assert b"while mounting 'slow'" in stderr


def test_an_invalid_limit_is_an_error_in_the_plan(tmp_path: Path) -> None:
    plan(tmp_path, "waits", "soon")
    ended = amplifier(tmp_path, "run", "hello")
    assert ended.code == 78
    assert "session.mount_timeout" in ended.stderr
    assert "a number greater than 0" in ended.stderr


def test_what_hangs_is_named_on_stderr(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    fetched = f"extends: mock\ntools: [{{module: far, source: 'git+https://{address}/far'}}]\n"
    (tmp_path / "far.yaml").write_text(fetched)
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text(MODULES[name])
        text = f"extends: mock\ntools: [{{module: {name}, source: ./{name}.py}}]\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    with listener:
        started = {
            (command, name): start_amplifier(
                *command.split(), "-f", f"{name}.yaml", "--timeout", "6", cwd=tmp_path
            )
            for command, name in (
                ("plan check", "waits"),
                ("run hello", "imports"),
                ("run hello --quiet", "imports"),
                ("plan check", "far"),
            )
        }
        ended = {key: (*one.communicate(), one.returncode) for key, one in started.items()}
    stdout, stderr, code = ended["plan check", "waits"]
    assert b"amplifier: still mounting 'waits' (limit " in stderr
    assert b"time limit of 6 s reached before 'hooks-approval' was checked" in stderr
    assert (code, stdout.count(b"not checked"), b"still" in stdout) == (3, 6, False)
    stdout, stderr, code = ended["run hello", "imports"]
    assert (code, stdout) == (7, b"")
    assert b"amplifier: still importing 'imports' (limit " in stderr
    assert b"still" not in ended["run hello --quiet", "imports"][1]
    stdout, stderr, code = ended["plan check", "far"]
    assert f"amplifier: still fetching https://{address}/far after ".encode() in stderr
    assert (code, b"reached before 'far' was checked" in stderr) == (3, True)


WAITING_HOOK = """
import asyncio

__amplifier_module_type__ = "hook"


async def mount(coordinator, config):
    async def wait(event, data):
        await asyncio.sleep(3600)

    coordinator.hooks.register("provider:request", wait, name="waits")
"""


def test_a_hook_that_reaches_the_time_limit_is_named(tmp_path: Path) -> None:
    hook = {"module": "hooks-waiting", "source": str(module_folder(tmp_path, WAITING_HOOK))}
    plan = mock_plan(tmp_path, ["never"], hooks=[hook])
    done = run_amplifier("run", "-f", plan, "go", "--timeout", "3", "--output", "json")
    result = json.loads(done.stdout)
    assert (done.code, result["outcome"]) == (7, "budget"), done.stderr
    where = "in handler 'waits' of hook 'hooks-waiting' on provider:request"
    assert result["error"]["message"] == f"time limit of 3 s reached {where}"
