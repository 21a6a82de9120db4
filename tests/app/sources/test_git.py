"""Fetching real repositories."""

import json
import os
import time
from pathlib import Path

import pytest

from amplifier_app.plan.source_spec import GitSource, parse_source
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.fetch import git as git_cache
from amplifier_app.sources.fetch.git import GitCache
from tests.support.module_repositories import Repository, git, write_files
from tests.support.processes import is_alive


def source(text: str) -> GitSource:
    parsed = parse_source(text, Path("/"))
    assert isinstance(parsed, GitSource)
    return parsed


@pytest.fixture
def cache(tmp_path: Path) -> GitCache:
    return GitCache(tmp_path / "cache")


@pytest.mark.skipif(os.name == "nt", reason="modes are POSIX")
def test_the_cache_is_private(repository: Repository, tmp_path: Path) -> None:
    repository.commit({"a.py": "1"})
    before = os.umask(0)
    try:
        GitCache(tmp_path / "new" / "cache" / "git").fetch(source(repository.url))
    finally:
        os.umask(before)
    for folder in ("new", "new/cache", "new/cache/git"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700, folder


def test_tags_branches_commits_and_the_default_branch(
    repository: Repository, cache: GitCache
) -> None:
    first = repository.commit({"a.py": "1"}, tag="v1", annotated=True)
    second = repository.commit({"a.py": "2"}, tag="v2")
    git(repository.folder, "checkout", "--quiet", "-b", "feature/x")
    third = repository.commit({"a.py": "3"})
    git(repository.folder, "checkout", "--quiet", "main")
    for ref, commit, text in [
        ("@v1", first, "1"),
        ("@v2", second, "2"),
        ("@feature/x", third, "3"),
        ("", second, "2"),
        (f"@{first}", first, "1"),
        ("@refs/heads/main", second, "2"),
    ]:
        checkout = cache.fetch(source(repository.url + ref))
        assert checkout.commit == commit, ref
        assert (checkout.folder / "a.py").read_text() == text, ref


def test_a_moved_branch_is_followed_and_the_old_commit_stays_cached(
    repository: Repository, cache: GitCache, tmp_path: Path
) -> None:
    repository.commit({"a.py": "1"})
    old = cache.fetch(source(f"{repository.url}@main"))
    repository.commit({"a.py": "2"})
    assert cache.fetch(source(f"{repository.url}@main")) == old, "one look-up for each branch"
    new = GitCache(tmp_path / "cache").fetch(source(f"{repository.url}@main"))
    assert (new.folder / "a.py").read_text() == "2"
    assert (old.folder / "a.py").read_text() == "1"


def test_a_tag_takes_precedence_over_a_branch_of_its_name(
    repository: Repository, cache: GitCache
) -> None:
    tagged = repository.commit({"a.py": "1"}, tag="same")
    git(repository.folder, "checkout", "--quiet", "-b", "same")
    repository.commit({"a.py": "2"})
    assert cache.look_up(source(f"{repository.url}@same")) == tagged


def test_a_cached_commit_needs_no_git(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repository.commit({"a.py": "1"})
    text = f"{repository.url}@{commit}"
    GitCache(tmp_path / "cache").fetch(source(text))
    monkeypatch.setattr(git_cache, "find_program", lambda name, folder: None)
    offline = GitCache(tmp_path / "cache")
    assert offline.fetch(source(text)).commit == commit


def test_the_commit_is_recorded_and_no_repository_is_left(
    repository: Repository, tmp_path: Path
) -> None:
    commit = repository.commit({"a.py": "1"}, tag="v1")
    folder = GitCache(tmp_path / "cache").fetch(source(f"{repository.url}@v1")).folder
    record = json.loads((folder.parent / "source.json").read_text())
    assert record["commit"] == commit
    assert record["ref"] == "v1"
    assert not list((tmp_path / "cache").rglob(".git"))
    assert not list((tmp_path / "cache").rglob(".stage-*"))


def test_a_subdirectory_that_is_a_link_out_is_refused(
    repository: Repository, cache: GitCache, tmp_path: Path
) -> None:
    (repository.folder / "out").symlink_to(tmp_path)
    repository.commit({"a.py": ""})
    with pytest.raises(SourceError, match="leaves the repository"):
        cache.fetch(source(f"{repository.url}#subdirectory=out"))


@pytest.mark.parametrize(
    ("suffix", "message", "hint"),
    [
        ("@v9", "has no branch or tag 'v9'", "check the part after '@'"),
        ("@abcdef1", "has no branch or tag 'abcdef1'", "use the full 40-digit commit"),
        ("#subdirectory=gone", "has no folder 'gone'", "#subdirectory="),
        ("@" + "a" * 40, "not our ref|did not send|unable to read|not a tree|a{40}", None),
    ],
)
def test_missing_refs_and_folders_are_reported(
    suffix: str, message: str, hint: str | None, repository: Repository, cache: GitCache
) -> None:
    repository.commit({"a.py": ""})
    with pytest.raises(SourceError, match=message) as raised:
        cache.fetch(source(repository.url + suffix))
    assert hint is None or hint in (raised.value.hint or "")


def test_a_missing_repository_shows_gits_message(cache: GitCache, tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match=r"cannot fetch .*gone.*: .*gone.* does not appear to be a git"
    ):
        cache.fetch(source(f"git+file://{tmp_path}/gone"))
    with pytest.raises(SourceError, match=r"cannot fetch https://u:\*\*\*@127\.0\.0\.1:1/r: "):
        cache.fetch(source("git+https://u:secret@127.0.0.1:1/r"))


def test_an_empty_repository_is_reported(repository: Repository, cache: GitCache) -> None:
    with pytest.raises(SourceError, match="is empty"):
        cache.fetch(source(repository.url))


def test_a_missing_git_is_reported(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_cache, "find_program", lambda name, folder: None)
    with pytest.raises(SourceError, match="git is not installed") as raised:
        GitCache(tmp_path / "c").fetch(source(repository.url))
    assert "Install git" in (raised.value.hint or "")


def test_a_failed_fetch_leaves_nothing_that_looks_like_a_commit(
    repository: Repository, cache: GitCache, tmp_path: Path
) -> None:
    repository.commit({"a.py": ""})
    with pytest.raises(SourceError):
        cache.fetch(source(f"{repository.url}@{'a' * 40}"))
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.name != ".lock"][1:]


# -- isolation ---------------------------------------------------------------------------


def trap(tmp_path: Path) -> tuple[Path, str]:
    """A script that leaves a trace when it runs."""
    trace = tmp_path / "trace"
    script = tmp_path / "trap.sh"
    script.write_text(f"#!/bin/sh\necho ran >> {trace}\ncat 2>/dev/null\n")
    script.chmod(0o755)
    return trace, str(script)


def test_configuration_and_environment_run_no_hooks_and_filters(
    repository: Repository, cache: GitCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, script = trap(tmp_path)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-checkout", "reference-transaction", "post-index-change"):
        (hooks / name).symlink_to(script)
    config = (
        f"[core]\n hooksPath = {hooks}\n fsmonitor = {script}\n sshCommand = {script}\n"
        f" gitProxy = {script}\n askPass = {script}\n"
        f'[filter "evil"]\n smudge = {script}\n clean = {script}\n required = true\n'
        f"[credential]\n helper = {script}\n[uploadpack]\n packObjectsHook = {script}\n"
        f"[init]\n templateDir = {tmp_path}/template\n[protocol]\n allow = always\n"
        '[remote "origin"]\n url = /nowhere\n fetch = +refs/pull/*:refs/pull/*\n'
    )
    write_files(tmp_path / "template" / "hooks", {"post-checkout": Path(script).read_text()})
    (tmp_path / "template" / "hooks" / "post-checkout").chmod(0o755)
    replaced = f'[url "ext::{script} "]\n insteadOf = file://\n'
    write_files(tmp_path, {"user/.gitconfig": config, "global": config, "system": config})
    evil = Repository(tmp_path / "work")
    (evil.folder / ".git" / "config").write_text(config + replaced)
    monkeypatch.chdir(evil.folder)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "global"))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(tmp_path / "system"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "0")
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(tmp_path / "template"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", script)
    monkeypatch.setenv("GIT_ASKPASS", script)
    monkeypatch.setenv("SSH_ASKPASS", script)
    monkeypatch.setenv("GIT_DIR", str(evil.folder / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(evil.folder))
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "ext:file:https")
    commit = repository.commit({"a.py": "1", ".gitattributes": "* filter=evil\n"}, tag="v1")
    checkout = cache.fetch(source(f"{repository.url}@v1"))
    assert checkout.commit == commit
    assert (checkout.folder / "a.py").read_text() == "1"
    (tmp_path / "global").write_text(config + replaced)
    repository.commit({"a.py": "2"}, tag="v2")
    with pytest.raises(SourceError, match="transport 'ext' not allowed"):
        cache.fetch(source(f"{repository.url}@v2"))
    assert not trace.exists()
    assert git(evil.folder, "--git-dir", ".git", "config", "core.fsmonitor") == script


@pytest.fixture
def user_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the user's git configuration."""
    file = tmp_path / "gitconfig"
    file.touch()
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(file))
    return file


