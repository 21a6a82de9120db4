"""`amplifier mcp` and `/mcp`."""

import json
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from tests.extras.tool_mcp.support import RAW
from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.installations import Environment
from tests.support.terminal import ENTER, Terminal

SERVER = (sys.executable, str(RAW))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def mcp(home: Path, *words: str) -> Finished:
    return run_amplifier("mcp", *words, home=home, cwd=home.parent)


def test_a_server_is_added_tried_and_removed(home: Path) -> None:
    settings = home / "settings.yaml"
    home.mkdir()
    settings.write_text("# Mine.\ndisplay:\n  theme: dark\n")
    added = mcp(home, "add", "raw", "--env", "A=1", "--", *SERVER)
    assert added.code == 0, added.stderr
    assert "try it: amplifier mcp test raw" in added.stderr
    assert mcp(home, "add", "raw", "--", *SERVER).code == 78
    assert mcp(home, "add", "other", "--network", "--", "nothing").code == 0

    [first, second] = json.loads(mcp(home, "list", "--output", "json").stdout)
    assert (first["name"], first["how"], first["enabled"]) == ("raw", " ".join(SERVER), True)
    assert first["from"].startswith(str(settings))
    assert second["name"] == "other"
    assert "network: all" in settings.read_text()

    tried = mcp(home, "test", "raw", "--output", "json")
    assert tried.code == 0, tried.stderr
    assert "other" not in tried.stderr
    assert mcp(home, "remove", "other").code == 0
    tools = {tool["name"] for tool in json.loads(tried.stdout)}
    assert "mcp_raw_echo" in tools
    assert all(name.startswith("mcp_raw_") for name in tools)

    assert mcp(home, "remove", "raw").code == 0
    assert settings.read_text() == "# Mine.\ndisplay:\n  theme: dark\n"


def test_a_server_of_this_project_only_is_listed_and_tried(home: Path) -> None:
    project = home.parent / "project"
    (project / ".amplifier").mkdir(parents=True)
    run_amplifier("trust", "--yes", home=home, cwd=project)
    succeed("mcp", "add", "raw", "--", *SERVER, home=home, cwd=project)
    listed = run_amplifier("mcp", "list", "--output", "json", home=home, cwd=project)
    assert [server["name"] for server in json.loads(listed.stdout)] == ["raw"]
    assert json.loads(mcp(home, "list", "--output", "json").stdout) == []
    succeed("mcp", "test", "raw", "-P", "mock", home=home, cwd=project)


def test_a_server_that_fails_is_a_fault_of_the_module(home: Path) -> None:
    assert mcp(home, "add", "gone", "--", sys.executable, "-c", "exit(4)").code == 0
    tried = mcp(home, "test", "gone", "--profile", "mock")
    assert tried.code == 3
    assert "gone: exited with code 4" in tried.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("add", "a"), "expected either a COMMAND after -- or --url"),
        (("add", "a", "--url", "http://127.0.0.1:9/", "--", "b"), "expected either a COMMAND"),
        (("add", "a", "--header", "A=b", "--", "b"), "--header goes with --url"),
        (("add", "a", "--url", "http://127.0.0.1:9/", "--env", "A=b"), "--env and --network with"),
        (("add", "a", "--env", "A", "--", "b"), "--env: expected NAME=VALUE"),
        (("add", "a b", "--", "b"), "'a b' is not a valid server name"),
        (("add", "a", "--url", "ftp://127.0.0.1/"), "must begin with http:// or https://"),
        (("test", "a"), "there is no MCP server 'a'"),
        (("remove", "a"), "the user settings have no MCP server 'a'"),
    ],
)
def test_what_cannot_be_done_is_an_error_and_changes_nothing(
    home: Path, words: tuple[str, ...], message: str
) -> None:
    finished = mcp(home, *words)
    assert finished.code == 2
    assert message in finished.stderr
    assert not (home / "settings.yaml").exists()


def test_a_key_in_plain_text_is_a_warning_and_never_shown(home: Path) -> None:
    url, key = "https://127.0.0.1:9/mcp", "sk-ant-api03-" + "k" * 40
    added = mcp(home, "add", "far", "--url", url, "--header", f"Authorization=Bearer {key}")
    assert added.code == 0
    assert "Authorization is stored in plain text" in added.stderr
    listed = mcp(home, "list", "--output", "json")
    assert [server["how"] for server in json.loads(listed.stdout)] == [url]
    quiet = mcp(home, "add", "near", "--url", url, "--header", "Authorization=Bearer ${KEY}")
    assert "plain text" not in quiet.stderr
    assert key not in added.stderr + listed.stdout + quiet.stderr


NO_SDK = """
import importlib.util, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "mcp" else find_spec(name, *rest)
from amplifier_app.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""The program where the SDK is not installed."""


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An environment whose uv only says how it was called."""
    return Environment(tmp_path, installer="uv")


@pytest.mark.parametrize(
    ("answer", "result", "code"), [("y", "0", 0), ("y", "4", 78), ("n", "0", 0)]
)
def test_the_sdk_is_installed_after_a_yes(
    environment: Environment, answer: str, result: str, code: int
) -> None:
    words = ["-c", NO_SDK, "mcp", "add", "a", "--", "b"]
    variables = environment.variables | {"CODE": result}
    process = pexpect.spawn(
        str(environment.python), words, env=variables, cwd=environment.prefix, timeout=30
    )
    process.expect_exact("Install it? [y/N]")
    process.sendline(answer)
    process.expect(pexpect.EOF)
    process.close()
    assert process.exitstatus == code
    call = f"uv pip install --python {environment.python} mcp<3,>=2.0 no key"
    assert environment.called() == ([call] if answer == "y" else [])


def test_without_the_sdk_scripts_get_its_command_and_runs_go_on_without_servers(
    environment: Environment,
) -> None:
    def program(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [environment.python, "-c", NO_SDK, *words],
            cwd=environment.prefix,
            env=environment.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    added = program("mcp", "add", "a", "--", "b")
    command = f"uv pip install --python {environment.python} 'mcp<3,>=2.0'"
    assert f"servers are unavailable without the MCP SDK: {command}" in added.stderr
    assert (added.returncode, environment.called()) == (0, [])
    done = program("run", "-P", "mock", "hi")
    assert (done.returncode, done.stdout) == (0, "You said: hi\n"), done.stderr
    assert "MCP server a is unavailable: the MCP SDK is not installed; install it with: uv" in (
        done.stderr
    )
    tested = program("mcp", "test", "a")
    assert tested.returncode == 3
    assert "the MCP SDK is not installed" in tested.stderr


def test_the_chat_lists_servers_and_their_tools(home: Path) -> None:
    mcp(home, "add", "raw", "--", *SERVER)
    mcp(home, "add", "gone", "--", sys.executable, "-c", "exit(4)")
    wait = ("--set", "tools.tool-mcp.config.wait=30")
    with Terminal("--profile", "mock", *wait, home=home, cwd=home.parent) as chat:
        chat.prompt()
        chat.type(f"/mcp{ENTER}")
        chat.until("raw: ready: .*mcp_raw_echo")
        chat.until("gone: exited with code 4")
