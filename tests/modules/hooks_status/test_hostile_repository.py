"""Repositories that name programs wherever git looks for them, and that reach for other folders."""

import os
import shutil
from pathlib import Path

import pytest

from amplifier_modules.hooks_status.hook import GitState, git_state
from tests.modules.hooks_status.test_status import git, spring_the_trap

PROGRAMS = (
    *("core.fsmonitor", "core.pager", "pager.status", "core.editor", "core.askPass"),
    *("core.sshCommand", "core.gitProxy", "core.alternateRefsCommand", "credential.helper"),
    *("diff.external", "diff.evil.command", "diff.evil.textconv", "merge.evil.driver"),
    *("interactive.diffFilter", "gpg.program", "sequence.editor", "uploadpack.packObjectsHook"),
    *("trailer.evil.command", "submodule.sub.update", "remote.origin.uploadpack"),
)
FILTERS = ("clean", "smudge", "process")


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The file that shows that a program of the repository ran."""
    return tmp_path / "ran"


@pytest.fixture
def program(tmp_path: Path, mark: Path) -> Path:
    file = tmp_path / "evil.sh"
    file.write_text(f"#!/bin/sh\necho $0 $* >> {mark}\ncat\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    (folder / "below").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for name in ("a.txt", "b.bin", "below/c.txt"):
        (folder / name).write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def touch_files(folder: Path) -> None:
    """Same size, other time: git has to compare contents, which is what filters are for."""
    (folder / "a.txt").write_text("two\n")
    for name in ("a.txt", "b.bin", "below/c.txt"):
        if (folder / name).exists():
            os.utime(folder / name, (1, 1))


def filter_section(name: str, program: Path) -> str:
    lines = [
        f'[filter "{name}"]',
        *(f"\t{key} = {program}" for key in FILTERS),
        "\trequired = true",
    ]
    return "\n".join(lines) + "\n"


async def read_status(folder: Path) -> GitState:
    state = await git_state(str(folder), 20)
    assert state is not None
    return state


@pytest.mark.parametrize(
    ("place", "driver"),
    [
        *(("config", driver) for driver in ("evil", "", "with.dot", "with space")),
        *((place, "evil") for place in ("include", "includeIf", "config.worktree")),
    ],
)
async def test_no_filter_runs(
    repository: Path, program: Path, mark: Path, place: str, driver: str
) -> None:
    (repository / ".gitattributes").write_text("* filter=evil diff=evil\n")
    (repository / ".git/info/attributes").write_text(f"*.txt filter={driver}\n")
    section = filter_section(driver, program) + filter_section("evil", program)
    config = repository / ".git" / "config"
    if place == "config":
        config.write_text(config.read_text() + section)
    elif place == "config.worktree":
        git(repository, "config", "extensions.worktreeConfig", "true")
        (repository / ".git" / "config.worktree").write_text(section)
    else:
        (repository / "evil.inc").write_text(section)
        head = "[include]" if place == "include" else f'[includeIf "gitdir:{repository}/"]'
        config.write_text(f"{config.read_text()}{head}\n\tpath = ../evil.inc\n")
    touch_files(repository)
    state = await read_status(repository)
    assert " M a.txt" in state.changes
    assert not any("b.bin" in change or "c.txt" in change for change in state.changes)
    assert not mark.exists()
    spring_the_trap(repository)
    assert mark.exists(), "the trap works"


async def test_no_program_of_the_configuration_or_hook_runs(
    repository: Path, program: Path, mark: Path
) -> None:
    sub = repository / "sub"
    shutil.copytree(repository / ".git", sub / ".git")
    git(sub, "reset", "-q", "--hard")
    git(repository, "-c", "advice.addEmbeddedRepo=false", "add", "sub")
    git(repository, "commit", "-q", "-m", "with a repository inside")
    for folder in (repository, sub):
        (folder / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
        hooks = folder / ".git" / "hooks"
        hooks.mkdir(exist_ok=True)
        for name in ("post-index-change", "fsmonitor-watchman", "query-watchman", "post-checkout"):
            shutil.copy(program, hooks / name)
        for command in ("status", "config"):
            git(folder, "config", f"alias.{command}", f"!{program}")
        for key in FILTERS:
            git(folder, "config", f"filter.evil.{key}", str(program))
        for key in PROGRAMS:
            git(folder, "config", key, f"!{program}" if "update" in key else str(program))
        git(folder, "config", "core.hooksPath", str(hooks))
        git(folder, "config", "status.submoduleSummary", "true")
        git(folder, "config", "diff.ignoreSubmodules", "none")
        touch_files(folder)
    mark.unlink(missing_ok=True)
    state = await read_status(repository)
    assert " M a.txt" in state.changes
    assert not mark.exists()
    spring_the_trap(repository)
    assert mark.exists(), "the trap works"


async def test_no_files_of_another_folder_are_shown(repository: Path, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    git(private, "init", "-q", "-b", "main")
    (private / "secret-plans.txt").write_text("")
    git(private, "add", ".")
    git(private, "commit", "-q", "-m", "first")
    (private / "another-secret.txt").write_text("")

    git(repository, "config", "core.worktree", str(private))
    assert await git_state(str(repository), 20) is None
    git(repository, "config", "--unset", "core.worktree")
    (repository / ".git" / "commondir").write_text(f"{private}/.git\n")
    assert "secret" not in str((await read_status(repository)).changes)
    (repository / ".git" / "commondir").unlink()

    for part in ("index", "refs", "HEAD", "objects"):
        kept = tmp_path / "kept"
        (repository / ".git" / part).rename(kept)
        (repository / ".git" / part).symlink_to(private / ".git" / part)
        assert await git_state(str(repository), 20) is None, part
        (repository / ".git" / part).unlink()
        kept.rename(repository / ".git" / part)

    for content in (f"gitdir: {private}/.git\n", "gitdir: ../private/.git", "gitdir: \0", "", "x"):
        other = tmp_path / "other"
        other.mkdir()
        (other / ".git").write_text(content)
        assert await git_state(str(other), 20) is None, content
        shutil.rmtree(other)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / ".git").symlink_to(private / ".git")
    assert await git_state(str(linked), 20) is None


async def test_a_worktree_of_another_repository_is_not_taken_for_ones_own(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"))
    imposter = tmp_path / "imposter"
    imposter.mkdir()
    shutil.copy(tmp_path / "tree" / ".git", imposter / ".git")
    assert await git_state(str(imposter), 20) is None


@pytest.mark.parametrize("name", ["HEAD", "config", "index", "refs/heads/main", "info/exclude"])
async def test_a_pipe_in_place_of_a_part_holds_nothing_up(repository: Path, name: str) -> None:
    (repository / ".git" / name).unlink()
    os.mkfifo(repository / ".git" / name)
    assert await git_state(str(repository), 0.5) is None


async def test_worktrees_and_submodules_are_repositories(repository: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    git(repository, "worktree", "add", "-q", "-b", "side", str(tree))
    (tree / "new.txt").write_text("")
    state = await read_status(tree / "below")
    assert (state.branch, state.changes) == ("side", ["?? new.txt"])
    assert (await read_status(repository)).changes == []

    upper = tmp_path / "upper"
    git(tmp_path, "init", "-q", "-b", "main", str(upper))
    allowed = ("-c", "protocol.file.allow=always")
    git(upper, *allowed, "submodule", "--quiet", "add", str(repository), "sub")
    (upper / "sub" / "a.txt").write_text("changed\n")
    inside = await read_status(upper / "sub")
    assert (inside.branch, inside.changes) == ("main", [" M a.txt"])
    assert (inside.upstream, inside.ahead, inside.behind) == ("origin/main", 0, 0)
    assert (await read_status(upper)).changes == ["A  .gitmodules", "A  sub"]


async def test_settings_that_change_how_files_compare_are_kept(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = tmp_path / "user.gitconfig"
    user.write_text(f"[core]\n\texcludesFile = {tmp_path}/ignored\n\tautocrlf = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(user))
    (tmp_path / "ignored").write_text("*.log\n")
    (repository / ".git/info/exclude").write_text("*.tmp\n")
    for name in ("x.log", "x.tmp", "x.txt"):
        (repository / name).write_text("")
    (repository / "a.txt").unlink()
    git(repository, "checkout", "-q", ".")
    assert (repository / "a.txt").read_bytes() == b"one\r\n"
    os.utime(repository / "a.txt", (1, 1))
    assert (await read_status(repository)).changes == ["?? x.txt"]
    git(repository, "update-index", "--split-index")
    git(repository, "config", "core.fileMode", "false")
    (repository / "b.bin").chmod(0o755)
    assert (await read_status(repository)).changes == ["?? x.txt"]


async def test_sparse_shallow_and_sha256_repositories(repository: Path, tmp_path: Path) -> None:
    git(repository, "commit", "-q", "--allow-empty", "-m", "second")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repository}", str(shallow))
    git(shallow, "sparse-checkout", "set", "nothing")
    git(shallow, "commit", "-q", "--allow-empty", "-m", "third")
    state = await read_status(shallow)
    assert (state.ahead, state.behind, state.changes) == (1, 0, [])
    other = tmp_path / "sha256"
    git(tmp_path, "init", "-q", "-b", "main", "--object-format=sha256", str(other))
    (other / "a.txt").write_text("one\n")
    git(other, "add", ".")
    git(other, "commit", "-q", "-m", "first")
    assert len((await read_status(other)).commit or "") == 64


async def test_a_git_of_the_folder_is_not_used(
    repository: Path, program: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository / "below")
    for folder in (repository, repository / "below", repository / "bin"):
        folder.mkdir(exist_ok=True)
        shutil.copy(program, folder / "git")
    system = os.environ["PATH"]
    for entry in (".", "", "..", "../bin", str(repository / "bin"), str(repository / "below")):
        monkeypatch.setenv("PATH", f"{entry}{os.pathsep}{system}")
        assert (await read_status(repository / "below")).branch == "main"
        assert not mark.exists(), entry
        if entry.startswith("/"):
            spring_the_trap(repository)
            assert mark.exists(), "the trap works"
            mark.unlink()