def test_urls_are_replaced_as_the_user_has_configured(
    repository: Repository, tmp_path: Path, user_config: Path
) -> None:
    commit = repository.commit({"a.py": "1"})
    user_config.write_text(
        f'[url "file://{repository.folder.parent}/"]\n insteadOf = https://git.invalid/team/\n'
        '[url "https://git.invalid/"]\n insteadOf = file:///gone/\n'
    )
    cache = GitCache(tmp_path / "cache")
    assert cache.fetch(source("git+https://git.invalid/team/my-tool.git")).commit == commit
    with pytest.raises(SourceError, match="Could not resolve host"):
        cache.fetch(source("git+file:///gone/my-tool.git"))
    offline = GitCache(tmp_path / "cache", offline=True)
    with pytest.raises(SourceError, match="transport 'https' not allowed"):
        offline.fetch(source("git+file:///gone/my-tool.git"))


def test_ssh_runs_by_the_command_of_the_user_and_never_of_a_repository(
    repository: Repository, cache: GitCache, tmp_path: Path, user_config: Path
) -> None:
    repository.commit({"a.py": "gone"})
    blob = git(repository.folder, "rev-parse", "HEAD:a.py")
    (repository.folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    trace, script = tmp_path / "trace", tmp_path / "ssh.sh"
    script.write_text(f"#!/bin/sh\necho ran >> {trace}\nexit 255\n")
    script.chmod(0o755)
    with (repository.folder / ".git" / "config").open("a") as file:
        file.write(f"[core]\n sshCommand = {script}\n[extensions]\n partialClone = x\n")
        file.write('[remote "x"]\n url = ssh://127.0.0.1/x\n promisor = true\n')
    for config in ("", "[core]\n sshCommand = false\n"):
        user_config.write_text(config)
        with pytest.raises(SourceError):
            cache.fetch(source(repository.url))
    assert not trace.exists()
    user_config.write_text(f"[core]\n sshCommand = {script}\n")
    with pytest.raises(SourceError):
        cache.fetch(source("git+ssh://host.invalid/r"))
    assert trace.exists()


def test_submodules_are_not_fetched(
    repository: Repository, cache: GitCache, tmp_path: Path
) -> None:
    other = Repository(tmp_path / "remotes" / "other")
    other.commit({"evil.py": ""})
    repository.commit({"a.py": ""})
    git(
        repository.folder,
        *("-c", "protocol.file.allow=always", "submodule", "--quiet", "add"),
        *(f"file://{other.folder}", "sub"),
    )
    repository.commit({})
    folder = cache.fetch(source(repository.url)).folder
    assert not list(folder.rglob("evil.py"))


def test_ssh_runs_without_prompts_and_with_the_host_after_its_options(
    cache: GitCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "ssh.log"
    write_files(
        tmp_path / "bin",
        {
            "ssh": f'#!/bin/sh\nprintf "%s\\n" "$@" > {log}\necho no host of that name >&2\nexit 255\n'
        },
    )
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("GIT_SSH_COMMAND", raising=False)
    monkeypatch.delenv("GIT_SSH", raising=False)
    with pytest.raises(SourceError, match=r"cannot fetch .*: no host of that name"):
        cache.fetch(source("git+ssh://git@host.invalid/org/repo"))
    arguments = log.read_text().splitlines()
    assert arguments[:2] == ["-o", "BatchMode=yes"]
    assert "git@host.invalid" in arguments


def is_running(pid: int) -> bool:
    """Whether a process is still alive after 2 s."""
    for _ in range(100):
        if not is_alive(pid):
            return False
        time.sleep(0.02)
    return True
