"""A process imports from a project only what was hashed; each test in a process of its own."""

import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import run_python
from tests.support.module_repositories import write_files

GUARD = """
import sys
from pathlib import Path
from amplifier_app.trust import examine
from amplifier_app.trust.imports import guard_imports
from amplifier_core.loader import import_from_folder, import_from_path

project = Path(sys.argv[1])
modules = project / ".amplifier/modules"
guard_imports(examine(project / ".amplifier"))
"""

MODULE = {
    ".amplifier/modules/plain/plain.py": "value = 'source'\n",
    ".amplifier/modules/whole/__init__.py": "value = 'source'\n",
    ".amplifier/modules/whole/inner.py": "value = 'source'\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_files(tmp_path / "project", MODULE)


def run(project: Path, code: str, guard: str = GUARD) -> subprocess.CompletedProcess[str]:
    return run_python(guard + code, project, cwd=project.parent)


def printed(project: Path, code: str) -> str:
    done = run(project, code)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def plant_byte_code(project: Path) -> None:
    """Byte code that says "evil", and that Python takes without looking at the source."""
    for name in MODULE:
        source = project / name
        evil = project / "evil.py"
        evil.write_text("value = 'evil'\n")
        cached = source.parent / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(evil), cfile=str(cached), invalidation_mode=mode)


FROM_FOLDER = """
sys.path.insert(0, str(modules / "plain"))
print(import_from_folder("plain", modules / "plain").value)
"""
FROM_PATH = """
print(import_from_path(modules / "whole").value)
import whole.inner
print(whole.inner.value)
"""


@pytest.mark.parametrize("code", [FROM_FOLDER, FROM_PATH])
def test_sources_are_imported_instead_of_byte_code(project: Path, code: str) -> None:
    plant_byte_code(project)
    unguarded = run(project, code, guard=GUARD.replace("guard_imports(", "repr("))
    assert "evil" in unguarded.stdout, unguarded.stderr  # so it would be without the guard
    assert "evil" not in printed(project, code)


@pytest.mark.parametrize("code", [FROM_FOLDER, FROM_PATH])
def test_no_byte_code_is_written(project: Path, code: str) -> None:
    assert set(printed(project, code).split()) == {"source"}
    assert not list(project.rglob("*.pyc"))


def test_byte_code_without_source_is_not_found(project: Path) -> None:
    evil = write_files(project, {"evil.py": "value = 'evil'\n"}) / "evil.py"
    py_compile.compile(str(evil), cfile=str(project / ".amplifier/modules/plain/lonely.pyc"))
    code = 'sys.path.insert(0, str(modules / "plain"))\nimport lonely\n'
    assert "No module named 'lonely'" in run(project, code).stderr


@pytest.mark.parametrize("name", ["plain/plain.py", "plain/added.py"])
def test_changed_and_added_files_are_not_imported(project: Path, name: str) -> None:
    code = f"""
(modules / "{name}").write_text("print('evil')")
sys.path.insert(0, str(modules / "plain"))
import {Path(name).stem}
"""
    done = run(project, code)
    assert done.returncode == 1
    assert "trusted" in done.stderr
    assert "evil" not in done.stdout


def test_a_changed_package_is_not_imported(project: Path) -> None:
    code = """
(modules / "whole/__init__.py").write_text("print('evil')")
import_from_path(modules / "whole")
"""
    done = run(project, code)
    assert "was changed after the project was trusted" in done.stderr
    assert done.stdout == ""


def test_a_folder_that_shadows_the_init_file_is_not_imported(project: Path) -> None:
    write_files(project, {".amplifier/modules/whole/__init__/__init__.py": "value = 'other'\n"})
    plant_byte_code(project)
    assert printed(project, FROM_PATH).split() == ["source", "source"]


def test_a_changed_extension_is_not_loaded(project: Path) -> None:
    from importlib.machinery import EXTENSION_SUFFIXES

    name = f"plain/native{EXTENSION_SUFFIXES[0]}"
    write_files(project, {f".amplifier/modules/{name}": "as it was trusted"})
    code = f"""
(modules / "{name}").write_text("changed")
sys.path.insert(0, str(modules / "plain"))
import native
"""
    assert "was changed after the project was trusted" in run(project, code).stderr


def test_other_folders_are_imported_as_usual(project: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "project", {"outside/other.py": "value = 'other'\n"})
    code = """
sys.path.insert(0, str(project / "outside"))
import other
print(other.value)
"""
    assert printed(project, code) == "other"
    assert list((project / "outside").rglob("*.pyc"))


def test_an_environment_inside_a_selected_folder_is_exempt(project: Path) -> None:
    write_files(
        project,
        {
            ".amplifier/settings.yaml": "sources: {t: ..}\n",
            ".venv/lib/installed.py": "value = 'installed'\n",
        },
    )
    before = 'import sys\nsys.path.append(sys.argv[1] + "/.venv/lib")\n' + GUARD
    code = "import installed\nprint(installed.value)\n"
    assert run(project, code, guard=before).stdout == "installed\n"
    # Later only the project itself could add such a folder.
    late = 'sys.path.append(str(project / ".venv/lib"))\n' + code
    assert "is not part of the trusted content" in run(project, late).stderr


@pytest.mark.parametrize("name", ["node_modules", "__pycache__", ".venv"])
def test_nothing_is_imported_from_excluded_folders(project: Path, name: str) -> None:
    plain = project / ".amplifier/modules/plain"
    write_files(plain, {f"{name}/evil.pyc": "", f"{name}/evil.py": "print('EVIL')\n"})
    code = f"""
(modules / "plain/{name}/late.py").write_text("print('EVIL')")
sys.path.insert(0, str(modules / "plain"))
sys.path.insert(0, str(modules / "plain/{name}"))
import late
"""
    done = run(project, code)
    assert "is not part of the trusted content" in done.stderr
    assert "EVIL" not in done.stdout


def test_a_module_named_like_an_excluded_folder_is_covered(project: Path) -> None:
    write_files(project, {".amplifier/modules/node_modules/__init__.py": "value = 'source'\n"})
    code = """
print(import_from_path(modules / "node_modules").value)
(modules / "node_modules/late.py").write_text("print('EVIL')")
import node_modules.late
"""
    done = run(project, code)
    assert done.stdout == "source\n"
    assert "is not part of the trusted content" in done.stderr


def test_files_next_to_a_single_file_module_are_not_imported(project: Path) -> None:
    evil = "print('evil')\n"
    settings = "tools:\n  - module: tool-mine\n    source: ../tools/mine.py\n"
    files = {".amplifier/settings.yaml": settings, "tools/mine.py": "value = 'source'\n"}
    helpers = ("tools/colorsys.py", "tools/helper/__init__.py", "tools/spread/part.py")
    write_files(project, {**files, **dict.fromkeys(helpers, evil)})
    code = """
tools = project / "tools"
sys.path.insert(0, str(tools))
print(import_from_folder("mine", tools).value)
import colorsys
for name in ("helper", "spread.part"):
    try:
        __import__(name)
    except ImportError as error:
        print(error)
"""
    done = run(project, code)
    assert done.stdout.splitlines() == [
        "source",
        "No module named 'helper'",
        "No module named 'spread'",
    ]
    assert "helper" in done.stderr  # the reason is shown
    unguarded = run(project, code, guard=GUARD.replace("guard_imports(", "repr("))
    assert "evil" in unguarded.stdout
