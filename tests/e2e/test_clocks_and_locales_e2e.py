"""Runs on machines with a wrong clock, one that jumps, and a locale with another encoding than UTF-8."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.plans import mock_plan
from tests.support.thorough import Scale

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="preloads a library of Linux")

CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static int (*real)(clockid_t, struct timespec *);
static long long shift, left, back;

__attribute__((constructor)) static void begin(void) {
    struct timespec now;
    real = dlsym(RTLD_NEXT, "clock_gettime");
    real(CLOCK_REALTIME, &now);
    shift = atoll(getenv("TEST_CLOCK")) - now.tv_sec;
    left = atoll(getenv("TEST_CLOCK_CALLS"));
    back = atoll(getenv("TEST_CLOCK_BACK"));
}
int clock_gettime(clockid_t clock, struct timespec *out) {
    int result = real(clock, out);
    if (clock == CLOCK_REALTIME) {
        if (left-- == 0) shift -= back;
        out->tv_sec += shift;
    }
    return result;
}
int gettimeofday(struct timeval *out, void *zone) {
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return result;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""

DAY = 86_400
CLOCKS = {
    # The offset to UTC leads to 1969; on 11 April 2262 the clock of Python itself ends.
    "1970": ("5", DAY, "0"),
    "jumps back": ("1767225600", 40, str(400 * DAY)),
    "2038": ("2147483646", DAY, "0"),
    "2262": ("9223300000", DAY, "0"),
}
"""Seconds since 1970, the number of looks at the clock before it jumps, and by how much."""


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that sets the clock of a process which it is preloaded to."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(CLOCK)
    library = folder / "clock.so"
    line = [compiler, "-shared", "-fPIC", "-o", str(library), str(folder / "clock.c"), "-ldl"]
    subprocess.run(line, check=True)
    return library


def run_twice(folder: Path, env: dict[str, str | None]) -> tuple[list[Finished], dict[str, Any]]:
    """Run a prompt with a tool call, list and check the sessions; then without `env` go on with it."""
    home = folder / "home"
    call = {"name": "bash", "input": {"command": "date +%Y; echo done"}}
    plan = mock_plan(
        folder,
        [{"tool_calls": [call]}, "An answer."],
        tools=[{"module": "tool-bash"}],
        hooks=[{"module": "hooks-logging"}, {"module": "hooks-status"}],
        session={
            "orchestrator": "loop-streaming",
            "context": "context-persistent",
            "budget": {"max_seconds": 600},
        },
    )
    common: dict[str, Any] = {"home": home, "cwd": folder}
    done = [
        run_amplifier("run", "-f", plan, "go", "--output", "json", env=env, cold=True, **common),
        run_amplifier("session", "list", "--output", "json", env=env, cold=True, **common),
        run_amplifier("session", "verify", **common),
        run_amplifier("session", "list", **common),
        run_amplifier("run", "--continue", "-f", plan, "again", "--output", "json", **common),
        run_amplifier("session", "prune", "--older", "1d", "--dry-run", **common),
    ]
    assert done[0].stdout, done[0]
    return done, json.loads(done[0].stdout)


@pytest.mark.timeout(300)
def test_a_session_survives_any_clock(tmp_path: Path, clock: Path, scale: Scale) -> None:
    for name in scale(("jumps back",), tuple(CLOCKS)):
        start, calls, back = CLOCKS[name]
        env: dict[str, str | None] = {
            "LD_PRELOAD": str(clock),
            "TEST_CLOCK": start,
            "TEST_CLOCK_CALLS": str(calls),
            "TEST_CLOCK_BACK": back,
            "TZ": "America/New_York",
        }
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        done, result = run_twice(folder, env)
        for one in done:
            assert one.code == 0, (name, one)
            assert "Traceback" not in one.stderr, (name, one)
        assert (result["outcome"], result["response"]) == ("ok", "An answer."), name
        # It took no time although the clock jumped by more than a year.
        assert 0 <= result["duration_ms"] < 250_000, name
        (listed,) = json.loads(done[1].stdout)
        assert listed["id"] == result["session_id"], name
        assert json.loads(done[4].stdout)["session_id"] == result["session_id"], name


def test_a_run_in_a_latin_1_locale_keeps_all_characters(tmp_path: Path) -> None:
    localedef = shutil.which("localedef")
    made = localedef is not None and subprocess.run(
        [localedef, "-i", "de_DE", "-f", "ISO-8859-1", str(tmp_path / "de_DE.ISO-8859-1")],
        capture_output=True,
    )
    if not made or made.returncode:
        pytest.skip("the sources of the locale are not installed")
    env: dict[str, str | None] = {
        "LOCPATH": str(tmp_path),
        "LC_ALL": "de_DE.ISO-8859-1",
        "PYTHONUTF8": "0",
        "PYTHONIOENCODING": None,
    }
    folder = tmp_path / "work"
    folder.mkdir()
    write = {"name": "write_file", "input": {"path": "grün", "content": "süß 5 €\n"}}
    bash = {"name": "bash", "input": {"command": "ls; cat gr*"}}
    replies = [{"tool_calls": [write]}, {"tool_calls": [bash]}, "Schön: 5 €"]
    tools = [{"module": "tool-filesystem"}, {"module": "tool-bash"}]
    plan = mock_plan(folder, replies, tools=tools)
    common: dict[str, Any] = {"home": tmp_path / "home", "cwd": folder}
    prompt = os.fsdecode("grüße".encode("latin-1"))
    done = succeed("run", "-f", plan, prompt, "--output", "json", env=env, cold=True, **common)
    result = json.loads(done.stdout)
    assert result["response"] == "Schön: 5 €"
    assert (folder / os.fsdecode("grün".encode("latin-1"))).read_text("utf-8") == "süß 5 €\n"
    shown = run_amplifier("session", "show", result["session_id"], **common)
    assert "Schön: 5 €" in shown.stdout
    assert "grüße" in shown.stdout
