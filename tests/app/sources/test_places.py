"""The one order in which a module is looked for."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from amplifier_app.base.errors import Location
from amplifier_app.plan.documents.scopes import Override
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.resolver import AppModuleSourceResolver
from tests.app.sources.test_installed import install
from tests.support.cli import Finished, run_amplifier
from tests.support.module_repositories import SEED_TOOL, write_files
from tests.support.plans import SMALL

TOOL = "amplifier_module_tool_bash/__init__.py"


class World:
    """A module `tool-bash` in every place at once; `take` removes the place that comes first."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        for name in ("environment", "workspace/tool-bash", "settings", "plan"):
            write_files(folder / name, SEED_TOOL)
        write_files(folder / "modules" / "amplifier-module-tool-bash", SEED_TOOL)
        write_files(folder / "site", {TOOL: "def mount(): ..."})
        install(folder / "site", "their-modules", {"tool-bash": "theirs.x:mount"})
        monkeypatch.syspath_prepend(folder / "site")
        self.environ = {
            "AMPLIFIER_MODULE_TOOL_BASH": str(folder / "environment"),
            "AMPLIFIER_MODULES": f"/nowhere{os.pathsep}{folder / 'modules'}",
        }
        self.workspace: Path | None = folder / "workspace"
        at = Location("settings.yaml", 3, 5)
        self.overrides = {"tool-bash": Override(str(folder / "settings"), at)}
        self.hint: str | None = str(folder / "plan")

    def resolver(self) -> AppModuleSourceResolver:
        return AppModuleSourceResolver(
            environ=self.environ, workspace=self.workspace, overrides=self.overrides
        )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def without_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    from amplifier_app.base import installed

    monkeypatch.setattr(installed, "bundled_modules", dict)


def without_installed(world: World) -> None:
    for folder in (world.folder / "site").glob("*.dist-info"):
        shutil.rmtree(folder)


def test_the_first_match_wins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, Callable[[], object]]] = [
        ("environment", lambda: world.environ.pop("AMPLIFIER_MODULE_TOOL_BASH")),
        ("workspace", lambda: setattr(world, "workspace", None)),
        ("settings", lambda: world.overrides.clear()),
        ("plan", lambda: setattr(world, "hint", None)),
        ("bundled", lambda: without_bundled(monkeypatch)),
        ("installed", lambda: without_installed(world)),
        ("folders", lambda: world.environ.clear()),
        ("convention", lambda: None),
    ]
    expected = {
        "environment": str(world.folder / "environment"),
        "workspace": str(world.folder / "workspace" / "tool-bash"),
        "settings": str(world.folder / "settings"),
        "plan": str(world.folder / "plan"),
        "bundled": "amplifier",
        "installed": "their-modules 1.0",
        "folders": str(world.folder / "modules" / "amplifier-module-tool-bash"),
        "convention": "amplifier_module_tool_bash",
    }
    for place, take in steps:
        source = world.resolver().resolve("tool-bash", world.hint)
        assert source.place == place
        assert source.text.startswith(expected[place])
        take()


def test_every_place_is_listed_with_the_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.environ.clear()
    world.workspace = None
    rows = world.resolver().resolve("tool-bash", world.hint).considered
    assert [(row.place, row.found is not None, row.chosen) for row in rows] == [
        ("environment", False, False),
        ("workspace", False, False),
        ("settings", True, True),
        ("plan", True, False),
        ("bundled", True, False),
        ("installed", True, False),
        ("folders", False, False),
        ("convention", True, False),
    ]
    reasons = {row.place: row.reason for row in rows}
    assert reasons["environment"] == "AMPLIFIER_MODULE_TOOL_BASH is not set"
    assert reasons["workspace"] == "no trusted project"
    assert reasons["settings"] == "first match"
    assert reasons["plan"] == "settings takes precedence"


def test_two_distributions_with_one_id_are_both_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        install(tmp_path / name, f"{name}-modules", {"tool-x": "x:mount"})
    monkeypatch.syspath_prepend(tmp_path / "second")
    monkeypatch.syspath_prepend(tmp_path / "first")
    rows = AppModuleSourceResolver().resolve("tool-x").considered
    found = [(row.found, row.chosen) for row in rows if row.found]
    assert found == [("first-modules 1.0", True), ("second-modules 1.0", False)]
    assert rows[-3].reason == "another distribution precedes it on the path"


