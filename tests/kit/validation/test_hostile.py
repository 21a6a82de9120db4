"""Hostile modules: each gets a finding, and nothing is left running."""

import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kit.validation.samples import named, spoiled, validated, write_module
from tests.support.cli import start_amplifier
from tests.support.processes import processes_with
from tests.support.thorough import one_in
from tests.support.waiting import wait_until

MARK = '__amplifier_module_type__ = "tool"'
MOUNT = "    tool = Shout()\n"
SLEEP = str(1_000_000 + os.getpid())
"""A unique duration in seconds that identifies the processes of these tests."""


def importing(code: str) -> str:
    """A valid tool that runs this code when it is imported."""
    return spoiled("tool", (MARK, f"{code}\n{MARK}"))


def mounting(code: str) -> str:
    """A valid tool that runs this code when it is mounted."""
    indented = "".join(f"    {line}\n" for line in code.splitlines())
    return spoiled("tool", (MOUNT, indented + MOUNT))


class Case(NamedTuple):
    """A module, what is found in it, and options for its validation."""

    code: str
    check: str
    message: str
    options: dict[str, Any] = {}  # noqa: RUF012 - read only


SHORT: dict[str, Any] = {"seconds": 1.0}

BAD = {
    "waits with all signals blocked": Case(
        importing(
            "import signal, subprocess, time\n"
            "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
            "    signal.signal(number, signal.SIG_IGN)\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
            f"subprocess.Popen(['sleep', '{SLEEP}'], start_new_session=True)\n"
            f"time.sleep({SLEEP})"
        ),
        "time",
        "during import and was stopped; it was at amplifier_module_thing/__init__.py, line 9",
        SHORT,
    ),
    "forks, and the copy never ends": Case(
        importing("import os, time\nif os.fork() == 0:\n    while True:\n        time.sleep(1)"),
        "left_behind",
        "it left a process running, which the check killed: python",
    ),
    "forks twice into a session of its own": Case(
        mounting(
            "import os\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    if os.fork() == 0:\n"
            f"        os.execvp('sleep', ['sleep', '{SLEEP}'])\n"
            "    os._exit(0)"
        ),
        "left_behind",
        "which the check killed: sleep",
    ),
    "ends the process": Case(
        mounting("import os\nos._exit(7)"),
        "isolation",
        "it exited the process (code 7) during mount",
    ),
    "writes without an end": Case(
        importing("while True:\n    print('y' * 1000)"),
        "time",
        "during import and was stopped",
        SHORT,
    ),
    "ends the process after writing to every descriptor": Case(
        importing(
            "import os\n"
            "for number in range(1, 32):\n"
            "    try:\n"
            '        os.write(number, b\'{"kind": "hook"}\\n{"done": true}\\n\')\n'
            "    except OSError:\n"
            "        pass\n"
            "os._exit(0)"
        ),
        "isolation",
        "it exited the process (code 0) during import",
    ),
    "closes all that is open": Case(
        importing("import os\nos.closerange(0, 256)"),
        "isolation",
        "it closed or filled files the checks need during import",
    ),
    "replaces json.dumps": Case(
        mounting("import json\njson.dumps = lambda *a, **b: 'mine'"),
        "isolation",
        "it replaced functions of the standard library that the checks need",
    ),
    "crashes": Case(
        mounting("import ctypes\nctypes.string_at(0)"),
        "isolation",
        "it was killed by SIGSEGV during mount",
    ),
    "computes without giving way": Case(
        importing("import re\nre.match('(a+)+$', 'a' * 64 + 'b')"),
        "time",
        "during import and was stopped",
        SHORT,
    ),
    "loops": Case(
        mounting("while True:\n    pass"),
        "time",
        "during mount and was stopped; it was at amplifier_module_thing/__init__.py, line 28",
        SHORT,
    ),
    "stops itself": Case(
        importing("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"),
        "time",
        "during import and was stopped",
        SHORT,
    ),
    "takes all memory": Case(
        importing("kept = []\nwhile True:\n    kept.append(bytearray(10_000_000))"),
        "memory",
        "it used more than 400 MiB of memory during import",
        {"memory": 400 * 1024**2},
    ),
    "has its children take all memory": Case(
        importing(
            "import subprocess, sys, time\n"
            "code = 'x = bytearray(300_000_000); import time; time.sleep(600)'\n"
            "for _ in range(2):\n"
            "    subprocess.Popen([sys.executable, '-c', code])\n"
            "time.sleep(600)"
        ),
        "memory",
        "it used more than 400 MiB of memory during import",
        {"memory": 400 * 1024**2},
    ),
    "kills its supervisor": Case(
        importing(
            "import os, signal, subprocess, time\n"
            f"subprocess.Popen(['sleep', '{SLEEP}'])\n"
            "os.kill(os.getppid(), signal.SIGKILL)\n"
            "time.sleep(600)"
        ),
        "isolation",
        "it killed the process that supervises it",
    ),
    "has threads that never end": Case(
        mounting(
            "import threading\n"
            "for _ in range(8):\n"
            "    threading.Thread(target=threading.Event().wait).start()"
        ),
        "left_behind",
        "and 3 more",
    ),
    "stops the event loop": Case(
        mounting("import asyncio\nasyncio.get_running_loop().stop()"),
        "isolation",
        "it raised RuntimeError: Event loop stopped",
    ),
    "cancels every task": Case(
        mounting("import asyncio\nfor task in asyncio.all_tasks():\n    task.cancel()"),
        "isolation",
        "it raised CancelledError",
    ),
}

