"""What the nodes of a cluster get."""

import asyncio
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.stdio import Output
from amplifier_app.commands.run.choose import choose
from amplifier_app.commands.run.request import Request
from amplifier_batch.engines.package import Package, pack
from tests.support.plans import module_folder

MODULE = "async def mount(coordinator, config):\n    pass\n"
PLAN = """\
extends: default
providers:
  - module: provider-anthropic
    config: {api_key: "${MY_PRIVATE_KEY}"}
hooks:
  - {module: hooks-noisy, source: ../amplifier-module-noisy}
"""


async def packed(folder: Path, archive: str = "a.zip") -> tuple[Package, zipfile.ZipFile]:
    file = folder.parent / archive
    request = Request(plan=folder / "plan.yaml", max_steps=3)
    chosen = choose(request, Output(2))
    package = await pack(file, request, chosen, folder, folder / "out")
    return package, zipfile.ZipFile(file)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.setenv("MY_PRIVATE_KEY", "sk-not-in-the-archive")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-also-not-there")
    monkeypatch.chdir(folder)
    module_folder(tmp_path, MODULE)
    (folder / "plan.yaml").write_text(PLAN)
    return folder


@pytest.mark.thorough
def test_the_same_batch_makes_the_same_archive_without_secrets(project: Path) -> None:
    (project / "out").mkdir()
    (project / "out" / "batch.json").write_text("{}")
    (project / ".gitignore").write_text(".env\n")
    (project / ".env").write_text("secret")
    (project / "leads-out").symlink_to("/etc/hostname")
    subprocess.run(["git", "init", "-q", project], check=True)
    package, archive = asyncio.run(packed(project))
    _, again = asyncio.run(packed(project, "b.zip"))
    first, second = (Path(str(one.filename)).read_bytes() for one in (archive, again))
    assert first == second
    assert b"sk-not-in-the-archive" not in first
    assert package.keys["MY_PRIVATE_KEY"] == "sk-not-in-the-archive"
    assert package.keys["ANTHROPIC_API_KEY"] == "sk-also-not-there"
    names = {name for name in archive.namelist() if name.startswith("batch/folder/")}
    assert names == {"batch/folder/plan.yaml", "batch/folder/.gitignore"}
    assert package.modules["AMPLIFIER_MODULE_HOOKS_NOISY"].startswith("batch/modules/hooks-noisy")
    assert "max_iterations: 3" in archive.read("batch/plan.yaml").decode()
    assert {"amplifier_batch/execution/worker.py", "pydantic/__init__.py"} <= {*archive.namelist()}


async def test_secrets_in_the_plan_itself_are_refused(project: Path) -> None:
    plan = project / "plan.yaml"
    plan.write_text(PLAN.replace("${MY_PRIVATE_KEY}", "sk-ant-api03-abcdefghijklmnop"))
    with pytest.raises(ConfigError, match="the plan contains secrets"):
        await packed(project)


def test_a_folder_whose_files_git_ignores_is_packed_empty(project: Path) -> None:
    (project / ".gitignore").write_text("*\n")
    (project / ".env").write_text("secret")
    subprocess.run(["git", "init", "-q", project], check=True)
    _, archive = asyncio.run(packed(project))
    assert not any(name.startswith("batch/folder/") for name in archive.namelist())


def test_a_tracked_link_to_an_ignored_file_is_not_packed(project: Path) -> None:
    (project / ".gitignore").write_text(".env\n")
    (project / ".env").write_text("secret")
    (project / "settings").symlink_to(".env")
    (project / "same-plan.yaml").symlink_to("plan.yaml")
    subprocess.run(["git", "init", "-q", project], check=True)
    subprocess.run(["git", "-C", project, "add", "settings"], check=True)
    _, archive = asyncio.run(packed(project))
    names = {name for name in archive.namelist() if name.startswith("batch/folder/")}
    expected = (".gitignore", "plan.yaml", "same-plan.yaml")
    assert names == {f"batch/folder/{name}" for name in expected}


@pytest.mark.parametrize("in_git", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_name_that_is_not_text_is_reported(project: Path, in_git: bool) -> None:
    Path(os.fsdecode(bytes(project) + b"/caf\xe9.txt")).write_text("coffee")
    if in_git:
        subprocess.run(["git", "init", "-q", project], check=True)
    with pytest.raises(ConfigError, match=r"caf.*its name is not UTF-8") as caught:
        asyncio.run(packed(project))
    assert "Rename it" in str(caught.value.hint)


def test_a_node_needs_no_installer() -> None:
    program = "import sys; sys.modules['uv'] = None; import amplifier_batch.engines.package"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
