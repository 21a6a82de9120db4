"""A module that hangs while it is imported or mounted is stopped and named."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.support.cli import Finished, run_amplifier, start_amplifier

MODULES = {
    "waits": "import asyncio\nasync def mount(c, config=None):\n    await asyncio.sleep(600)\n",
    "blocks": "import time\nasync def mount(c, config=None):\n    time.sleep(600)\n",
    "imports": "import time\ntime.sleep(600)\nasync def mount(c, config=None): ...\n",
}


def plan(folder: Path, name: str, limit: str) -> None:
    (folder / "slow.py").write_text(MODULES[name], encoding="utf-8")
    text = f"extends: mock\nsession: {{mount_timeout: {limit}}}\ntools: [{{module: slow, source: ./slow.py}}]\n"
    (folder / "plan.yaml").write_text(text, encoding="utf-8")


def amplifier(folder: Path, *arguments: str) -> Finished:
    return run_amplifier(*arguments, "-f", "plan.yaml", cwd=folder)


@pytest.mark.parametrize("command", [("run", "hello"), ("plan", "check")])
@pytest.mark.parametrize("name", MODULES)
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


@pytest.mark.parametrize("name", MODULES)
def test_the_time_limit_of_a_run_applies_while_mounting(name: str, tmp_path: Path) -> None:
    plan(tmp_path, name, "null")
    ended = amplifier(tmp_path, "run", "hello", "--timeout", "3")
    assert ended.code == 7
    assert "time limit of 3 s reached while mounting 'slow'" in ended.stderr


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