GOOD = {
    "forks and lets the copy go on": importing("import os\nos.fork()"),
    "writes 30 MB": importing("import sys\nfor _ in range(30):\n    print('x' * 1_000_000)"),
    "closes its outputs": importing(
        "import os, sys\nsys.stdout.close()\nsys.stderr.close()\nos.close(1)\nos.close(2)"
    ),
    "prints results": importing(
        'print(\'{"done": true, "check": {"name": "x", "passed": false, "message": ""}}\')'
    ),
    "reads stdin": importing("import sys\nassert sys.stdin.read() == ''"),
    "removes the folder it is in": importing("import os, shutil\nshutil.rmtree(os.getcwd())"),
    "never comes to its end at exit": importing(
        f"import atexit, time\natexit.register(time.sleep, {SLEEP})"
    ),
}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
@pytest.mark.usefixtures("warm_checks")
@pytest.mark.parametrize("case", one_in(3, ((case,) for case in BAD.values())), ids=BAD)
def test_a_module_that_behaves_badly_gets_a_finding_and_leaves_nothing(
    case: Case, tmp_path: Path
) -> None:
    report = validated(write_module(tmp_path / "thing", case.code), **case.options)
    check = named(report)[case.check]
    assert not check.passed
    assert case.message in check.message
    assert check.advice
    assert report.passed == (check.severity == "warning")
    # A process that was killed may take a moment to go.
    wait_until(lambda: not processes_with(SLEEP), about=lambda: processes_with(SLEEP))


@pytest.mark.usefixtures("warm_checks")
@pytest.mark.parametrize("code", GOOD.values(), ids=GOOD)
def test_a_module_that_is_merely_odd_is_valid(code: str, tmp_path: Path) -> None:
    report = validated(write_module(tmp_path / "thing", code))
    assert report.passed, report.failed
    assert report.kind == "tool"
    assert all(check.passed for check in report.checks), report.checks
    assert len(report.output) < 20_000


@pytest.mark.usefixtures("warm_checks")
def test_the_behaviour_of_a_module_that_empties_sys_path_is_checked(tmp_path: Path) -> None:
    folder = write_module(tmp_path / "thing", mounting("import sys\nsys.path.clear()"))
    report = validated(folder, behavioral=True)
    assert report.passed, report.failed


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_command_ends_what_the_module_started(
    number: signal.Signals, tmp_path: Path
) -> None:
    code = importing(
        "import pathlib, subprocess, time\n"
        f"subprocess.Popen(['sleep', '{SLEEP}'], start_new_session=True)\n"
        f"pathlib.Path({str(tmp_path / 'started')!r}).touch()\n"
        "time.sleep(600)"
    )
    folder = write_module(tmp_path / "thing", code)
    process = start_amplifier("module", "validate", folder)
    try:
        wait_until((tmp_path / "started").exists)
        os.kill(process.pid, number)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(number, -number)
    assert b"Traceback" not in stderr
    wait_until(lambda: not processes_with(SLEEP), about=lambda: processes_with(SLEEP))


def test_a_supervisor_that_cannot_start_its_program_does_not_fail_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amplifier_app.base.errors import AppError

    # The child finds no package of that name, as in a damaged installation.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "amplifier_app").mkdir()
    (tmp_path / "amplifier_app" / "__init__.py").write_text("")
    with pytest.raises(AppError, match="checks modules failed to start"):
        validated(write_module(tmp_path / "thing", spoiled("tool")))
