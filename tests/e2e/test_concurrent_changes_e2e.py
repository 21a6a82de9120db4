"""Commands that change settings, locks, keys or trust at the same time: what each reported is there."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from amplifier_app.base.keys import KeyStore
from tests.e2e.test_lock_e2e import GREETER
from tests.support.cli import child_environment, run_amplifier, start_amplifier
from tests.support.module_repositories import SEED_TOOL, Repository, write_files
from tests.support.thorough import Scale

SOURCE = "git+https://127.0.0.1:1/{}@main"


class Machine:
    def __init__(self, folder: Path) -> None:
        self.home, self.cwd = folder / "home", folder / "work"
        (self.cwd / ".amplifier").mkdir(parents=True)
        self.home.mkdir()

    def together(self, commands: Sequence[Sequence[str]], cwd: Sequence[Path] = ()) -> None:
        """Run commands at the same time; each must succeed."""
        folders = cwd or [self.cwd] * len(commands)
        running = [
            start_amplifier(*command, home=self.home, cwd=folder, env={"UV_NO_INDEX": "1"})
            for command, folder in zip(commands, folders, strict=True)
        ]
        for process in running:
            _, stderr = process.communicate(timeout=120)
            assert process.returncode == 0, stderr.decode()

    def settings(self, scope: str) -> dict[str, object]:
        folder = self.home if scope == "user" else self.cwd / ".amplifier"
        file = folder / "settings.yaml"
        return (yaml.safe_load(file.read_text()) or {}) if file.exists() else {}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def names(scale: Scale) -> list[str]:
    return [f"my-{number}" for number in range(scale(3, 12))]


@pytest.mark.parametrize("scope", [pytest.param("user", marks=pytest.mark.thorough), "project"])
def test_every_change_to_settings_is_kept(machine: Machine, names: list[str], scope: str) -> None:
    def change(*words: str) -> None:
        commands = [[word.format(name) for word in words] for name in names]
        machine.together([["module", *command, "--scope", scope] for command in commands])

    change("add", "{}", "--type", "tool", "--source", SOURCE)
    tools = machine.settings(scope)["tools"]
    assert isinstance(tools, list)
    assert sorted(entry["module"] for entry in tools) == sorted(names)
    change("remove", "{}")
    assert machine.settings(scope) == {}
    change("override", "{}", SOURCE)
    assert machine.settings(scope)["sources"] == {name: SOURCE.format(name) for name in names}
    if scope == "project":
        shown = run_amplifier("trust", "--show", home=machine.home, cwd=machine.cwd)
        assert "not trusted" not in shown.stdout


def test_every_updated_module_is_in_the_lock(tmp_path: Path, names: list[str]) -> None:
    machine = Machine(tmp_path)
    repositories = {name: Repository(tmp_path / "remotes" / name) for name in names}
    seed = {path: text.replace("my-tool", "{}") for path, text in SEED_TOOL.items()}
    for name, repository in repositories.items():
        repository.commit({path: text.replace("{}", name) for path, text in seed.items()})
    tools = [{"module": name, "source": f"{r.url}@main"} for name, r in repositories.items()]
    write_files(machine.cwd, {"plan.yaml": plan_with(tools)})
    machine.together([["plan", "lock", "-f", "plan.yaml"]])
    new = {
        name: repository.commit({GREETER: f"# {name}\n"})
        for name, repository in repositories.items()
    }
    machine.together([["module", "update", "-f", "plan.yaml", name] for name in names])
    locked = json.loads((machine.cwd / "plan.lock.json").read_text())["modules"]
    assert {name: locked[name]["commit"] for name in names} == new


def plan_with(tools: list[dict[str, str]]) -> str:
    parts = {"orchestrator": {"module": "loop-basic"}, "context": {"module": "context-simple"}}
    providers = [{"module": "provider-mock"}]
    return yaml.safe_dump({"session": parts, "providers": providers, "tools": tools})


def test_every_trusted_project_and_every_key_is_kept(
    machine: Machine, names: list[str], tmp_path: Path
) -> None:
    projects = [tmp_path / "projects" / name for name in names]
    for project in projects:
        write_files(project, {".amplifier/settings.yaml": "profile: mock\n"})
    # The same project twice: the second writer of a record must not fail either.
    folders = [*projects, projects[0]]
    machine.together([["trust", "--yes"]] * len(folders), folders)
    listed = run_amplifier(
        "trust", "--list", "--output", "json", home=machine.home, cwd=machine.cwd
    )
    assert listed.stdout.count(str(tmp_path / "projects")) == len(projects)
    keys = [f"KEY_{number}" for number, _ in enumerate(names)]
    store = (
        "import sys; from amplifier_app.base.keys import KeyStore; KeyStore().store(*sys.argv[1:])"
    )
    environment = child_environment(machine.home)
    running = [
        subprocess.Popen([sys.executable, "-c", store, key, f"sk-{key}", "file"], env=environment)
        for key in keys
    ]
    assert [process.wait(60) for process in running] == [0] * len(keys)
    assert sorted(KeyStore(machine.home / "keys").names()) == sorted(keys)
