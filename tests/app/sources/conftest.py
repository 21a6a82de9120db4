"""A repository and a folder with a module; the home and the imports of a test are its own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.module_repositories import SEED_TOOL, Repository, write_files


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "remotes" / "my-tool.git")


@pytest.fixture
def seed_tool(tmp_path: Path) -> Path:
    return write_files(tmp_path / "my-tool", SEED_TOOL)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("AMPLIFIER_HOME", str(folder))
    return folder


@pytest.fixture(autouse=True)
def clean_imports(tmp_path: Path) -> Iterator[None]:
    """What a test imports from its own folders is forgotten after it."""
    before, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        places = [getattr(sys.modules[name], "__file__", None) or ""]
        places += getattr(sys.modules[name], "__path__", None) or ()
        if any(place.startswith(str(tmp_path)) for place in places):
            del sys.modules[name]
