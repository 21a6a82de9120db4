"""Hosts that commands in the sandbox want, allowed one by one, and the policy changed in a chat."""

import json
import os
import shlex
import sys
import threading
from collections.abc import Generator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from amplifier_support.sandbox import available
from tests.support.cli import run_amplifier, succeed
from tests.support.http_server import QuietHandler
from tests.support.plans import mock_plan
from tests.support.terminal import CTRL_D, ENTER, Chat, Terminal

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="drives a pseudo-terminal"),
    pytest.mark.skipif(
        not available.namespace_layer().works, reason="there are no namespaces here"
    ),
]

SANDBOXED = [{"action": "sandboxed", "tool": "bash"}]


class Page(QuietHandler):
    def do_GET(self) -> None:
        self.send_head("text/plain", 8)
        self.wfile.write(b"the page")


@pytest.fixture
def host() -> Generator[str]:
    """A server that commands reach only through the proxy, which they do not use for 127.0.0.1."""
    with ThreadingHTTPServer(("127.0.0.2", 0), Page) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"127.0.0.2:{server.server_port}"
        server.shutdown()


def get(*hosts: str) -> str:
    lines = [f"print(urlopen('http://{host}/').read().decode())" for host in hosts]
    return shlex.join(
        [sys.executable, "-IS", "-c", f"from urllib.request import urlopen; {'; '.join(lines)}"]
    )


def plan(folder: Path, *commands: str, **more: object) -> Path:
    replies: list[object] = []
    for number, command in enumerate(commands, 1):
        replies += [{"tool_calls": [{"name": "bash", "input": {"command": command}}]}]
        replies += [f"answer {number}"]
    return mock_plan(
        folder,
        replies,
        tools=[{"module": "tool-bash"}],
        hooks=[{"module": "hooks-approval", "config": {"rules": SANDBOXED}}],
        **more,
    )


def ask(terminal: Terminal, number: int, key: str | None, shown: str = "") -> None:
    """Send a prompt whose command wants the host, and answer the question if one is expected."""
    terminal.prompt()
    terminal.type(f"prompt {number}{ENTER}")
    if key is not None:
        terminal.until(r"it wants 127\.0\.0\.2:\d+, which the sandbox.*[?] more")
        terminal.type(key)
    terminal.until(f"{shown}.*answer {number}")


def test_a_host_is_allowed_once_then_for_the_session(tmp_path: Path, host: str) -> None:
    file = plan(tmp_path, *[get(host)] * 4)
    with Terminal("run", "-f", file, cwd=tmp_path, size=(120, 40)) as terminal:
        ask(terminal, 1, "y", "Allow once.*the page")
        ask(terminal, 2, "n")
        # After a no, the same is not asked again.
        ask(terminal, 3, None, "the sandbox refused")
        terminal.prompt()
        terminal.enter("/sandbox", "network: none")
        terminal.type(CTRL_D)
        terminal.finish()
    with Terminal("run", "-f", file, cwd=tmp_path, size=(120, 40)) as terminal:
        ask(terminal, 1, "p", f"Allow for this session: {host}.*the page")
        ask(terminal, 2, None, "the page")
        terminal.prompt()
        terminal.enter("/sandbox", f"network: {host}")
        terminal.enter("/sandbox workspace", "From the next command on: .*network: none")
        ask(terminal, 3, "y", "the page")


def test_a_host_that_the_command_names_is_asked_about_after_a_success(
    tmp_path: Path, host: str
) -> None:
    hidden = host.replace("127.0.0.2", "127.0.0.'+'2")  # a host that the line does not name
    file = plan(tmp_path, f"{get(host)} 2>&1 | tail -1", f"{get(hidden)} 2>&1 | tail -1")
    with Terminal("run", "-f", file, cwd=tmp_path, size=(120, 40)) as terminal:
        ask(terminal, 1, "y", "Allow once.*the page")
        ask(terminal, 2, None, "403")


