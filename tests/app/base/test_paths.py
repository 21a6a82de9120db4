"""Which folder is the project's: what is found from where, and where the search ends."""

import os
from pathlib import Path

import pytest

from amplifier_app.base.paths import project_dir


def make(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return make(tmp_path / "home")


def test_the_nearest_ancestor_with_the_folder_is_the_project(home: Path) -> None:
    outer = make(home / "outer" / ".amplifier")
    inner = make(home / "outer" / "inner" / ".amplifier")
    deep = make(home / "outer" / "inner" / "src" / "deep")
    assert project_dir(deep) == inner
    assert project_dir(inner.parent) == inner
    assert project_dir(home / "outer") == outer
    assert project_dir(inner) == inner


def test_the_working_directory_is_where_the_search_starts(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = make(home / "work" / ".amplifier")
    monkeypatch.chdir(found.parent)
    assert project_dir() == found


@pytest.mark.parametrize("git", ["folder", "worktree file", "dangling link"])
def test_a_repository_ends_the_search(home: Path, git: str) -> None:
    make(home / "outer" / ".amplifier")
    repository = make(home / "outer" / "repository")
    if git == "folder":
        (repository / ".git").mkdir()
    elif git == "worktree file":
        (repository / ".git").write_text("gitdir: /elsewhere")
    else:
        (repository / ".git").symlink_to("/no/such/place")
    below = make(repository / "src")
    assert project_dir(below) is None
    own = make(repository / ".amplifier")
    assert project_dir(below) == own


def test_the_home_directory_is_not_a_project_and_ends_the_search(home: Path) -> None:
    make(home.parent / ".amplifier")
    make(home / ".amplifier")
    assert project_dir(make(home / "somewhere")) is None
    assert project_dir(home) is None
    assert project_dir(home / ".amplifier") is None


def test_the_home_directory_is_known_by_any_name(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(home / ".amplifier")
    link = home.parent / "link"
    link.symlink_to(home)
    monkeypatch.setenv("HOME", str(link))
    assert project_dir(make(home / "somewhere")) is None


def test_amplifier_home_is_not_a_project(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outer = make(home / "outer" / ".amplifier")
    moved = make(home / "outer" / "inner" / ".amplifier")
    monkeypatch.setenv("AMPLIFIER_HOME", str(moved))
    assert project_dir(moved.parent) == outer


@pytest.mark.skipif(os.name == "nt", reason="needs permissions of this kind")
def test_a_project_in_a_shared_folder_is_ignored(home: Path) -> None:
    shared = make(home / "shared")
    make(shared / ".amplifier")
    below = make(shared / "mine")
    assert project_dir(below) == shared / ".amplifier"
    shared.chmod(0o1777)
    assert project_dir(below) is None
    assert project_dir(shared) is None


@pytest.mark.parametrize("what", ["file", "dangling link", "link to itself"])
def test_a_project_must_be_a_folder(home: Path, what: str) -> None:
    outer = make(home / "outer" / ".amplifier")
    odd = make(home / "outer" / "inner") / ".amplifier"
    if what == "file":
        odd.write_text("")
    else:
        odd.symlink_to("/no/such/place" if what == "dangling link" else odd)
    assert project_dir(odd.parent) == outer


def test_links_on_the_way_are_resolved(home: Path) -> None:
    found = make(home / "real" / ".amplifier")
    (home / "link").symlink_to(home / "real")
    assert project_dir(home / "link") == found


@pytest.mark.skipif(os.name == "nt", reason="the working directory cannot be removed there")
def test_a_removed_working_directory_has_no_project(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = make(home / "gone")
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert project_dir() is None
