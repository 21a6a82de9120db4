"""Vendored modules in the real program: copied on one machine, run on another without any
network, repository or index."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.e2e.test_lock_e2e import GREETER, Machine, plan
from tests.support.module_repositories import SEED_TOOL, Repository, write_files
from tests.support.packages import wheel

SAYS = 'f"{greeting}, {who}!"'
NEEDS_LIB = {
    "pyproject.toml": SEED_TOOL["pyproject.toml"].replace("amplifier-core>=1.6", "some-lib"),
    GREETER: SEED_TOOL[GREETER]
    .replace("from typing", "import some_lib\nfrom typing")
    .replace(SAYS, 'f"{who} {some_lib.VERSION}"'),
}


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    wheel(folder, "some-lib", "1.0", ("pydantic",))
    return folder


@pytest.fixture
def machine(tmp_path: Path, wheels: Path) -> Machine:
    return Machine(tmp_path, "home", wheels)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "remotes" / "my-tool")
    made.commit({**SEED_TOOL, **NEEDS_LIB})
    return made


def elsewhere(machine: Machine, tmp_path: Path) -> Machine:
    """Another machine that got nothing but the folder of the plan."""
    shutil.rmtree(tmp_path / "wheels", ignore_errors=True)
    shutil.rmtree(tmp_path / "remotes", ignore_errors=True)
    shutil.move(machine.cwd, tmp_path / "moved")
    other = Machine(tmp_path, "other")
    other.cwd = tmp_path / "moved"
    return other


def answer(machine: Machine) -> str:
    """What the tool answers in a run without a network."""
    done = machine("run", "-f", "plan.yaml", "go", "--offline", "--output", "stream-json")
    assert done.code == 0, done.stderr
    return done.stdout


def test_a_module_runs_at_its_locked_commit_without_the_repository(
    machine: Machine, repository: Repository, tmp_path: Path
) -> None:
    plan(machine.cwd, f"{repository.url}@main")
    commit = repository.commit({"note.txt": "locked"})
    assert machine.lock().code == 0
    repository.commit({"note.txt": "newer"})
    done = machine("module", "vendor", "vendor", "-f", "plan.yaml")
    assert done.code == 0, done.stderr
    folder = machine.cwd / "vendor" / "my-tool"
    assert yaml.safe_load(done.stdout) == {"sources": {"my-tool": str(folder)}}
    assert {path.name for path in folder.iterdir()} == {
        "pyproject.toml",
        "my_tool",
        ".dependencies",
        "note.txt",
    }
    assert (folder / "note.txt").read_text() == "locked"
    manifest = json.loads((machine.cwd / "vendor/vendor.json").read_text())
    assert manifest["modules"]["my-tool"]["commit"] == commit
    assert manifest["made_for"]["python"].startswith("cpython-")
    packages = {path.name for path in (folder / ".dependencies").iterdir()}
    assert packages == {"some_lib", "some_lib-1.0.dist-info", "made-for.json"}
    plan(machine.cwd, "./vendor/my-tool")
    other = elsewhere(machine, tmp_path)
    assert "world 1.0" in answer(other)
    assert not (other.home / "cache" / "dependencies").exists()
    # Packages made for another machine are not used.
    note = other.cwd / "vendor/my-tool/.dependencies/made-for.json"
    note.write_text(note.read_text().replace(json.loads(note.read_text())["machine"], "vax"))
    done = other.run("--offline")
    assert done.code == 3
    assert "offline: not in the cache" in done.stderr


@pytest.mark.thorough
def test_a_package_of_the_index_runs_without_the_index(
    machine: Machine, wheels: Path, tmp_path: Path
) -> None:
    files = {
        name: text
        for name, text in {**SEED_TOOL, **NEEDS_LIB}.items()
        if name.startswith("my_tool/")
    }
    made = {"files": files, "modules": {"my-tool": "my_tool:mount"}}
    wheel(wheels, "my-tool", "1.5", ("some-lib", "amplifier-core"), **made)
    plan(machine.cwd, "my-tool>=1")
    done = machine("module", "vendor", "vendor", "-f", "plan.yaml", "--output", "json")
    assert done.code == 0, done.stderr
    report = json.loads(done.stdout)
    assert [(row["module"], row["state"]) for row in report["modules"]] == [("my-tool", "copied")]
    assert report["modules"][0]["was"]["version"] == "1.5"
    plan(machine.cwd, "./vendor/my-tool")
    assert "world 1.0" in answer(elsewhere(machine, tmp_path))


@pytest.mark.parametrize("kind", ["one file", "a folder that is the package"])
def test_modules_without_a_project(kind: str, machine: Machine, tmp_path: Path) -> None:
    code = SEED_TOOL[GREETER] + SEED_TOOL["my_tool/__init__.py"].replace(
        "from my_tool.greeter import MyTool\n", ""
    )
    source = "./single.py"
    if kind == "one file":
        write_files(machine.cwd, {"single.py": code})
    else:
        source = "./the_tool"
        files = {"__init__.py": "from the_tool.inner import mount\n", "inner.py": code}
        write_files(machine.cwd / "the_tool", files)
    plan(machine.cwd, source)
    done = machine("module", "vendor", "vendor", "-f", "plan.yaml", "--output", "json")
    assert done.code == 0, done.stderr
    folder = Path(json.loads(done.stdout)["modules"][0]["folder"])
    plan(machine.cwd, f"./{folder.relative_to(machine.cwd)}")
    shutil.rmtree(machine.cwd / "the_tool", ignore_errors=True)
    (machine.cwd / "single.py").unlink(missing_ok=True)
    assert "Hello, world!" in answer(elsewhere(machine, tmp_path))


@pytest.mark.thorough
def test_changed_copies_are_not_overwritten(machine: Machine, repository: Repository) -> None:
    plan(machine.cwd, f"{repository.url}@main")
    vendor = ("module", "vendor", "vendor", "-f", "plan.yaml")
    assert "copied" in machine(*vendor).stderr
    assert "unchanged" in machine(*vendor).stderr
    repository.commit({"note.txt": "newer"})
    assert "copied" in machine(*vendor).stderr
    mine = machine.cwd / "vendor/my-tool/note.txt"
    mine.write_text("mine")
    repository.commit({"note.txt": "newest"})
    done = machine(*vendor)
    assert (done.code, done.stdout) == (78, "")
    assert str(mine.parent) in done.stderr
    assert "--force" in done.stderr
    assert mine.read_text() == "mine"
    assert machine(*vendor, "--force").code == 0
    assert mine.read_text() == "newest"
    assert {path.name for path in (machine.cwd / "vendor").iterdir()} == {"my-tool", "vendor.json"}
    # Something of one's own that has the name of a module, in a folder that was never vendored.
    write_files(machine.cwd / "own" / "my-tool", {"own.txt": "mine"})
    assert machine("module", "vendor", "own", "-f", "plan.yaml").code == 78
    assert (machine.cwd / "own" / "my-tool" / "own.txt").read_text() == "mine"


@pytest.mark.thorough
def test_settings_can_use_a_copy_that_can_still_be_updated(
    machine: Machine, repository: Repository, tmp_path: Path
) -> None:
    (machine.cwd / ".amplifier").mkdir()
    plan(machine.cwd, f"{repository.url}@main")
    vendor = ("module", "vendor", "vendor", "-f", "plan.yaml", "--apply")
    assert machine(*vendor).code == 0
    settings = machine.cwd / ".amplifier" / "settings.yaml"
    assert settings.read_text() == "sources:\n  my-tool: ../vendor/my-tool\n"
    machine("trust", "--yes")
    repository.commit({"note.txt": "newer"})
    assert machine(*vendor).code == 0
    assert (machine.cwd / "vendor/my-tool/note.txt").read_text() == "newer"
    other = elsewhere(machine, tmp_path)
    assert other("trust", "--yes").code == 0
    assert "world 1.0" in answer(other)


def test_a_link_that_points_outside_is_reported(machine: Machine, tmp_path: Path) -> None:
    write_files(machine.cwd / "my-tool", SEED_TOOL)
    (machine.cwd / "my-tool" / "link").symlink_to(tmp_path)
    plan(machine.cwd, "./my-tool")
    done = machine("module", "vendor", "vendor", "-f", "plan.yaml")
    assert (done.code, "link" in done.stderr) == (3, True)
    assert not list((machine.cwd / "vendor").iterdir())


def test_bundled_modules_are_not_copied(machine: Machine) -> None:
    plan(machine.cwd, None, tools=[])
    done = machine("module", "vendor", "vendor", "-f", "plan.yaml")
    assert (done.code, done.stdout) == (0, "")
    assert "nothing" in done.stderr
