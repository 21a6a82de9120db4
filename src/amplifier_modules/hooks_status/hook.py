"""Add the time, the directory and the state of git to each request.

The configuration of a repository can name programs (filters, hooks, fsmonitor, transports), and an
ordinary `git status` runs them. So `git status` never sees that configuration: it gets a private
git directory that points to the repository's objects, references and index. From the configuration,
parsed only by `git config`, it gets the settings in `_SETTINGS` and those of the current branch,
which change how files compare and name no program. A repository with parts in another one is
skipped, so that no names of files elsewhere are shown.
"""

import asyncio
import contextlib
import os
import platform
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from amplifier_core.events import PROVIDER_REQUEST
from amplifier_core.models import HookResult
from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_support.async_programs import run_in_thread
from amplifier_support.clock import utc_now
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.programs import TimedOut, TooMuchOutput, find_program, git_environment
from amplifier_support.session_capabilities import WORKING_DIR
from amplifier_support.text import printable_in_tags

MODULE_ID = "hooks-status"


class StatusConfig(ModuleConfig):
    """Settings of hooks-status.

    Attributes:
        time: Add date, time and time zone.
        directory: Add the working directory and the system.
        git: Add the branch and changed files, inside a repository.
        max_files: Changed files to list; the others are counted.
        git_timeout: Seconds git may take; then its part is skipped.
        priority: Order among the hooks of a request.
    """

    time: bool = True
    directory: bool = True
    git: bool = True
    max_files: int = Field(default=20, ge=0)
    git_timeout: float = Field(default=2, gt=0)
    priority: int = 50


_MAX_BYTES = 4 * 1024 * 1024
_MAX_HEAD = 4096
_MAX_REFSPECS = 50
_OPTIONS = ("--no-optional-locks", "--no-pager", "--literal-pathspecs")
_STATUS = (
    *("status", "--porcelain=v2", "--branch", "-z"),
    *("--untracked-files=normal", "--ignore-submodules=all", "--no-renames"),
)
_SETTINGS = {
    *("core.autocrlf", "core.eol", "core.filemode", "core.symlinks", "core.ignorecase"),
    *("core.precomposeunicode", "core.trustctime", "core.checkstat", "core.excludesfile"),
    *("core.attributesfile", "core.sparsecheckout", "core.sparsecheckoutcone", "index.sparse"),
}


class GitState(NamedTuple):
    """The state of a repository.

    Attributes:
        branch: The branch; None if no branch is checked out.
        commit: The commit it is at; None before the first.
        upstream: Its upstream branch, if any.
        ahead: Commits that are not in the upstream.
        behind: Commits that are only in the upstream.
        changes: `XY path` as in `git status --short`, in git's order.
    """

    branch: str | None
    commit: str | None
    upstream: str | None
    ahead: int
    behind: int
    changes: list[str]


class Repository(NamedTuple):
    """The folders of a repository.

    Attributes:
        top: The folder of the work tree.
        own: The git directory of this work tree, with HEAD and the index.
        common: The git directory shared by all work trees, with objects and references.
        external: Whether `own` is elsewhere, so that only the configuration says whether it belongs
            to `top`.
    """

    top: Path
    own: Path
    common: Path
    external: bool = False


async def git_state(folder: str, seconds: float) -> GitState | None:
    """The state of the repository around `folder`.

    Returns:
        None if there is no repository, no git, or no answer within `seconds`.
    """
    try:
        repository = _find_repository(folder)
        # Asked for with every request: most of the time goes into looking for git, so that comes last.
        git = None if repository is None else find_program("git", folder)
        if git is None or repository is None:
            return None
        async with asyncio.timeout(seconds):
            environment = git_environment(folder=folder, user_config=True)
            listed = await _run(
                *(git, folder, {**environment, "GIT_DIR": str(repository.own)}),
                *("config", "--null", "--list"),
            )
            if listed is None:
                return None
            with tempfile.TemporaryDirectory(prefix="amplifier-git-") as private:
                config = _prepare(Path(private), repository, listed)
                if config is None:
                    return None
                variables = {
                    **git_environment(config, folder=folder),
                    "GIT_DIR": private,
                    "GIT_WORK_TREE": str(repository.top),
                    "GIT_INDEX_FILE": str(repository.own / "index"),
                    "GIT_OBJECT_DIRECTORY": str(repository.common / "objects"),
                }
                status = await _run(git, folder, variables, *_STATUS)
    # OSError: the repository changed or is damaged, or there is no space for the private one.
    except (TimeoutError, OSError):
        return None
    return None if status is None else read_status(status)


