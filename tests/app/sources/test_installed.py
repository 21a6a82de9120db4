"""Modules that are there already."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from amplifier_app.base import installed
from tests.support.module_repositories import write_files


def install(folder: Path, name: str, points: dict[str, str], version: str = "1.0") -> None:
    """Put a distribution's metadata into a folder, as an installer does."""
    table = "".join(f"{key} = {value}\n" for key, value in points.items())
    write_files(
        folder / f"{name.replace('-', '_')}-{version}.dist-info",
        {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "entry_points.txt": f"[console_scripts]\nx = y:z\n\n[amplifier.modules]\n{table}",
        },
    )


def test_bundled_modules_come_from_our_metadata() -> None:
    ours = metadata.distribution("amplifier")
    points = ours.entry_points.select(group="amplifier.modules")
    found = installed.bundled_modules()
    assert {one.module_id: one.entry_point for one in found.values()} == {
        point.name: point.value for point in points
    }
    assert {one.version for one in found.values()} == {ours.version}
    assert "tool-bash" in found


def test_what_is_installed_meanwhile_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert installed.modules_on_path("late") == []
    install(tmp_path, "late-package", {"late": "late:mount"})
    assert [one.entry_point for one in installed.modules_on_path("late")] == ["late:mount"]


def test_many_modules_are_looked_for_in_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[str] = []
    read = metadata.entry_points
    monkeypatch.setattr(
        metadata, "entry_points", lambda **what: (readings.append(""), read(**what))[1]
    )
    installed._modules_in_folders.cache_clear()
    for number in range(20):
        installed.modules_on_path(f"missing-{number}")
    assert len(readings) == 1


def test_reading_them_does_not_import_a_metadata_library() -> None:
    code = (
        "import sys; from amplifier_app.base.installed import bundled_modules as found; assert found();"
        "print('importlib.metadata' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "False"


def test_other_distributions_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "their-modules", {"tool-x": "theirs.x:mount", "tool-y": "theirs.y:mount"})
    monkeypatch.syspath_prepend(tmp_path)
    assert installed.modules_on_path("tool-x") == [
        installed.Installed("tool-x", "theirs.x:mount", "their-modules", "1.0")
    ]
    assert [one.module_id for one in installed.list_modules("Their_Modules") or []] == [
        "tool-x",
        "tool-y",
    ]
    assert installed.list_modules("not-there") is None
    assert "tool-bash" not in {one.module_id for one in installed.modules_on_path()}


def test_a_package_is_found_by_convention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, {"amplifier_module_tool_x/__init__.py": ""})
    monkeypatch.syspath_prepend(tmp_path)
    assert installed.by_convention("tool-x") == "amplifier_module_tool_x:mount"
    assert installed.by_convention("tool-z") is None
    assert installed.by_convention("tool.z") is None
