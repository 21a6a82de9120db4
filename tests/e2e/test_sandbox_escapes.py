"""Attempts to leave the sandbox, from a command of the model, at each level and for each kind of user.

The attempts are in `tests/e2e/escapes`. Each says which level must stop it; that none was made without
effect is shown by a control without a sandbox.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amplifier_support.sandbox import available
from tests.e2e.escapes.catalogue import Attempt, all_attempts
from tests.support.cli import amplifier_command
from tests.support.conditions import ORDINARY_USER

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a sandbox of Linux"),
    pytest.mark.timeout(240),
]

ROOT = os.geteuid() == 0 if hasattr(os, "geteuid") else False
TOP = Path(__file__).parents[2]
PACKAGES = f"{TOP / 'src'}:{sysconfig.get_path('purelib')}"
WITHOUT_EFFECT = 25
"""Attempts that may do nothing even without a sandbox: devices and calls that a machine does not have."""


@functools.cache
def ordinary_python() -> str | None:
    """An interpreter that every user may start, and that has what the program needs."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for candidate in (f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        if os.access(candidate, os.X_OK):
            return candidate
    return None


def drive(
    level: str, *, ordinary: bool = False, namespaces: bool = True, path: str | None = None
) -> dict[str, Any]:
    """Make all attempts and return what came of them."""
    python, program, environment = sys.executable, amplifier_command(), dict[str, Any]()
    user = None
    if ordinary and ROOT:
        found = ordinary_python()
        if found is None:
            pytest.skip("no interpreter that an ordinary user may start")
        python, user = found, ORDINARY_USER
        program = [python, "-P", "-m", "amplifier_app.cli"]
        environment["PYTHONPATH"] = PACKAGES
    if path is not None:
        environment["PATH"] = path
    wanted = {
        "level": level,
        "user": user,
        "python": python,
        "program": program,
        "environment": environment,
        "namespaces": namespaces,
    }
    line = [sys.executable, "-m", "tests.e2e.escapes.drive", json.dumps(wanted)]
    if ROOT:
        own = [
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--mount-proc",
            "--net",
            "--ipc",
        ]
        line = ["unshare", *own, "--uts", *line]
    done = subprocess.run(line, cwd=TOP, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def assert_no_escape(result: dict[str, Any], level: str) -> None:
    """Check that nothing that the level must stop got out, and that everything was tried."""
    assert result["code"] == 0, result["stderr"] + result["stdout"]
    attempts = {one.number: one for one in all_attempts()}
    answers = {answer["number"]: answer for answer in result["answers"]}
    assert answers.keys() == attempts.keys(), result["problems"]
    assert not [answer for answer in answers.values() if "is broken" in answer["said"]]
    levels = {"kernel": ("kernel",), "namespaces": ("kernel", "namespaces")}[level]
    escaped = [
        (number, attempts[number].what, answer["said"])
        for number, answer in answers.items()
        if answer["succeeded"] and attempts[number].level in levels
    ]
    assert escaped == []
    if level == "namespaces":
        assert result["changes"] == []
        assert result["left"] == []
    else:
        assert not [change for change in result["changes"] if _must_not_happen(change)]
        assert "heartbeat" not in result["left"]


def _must_not_happen(change: str) -> bool:
    # Landlock governs neither the attributes of files nor what runs later;
    # the victim may have another priority.
    known = ("outside/canary", "escape-10", "victim ['unharmed', [], 0, 1]")
    return not any(one in change for one in known)


@pytest.fixture(scope="module")
def bin() -> Iterator[str]:
    """A PATH with the programs that the attempts need, but without bubblewrap."""
    with tempfile.TemporaryDirectory(dir=TOP) as folder:
        os.chmod(folder, 0o755)
        for name in ("git", "sh", "bash"):
            found = shutil.which(name)
            if found is not None:
                Path(folder, name).symlink_to(found)
        yield folder


@pytest.fixture(scope="module")
def needs_namespaces() -> None:
    if not available.namespace_layer().works:
        pytest.skip("bubblewrap does not work here")


@pytest.fixture(scope="module")
def needs_kernel_layer() -> None:
    if not available.kernel_layer().works:
        pytest.skip("there is no kernel layer here")


def test_every_attempt_names_the_level_that_stops_it() -> None:
    attempts: list[Attempt] = all_attempts()
    assert len(attempts) >= 60
    assert {one.level for one in attempts} == {"kernel", "namespaces"}


@pytest.mark.usefixtures("needs_kernel_layer", "needs_namespaces")
def test_no_attempt_leaves_the_namespaces() -> None:
    assert_no_escape(drive("namespaces"), "namespaces")


@pytest.mark.usefixtures("needs_kernel_layer")
def test_no_attempt_of_an_ordinary_user_passes_the_kernel_layer(bin: str) -> None:
    assert_no_escape(drive("kernel", ordinary=True, path=bin), "kernel")


@pytest.mark.thorough
@pytest.mark.usefixtures("needs_kernel_layer", "needs_namespaces")
def test_no_attempt_of_an_ordinary_user_leaves_the_namespaces() -> None:
    assert_no_escape(drive("namespaces", ordinary=True), "namespaces")


@pytest.mark.thorough
@pytest.mark.usefixtures("needs_kernel_layer")
def test_no_attempt_passes_the_kernel_layer(bin: str) -> None:
    assert_no_escape(drive("kernel", path=bin), "kernel")


@pytest.mark.thorough
@pytest.mark.skipif(not ROOT, reason="only root can take the namespaces away")
@pytest.mark.usefixtures("needs_kernel_layer")
def test_without_user_namespaces_the_kernel_layer_holds_or_nothing_runs() -> None:
    assert_no_escape(drive("kernel", ordinary=True, namespaces=False), "kernel")
    refused = drive("namespaces", ordinary=True, namespaces=False)
    assert refused["code"] == 78
    assert "the sandbox for commands is unavailable: bubblewrap cannot" in refused["stderr"]
    assert refused["answers"] == []
    assert refused["changes"] == []


@pytest.mark.thorough
@pytest.mark.skipif(not ROOT, reason="needs namespaces that keep the machine from harm")
def test_the_attempts_succeed_without_a_sandbox() -> None:
    result = drive("off")
    assert result["code"] == 0, result["stderr"] + result["stdout"]
    answers = {answer["number"]: answer for answer in result["answers"]}
    assert answers.keys() == {one.number for one in all_attempts()}, result["problems"]
    failed = {number: one["said"] for number, one in answers.items() if not one["succeeded"]}
    assert len(failed) <= WITHOUT_EFFECT, failed
    assert result["left"] == ["commondir"]
    assert len(result["changes"]) > 20
