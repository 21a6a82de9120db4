"""What `amplifier module validate` is pointed at: a path, a source, or an id."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit.validation.samples import PROJECT, TOOL, write_module
from tests.support.cli import run_amplifier
from tests.support.module_repositories import SEED_TOOL, Repository, write_files
from tests.support.packages import index, wheel


def report_on(subject: str, folder: Path, *options: str, **env: str) -> dict[str, Any]:
    done = run_amplifier(
        *("module", "validate", subject, *options, "--output", "json"), cwd=folder, env=env
    )
    assert done.code == 0, (done.stdout, done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def messages(report: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["message"] for check in report["checks"]}


def test_a_bundled_module_is_checked_by_its_id(tmp_path: Path) -> None:
    report = report_on("tool-bash", tmp_path)
    assert report["subject"].startswith("tool-bash (amplifier ")
    assert report["type"] == "tool"
    assert report["entry_point"] == "amplifier_modules.tool_bash:mount"
    found = messages(report)
    assert found["module_importable"] == "imported as amplifier_modules.tool_bash"
    assert "declares tool-bash as amplifier_modules.tool_bash:mount" in found["entry_point"]


def test_a_folder_here_goes_before_a_module_of_that_id(tmp_path: Path) -> None:
    write_module(tmp_path / "tool-bash", TOOL)
    report = report_on("tool-bash", tmp_path)
    assert report["subject"] == str(tmp_path / "tool-bash")


def test_an_id_means_the_module_that_a_run_would_use(tmp_path: Path) -> None:
    write_module(tmp_path / "mine", TOOL)
    report = report_on("tool-bash", tmp_path, AMPLIFIER_MODULE_TOOL_BASH=str(tmp_path / "mine"))
    assert report["entry_point"] == "amplifier_module_thing:mount"


def test_a_git_source_is_fetched(repository: Repository, tmp_path: Path) -> None:
    repository.commit({f"inner/{name}": text for name, text in SEED_TOOL.items()})
    source = f"{repository.url}@main#subdirectory=inner"
    # Of a source that is named nothing else takes the place.
    elsewhere = {"AMPLIFIER_MODULE_MY_TOOL": str(tmp_path / "elsewhere")}
    report = report_on(source, tmp_path, "--type", "tool", **elsewhere)
    assert report["subject"] == source
    found = messages(report)
    assert found["structure"] == "the package is my_tool"
    assert found["entry_point"] == "pyproject.toml declares my-tool as my_tool:mount"


@pytest.mark.parametrize("as_url", [False, True])
def test_an_archive_is_unpacked(as_url: bool, tmp_path: Path) -> None:
    write_module(tmp_path / "source" / "thing", TOOL)
    archive = Path(shutil.make_archive(str(tmp_path / "thing"), "zip", tmp_path / "source"))
    report = report_on(archive.as_uri() if as_url else archive.name, tmp_path)
    assert report["entry_point"] == "amplifier_module_thing:mount"


def test_a_package_with_a_version_comes_from_the_index(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    files = {"amplifier_module_thing/__init__.py": TOOL}
    points = {"thing": "amplifier_module_thing:mount"}
    wheel(wheels, "amplifier-module-thing", "1.2", files=files, modules=points)
    url = index(tmp_path / "index", wheels)
    report = report_on("amplifier-module-thing==1.2", tmp_path, UV_DEFAULT_INDEX=url)
    assert "1.2 declares thing as amplifier_module_thing:mount" in messages(report)["entry_point"]


def test_a_requirement_is_installed_for_the_module_alone(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheel(wheels, "needed-for-it", "3.1")
    url = index(tmp_path / "index", wheels)
    project = PROJECT.replace("dependencies = []", 'dependencies = ["needed-for-it>=3"]')
    code = f"import needed_for_it\nassert needed_for_it.VERSION == '3.1'\n{TOOL}"
    write_module(tmp_path / "thing", code, project)
    report = report_on("./thing", tmp_path, "--behavioral", UV_DEFAULT_INDEX=url)
    assert "installed into" in messages(report)["dependencies"]


def test_a_source_that_cannot_be_had_ends_with_3(tmp_path: Path) -> None:
    gone = f"git+file://{tmp_path}/gone"
    done = run_amplifier("module", "validate", gone, cwd=tmp_path)
    assert (done.code, done.stdout) == (3, "")
    assert "cannot fetch" in done.stderr


def test_a_single_file_is_a_module(tmp_path: Path) -> None:
    write_files(tmp_path, {"shout.py": TOOL})
    report = report_on("shout.py", tmp_path, "--behavioral")
    assert report["entry_point"] == "shout:mount"
    assert messages(report)["execute_returns_tool_result"] == "follows the contract"
