"""Modules come from one file like from their own compiled ones."""

import json
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import child_environment, run_amplifier

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pread"), reason="the system cannot read at a place"
)

NUMBER = 45
"""Modules of the package, more than have to be missing before the file is written."""

PROGRAM = """\
import inspect, json, os, sys
sys.path.append({lib!r})
from amplifier_support.code_cache import CodeCache
cache = CodeCache(os.path.join({lib!r}, "package", "__init__.py"))
is_used = cache.use()
{before}
import package, top, importlib
modules = [package, top, *(importlib.import_module(f"package.m{{n}}") for n in range({number}))]
import package.inner.deep as deep
modules += [package.inner, deep]
def describe(module):
    spec = module.__spec__
    return [
        module.__name__, module.__file__, module.__cached__, getattr(module, "__path__", None),
        spec.origin, spec.cached, spec.has_location, spec.submodule_search_locations, spec.parent,
        spec.loader.is_package(spec.name), spec.loader.path, inspect.getsource(module.value),
        module.value.__code__.co_filename, module.value(),
    ]
described = [describe(module) for module in modules]
cached = [module.__name__ for module in modules if type(module.__spec__.loader).__name__ == "_Loader"]
content = cache.new_content() if is_used else None
if content is not None:
    with open(cache.file, "wb") as file:
        file.write(content)
print(json.dumps({{"used": is_used, "modules": described, "cached": cached, "written": content is not None}}))
"""