def _find_repository(folder: str) -> Repository | None:
    """Find the repository around a folder, if all its parts are in that place.

    Linked worktrees and submodules are found like any other repository.
    """
    start = Path(os.path.realpath(folder))
    for top in (start, *start.parents):
        entry = top / ".git"
        if entry.is_dir() and (entry / "HEAD").exists():
            own = Path(os.path.realpath(entry))
            # `.git` may itself be a link to a repository elsewhere.
            return Repository(top, own, own, external=own != entry)
        if entry.is_file():
            return _linked(top, entry)
    return None


def _linked(top: Path, entry: Path) -> Repository | None:
    """The repository that a `.git` file points to, if it points back."""
    target = _first_line(entry).removeprefix("gitdir: ")
    own = Path(os.path.realpath(top / target))
    if own.parent.name != "worktrees":
        return Repository(top, own, own, external=True)
    back = _first_line(own / "gitdir")
    if not back or os.path.realpath(own / back) != str(entry):
        return None
    return Repository(top, own, own.parent.parent)


def _first_line(file: Path) -> str:
    """The first line of a small file; empty if it cannot be read or is not a file."""
    try:
        # Bounded and non-blocking: a repository may contain a pipe, or an endless file.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        line = os.read(descriptor, _MAX_HEAD).split(b"\n")[0]
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return "" if b"\0" in line else os.fsdecode(line)


def _prepare(private: Path, repository: Repository, listed: str) -> list[tuple[str, str]] | None:
    """Fill the private git directory and return the settings to use.

    Args:
        private: An empty folder.
        repository: The repository it points to.
        listed: What `git config --null --list` printed in the repository.

    Returns:
        None if the repository is not in one place, or its format is unsupported.
    """
    config = list(_pairs(listed))
    values = dict(config)
    own, common = repository.own, repository.common
    worktree = values.get("core.worktree", "" if repository.external else str(repository.top))
    if own == common and os.path.realpath(own / worktree) != str(repository.top):
        return None
    head = _first_line(own / "HEAD")
    branch = head.removeprefix("ref: refs/heads/") if head.startswith("ref: ") else ""
    form = values.get("extensions.objectformat", "sha1")
    if values.get("extensions.refstorage", "files") != "files" or form not in ("sha1", "sha256"):
        return None
    parts = [own / "HEAD", own / "index", *(common / n for n in ("objects", "refs", "packed-refs"))]
    if branch:
        parts.append(common / "refs" / "heads" / branch)
    if not all(_is_inside(part, own) or _is_inside(part, common) for part in parts):
        return None
    (private / "info").mkdir()
    (private / "HEAD").write_text(head + "\n", encoding="utf-8", errors="surrogateescape")
    (private / "config").write_text(
        f"[core]\n\trepositoryformatversion = 1\n\tbare = false\n"
        f"[extensions]\n\tobjectformat = {form}\n"
    )
    shared = [path.name for path in own.glob("sharedindex.*")]
    for source, names in (
        (common, ("refs", "packed-refs", "shallow", "info/exclude")),
        (own, ("info/sparse-checkout", *shared)),
    ):
        for name in names:
            if (source / name).exists():
                (private / name).symlink_to(source / name)
    return [
        ("core.untrackedCache", "false"),
        ("core.quotePath", "false"),
        *((key, value) for key, value in config if key in _SETTINGS),
        *_upstream(config, branch),
    ]


def _is_inside(part: Path, folder: Path) -> bool:
    return os.path.realpath(part).startswith(f"{folder}{os.sep}")


def _pairs(listed: str) -> Iterator[tuple[str, str]]:
    for record in listed.split("\0"):
        key, has_value, value = record.partition("\n")
        if key:
            # A name alone means true.
            yield key, value if has_value else "true"


def _upstream(config: list[tuple[str, str]], branch: str) -> list[tuple[str, str]]:
    """The settings for the upstream branch, without the URL to fetch from."""
    followed = [
        pair for pair in config if pair[0] in (f"branch.{branch}.remote", f"branch.{branch}.merge")
    ]
    remote = dict(followed).get(f"branch.{branch}.remote", "")
    fetched = [pair for pair in config if pair[0] == f"remote.{remote}.fetch"]
    return followed + fetched[:_MAX_REFSPECS]


