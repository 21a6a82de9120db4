"""Unlisted skips fail, and the interpreter that processes are cloned from ends with a message."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import amplifier_command, child_environment
from tests.support.warm_interpreter import WarmInterpreter, is_available

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not is_available(), reason="needs Linux, without coverage")


SKIPS = """
import pytest

@pytest.mark.skipif(True, reason="needs pyarrow")
def test_listed(): ...

def test_unlisted():
    pytest.skip("no time")

@pytest.mark.xfail(strict=True)
def test_known_fault():
    raise ValueError
"""


@pytest.mark.thorough
def test_a_skip_that_is_not_listed_fails(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")
    for name in ("support", "conftest.py", "__init__.py"):
        (tmp_path / "tests" / name).symlink_to(ROOT / "tests" / name)
    (tmp_path / "tests" / "test_skips.py").write_text(SKIPS)
    (tmp_path / "tests" / "test_file.py").write_text("import pytest\npytest.importorskip('none')\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "--continue-on-collection-errors"],
        cwd=tmp_path,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "skips.py does not list the reason: no time" in done.stdout
    assert "skips.py does not list the reason: could not import 'none'" in done.stdout
    assert "1 failed, 1 skipped, 1 xfailed, 1 error" in done.stdout


def test_an_interpreter_that_has_ended_is_reported(tmp_path: Path) -> None:
    environment = child_environment(tmp_path)
    interpreter = WarmInterpreter.start(environment)
    process = interpreter._process  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    process.kill()
    process.wait()
    with pytest.raises(RuntimeError, match="cloned from has ended"):
        interpreter.clone(["amplifier"], tmp_path, environment, [0, 1, 2])
    interpreter.close()


INTERRUPT = """
import os, re, signal
from pathlib import Path
from tests.support.warm_interpreter import WarmInterpreter

started = WarmInterpreter.start({**os.environ})
status, signals = Path(f"/proc/{started._process.pid}/status"), 0
while not signals & 1 << signal.SIGINT - 1:  # until it has a handler, or ignores it
    signals = sum(int(mask, 16) for mask in re.findall(r"Sig(?:Cgt|Ign):\\s+(\\w+)", status.read_text()))
started._process.send_signal(signal.SIGINT)
started.close()
"""


def test_what_an_interpreter_cannot_do_is_the_matter_of_one_test(tmp_path: Path) -> None:
    environment = child_environment(tmp_path)
    interpreter = WarmInterpreter.suited_to(environment)
    assert interpreter is not None
    with pytest.raises(RuntimeError, match=r"cannot clone or await a process: .*No child"):
        interpreter._ask(b"%d" % os.getpid())  # pyright: ignore[reportPrivateUsage]
    with open(os.devnull, "r+b") as null:
        streams = [null.fileno()] * 3
        process = interpreter.clone([*amplifier_command(), "--version"], None, environment, streams)
    assert interpreter.wait(process, 30) == 0


def test_an_interrupted_start_prints_no_traceback(tmp_path: Path) -> None:
    environment = {**child_environment(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPT],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
