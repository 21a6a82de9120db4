"""In an untrusted directory, none of its code runs, is imported or connected to."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uv

from tests.support.cli import Finished, amplifier_command, child_environment, run_amplifier
from tests.support.fixtures import StartLLM
from tests.support.hostile import Hostile, hostile_directory
from tests.support.llm_server import ScriptedLLM
from tests.support.module_repositories import Repository, write_files
from tests.support.terminal import CTRL_C, CTRL_D, ENTER, Terminal
from tests.support.thorough import one_in

SECRET = "sk-planted-0123456789abcdef"


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Hostile]:
    with hostile_directory(tmp_path) as directory:
        yield directory


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package that the user's own module needs."""
    folder = tmp_path_factory.mktemp("wheels")
    info = "needed_by_mytool-1.dist-info"
    with zipfile.ZipFile(folder / "needed_by_mytool-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("needed.py", "text = 'as the user has it'\n")
        facts = "Metadata-Version: 2.1\nName: needed-by-mytool\nVersion: 1\n"
        wheel.writestr(f"{info}/METADATA", facts)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return folder


@pytest.fixture(scope="module")
def users_tool(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Source of the user's own module, which is fetched with git and needs a package."""
    repository = Repository(tmp_path_factory.mktemp("remotes") / "mytool")
    repository.commit(
        {
            "pyproject.toml": (
                '[project]\nname = "mytool"\nversion = "1"\ndependencies = ["needed-by-mytool"]\n'
                '[project.entry-points."amplifier.modules"]\nmytool = "mytool:mount"\n'
            ),
            "mytool/__init__.py": (
                "import needed\n\n\nclass Tool:\n    name = 'mytool'\n"
                "    description = needed.text\n"
                "    input_schema = {'type': 'object', 'properties': {}}\n\n"
                "    async def execute(self, input):\n        return None\n\n\n"
                "async def mount(coordinator, config=None):\n"
                "    await coordinator.mount('tools', Tool(), name='mytool')\n"
            ),
        }
    )
    return repository.url


@pytest.fixture
def env(tmp_path: Path, users_tool: str, wheels: Path) -> dict[str, str | None]:
    """The user's own settings, and an environment in which every part has something to do."""
    home = tmp_path / "home"
    settings = {
        "providers": [{"module": "provider-openai", "config": {"model": "m"}}],
        "tools": [{"module": "mytool", "source": users_tool}],
    }
    write_files(home, {"settings.yaml": json.dumps(settings)})
    return {
        "AMPLIFIER_HOME": str(home),
        "HOME": str(tmp_path),
        "SECRET": SECRET,
        "UV_FIND_LINKS": str(wheels),
        "UV_OFFLINE": "1",
        "UV_HTTP_RETRIES": "0",
        "UV_CACHE_DIR": str(tmp_path / "uv-cache"),
        "PYTHONDONTWRITEBYTECODE": None,
    }


@pytest.fixture
async def server(llm_server: StartLLM, env: dict[str, str | None]) -> ScriptedLLM:
    """The model server that the user has configured."""
    server = await llm_server(["an answer"], repeat_last=True)
    env |= {"OPENAI_BASE_URL": server.openai_base_url, "OPENAI_API_KEY": "of-the-user"}
    return server


async def amplifier(
    hostile: Hostile, env: dict[str, str | None], *arguments: str, **more: Any
) -> Finished:
    options = {"cwd": hostile.folder, "env": env, "home": Path(str(env["AMPLIFIER_HOME"]))}
    return await asyncio.to_thread(run_amplifier, *arguments, **options, **more)


COMMANDS = [
    ("--version",),
    ("--help",),
    ("session", "list"),
    ("profile", "list"),
    ("profile", "show", "default"),
    ("plan", "show"),
    ("plan", "show", "--output", "json"),
    ("plan", "explain", "session"),
    ("plan", "diff", "default", "local"),
    ("plan", "schema"),
    ("module", "list"),
    ("provider", "list"),
    ("trust", "--show"),
    ("trust", "--show", "--output", "json"),
    ("trust", "--list"),
]


async def test_read_only_commands_skip_it(hostile: Hostile, env: dict[str, str | None]) -> None:
    for arguments in COMMANDS:
        done = await amplifier(hostile, env, *arguments)
        assert (done.code, hostile.damage) == (0, []), (arguments, done.stderr)
        assert arguments[0] == "trust" or "evil" not in done.stdout, arguments
        assert SECRET not in done.stdout + done.stderr, arguments


WORKING = [
    ("doctor",),
    ("plan", "check", "--no-project"),
    ("plan", "check", "-f", "{own}"),
    ("run", "--dry-run", "--no-project"),
    ("plan", "lock", "-f", "{own}", "-o", "{out}/plan.lock"),
    ("module", "vendor", "{out}/vendored", "-f", "{own}"),
    ("module", "validate", "{tool}", "--type", "tool"),
    ("module", "validate", "tool-bash"),
    ("module", "new", "tool", "tool-mine", "--dir", "{out}"),
    ("provider", "test", "openai"),
    ("provider", "models", "openai"),
    ("init", "--provider", "openai", "--model", "m", "--yes"),
]
"""Commands that fetch, install, import and connect, and what they are to do it with."""


@pytest.mark.parametrize("arguments", one_in(3, ((line,) for line in WORKING)), ids=" ".join)
async def test_other_commands_use_only_the_users_configuration(
    hostile: Hostile,
    env: dict[str, str | None],
    server: ScriptedLLM,
    users_tool: str,
    tmp_path: Path,
    arguments: tuple[str, ...],
) -> None:
    (tmp_path / "out").mkdir()
    plan = {"extends": "default", "tools": [{"module": "mytool", "source": users_tool}]}
    own = write_files(tmp_path, {"own.yaml": json.dumps(plan)}) / "own.yaml"
    places = {"own": str(own), "out": str(tmp_path / "out"), "tool": users_tool}
    filled = [argument.format(**places) for argument in arguments]
    done = await amplifier(hostile, env, *filled)
    assert hostile.damage == []
    assert done.code == 0, done.stdout + done.stderr
    for request in server.requests:
        assert SECRET not in request.raw.decode() + json.dumps(request.headers)


async def test_check_skips_an_untrusted_project_as_well(
    hostile: Hostile, env: dict[str, str | None]
) -> None:
    for arguments in (("plan", "check"), ("run", "--dry-run")):
        done = await amplifier(hostile, env, *arguments)
        assert (done.code, hostile.damage) == (78, []), done.stderr
        assert "amplifier trust" in done.stderr


async def test_a_run_without_a_terminal_stops(hostile: Hostile, env: dict[str, str | None]) -> None:
    runs: list[tuple[Any, tuple[str, ...]]] = [
        (None, ()),
        (None, ("-P", "evil")),
        (b"\0", ("--output", "json")),
        ("what is piped in", ("-q",)),
    ]
    for stdin, options in runs:
        done = await amplifier(hostile, env, "run", "hi", *options, stdin=stdin)
        assert (done.code, hostile.damage) == (78, []), done.stderr
        for way in ("amplifier trust", "--trust", "--no-project"):
            assert way in done.stderr
        if "json" in options:
            assert json.loads(done.stdout)["outcome"] == "configuration"
        assert not (done.home / "sessions").exists()


async def test_a_run_without_the_project_uses_the_users_configuration(
    hostile: Hostile,
    env: dict[str, str | None],
    server: ScriptedLLM,
    tmp_path: Path,
    users_tool: str,
) -> None:
    plan = {"extends": "default", "tools": [{"module": "mytool", "source": users_tool}]}
    for folder in (tmp_path, hostile.folder):
        write_files(folder, {"own.yaml": json.dumps(plan)})
    ways: list[tuple[tuple[str, ...], dict[str, str]]] = [
        (("--no-project",), {}),
        ((), {"AMPLIFIER_NO_PROJECT": "1"}),
        (("-f", str(tmp_path / "own.yaml")), {}),
        (("-f", str(hostile.folder / "own.yaml")), {}),
    ]
    for options, variables in ways:
        done = await amplifier(hostile, {**env, **variables}, "run", "hi", *options)
        assert (done.code, done.stdout) == (0, "an answer\n"), done.stderr
        assert hostile.damage == []
        tools = {tool["function"]["name"]: tool for tool in server.requests[-1].body["tools"]}
        assert tools["mytool"]["function"]["description"] == "as the user has it"
    for request in server.requests:
        assert SECRET not in request.raw.decode() + json.dumps(request.headers)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
async def test_no_process_executes_connects_or_reads_code_in_it(
    hostile: Hostile, env: dict[str, str | None], server: ScriptedLLM, tmp_path: Path
) -> None:
    """The same as seen by the operating system, including child processes."""
    trace = tmp_path / "trace"
    command = [
        "strace",
        "-f",
        "-y",
        "-s",
        "4096",
        "-e",
        "trace=execve,connect,openat,open",
        "-o",
        trace,
    ]
    command += [*amplifier_command(), "run", "--no-project", "hi"]
    environment = child_environment(Path(str(env["AMPLIFIER_HOME"])), env)
    options: dict[str, Any] = {
        "cwd": hostile.folder,
        "env": environment,
        "stdin": subprocess.DEVNULL,
    }
    done: subprocess.CompletedProcess[bytes] = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, **options
    )
    if b"ptrace" in done.stderr or not trace.exists():
        pytest.skip("strace is not allowed here")
    assert done.returncode == 0, done.stderr
    calls = trace.read_text(errors="replace").splitlines()
    programs = [call for call in calls if "execve(" in call and " = 0" in call]
    assert any("/uv" in call for call in programs)
    assert any("git" in call for call in programs)
    opened = [
        os.path.join(found[1], found[2])
        for call in calls
        if " = -1 " not in call and (found := re.search(r'AT_FDCWD<([^>]*)>, "([^"]*)"', call))
    ]
    assert any(path.startswith("/") for path in opened)
    read = {
        Path(path).relative_to(hostile.folder)
        for path in opened
        if Path(path).is_relative_to(hostile.folder) and Path(path).is_file()
    }
    # hooks-status asks git for the branch and the changed files.
    assert {path for path in read if path.parts[0] != ".git" or "hooks" in path.parts} == set()
    assert not [call for call in programs if str(hostile.folder) in call]
    ports = {int(port) for call in calls for port in re.findall(r"connect\(.*htons\((\d+)\)", call)}
    assert ports <= {int(server.base_url.rpartition(":")[2])}
    assert hostile.damage == []


def test_the_traps_work(hostile: Hostile) -> None:
    """What careless programs do in it leaves marks: no marks elsewhere mean something."""
    subprocess.run(["git", "status"], cwd=hostile.folder, capture_output=True)
    assert any("git-" in mark for mark in hostile.damage)
    subprocess.run([sys.executable, "-m", "typer"], cwd=hostile.folder, capture_output=True)
    assert "import-typer" in hostile.damage
    subprocess.run(
        [uv.find_uv_bin(), "pip", "compile", "-q", "pyproject.toml"],
        cwd=hostile.folder,
        capture_output=True,
        env=child_environment(hostile.folder, {"UV_HTTP_RETRIES": "0"}),
    )
    assert any("connection" in mark for mark in hostile.damage)


# -- on a terminal ------------------------------------------------------------------------


def chat(hostile: Hostile, env: dict[str, str | None], *arguments: str) -> Terminal:
    return Terminal("run", *arguments, cwd=hostile.folder, env=env)


async def test_a_chat_asks_and_continues_without_it(
    hostile: Hostile, env: dict[str, str | None], server: ScriptedLLM
) -> None:
    def talk() -> None:
        with chat(hostile, env) as terminal:
            shown = terminal.until(r"\[1\] trust +\[2\] skip project settings +\[3\] quit:")
            assert "you have not trusted yet" in " ".join(shown.split())
            assert re.search(r"settings\.yaml:\d+: source \.\./evil", shown)
            assert hostile.damage == []
            terminal.ask("2", "Ctrl-D to leave")
            terminal.ask("hi", "an answer")
            terminal.quit()

    await asyncio.to_thread(talk)
    assert hostile.damage == []
    assert len(server.requests) == 1
    assert not (Path(str(env["AMPLIFIER_HOME"])) / "trust").exists()


@pytest.mark.parametrize(
    ("keys", "prompt"),
    [("3" + ENTER, ()), ("quit" + ENTER, ("hi",)), (CTRL_C, ("hi",)), (CTRL_D, ())],
)
async def test_stopping_at_the_question_starts_nothing(
    hostile: Hostile,
    env: dict[str, str | None],
    server: ScriptedLLM,
    keys: str,
    prompt: tuple[str, ...],
) -> None:
    def stop() -> None:
        with chat(hostile, env, *prompt) as terminal:
            terminal.until("quit:")
            terminal.type(keys)
            assert terminal.finish() == 78
            assert "is not trusted" in terminal.shown

    await asyncio.to_thread(stop)
    assert hostile.damage == []
    assert not server.requests
    assert not (Path(str(env["AMPLIFIER_HOME"])) / "sessions").exists()


async def test_nothing_in_the_question_controls_the_terminal(
    hostile: Hostile, env: dict[str, str | None]
) -> None:
    name = "x\x1b]0;owned\x07\n[1] trust: 1\u202e.yaml"
    (hostile.folder / ".amplifier/profiles" / name).write_text("extends: '\x9b2J\x1b[2Jx'\n")
    shutil.rmtree(hostile.folder / ".amplifier/modules")

    def look() -> str:
        with chat(hostile, env) as terminal:
            terminal.until("quit:")
            terminal.type("3" + ENTER)
            terminal.finish()
            return terminal.raw

    raw = await asyncio.to_thread(look)
    assert "\x1b]0;" not in raw
    assert "\x1b[2J" not in raw
    assert "\x9b" not in raw
    assert "\u202e" not in raw
    assert r"x\x1b]0;owned\x07\x0a[1] trust: 1\u202e.yaml" in raw.replace("\r\n", "")