def read_status(text: str) -> GitState:
    """Parse the output of `git status --porcelain=v2 --branch -z --no-renames`."""
    heads: dict[str, str] = {}
    changes: list[str] = []
    for record in text.split("\0"):
        kind, _, rest = record.partition(" ")
        if kind == "#":
            name, _, value = rest.partition(" ")
            heads[name] = value
        elif kind in ("1", "u"):
            fields = rest.split(" ", 7 if kind == "1" else 9)
            changes.append(f"{fields[0].replace('.', ' ')} {fields[-1]}")
        elif kind == "?":
            changes.append(f"?? {rest}")
    branch, commit = heads.get("branch.head"), heads.get("branch.oid")
    counts = re.fullmatch(r"\+(\d+) -(\d+)", heads.get("branch.ab", ""))
    return GitState(
        branch=None if branch == "(detached)" else branch,
        commit=None if commit == "(initial)" else commit,
        upstream=heads.get("branch.upstream"),
        ahead=int(counts[1]) if counts else 0,
        behind=int(counts[2]) if counts else 0,
        changes=changes,
    )


async def _run(git: str, folder: str, env: dict[str, str], *arguments: str) -> str | None:
    """The output of git; None if it fails or prints too much."""
    argv = [git, *_OPTIONS, *arguments]
    with contextlib.suppress(TimedOut, TooMuchOutput):
        done = await run_in_thread(argv, cwd=Path(folder), env=env, max_bytes=_MAX_BYTES)
        return done.stdout if done.code == 0 else None
    return None


class StatusHook:
    """Add the status to each request; it is created each time and never stored."""

    def __init__(self, coordinator: Any, config: StatusConfig) -> None:
        self._coordinator = coordinator
        self._config = config

    async def on_request(self, event: str, data: dict[str, Any]) -> HookResult:
        """Handle `provider:request`."""
        lines = [line async for line in self._lines()]
        if not lines:
            return HookResult.model_construct()
        text = "\n".join([f'<system-reminder source="{MODULE_ID}">', *lines, "</system-reminder>"])
        return HookResult.model_construct(
            action="inject_context",
            context_injection=text,
            context_injection_role="user",
            ephemeral=True,
            suppress_output=True,
        )

    async def _lines(self) -> AsyncIterator[str]:
        config = self._config
        folder = WORKING_DIR.of(self._coordinator) or os.getcwd()
        if config.time:
            yield f"Time: {utc_now().astimezone():%A %Y-%m-%d %H:%M %Z (UTC%z)}"
        if config.directory:
            yield f"Working directory: {printable_in_tags(folder)}"
            yield f"System: {platform.system()} {platform.release()} ({platform.machine()})"
        if config.git:
            state = await git_state(folder, config.git_timeout)
            if state is not None:
                for line in git_lines(state, config.max_files):
                    yield line


def git_lines(state: GitState, max_files: int) -> Iterator[str]:
    """Describe the state of a repository.

    Args:
        state: The state.
        max_files: Changed files to list.
    """
    commit = f"at {state.commit[:12]}" if state.commit else "without a commit yet"
    where = f"on branch {printable_in_tags(state.branch)}" if state.branch else "on no branch"
    line = f"Git: {where}, {commit}"
    if state.upstream:
        counts = ((state.ahead, "ahead of"), (state.behind, "behind"))
        apart = [f"{count} {word}" for count, word in counts if count]
        line += f", {' and '.join(apart) or 'level with'} {printable_in_tags(state.upstream)}"
    yield line
    if not state.changes:
        yield "Git: no changes"
        return
    yield f"Git: {len(state.changes)} changed:"
    for change in state.changes[:max_files]:
        yield f"  {printable_in_tags(change)}"
    rest = len(state.changes) - max_files
    if rest > 0:
        yield f"  … and {rest} more"


async def mount(coordinator: Any, settings: StatusConfig) -> Callable[[], None]:
    """Answer `provider:request` with the status; settings as in `StatusConfig`.

    Returns:
        A cleanup function that removes the hook.
    """
    hook = StatusHook(coordinator, settings)
    return coordinator.hooks.register(
        PROVIDER_REQUEST, hook.on_request, priority=settings.priority, name=MODULE_ID
    )
