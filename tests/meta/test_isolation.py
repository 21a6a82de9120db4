"""The suite keeps to itself: no network, no keys, a home of its own, also in child processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import cli
from tests.support.cli import child_environment, start_amplifier, succeed
from tests.support.fixtures import scrubbed
from tests.support.network_guard import sitecustomize as network
from tests.support.network_guard.sitecustomize import NetworkForbidden, is_loopback
from tests.support.warm_interpreter import WarmProcess, is_available

REACH_OUT = "import socket; socket.create_connection(('192.0.2.1', 9), timeout=1)"


def run_python(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def test_children_stay_on_loopback(tmp_path: Path) -> None:
    environment = child_environment(tmp_path)
    refused = run_python(REACH_OUT, environment)
    assert "NetworkForbidden: tests stay on loopback" in refused.stderr
    listen = "import socket; s = socket.create_server(('127.0.0.1', 0)); "
    local = run_python(listen + "socket.create_connection(s.getsockname())", environment)
    assert (local.returncode, local.stderr) == (0, "")


def test_children_may_be_let_out(tmp_path: Path) -> None:
    environment = child_environment(tmp_path, network=True)
    look = "import sitecustomize; print(hasattr(sitecustomize, 'NetworkForbidden'))"
    assert run_python(look, environment).stdout.strip() != "True"


def test_a_program_that_may_be_let_out_is_no_clone_of_a_guarded_interpreter() -> None:
    with start_amplifier("--version", network=True) as process:
        process.communicate()
    assert not isinstance(process, WarmProcess)


def test_the_guard_of_this_process_opens_for_marked_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NetworkForbidden):
        sys.audit("socket.getaddrinfo", "example.invalid")
    monkeypatch.setattr(network, "allowed", True)
    sys.audit("socket.getaddrinfo", "example.invalid")


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        (b"localhost", True),
        ("", True),
        (None, True),
        ("127.0.0.1.example.invalid", False),
        ("localhost.example.invalid", False),
        ("128.0.0.1", False),
        ("0.0.0.1", False),
        ("::2", False),
        ("169.254.169.254", False),
        ("example.invalid", False),
    ],
)
def test_what_counts_as_loopback(host: object, local: bool) -> None:
    assert is_loopback(host) is local


def test_the_environment_has_no_keys_and_a_home_of_its_own(tmp_path: Path) -> None:
    home = Path(os.environ["AMPLIFIER_HOME"])
    assert home.is_dir()
    assert list(home.iterdir()) == []
    ending = ("_API_KEY", "_AUTH_TOKEN", "_BASE_URL", "_PROXY")
    assert [name for name in os.environ if name.upper().endswith(ending)] == []
    dirty = {"X_API_KEY": "1", "https_proxy": "2", "OPENAI_BASE_URL": "3", "AMPLIFIER_X": "4"}
    assert scrubbed({**dirty, "PATH": "5"}) == {"PATH": "5"}


def test_git_needs_no_settings_of_the_user(tmp_path: Path) -> None:
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    log = ["git", "log", "--format=%an <%ae>"]
    done = subprocess.run(log, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == "Test <test@example.invalid>\n"


def test_the_program_runs_as_installed(tmp_path: Path) -> None:
    finished = succeed("--version", home=tmp_path / "home")
    assert finished.stdout.strip()
    assert finished.home == tmp_path / "home"


STATE = """
import asyncio, atexit, gc, logging, os, signal, sys, tempfile, threading, warnings
from amplifier_app.base import installed, redact
from amplifier_app.commands import group
from amplifier_modules import tool_bash
from amplifier_support import files
from amplifier_support.sandbox import available
print(
    [signal.getsignal(number) for number in sorted(signal.valid_signals())],
    gc.isenabled(), gc.get_threshold(), tempfile.tempdir, threading.active_count(),
    logging.root.handlers, logging.root.level, asyncio.events._event_loop_policy,
    redact._names, files._cleaned, available.kernel_layer.cache_info(),
    installed.bundled_modules(), installed.modules_on_path(), tool_bash.config_schema(),
    group.amplifier_command().list_commands(None),
    sorted(os.environ), os.getcwd(), sys.path, sys.argv, sorted(os.listdir("/proc/self/fd")),
)
"""


@pytest.mark.skipif(not is_available(), reason="interpreters are not cloned here")
def test_clones_start_like_new_interpreters(tmp_path: Path) -> None:
    cloned = cli.run_python(STATE, cwd=tmp_path)
    started = subprocess.run(
        [sys.executable, "-c", STATE],
        cwd=tmp_path,
        env=child_environment(Path(os.environ["AMPLIFIER_HOME"])),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (cloned.stderr, started.stderr) == ("", "")
    assert cloned.stdout == started.stdout