@pytest.mark.parametrize(
    ("module_id", "variable"),
    [
        ("tool-bash", "AMPLIFIER_MODULE_TOOL_BASH"),
        ("my.tool_2", "AMPLIFIER_MODULE_MY_TOOL_2"),
    ],
)
def test_the_variable_of_an_id(module_id: str, variable: str, seed_tool: Path) -> None:
    resolver = AppModuleSourceResolver(environ={variable: str(seed_tool)})
    assert resolver.resolve(module_id).place == "environment"
    assert AppModuleSourceResolver(environ={variable: ""}).resolve("tool-bash").place == "bundled"


def test_the_variable_of_the_process_is_used(
    seed_tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMPLIFIER_MODULE_TOOL_BASH", "./my-tool")
    monkeypatch.chdir(seed_tool.parent)
    assert AppModuleSourceResolver().resolve("tool-bash").resolve() == seed_tool


def test_an_unavailable_source_is_reported_with_its_location_and_never_skipped(
    world: World, tmp_path: Path
) -> None:
    world.environ = {"AMPLIFIER_MODULE_TOOL_BASH": str(tmp_path / "gone")}
    with pytest.raises(SourceError, match=r"AMPLIFIER_MODULE_TOOL_BASH: folder .* does not exist"):
        world.resolver().resolve("tool-bash", world.hint)
    world.environ = {}
    for file in (tmp_path / "workspace" / "tool-bash").rglob("*.*"):
        file.unlink()
    with pytest.raises(SourceError, match=r"no module in .*workspace/tool-bash"):
        world.resolver().resolve("tool-bash", world.hint)
    world.workspace = None
    world.overrides = {"tool-bash": Override(str(tmp_path / "gone"), Location("s.yaml", 3, 5))}
    with pytest.raises(SourceError) as raised:
        world.resolver().resolve("tool-bash", world.hint)
    assert str(raised.value.location) == "s.yaml:3:5"


def test_a_link_out_of_the_project_is_not_a_workspace(seed_tool: Path, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "my-tool").symlink_to(seed_tool)
    resolver = AppModuleSourceResolver(workspace=tmp_path / "modules")
    with pytest.raises(SourceError, match="is a link out of the project"):
        resolver.resolve("my-tool")


async def test_failures_have_the_line_of_the_plan_or_of_its_override(
    tmp_path: Path,
) -> None:
    lines = {"a": 7, "b": 9, "c": 11}
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "tools": [{"module": name, "source": str(tmp_path / name)} for name in lines],
    }
    resolver = AppModuleSourceResolver(
        overrides={"b": Override(str(tmp_path / "other"), Location("settings.yaml", 2))},
        origin=lambda module_id, source: Location("plan.yaml", lines[module_id]),
    )
    with pytest.raises(SourceError, match="3 modules are unavailable") as raised:
        await resolver.prefetch(plan)
    text = str(raised.value)
    assert f"plan.yaml:7: a: folder {tmp_path}/a does not exist" in text
    assert f"settings.yaml:2: b: folder {tmp_path}/other does not exist" in text
    assert f"plan.yaml:11: c: folder {tmp_path}/c does not exist" in text
    plan["tools"] = plan["tools"][:1]  # type: ignore[index]
    with pytest.raises(SourceError) as raised:
        await resolver.prefetch(plan)
    assert str(raised.value.location) == "plan.yaml:7"
    assert raised.value.message.startswith(f"a: folder {tmp_path}/a does not exist")


def test_folders_of_modules_are_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path / "mods" / "amplifier-module-tool-echo", SEED_TOOL)
    (tmp_path / "plan.yaml").write_text(f"{SMALL}tools: [tool-echo]\n")

    def checked(folders: str | None) -> Finished:
        env = {"AMPLIFIER_MODULES": folders}
        return run_amplifier("plan", "check", "-f", "plan.yaml", cwd=tmp_path, env=env)

    found = checked(str(tmp_path / "mods"))
    assert (found.code, "amplifier-module-tool-echo" in found.stdout) == (0, True), found
    for folders in ("mods", "", None):
        missing = checked(folders)
        assert (missing.code, "unknown module 'tool-echo'" in missing.stderr) == (3, True)
        # Ids of one kind begin alike; that does not make them similar.
        assert "did you mean" not in missing.stderr
    listed = run_amplifier("module", "list", env={"AMPLIFIER_MODULES": str(tmp_path / "mods")})
    assert "amplifier-module-tool-echo" in listed.stdout
    removed = run_amplifier("module", "remove", "tool-echo")
    assert (removed.code, "did you mean" in removed.stderr) == (2, False)
