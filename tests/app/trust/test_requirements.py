"""What a project's modules require from this machine is covered by trust, or does not run."""

from pathlib import Path

import pytest

from amplifier_app.trust import TrustStore, examine
from amplifier_app.trust.selection import local_requirements
from tests.support.cli import run_amplifier
from tests.support.module_repositories import write_files

PROJECT = """
[project]
name = "mine"
version = "1"
dependencies = [{dependency}]
[project.entry-points."amplifier.modules"]
tool-mine = "mine:mount"
[build-system]
requires = [{build}]
{more}
"""

# Runs when it is built, and says so.
BACKEND = "open({proof!r}, 'w').close()\nraise SystemExit('built')\n"
REQUIRED = (
    "[project]\nname = 'dep'\nversion = '1'\n"
    "[build-system]\nrequires = []\nbuild-backend = 'be'\nbackend-path = ['.']\n"
)


def written(dependency: str = "", build: str = "", more: str = "") -> str:
    return PROJECT.format(dependency=dependency, build=build, more=more)


@pytest.mark.parametrize(
    "text",
    [
        written("'dep'", more="[tool.uv.sources]\ndep = {path = '../../../dep'}"),
        written(
            "'dep'", more="[tool.uv.sources]\ndep = [{path = '../../../dep', editable = true}]"
        ),
        written("'dep'", more="[tool.uv.sources]\ndep = {git = 'file://%ROOT%/dep'}"),
        written("'dep'", more="[tool.uv.sources]\ndep = {url = 'file://%ROOT%/dep'}"),
        written("'dep'", more="[tool.uv]\nfind-links = ['../../../dep']"),
        written("'dep @ file://%ROOT%/dep'"),
        written("'dep @ ../../../dep'"),
        written(build="'dep @ file://%ROOT%/dep'"),
        written("'near'", more="[tool.uv.sources]\nnear = {path = './near'}"),
    ],
)
def test_local_requirements_are_found(tmp_path: Path, text: str) -> None:
    near = "[tool.uv.sources]\ndep = {path = '../../../../dep'}\n"
    files = {"dep/pyproject.toml": REQUIRED, ".amplifier/modules/mine/near/pyproject.toml": near}
    write_files(tmp_path, files)
    module = tmp_path / ".amplifier/modules/mine"
    (module / "pyproject.toml").write_text(text.replace("%ROOT%", str(tmp_path)))
    assert local_requirements(module) == [tmp_path / "dep"]


def test_the_enclosing_workspace_is_found(tmp_path: Path) -> None:
    more = "[tool.uv.sources]\ndep = {workspace = true}"
    root = "[tool.uv.workspace]\nmembers = ['dep']\n"
    name = ".amplifier/modules/mine/pyproject.toml"
    write_files(tmp_path, {name: written("'dep'", more=more), "pyproject.toml": root})
    assert tmp_path in local_requirements(tmp_path / name.removesuffix("/pyproject.toml"))


def test_remote_requirements_are_ignored(tmp_path: Path) -> None:
    more = "[tool.uv.sources]\ndep = {git = 'https://host/dep', rev = 'v1'}"
    write_files(
        tmp_path, {"pyproject.toml": written("'dep', 'a>=1', 'b @ https://h/b.whl'", "", more)}
    )
    assert local_requirements(tmp_path) == []


@pytest.mark.parametrize("place", [".amplifier/modules/tool-mine", "tools/mine"])
def test_requirements_that_were_not_reviewed_are_not_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    proof, project = tmp_path / "proof", tmp_path / "project"
    source = "" if place.startswith(".") else f"\n    source: ../{place}"
    dep = f"[tool.uv.sources]\ndep = {{path = {str(project / 'dep')!r}}}"
    files = {
        ".amplifier/settings.yaml": f"profile: mock\ntools:\n  - module: tool-mine{source}\n",
        f"{place}/mine.py": "async def mount(coordinator, config=None): ...\n",
        f"{place}/pyproject.toml": written("'dep'", more=dep),
        "dep/pyproject.toml": REQUIRED,
        "dep/be.py": BACKEND.format(proof=str(proof)),
    }
    write_files(project, files)
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path / "home"))
    TrustStore().trust(examine(project / ".amplifier"))
    done = run_amplifier("run", "hi", cwd=project)
    assert done.code == 78
    assert (
        f"requires {project / 'dep'}, which was not reviewed when the project was trusted"
        in done.stderr
    )
    assert not proof.exists()
    TrustStore().trust(examine(project / ".amplifier"), always=True)
    run_amplifier("run", "hi", cwd=project)
    assert proof.exists()  # so it would be
