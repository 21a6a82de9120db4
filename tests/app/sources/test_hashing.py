"""The hash of a module's files."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from amplifier_app.sources.fetch.staging import content_hash
from tests.support.module_repositories import write_files

FILES = {"pkg/__init__.py": "x = 1\n", "pkg/data.txt": "data", "run.sh": "#!/bin/sh\n"}


@pytest.fixture
def module(tmp_path: Path) -> Path:
    return write_files(tmp_path / "m", FILES)


def test_the_same_files_have_the_same_hash_wherever_they_are(module: Path, tmp_path: Path) -> None:
    other = write_files(tmp_path / "elsewhere" / "other", dict(reversed(FILES.items())))
    assert content_hash(module) == content_hash(other)
    assert content_hash(module).startswith("sha256:")
    assert len(content_hash(module)) == len("sha256:") + 64


@pytest.mark.parametrize(
    "name",
    [
        ".git/config",
        "pkg/__pycache__/__init__.cpython-311.pyc",
        ".venv/bin/python",
        "my_tool.egg-info/PKG-INFO",
        "dist/x.whl",
        "build/lib/x.py",
        "x-1.0.dist-info/RECORD",
        "x-1.0.dist-info/direct_url.json",
    ],
)
def test_generated_files_do_not_count(module: Path, name: str) -> None:
    before = content_hash(module)
    write_files(module, {name: "x"})
    assert content_hash(module) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda m: (m / "pkg/data.txt").write_text("date"),
        lambda m: (m / "pkg/data.txt").rename(m / "pkg/data2.txt"),
        lambda m: (m / "run.sh").chmod(0o755),
        lambda m: (m / "pkg/data.txt").unlink(),
        lambda m: write_files(m, {"new.py": ""}),
        lambda m: write_files(m, {"pkg/importable.pyc": ""}),
        lambda m: write_files(m, {"pkg/build/__init__.py": ""}),
        lambda m: write_files(m, {"x-1.0.dist-info/METADATA": ""}),
        lambda m: (m / "link").symlink_to("run.sh"),
        lambda m: (m / "link").symlink_to("pkg"),
    ],
)
def test_every_change_changes_the_hash(module: Path, change: Callable[[Path], object]) -> None:
    before = content_hash(module)
    change(module)
    assert content_hash(module) != before


def test_a_link_is_hashed_as_its_target_path(module: Path, tmp_path: Path) -> None:
    (module / "link").symlink_to("run.sh")
    linked = content_hash(module)
    (module / "link").unlink()
    (module / "link").symlink_to("./run.sh")
    assert content_hash(module) != linked
    (module / "link").unlink()
    (module / "link").write_text("run.sh")
    assert content_hash(module) != linked


def test_names_and_contents_are_kept_apart(tmp_path: Path) -> None:
    one = write_files(tmp_path / "one", {"a": "bc", "d": ""})
    two = write_files(tmp_path / "two", {"a": "b", "cd": ""})
    assert content_hash(one) != content_hash(two)


def test_the_hash_of_a_single_file_excludes_its_name(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.py": "x", "b.py": "x", "c.py": "y"})
    assert content_hash(tmp_path / "a.py") == content_hash(tmp_path / "b.py")
    assert content_hash(tmp_path / "a.py") != content_hash(tmp_path / "c.py")


def test_a_source_that_is_a_link_is_followed(module: Path, tmp_path: Path) -> None:
    os.symlink(module, tmp_path / "link")
    assert content_hash(tmp_path / "link") == content_hash(module)
