"""`amplifier module new`: what it makes works, for every kind, in real processes."""

import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from amplifier_app.base.errors import UsageError
from amplifier_kit.scaffold.command import generate
from tests.support.cli import Finished, run_amplifier, run_python, succeed
from tests.support.conditions import Conditions

NAMES = {
    "tool": "my-tool",
    "provider": "provider-parrot",
    "hook": "hooks-watch",
    "orchestrator": "loop-plain",
    "context": "context-recent",
}

ANSWERS = {
    "tool": ("The tool has counted.", [("my_tool", "ok")]),
    "provider": ("You said: Is anyone there?", []),
    "hook": ("I was not allowed to run it.", [("bash", "denied")]),
    "orchestrator": ("The command said hello.", [("bash", "ok")]),
    "context": ("You said: Is anyone there?", []),
}
"""What a run of the module's own plan answers, and the tools it called."""


PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"

Made = Callable[[str], Path]


def new(kind: str, name: str, folder: Path, *options: str) -> Finished:
    return run_amplifier("module", "new", kind, name, *options, cwd=folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A new module of each kind, made when it is first asked for; tests leave it as it is."""
    parent = tmp_path_factory.mktemp("modules")
    home = tmp_path_factory.mktemp("home")

    @cache
    def make(kind: str) -> Path:
        name = NAMES[kind]
        done = run_amplifier("module", "new", kind, name, cwd=parent, home=home)
        assert (done.code, done.stdout) == (0, f"{name}\n"), done.stderr
        return parent / name

    return make


def tool_of(name: str) -> str:
    script = Path(sys.executable).with_name(name)
    assert script.exists(), f"{name} belongs to the development tools"
    return str(script)


@pytest.mark.parametrize("kind", NAMES)
def test_the_tests_of_a_new_module_pass(kind: str, made: Made) -> None:
    folder = made(kind)
    # Some of what is rewritten for assertions has been imported by the interpreter it is cloned from.
    ignored = "ignore::pytest.PytestAssertRewriteWarning"
    options = ("-q", "-p", "no:cacheprovider", "-W", "error", "-W", ignored)
    pytest_variables = dict.fromkeys(name for name in os.environ if name.startswith("PYTEST"))
    done = run_python(PYTEST, *options, cwd=folder, env=pytest_variables)
    assert done.returncode == 0, done.stdout + done.stderr
    match = re.search(r"^(\d+) passed in", done.stdout, re.MULTILINE)
    assert match, done.stdout
    assert int(match[1]) >= 11, "the suites of the kernel and tests of its own"
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("kind", NAMES)
def test_a_new_module_is_valid_in_every_respect(kind: str, made: Made) -> None:
    # The suites of behaviour are among the tests of a new module.
    behavioral = ("--behavioral",) if kind == "tool" else ()
    done = run_amplifier(
        *("module", "validate", ".", *behavioral, "--output", "json"), cwd=made(kind)
    )
    report = json.loads(done.stdout)
    assert done.code == 0, report
    assert [check for check in report["checks"] if not check["passed"]] == []
    assert report["type"] == kind


@pytest.mark.parametrize("kind", NAMES)
def test_the_plan_of_a_new_module_shows_it_at_work(kind: str, made: Made, tmp_path: Path) -> None:
    folder = made(kind)
    done = run_amplifier(
        *("run", "--plan", "plan.yaml", "--output", "json", "Is anyone there?"), cwd=folder
    )
    # The hook denies a call, which is what its plan shows.
    assert done.code == (8 if kind == "hook" else 0), done.stderr
    result = json.loads(done.stdout)
    answer, calls = ANSWERS[kind]
    assert result["response"] == answer
    assert [(tool["name"], tool["outcome"]) for tool in result["tools"]] == calls
    assert result["usage"]["total_tokens"] > 0


def test_a_new_module_is_mounted_by_a_plan_next_to_it(made: Made) -> None:
    parent = made("tool").parent
    plan = (
        "session: {orchestrator: loop-basic, context: context-simple}\n"
        "providers:\n"
        "  - module: provider-mock\n"
        "    config:\n"
        "      replies:\n"
        "        - tool_calls: [{name: my_tool, input: {text: one two}}]\n"
        "      on_end: echo\n"
        "tools: [{module: my-tool, source: ./my-tool}]\n"
    )
    (parent / "mine.yaml").write_text(plan)
    done = succeed("run", "--plan", "mine.yaml", "Count.", cwd=parent)
    assert '"words": 2' in done.stdout


def test_a_setting_a_new_module_does_not_know_is_refused(made: Made) -> None:
    done = run_amplifier(
        *("module", "validate", ".", "-c", "max_charcters=5", "--output", "json"), cwd=made("tool")
    )
    failed = {c["name"]: c["message"] for c in json.loads(done.stdout)["checks"] if not c["passed"]}
    assert done.code == 3
    assert "'max_charcters' was unexpected" in failed["config_schema"]
    assert "max_charcters: Extra inputs are not permitted" in failed["protocol_compliance"]


@pytest.mark.parametrize("kind", NAMES)
def test_what_is_made_is_clean(kind: str, made: Made, tmp_path: Path) -> None:
    folder = made(kind)
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [tool_of("ruff"), *command, "--no-cache", str(folder)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    package = f"amplifier_module_{NAMES[kind].replace('-', '_')}"
    assert project["entry-points"]["amplifier.modules"] == {NAMES[kind]: f"{package}:mount"}
    assert project["name"] == f"amplifier-module-{NAMES[kind]}"
    assert project["dependencies"] == []
    assert (folder / package / "py.typed").exists()
    for file in folder.rglob("*"):
        # Another test may have run the module's own tests here.
        if file.is_file() and "__pycache__" not in file.parts:
            assert "${" not in file.read_text(), file
    readme = (folder / "README.md").read_text()
    assert f"module: {NAMES[kind]}" in readme


def test_the_next_steps_are_listed_on_stderr(tmp_path: Path) -> None:
    done = new("tool", "my-tool", tmp_path, "--dir", "deep er/modules")
    assert done.stdout == "deep er/modules/my-tool\n"
    steps = done.stderr.splitlines()
    assert steps[1] == "  cd 'deep er/modules/my-tool'"
    assert any("amplifier module validate . --behavioral" in step for step in steps)
    assert (tmp_path / "deep er" / "modules" / "my-tool" / "plan.yaml").is_file()


def test_the_name_of_a_bundled_module_is_a_notice(tmp_path: Path) -> None:
    done = new("tool", "tool-bash", tmp_path)
    assert done.code == 0
    assert "a bundled module is also called tool-bash" in done.stderr.lower()


def test_an_invalid_name_is_refused_with_a_valid_one(tmp_path: Path) -> None:
    for name, hint in (
        ("My Tool", "Use 'my-tool'."),
        ("myTool", "Use 'my-tool'."),
        ("my--tool", "Use 'my-tool'."),
        ("3d-view", "Use 'd-view'."),
        ("../evil", "Use 'evil'."),
        ("/etc/evil", "Use 'etc-evil'."),
        ("", "Use a name such as 'my-tool'."),
        ("ünïcödé", "Use 'n-c-d'."),
        ("a" * 51, f"Use '{'a' * 50}'."),
    ):
        with pytest.raises(UsageError, match="invalid module name") as refused:
            generate("tool", name, tmp_path / "here")
        assert refused.value.hint == hint
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_name_is_a_usage_error(tmp_path: Path) -> None:
    done = new("tool", "My\x1b[2JTool", tmp_path)
    assert (done.code, done.stdout) == (2, "")
    assert "invalid module name" in done.stderr
    assert "\x1b" not in done.stderr
    assert new("tol", "my-tool", tmp_path).code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["folder", "link"])
def test_nothing_is_overwritten(what: str, tmp_path: Path) -> None:
    there = tmp_path / "my-tool"
    if what == "folder":
        there.mkdir()
    else:
        there.symlink_to(tmp_path / "nowhere")
    before = os.lstat(there)
    done = new("tool", "my-tool", tmp_path)
    assert (done.code, done.stdout) == (2, "")
    assert "already exists" in done.stderr
    assert os.lstat(there) == before
    assert [path.name for path in tmp_path.iterdir()] == ["my-tool"]


def test_a_folder_that_is_not_writable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = new("tool", "my-tool", tmp_path, "--dir", "file")
    assert (done.code, done.stdout) == (2, "")
    assert "cannot write file/my-tool: " in done.stderr
    assert "Traceback" not in done.stderr


def test_the_owner_can_use_it_whatever_the_umask(tmp_path: Path) -> None:
    succeed(*("module", "new", "tool", "my-tool"), cwd=tmp_path, conditions=Conditions(umask=0o777))
    assert stat.S_IMODE((tmp_path / "my-tool").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "my-tool" / "README.md").stat().st_mode) == 0o600