@pytest.mark.thorough
def test_a_host_is_allowed_for_later_sessions_of_the_folder(tmp_path: Path, host: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    file = plan(tmp_path, get(host))
    with Terminal("run", "-f", file, cwd=tmp_path, size=(120, 40)) as terminal:
        ask(terminal, 1, "P", "the page")
        terminal.prompt()
        terminal.enter("/sandbox", "hosts that are always allowed are in .*sandbox-hosts.json")
    stored = Path(os.environ["AMPLIFIER_HOME"], "sandbox-hosts.json")
    assert json.loads(stored.read_text()) == {str(tmp_path): [host]}
    assert stored.stat().st_mode & 0o777 == 0o600
    again = succeed("run", "-f", file, "go", "--output", "json", cwd=tmp_path)
    assert host in str(json.loads(again.stdout)["sandbox"])
    elsewhere = run_amplifier("run", "-f", file, "go", "--output", "json", cwd=other)
    assert host not in str(json.loads(elsewhere.stdout)["sandbox"])
    stored.write_text("[1]")
    broken = run_amplifier("run", "-f", file, "go", cwd=tmp_path)
    assert broken.code == 78
    assert "cannot read the hosts that commands may reach" in broken.stderr


@pytest.mark.thorough
def test_outside_and_several_hosts_are_questions_of_their_own(tmp_path: Path, host: str) -> None:
    second = host.replace("127.0.0.2", "127.0.0.3")
    file = plan(tmp_path, get(host, second), get(host))
    with Chat("-f", file, cwd=tmp_path, size=(120, 40)) as terminal:
        terminal.enter("prompt 1", rf"it wants {host}, .*[?] more")
        terminal.type("y")
        terminal.until(rf"it wants {second}, .*[?] more")
        terminal.type("n")
        terminal.until("answer 1")
        ask(terminal, 2, "o", "it ran outside the sandbox")


@pytest.mark.parametrize("more", [{}, {"approvals": [{"action": "deny", "path": "x/**"}]}])
def test_a_reader_of_denied_files_is_offered_hosts_only(
    tmp_path: Path, host: str, more: dict[str, object]
) -> None:
    with Terminal("run", "-f", plan(tmp_path, get(host), **more), "go", cwd=tmp_path) as terminal:
        terminal.until("[?] more")
        terminal.type("?")
        terminal.until("[?] less.*Ctrl-C  stop")
        assert ("outside the sandbox, with all" in terminal.shown) is not bool(more)


def test_a_wrong_policy_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    with Terminal("run", "-f", plan(tmp_path, "true"), cwd=tmp_path, size=(120, 40)) as terminal:
        for argument, shown in (
            ("workspce", "'workspce' is not a sandbox policy.*did you mean 'workspace'"),
            ("network", "'network' is .*expected none, all, or a list"),
            ("network a_b", "'network' contains 'a_b'"),
            ("", "network: none"),
            ("network all", "network: all"),
            ("read-only", "write: nothing"),
            ("off", "commands run without a sandbox"),
            ("network example.com", "network: example.com"),
        ):
            terminal.prompt()
            terminal.type(f"/sandbox {argument}{ENTER}")
            terminal.until(shown)


@pytest.mark.thorough
def test_the_changed_policy_applies_to_the_next_command(tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    file = plan(tmp_path, *[f"touch {outside}; echo done"] * 2)
    with Terminal("run", "-f", file, cwd=tmp_path, size=(120, 40)) as terminal:
        for number, exists in ((1, False), (2, True)):
            terminal.prompt()
            terminal.type(f"prompt {number}{ENTER}")
            terminal.until("[?] more" if exists else f"answer {number}")
            assert not outside.exists()
            if exists:
                # Without a sandbox, commands ask.
                terminal.type("y")
                terminal.until(f"answer {number}")
            assert outside.exists() is exists
            terminal.prompt()
            terminal.enter("/sandbox off", "without a sandbox")
