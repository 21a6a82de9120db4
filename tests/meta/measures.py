"""Figures of the code base: `python -m tests.meta.measures` prints them.

Code lines are lines without blank ones, comments, docstrings and imports.
"""

import ast
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"

PRODUCT = ("amplifier_support", "amplifier_core", "amplifier_modules", "amplifier_app")

_QUESTION = re.compile(r"\s*(What|Whether|Where|How)\b")
_KERNEL_SURFACE = (
    "validation",
    "utils",
    "cli",
    "testing",
    "pytest_plugin",
    "events",
    "capabilities",
)
"""Files of the kernel that are names and helpers rather than mechanism."""

_HELLO = """
import atexit, os, sys
before = set(sys.modules)
def write():
    with open(os.environ["LOADED"], "w") as file:
        file.write("\\n".join(set(sys.modules) - before))
atexit.register(write)
"""


def code_lines(text: str) -> int:
    """Count the lines of a source text that are code."""
    other: set[int] = set()
    for node in _statements(ast.parse(text)):
        constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, (ast.Import, ast.ImportFrom)) or (
            constant and isinstance(node.value.value, str)
        ):
            other.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in other
        for number, line in lines
    )


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below a node, without the expressions: a tenth of all nodes."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, field, ()):
            yield inner
            yield from _statements(inner)


@cache
def sources() -> dict[Path, str]:
    """Return the text of each source file."""
    return {path: path.read_text(encoding="utf-8") for path in sorted(SOURCES.rglob("*.py"))}


@cache
def _trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(text) for path, text in sources().items()}


def _package(path: Path) -> str:
    return path.relative_to(SOURCES).parts[0]


@cache
def lines_and_files() -> tuple[Counter[str], Counter[str]]:
    """Return the code lines and the files of each package."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path, text in sources().items():
        lines[_package(path)] += code_lines(text)
        files[_package(path)] += 1
    return lines, files


def count_single_importer_files() -> int:
    """Count the files that exactly one other file imports, which is in the same folder."""
    importers: defaultdict[Path, set[Path]] = defaultdict(set)
    for path, tree in _trees().items():
        for name in _imported_names(path, tree):
            file = SOURCES.joinpath(*name.split(".")).with_suffix(".py")
            if file in sources() and file != path:
                importers[file].add(path)
    return sum(
        len(found) == 1 and next(iter(found)).parent == file.parent
        for file, found in importers.items()
    )


def _imported_names(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = path.relative_to(SOURCES).parts[: -node.level]
                base = ".".join([*package, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def count_question_docstrings() -> int:
    """Count the docstrings that open with What, Whether, Where or How."""
    return sum(
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and bool(_QUESTION.match(node.value.value))
        for tree in _trees().values()
        for node in ast.walk(tree)
    )


def count_of_functions() -> int:
    """Count the functions named `x_of`."""
    return sum(
        isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.endswith("_of")
        for tree in _trees().values()
        for node in ast.walk(tree)
    )


def count_most_constants() -> int:
    """Count the constants named `MOST_x` or `LONGEST_x`."""
    name = re.compile(r"^_?(?:MOST|LONGEST)_\w+(?=:| =)", re.MULTILINE)
    return sum(len(name.findall(text)) for text in sources().values())


def count_files_with_late_imports() -> int:
    """Count the source files that may import inside functions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    ignores = project["tool"]["ruff"]["lint"]["per-file-ignores"]
    return sum("PLC0415" in codes and name.startswith("src/") for name, codes in ignores.items())


def count_kernel_layers() -> int:
    """Count the import layers of the kernel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (
        contract
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract["name"] == "Kernel layers"
    )
    return len(contract["layers"])


def count_mechanism_files() -> int:
    """Count the files of the kernel without published names, constants and helpers."""
    kernel = SOURCES / "amplifier_core"
    # Files that only lead to names of other files have no code.
    files = [path for path in kernel.rglob("*.py") if code_lines(sources()[path])]
    tops = [path.relative_to(kernel).parts[0].removesuffix(".py") for path in files]
    return sum(top not in (*_KERNEL_SURFACE, "__init__") for top in tops)


def count_hello_files() -> int:
    """Count the source files that a prompt to the profile `mock` imports."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(_HELLO)
        loaded = Path(folder) / "loaded"
        environment = {
            **os.environ,
            "PYTHONPATH": folder,
            "LOADED": str(loaded),
            "AMPLIFIER_HOME": str(Path(folder) / "home"),
        }
        command = [sys.executable, "-m", "amplifier_app.cli", "run", "-P", "mock", "hello"]
        subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True)
        names = loaded.read_text().split()
    return sum(name.startswith("amplifier_") for name in names)


_FRAMES = """
import asyncio, os, sys
from amplifier_app.cli import main
from amplifier_modules.provider_mock.provider import StreamingMockProvider as MockProvider
stream = MockProvider.stream_complete
def counted(self, request, **options):
    codes = []
    for task in asyncio.all_tasks():
        coroutine = task.get_coro()
        while getattr(coroutine, "cr_code", None) is not None:
            codes.append(coroutine.cr_code)
            coroutine = coroutine.cr_await
        if task is asyncio.current_task():
            frame = sys._getframe(1)
            while frame.f_code not in codes:
                codes.append(frame.f_code)
                frame = frame.f_back
    names = [code.co_name for code in codes if "amplifier_modules" in code.co_filename]
    assert "execute" in names
    with open(os.environ["FRAMES"], "w") as file:
        file.write("\\n".join(names))
    return stream(self, request, **options)
MockProvider.stream_complete = counted
sys.argv = ["amplifier", "run", "-P", "mock", "hello"]
sys.exit(main())
"""


def count_call_frames() -> int:
    """Count the own frames from `execute` of the loop to `stream_complete` of the provider."""
    with tempfile.TemporaryDirectory() as folder:
        counted = Path(folder) / "frames"
        home = str(Path(folder) / "home")
        environment = {**os.environ, "FRAMES": str(counted), "AMPLIFIER_HOME": home}
        command = [sys.executable, "-c", _FRAMES]
        subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True)
        return len(counted.read_text().split())


def count_test_lines() -> int:
    """Count the lines of all tests."""
    return sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / "tests").rglob("*.py")
    )


def table() -> list[tuple[str, str]]:
    """Return a row for each figure."""
    lines, files = lines_and_files()
    product = sum(lines[name] for name in PRODUCT)
    total, number = lines.total(), files.total()
    return [
        *((name, f"{lines[name]:,} code lines, {files[name]} files") for name in sorted(lines)),
        ("product", f"{product:,} code lines"),
        ("all", f"{total:,} code lines, {number} files"),
        ("files per 1,000 code lines", f"{number / total * 1000:.1f}"),
        ("files that only one neighbour imports", str(count_single_importer_files())),
        ("own files that a hello imports", str(count_hello_files())),
        ("own frames from execute to stream_complete", str(count_call_frames())),
        ("files of the kernel's mechanism", str(count_mechanism_files())),
        ("import layers of the kernel", str(count_kernel_layers())),
        ("docstrings with What, Whether, Where, How", str(count_question_docstrings())),
        ("functions x_of", str(count_of_functions())),
        ("constants MOST_x, LONGEST_x", str(count_most_constants())),
        ("files with imports inside functions", str(count_files_with_late_imports())),
        ("lines of tests", f"{count_test_lines():,}"),
    ]


if __name__ == "__main__":
    for label, figure in table():
        print(f"{label:44} {figure}")
