"""`amplifier module update` in the real program: branches that move, an index that gets more."""

import json
from pathlib import Path

import pytest

from tests.e2e.test_lock_e2e import GREETER, Machine, plan
from tests.support.cli import Finished
from tests.support.module_repositories import SEED_TOOL, Repository, write_files
from tests.support.packages import wheel


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "home", tmp_path / "wheels")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    (tmp_path / "wheels").mkdir()
    made = Repository(tmp_path / "remotes" / "my-tool")
    made.commit(SEED_TOOL)
    return made


def update(machine: Machine, *arguments: str) -> Finished:
    return machine("module", "update", "-f", "plan.yaml", *arguments)


def rows(done: Finished) -> dict[str, tuple[str, str | None, str]]:
    """Module → state, old, new."""
    listed = json.loads(done.stdout)["modules"]
    return {row["module"]: (row["state"], row["old"], row["new"]) for row in listed}


def test_a_moved_branch_is_reported_fetched_and_locked(
    machine: Machine, repository: Repository
) -> None:
    old = repository.commit({})
    plan(machine.cwd, f"{repository.url}@main")
    machine.lock()
    assert rows(update(machine, "--check", "--output", "json"))["my-tool"][0] == "current"
    new = repository.commit({GREETER: SEED_TOOL[GREETER].replace("'Hello'", "'Changed'")})
    lock = (machine.cwd / "plan.lock.json").read_bytes()
    done = update(machine, "--check", "--output", "json")
    assert done.code == 9
    assert rows(done) == {"my-tool": ("newer", old, new)}
    assert (machine.cwd / "plan.lock.json").read_bytes() == lock
    assert not list((machine.home / "cache/git").glob(f"*/{new}*"))
    assert "Hello, world!" in machine.greeting()
    done = update(machine)
    assert done.code == 0
    assert f"{old[:12]} → {new[:12]}" in done.stdout
    assert machine.locked()["my-tool"]["commit"] == new
    assert "Changed, world!" in machine.greeting()
    assert update(machine, "--check").code == 0


def test_without_a_lock_the_old_version_is_the_last_used(
    machine: Machine, repository: Repository
) -> None:
    plan(machine.cwd, f"{repository.url}@main")
    assert rows(update(machine, "--output", "json"))["my-tool"][:2] == ("newer", None)
    assert machine.run().code == 0
    used = repository.commit({})
    assert machine.run().code == 0
    new = repository.commit({})
    # Looking does not count as using.
    update(machine, "--check")
    assert rows(update(machine, "--output", "json")) == {"my-tool": ("newer", used, new)}
    assert rows(update(machine, "--output", "json")) == {"my-tool": ("current", new, new)}
    assert not (machine.cwd / "plan.lock.json").exists()


def test_only_named_modules_are_updated_and_pinned_ones_are_reported(
    machine: Machine, repository: Repository
) -> None:
    first = repository.commit({})
    tools = [
        {"module": "tool-a", "source": f"{repository.url}@main"},
        {"module": "tool-b", "source": f"{repository.url}@main"},
        {"module": "tool-c", "source": f"{repository.url}@{first}"},
        {"module": "tool-d", "source": "./my-tool"},
    ]
    write_files(machine.cwd / "my-tool", SEED_TOOL)
    plan(machine.cwd, None, tools=tools)
    machine.lock()
    second = repository.commit({})
    done = update(machine, "tool-a", "tool-c", "--output", "json")
    assert rows(done) == {
        "tool-a": ("newer", first, second),
        "tool-c": ("pinned", first, first),
    }
    commits = {name: entry.get("commit") for name, entry in machine.locked().items()}
    assert commits == {"tool-a": second, "tool-b": first, "tool-c": first, "tool-d": None}
    assert rows(update(machine, "--check", "--output", "json"))["tool-b"][0] == "newer"
    for name, hint in (("tool-d", "tool-a, tool-b, tool-c"), ("tool-aa", "did you mean")):
        done = update(machine, name)
        assert (done.code, hint in done.stderr) == (2, True)


@pytest.mark.thorough
def test_a_package_of_the_index_is_updated(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    files = {name: text for name, text in SEED_TOOL.items() if name.startswith("my_tool/")}
    made = {"files": files, "modules": {"my-tool": "my_tool:mount"}}
    wheel(wheels, "my-tool", "1.0", **made)
    machine = Machine(tmp_path, "home", wheels)
    plan(machine.cwd, "my-tool>=1")
    machine.lock()
    wheel(wheels, "my-tool", "1.1", **made)
    assert machine.lock().stdout == ""
    done = update(machine, "--check", "--output", "json")
    assert (done.code, rows(done)) == (9, {"my-tool": ("newer", "1.0", "1.1")})
    assert update(machine).code == 0
    assert machine.locked()["my-tool"]["version"] == "1.1"
    plan(machine.cwd, "my-tool==1.0")
    assert rows(update(machine, "--check", "--output", "json"))["my-tool"][0] == "pinned"


def test_unreachable_sources_are_reported_and_the_lock_stays(
    machine: Machine, repository: Repository
) -> None:
    plan(machine.cwd, f"{repository.url}@main")
    machine.lock()
    lock = (machine.cwd / "plan.lock.json").read_bytes()
    repository.folder.rename(repository.folder.with_name("gone"))
    done = update(machine)
    assert done.code == 3
    assert "my-tool: " in done.stderr
    assert (machine.cwd / "plan.lock.json").read_bytes() == lock
    done = machine("module", "update", "-f", "plan.yaml", AMPLIFIER_OFFLINE="1")
    assert (done.code, "AMPLIFIER_OFFLINE" in done.stderr) == (78, True)
