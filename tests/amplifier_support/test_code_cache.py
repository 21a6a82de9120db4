"""Modules come from one file like from their own compiled ones."""

import json
import marshal
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

    Attributes:
        start: The command that runs it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start: tuple[str, ...] = ("{python}", "{script}")
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
        (file,) = self.lib.glob("package/__pycache__/modules.*.bin")
        return file

    def write(self, source: Path, value: str) -> None:
        source.write_text(f"def value():\n    return {value!r}\n")

    def run(
        self,
        before: str = "",
        *,
        cwd: Path | None = None,
        **environment: str,
    ) -> dict[str, Any]:
        """Run it in a new interpreter, with further statements before it imports the package."""
        script = self.folder / "bin" / "program.py"
        code = PROGRAM.format(lib=str(self.lib), before=before, number=NUMBER)
        script.write_text(code)
        usual = {"PYTHONPATH": None, "PYTHONDONTWRITEBYTECODE": None}
        env = child_environment(self.folder, {**usual, **environment}, network=True)
        command = [
            word.format(python=sys.executable, script=script, code=code) for word in self.start
        ]
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


def test_a_folder_that_is_searched_first_in_a_package_counts(
    program: Program, saved: dict[str, Any]
) -> None:
    other = program.folder / "other"
    other.mkdir()
    program.write(other / "m5.py", "other")
    output = program.run(f"import package; package.__path__.insert(0, {str(other)!r})")
    assert output["modules"][7][-1] == "other"
    assert "package.m6" in output["cached"]


def test_a_package_that_takes_the_name_of_a_module_counts(
    program: Program, saved: dict[str, Any]
) -> None:
    (program.lib / "package/m5").mkdir()
    program.write(program.lib / "package/m5/__init__.py", "other")
    output = program.run()
    assert output["modules"][7][-1] == "other"
    assert "package.m6" in output["cached"]


def test_a_module_found_through_a_folder_that_was_added_is_not_found_without(
    program: Program,
) -> None:
    vendor = program.lib / "vendor"
    vendor.mkdir()
    program.write(vendor / "helper.py", "helper")
    added = f"sys.path.insert(0, {str(vendor)!r})"
    assert program.run(f"{added}\nimport helper\ndel sys.path[0]")["written"]
    with pytest.raises(AssertionError, match="No module named 'helper'"):
        program.run("import helper")
    assert program.run(f"{added}\nimport helper")["used"]


def test_a_source_replaced_by_one_of_the_same_time_and_size_counts(
    program: Program, saved: dict[str, Any]
) -> None:
    source = program.lib / "package/m3.py"
    state = source.stat()
    program.write(source.with_name("new"), "xx")
    os.utime(source.with_name("new"), ns=(state.st_atime_ns, state.st_mtime_ns))
    source.with_name("new").replace(source)
    Path(saved["modules"][5][2]).unlink()  # as a package manager does with the compiled file
    assert program.run()["modules"][5][-1] == "xx"


HOOK = """\
from importlib.machinery import FileFinder, SourceFileLoader
class Loader(SourceFileLoader):
    def get_code(self, name):
        return compile(self.get_data(self.path).decode().replace("return", "return 'hooked',"), self.path, "exec")
sys.path_hooks.insert(0, FileFinder.path_hook((Loader, [".py"])))
sys.path_importer_cache.clear()
"""


def test_a_hook_that_loads_modules_in_another_way_is_asked(
    program: Program, saved: dict[str, Any]
) -> None:
    output = program.run(HOOK)
    assert output["cached"] == []
    assert output["modules"][5][-1] == ["hooked", "m3"]
    again = program.run()
    assert again["modules"] == saved["modules"]
    assert len(again["cached"]) == NUMBER + 4


def test_modules_that_wait_for_their_first_use_are_not_imported(program: Program) -> None:
    (program.lib / "lazy.py").write_text("raise SystemExit('imported')")
    wait = """\
import importlib.util
spec = importlib.util.find_spec("lazy")
spec.loader = importlib.util.LazyLoader(spec.loader)
lazy = sys.modules["lazy"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lazy)
"""
    assert program.run(wait)["written"]


def test_a_full_file_is_not_written_again(program: Program) -> None:
    limits = "import amplifier_support.code_cache as c\nc._WORTH_SAVING, c._MAX_MODULES = 5, 10"
    assert program.run(limits)["written"]
    assert not program.run(limits)["written"]


def test_another_search_path_has_the_same_file(program: Program, saved: dict[str, Any]) -> None:
    output = program.run(PYTHONSAFEPATH="1")
    assert len(output["cached"]) == NUMBER + 4
    assert not output["written"]


def test_nothing_is_prepared_where_the_file_cannot_be_written(program: Program) -> None:
    assert not program.run(PYTHONPYCACHEPREFIX=os.devnull)["written"]


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell closes the stream")
@pytest.mark.parametrize("stream", [0, 2])
def test_the_file_does_not_become_a_closed_stream(
    program: Program, saved: dict[str, Any], stream: int
) -> None:
    check = f"try: os.fstat({stream})\nexcept OSError: pass\nelse: sys.exit('it is open')"
    program.start = ("sh", "-c", f'exec "$0" "$@" {stream}>&-', *program.start)
    assert program.run(check)["modules"] == saved["modules"]


def cut(data: bytes) -> bytes:
    return data[:-500]


def emptied(data: bytes) -> bytes:
    return b""


def without_code(data: bytes) -> bytes:
    end = int.from_bytes(data[:4], "little")
    return data[:4] + bytes(end - 4) + data[end:]


def with_other_values(data: bytes) -> bytes:
    end = int.from_bytes(data[:4], "little")
    return data[:4] + b"N" * (end - 4) + data[end:]


def with_a_damaged_index(data: bytes) -> bytes:
    start = int.from_bytes(data[:4], "little")
    return data[:start] + bytes(100) + data[start + 100 :]


def with_an_index_past_the_end(data: bytes) -> bytes:
    return b"\xff" * 4 + data[4:]


def with_the_index_of_another_version(data: bytes) -> bytes:
    start = int.from_bytes(data[:4], "little")
    return data[:start] + marshal.dumps((*marshal.loads(data[start:]), "more"))


@pytest.mark.parametrize(
    "damage",
    [
        with_the_index_of_another_version,
        cut,
        emptied,
        without_code,
        with_other_values,
        with_a_damaged_index,
        with_an_index_past_the_end,
    ],
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
    assert not list(program.lib.glob("package/__pycache__/modules.*"))


def test_modules_of_the_working_directory_are_not_saved(program: Program) -> None:
    output = program.run(cwd=program.folder / "bin")
    assert not output["used"]


def test_modules_of_the_working_directory_of_code_on_the_command_line_are_not_saved(
    program: Program,
) -> None:
    program.start = ("{python}", "-c", "{code}")
    assert not program.run()["used"]


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
