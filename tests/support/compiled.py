"""Compiles the program and the tests once, before the workers start.

In a new clone, each worker would compile all of it: five times a quarter of a minute.
"""

import compileall
import os
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, cast

import pytest
from _pytest.assertion import rewrite

_ROOT = Path(__file__).parents[2]


def compile_all(config: pytest.Config) -> None:
    """Compile what has changed, in a process per core; a worker compiles what is still missing."""
    missing = [*_missing(_ROOT / "src"), *_missing(_ROOT / "tests")]
    if not missing or not hasattr(os, "fork"):
        return
    shares = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    children = [_compile_in_child(missing[share::shares], config) for share in range(shares)]
    for child in children:
        os.waitpid(child, 0)


def _missing(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.py") if not _is_compiled(path)]


def _is_compiled(path: Path) -> bool:
    try:
        return _compiled(path).stat().st_mtime_ns >= path.stat().st_mtime_ns
    except OSError:
        return False


def _compiled(path: Path) -> Path:
    if _has_rewritten_asserts(path):
        return rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
    return Path(cache_from_source(path))


def _has_rewritten_asserts(path: Path) -> bool:
    return path.name.startswith("test_") or path.name == "conftest.py"


def _compile_in_child(paths: list[Path], config: pytest.Config) -> int:
    child = os.fork()
    if not child:
        try:
            for path in paths:
                _compile(path, config)
        finally:
            os._exit(0)
    return child


def _compile(path: Path, config: pytest.Config) -> None:
    if not _has_rewritten_asserts(path):
        compileall.compile_file(path, quiet=2)
        return
    compiled = _compiled(path)
    compiled.parent.mkdir(exist_ok=True)
    # As a worker does it when it imports the file.
    private = cast("Any", rewrite)
    digest, code = private._rewrite_test(path, config)
    private._write_pyc(config.stash[rewrite.assertstate_key], code, digest, compiled)
