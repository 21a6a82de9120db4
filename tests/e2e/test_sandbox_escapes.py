"""Attempts to leave the sandbox, from a command of the model, at each level and for each kind of user.

The attempts are in `tests/e2e/escapes`. Each says which level must stop it; that none was made without
effect is shown by a control without a sandbox.
"""

import functools
import json
import os
import subprocess
import sys
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
PACKAGES = "/srv/src:/srv/site"
"""Where `tests.e2e.escapes.drive` puts the program for an ordinary user."""

PLACES = [
    "work",
    *(pytest.param(place, marks=pytest.mark.thorough) for place in ("home", "parent")),
]
"""The working directory: an ordinary folder, the home directory, one with the folder of the program."""

START_UP_FILES = 29
"""An attempt that the kernel layer does not stop in the home directory."""

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
    level: str, *, place: str = "work", ordinary: bool = False, namespaces: bool = True
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
    wanted = {
        "level": level,
        "place": place,
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


def assert_no_escape(result: dict[str, Any], level: str, place: str = "work") -> None:
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
        if answer["succeeded"]
        and attempts[number].level in levels
        and not (level == "kernel" and place == "home" and number == START_UP_FILES)
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
def needs_namespaces() -> None:
    if not available.namespace_layer().works:
        pytest.skip("there are no namespaces here")


@pytest.fixture(scope="module")
def needs_kernel_layer() -> None:
    if not available.kernel_layer().works:
        pytest.skip("there is no kernel layer here")


def test_every_attempt_names_the_level_that_stops_it() -> None:
    attempts: list[Attempt] = all_attempts()
    assert len(attempts) >= 60
    assert {one.level for one in attempts} == {"kernel", "namespaces"}


@pytest.mark.usefixtures("needs_kernel_layer", "needs_namespaces")
@pytest.mark.parametrize("place", PLACES)
def test_no_attempt_leaves_the_namespaces(place: str) -> None:
    # Root in an ordinary folder, an ordinary user elsewhere.
    assert_no_escape(drive("namespaces", place=place, ordinary=place != "work"), "namespaces")


@pytest.mark.usefixtures("needs_kernel_layer")
def test_no_attempt_of_an_ordinary_user_passes_the_kernel_layer() -> None:
    assert_no_escape(drive("kernel", ordinary=True), "kernel")


@pytest.mark.thorough
@pytest.mark.usefixtures("needs_kernel_layer", "needs_namespaces")
@pytest.mark.parametrize("place", PLACES)
def test_no_attempt_of_another_user_leaves_the_namespaces(place: str) -> None:
    assert_no_escape(drive("namespaces", place=place, ordinary=place == "work"), "namespaces")


@pytest.mark.thorough
@pytest.mark.usefixtures("needs_kernel_layer")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("ordinary", [False, True], ids=["as-is", "ordinary"])
def test_no_attempt_passes_the_kernel_layer(place: str, ordinary: bool) -> None:
    assert_no_escape(drive("kernel", place=place, ordinary=ordinary), "kernel", place)


@pytest.mark.thorough
@pytest.mark.skipif(not ROOT, reason="only root can take the namespaces away")
@pytest.mark.usefixtures("needs_kernel_layer")
def test_without_user_namespaces_the_kernel_layer_holds_or_nothing_runs() -> None:
    assert_no_escape(drive("kernel", ordinary=True, namespaces=False), "kernel")
    refused = drive("namespaces", ordinary=True, namespaces=False)
    assert refused["code"] == 78
    reason = "user namespaces are switched off: user.max_user_namespaces is 0"
    assert f"the sandbox for commands is unavailable: {reason}" in refused["stderr"]
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