class Program:
    """A program with a package of its own.

    Args:
        folder: Where it is made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lib = folder / "lib"
        package = self.lib / "package"
        (package / "inner").mkdir(parents=True)
        sources = [package / "__init__.py", package / "inner/__init__.py", self.lib / "top.py"]
        sources += [package / "inner/deep.py", *(package / f"m{n}.py" for n in range(NUMBER))]
        for source in sources:
            self.write(source, source.stem)
        (folder / "bin").mkdir()

    @property
    def file(self) -> Path:
        (file,) = self.lib.glob("package/__pycache__/modules-*.bin")
        return file

    def write(self, source: Path, value: str) -> None:
        source.write_text(f"def value():\n    return {value!r}\n")

    def run(
        self, before: str = "", *, cwd: Path | None = None, **environment: str
    ) -> dict[str, Any]:
        """Run it in a new interpreter, with further statements before it imports the package."""
        script = self.folder / "bin" / "program.py"
        script.write_text(PROGRAM.format(lib=str(self.lib), before=before, number=NUMBER))
        usual = {"PYTHONPATH": None, "PYTHONDONTWRITEBYTECODE": None}
        env = child_environment(self.folder, {**usual, **environment}, network=True)
        command = [sys.executable, str(script)]
        done = subprocess.run(
            command, env=env, cwd=cwd, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.fixture
def saved(program: Program) -> dict[str, Any]:
    """The output of the run that wrote the file."""
    output = program.run()
    assert output["written"]
    assert output["cached"] == []
    return output


def test_modules_are_the_same(program: Program, saved: dict[str, Any]) -> None:
    again = program.run()
    assert len(again["cached"]) == len(again["modules"]) == NUMBER + 4
    assert again["modules"] == saved["modules"]
    assert not again["written"]


def test_a_changed_source_counts(program: Program, saved: dict[str, Any]) -> None:
    program.write(program.lib / "package/m3.py", "changed")
    assert "changed" in program.run()["modules"][5]
    (program.lib / "package/m4.py").unlink()
    with pytest.raises(AssertionError, match=r"No module named 'package\.m4'"):
        program.run()


def test_many_changed_sources_are_saved_again(program: Program, saved: dict[str, Any]) -> None:
    for n in range(NUMBER):
        program.write(program.lib / f"package/m{n}.py", "changed")
    assert program.run()["written"]
    last = program.run()
    assert len(last["cached"]) == NUMBER + 4
    assert [values[-1] for values in last["modules"]].count("changed") == NUMBER


def test_a_module_that_comes_first_now_is_imported(program: Program, saved: dict[str, Any]) -> None:
    assert "other" not in str(saved["modules"][1])
    program.write(program.folder / "bin/top.py", "other")
    assert program.run()["modules"][1][-1] == "other"


def test_a_folder_that_is_searched_first_now_counts(
    program: Program, saved: dict[str, Any]
) -> None:
    other = program.folder / "other"
    other.mkdir()
    program.write(other / "top.py", "other")
    output = program.run(f"sys.path.insert(0, {str(other)!r})")
    assert output["modules"][1][-1] == "other"
    assert "package.m1" in output["cached"]


def test_a_package_that_was_replaced_meanwhile_keeps_its_modules(
    program: Program, saved: dict[str, Any]
) -> None:
    other = program.folder / "other/package"
    shutil.copytree(program.lib / "package", other)
    program.write(other / "m5.py", "other")
    output = program.run(f"import package; package.__path__ = [{str(other)!r}]")
    assert output["modules"][7][-1] == "other"


def cut(data: bytes) -> bytes:
    return data[:-500]


def emptied(data: bytes) -> bytes:
    return b""


def without_code(data: bytes) -> bytes:
    size = 8 + int.from_bytes(data[:8], "little")
    return data[:size] + bytes(len(data) - size)


def with_other_values(data: bytes) -> bytes:
    size = 8 + int.from_bytes(data[:8], "little")
    return data[:size] + b"N" * (len(data) - size)


def with_a_damaged_index(data: bytes) -> bytes:
    return data[:8] + bytes(100) + data[108:]


def with_an_endless_index(data: bytes) -> bytes:
    return b"\xff" * 7 + b"\x00" + data[8:]


@pytest.mark.parametrize(
    "damage",
    [cut, emptied, without_code, with_other_values, with_a_damaged_index, with_an_endless_index],
)
def test_a_damaged_file_is_not_used(
    program: Program, saved: dict[str, Any], damage: Callable[[bytes], bytes]
) -> None:
    program.file.write_bytes(damage(program.file.read_bytes()))
    assert program.run()["modules"] == saved["modules"]


def test_a_descriptor_that_was_closed_is_noticed(program: Program, saved: dict[str, Any]) -> None:
    other = program.folder / "other"
    other.write_bytes(program.file.read_bytes().replace(b"m3", b"xx"))
    reopen = f"os.closerange(3, 50)\nfor _ in range(20): os.open({str(other)!r}, os.O_RDONLY)"
    assert program.run(reopen)["modules"] == saved["modules"]


def test_sources_without_compiled_files_are_saved_as_well(program: Program) -> None:
    source = program.lib / "package/m0.py"
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert program.run()["written"]
    shutil.rmtree(program.lib / "package/inner/__pycache__")
    assert len(program.run()["cached"]) == NUMBER + 4


@pytest.mark.parametrize("variable", ["PYTHONDONTWRITEBYTECODE", "PYTHONPATH"])
def test_variables_for_other_modules_and_without_files_are_obeyed(
    program: Program, variable: str
) -> None:
    value = "1" if variable == "PYTHONDONTWRITEBYTECODE" else str(program.lib)
    assert not program.run(**{variable: value})["written"]
    assert not list(program.lib.glob("package/__pycache__/modules-*"))


def test_modules_of_the_working_directory_are_not_saved(program: Program) -> None:
    output = program.run(cwd=program.folder / "bin")
    assert not output["used"]


def test_the_second_run_of_the_program_imports_from_the_file(tmp_path: Path) -> None:
    env = {
        "PYTHONPYCACHEPREFIX": str(tmp_path / "compiled"),
        "PYTHONDONTWRITEBYTECODE": None,
        "PYTHONPATH": None,
        "PYTHONVERBOSE": "1",
    }
    prompt = ("run", "-P", "mock", "--sandbox", "off", "hello")
    first, second = (
        run_amplifier(*prompt, home=tmp_path / "home", env=env, network=True, cold=True)
        for _ in range(2)
    )
    assert (first.code, second.code) == (0, 0), second.stderr[-2000:]
    assert first.stdout == second.stdout == "You said: hello\n"
    first_imports, second_imports = (
        [line for line in run.stderr.splitlines() if line.startswith("# code object from")]
        for run in (first, second)
    )
    assert len(first_imports) > 300
    assert len(second_imports) < 60
