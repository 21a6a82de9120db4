"""Locks in the real program: written by `plan lock`, required by `run --locked`."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import Finished, run_amplifier
from tests.support.module_repositories import SEED_TOOL, Repository, write_files
from tests.support.packages import wheel

GREETER = "my_tool/greeter.py"


class Machine:
    """A home of its own and, shared with others, the folder of the plan."""

    def __init__(self, folder: Path, name: str, wheels: Path | None = None) -> None:
        self.home = folder / name
        self.cwd = folder / "work"
        self.cwd.mkdir(exist_ok=True)
        self.env: dict[str, str | None] = {"UV_NO_INDEX": "1", "UV_CACHE_DIR": f"{self.home}/uv"}
        if wheels is not None:
            self.env["UV_FIND_LINKS"] = str(wheels)

    def __call__(self, *arguments: str, **env: str) -> Finished:
        return run_amplifier(*arguments, home=self.home, cwd=self.cwd, env={**self.env, **env})

    def run(self, *arguments: str, **env: str) -> Finished:
        return self("run", "-f", "plan.yaml", "go", "--output", "json", *arguments, **env)

    def lock(self, *arguments: str, **env: str) -> Finished:
        return self("plan", "lock", "-f", "plan.yaml", *arguments, **env)

    def locked(self) -> dict[str, Any]:
        """The modules of the lock that do not ship with the program."""
        modules = json.loads((self.cwd / "plan.lock.json").read_text())["modules"]
        return {name: entry for name, entry in modules.items() if entry["kind"] != "bundled"}

    def greeting(self) -> str:
        """What the tool of the plan answers in a run that is held to the lock."""
        done = self.run("--locked")
        assert done.code == 0, done.stderr
        session = json.loads(done.stdout)["session_id"]
        transcript = self.home / "sessions" / session / "transcript.jsonl"
        return next(
            message["content"]
            for line in transcript.read_text().splitlines()
            if (message := json.loads(line).get("message", json.loads(line))).get("role") == "tool"
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "home")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "remotes" / "my-tool")
    made.commit(SEED_TOOL)
    return made


def plan(folder: Path, source: str | None, **more: Any) -> Path:
    """A plan in which a scripted model calls the tool once."""
    calls = [{"name": "my-tool", "input": {"who": "world"}}]
    tool: dict[str, Any] = {"module": "my-tool"} | ({"source": source} if source else {})
    text = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [
            {"module": "provider-mock", "config": {"replies": [{"tool_calls": calls}, "done"]}}
        ],
        "tools": [tool],
        **more,
    }
    return write_files(folder, {"plan.yaml": yaml.safe_dump(text)}) / "plan.yaml"


def drifted(done: Finished, *messages: str) -> None:
    assert done.code == 78, done.stderr
    for message in messages:
        assert message in done.stderr
    assert "amplifier plan lock" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["outcome"] == "configuration"


def test_a_branch_stays_at_its_locked_commit_even_on_another_machine(
    machine: Machine, repository: Repository, tmp_path: Path
) -> None:
    commit = repository.commit({})
    plan(machine.cwd, f"{repository.url}@main")
    done = machine.lock()
    assert done.code == 0, done.stderr
    assert "my-tool: not locked" in done.stdout
    entry = machine.locked()["my-tool"]
    assert (entry["kind"], entry["commit"]) == ("git", commit)
    assert entry["source"] == f"{repository.url}@main"
    repository.commit({GREETER: SEED_TOOL[GREETER].replace("'Hello'", "'Changed'")})
    assert "Hello, world!" in machine.greeting()
    other = Machine(tmp_path, "other")
    assert "Hello, world!" in other.greeting()
    # Without the lock the branch is what it is now.
    assert other.run().code == 0
    assert len(list((other.home / "cache" / "git").glob("*/*/my_tool"))) == 2
    # And locking again keeps what is locked.
    assert machine.lock().stdout == ""
    assert machine.locked()["my-tool"]["commit"] == commit
    assert machine.lock("--check").code == 0


def test_a_plan_that_has_changed_is_refused_before_anything_is_fetched(
    machine: Machine, repository: Repository, tmp_path: Path
) -> None:
    plan(machine.cwd, f"{repository.url}@main")
    machine.lock()
    other = Machine(tmp_path, "other")
    plan(machine.cwd, "git+file:///nowhere/else@main")
    drifted(
        other.run("--locked"), f"my-tool: source {repository.url}@main → git+file:///nowhere/else"
    )
    plan(machine.cwd, f"{repository.url}@main", hooks=[{"module": "hooks-logging"}])
    update = "update the lock: amplifier plan lock -f plan.yaml\n"
    drifted(other.run("--locked"), "hooks-logging: not locked", update)
    env = {"AMPLIFIER_MODULE_MY_TOOL": str(repository.folder)}
    plan(machine.cwd, f"{repository.url}@main")
    drifted(other.run("--locked", **env), f"→ {repository.folder}")
    assert not (other.home / "cache").exists()
    assert not (other.home / "sessions").exists()
    # What only the lock knows does no harm to a run.
    plan(machine.cwd, None, tools=[])
    assert other.run("--locked").code == 0
    assert "my-tool" in machine.lock("--check").stdout


def test_the_files_of_a_folder_are_locked(machine: Machine, tmp_path: Path) -> None:
    write_files(machine.cwd / "my-tool", SEED_TOOL)
    plan(machine.cwd, "./my-tool")
    machine.lock()
    assert machine.locked()["my-tool"]["source"] == "./my-tool"
    assert str(tmp_path) not in (machine.cwd / "plan.lock.json").read_text()
    assert "Hello, world!" in machine.greeting()
    write_files(machine.cwd / "my-tool", {GREETER: SEED_TOOL[GREETER] + "\n# changed\n"})
    drifted(machine.run("--locked"), "my-tool: content ")
    for command in (("plan", "check"), ("run", "--dry-run")):
        done = machine(*command, "-f", "plan.yaml", "--locked")
        assert (done.code, "my-tool: content" in done.stderr) == (78, True)
    done = machine.lock("--check", "--output", "json")
    assert done.code == 78
    report = json.loads(done.stdout)
    assert [one["what"] for one in report["differences"]] == ["content"]
    assert all(len(one["new"]) == len("sha256:") + 64 for one in report["differences"])
    machine.lock()
    assert "Hello, world!" in machine.greeting()
    for command in (("plan", "check"), ("run", "--dry-run")):
        assert machine(*command, "-f", "plan.yaml", "--locked").code == 0
    # The folder may move with its plan.
    machine.cwd = machine.cwd.rename(tmp_path / "moved")
    assert "Hello, world!" in machine.greeting()


def test_a_package_and_its_requirements_stay_at_their_locked_versions(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheel(wheels, "some-lib", "1.0")
    greeter = (
        SEED_TOOL[GREETER]
        .replace("from typing", "import some_lib\nfrom typing")
        .replace('f"{greeting}, {who}!"', 'f"{who} {some_lib.VERSION}"')
    )
    files = {"my_tool/__init__.py": SEED_TOOL["my_tool/__init__.py"], GREETER: greeter}
    made: dict[str, Any] = {"files": files, "modules": {"my-tool": "my_tool:mount"}}
    wheel(wheels, "my-tool", "1.0", ("some-lib",), **made)
    machine = Machine(tmp_path, "home", wheels)
    plan(machine.cwd, "my-tool>=1")
    assert machine.lock().code == 0
    entry = machine.locked()["my-tool"]
    assert (entry["kind"], entry["distribution"], entry["version"]) == ("package", "my-tool", "1.0")
    assert entry["requirements"] == {"some-lib": "1.0"}
    wheel(wheels, "some-lib", "2.0")
    wheel(wheels, "my-tool", "2.0", ("some-lib",), **made)
    other = Machine(tmp_path, "other", wheels)
    assert "world 1.0" in other.greeting()
    assert not list((other.home / "cache/packages/my-tool").glob("2.0*"))
    lock = machine.cwd / "plan.lock.json"
    lock.write_text(lock.read_text().replace('"some-lib": "1.0"', '"some-lib": "3.0"'))
    done = other.run("--locked")
    assert done.code == 3
    assert "some-lib" in done.stderr
    assert machine.lock().code == 0
    assert machine.locked()["my-tool"]["requirements"] == {"some-lib": "1.0"}


def test_agents_and_conditionally_skipped_modules_are_locked_as_well(machine: Machine) -> None:
    write_files(machine.cwd / "my-tool", SEED_TOOL)
    plan(
        machine.cwd,
        None,
        tools=[],
        agents={"helper": {"tools": [{"module": "my-tool", "source": "./my-tool"}]}},
        providers=[
            {"module": "provider-mock"},
            {
                "module": "provider-far",
                "source": "./my-tool",
                "when": {"env": "FAR_KEY"},
                "config": {"api_key": "${FAR_KEY}"},
            },
        ],
    )
    done = machine.lock()
    assert done.code == 0, done.stderr
    assert machine.locked().keys() == {"my-tool", "provider-far"}


def test_a_password_is_not_in_the_lock_and_changing_it_is_not_drift(
    machine: Machine, repository: Repository
) -> None:
    plan(machine.cwd, "git+file://${PLACE_TOKEN}@main")
    env = {"PLACE_TOKEN": str(repository.folder)}
    assert machine.lock(**env).code == 0
    assert machine.locked()["my-tool"]["source"] == "git+file://${PLACE_TOKEN}@main"
    assert machine.run("--locked", **env).code == 0


def test_what_cannot_be_locked_is_reported_and_no_lock_is_written(machine: Machine) -> None:
    write_files(machine.cwd / "my-tool", SEED_TOOL)
    agents = {"helper": {"tools": [{"module": "my-tool", "source": "git+file:///x"}]}}
    for source, more, code, message in (
        ("./my-tool", {"agents": agents}, 78, "my-tool has two sources: ./my-tool (plan.yaml:"),
        ("git+file:///nowhere@main", {}, 3, "plan.yaml:"),
        (None, {}, 3, "unknown module 'my-tool'"),
    ):
        plan(machine.cwd, source, **more)
        done = machine.lock()
        assert (done.code, message in done.stderr) == (code, True), done.stderr
    assert not (machine.cwd / "plan.lock.json").exists()


def test_a_lock_in_another_place_and_a_missing_lock(machine: Machine) -> None:
    write_files(machine.cwd / "my-tool", SEED_TOOL)
    plan(machine.cwd, "./my-tool")
    done = machine.run("--locked")
    drifted(
        done, "plan.lock.json: the lock does not exist", "with: amplifier plan lock -f plan.yaml\n"
    )
    machine.lock("-o", "locks/prod.json")
    assert not (machine.cwd / "plan.lock.json").exists()
    assert machine.run("--lock", "locks/prod.json").code == 0
    (machine.cwd / "locks" / "prod.json").write_text("{")
    drifted(machine.run("--lock", "locks/prod.json"), "damaged")
    assert machine.lock("-o", "locks/prod.json").code == 78
    assert (machine.cwd / "locks" / "prod.json").read_text() == "{"


def test_a_resumed_session_must_match_the_lock_of_a_given_plan(
    machine: Machine,
) -> None:
    write_files(machine.cwd / "my-tool", SEED_TOOL)
    plan(machine.cwd, "./my-tool")
    machine.lock()
    session = json.loads(machine.run("--locked").stdout)["session_id"]
    done = machine("run", "--resume", session, "--locked", "go", "--output", "json")
    assert (done.code, "--lock FILE" in done.stderr) == (78, True)
    assert machine.run("--resume", session, "--locked").code == 0


def test_the_lock_of_a_projects_profile_is_in_the_project_and_keeps_it_trusted(
    machine: Machine,
) -> None:
    folder = machine.cwd / ".amplifier"
    plan(folder / "profiles", "../../my-tool").rename(folder / "profiles" / "team.yaml")
    write_files(machine.cwd / "my-tool", SEED_TOOL)
    assert machine("trust", "--yes").code == 0
    done = machine("plan", "lock", "-P", "team")
    assert done.code == 0, done.stderr
    assert (folder / "locks" / "team.lock.json").is_file()
    done = machine("run", "-P", "team", "--locked", "go")
    assert (done.code, done.stdout) == (0, "done\n"), done.stderr
    write_files(machine.cwd / "my-tool", {GREETER: SEED_TOOL[GREETER] + "# changed\n"})
    assert machine("run", "-P", "team", "--locked", "go").code == 78
    assert machine("trust", "--yes").code == 0
    done = machine("run", "-P", "team", "--locked", "go")
    assert (done.code, "content" in done.stderr) == (78, True)
