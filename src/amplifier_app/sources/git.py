"""Git sources: a ref → a commit → a checkout in the cache.

    cache/git/<name>-<hash of the URL>/<commit>/<name>/…   the files of one commit, no .git
                                      /<commit>/source.json

A commit is fetched into a staging folder and renamed into place, so a folder that has the
name of a commit is whole. Git runs without the user's and the system's configuration,
away from any repository, without hooks, submodules, prompts or transports but the allowed
ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.locking import locked
from amplifier_app.sources.process import Finished, TimedOut, run
from amplifier_app.sources.spec import GIT_SCHEMES, GitSource, without_password

_LOOKUP_SECONDS = 60.0
_FETCH_SECONDS = 600.0

_OPTIONS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "core.askPass=",
    "credential.helper=",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.detachedHead=false",
    "protocol.allow=never",
    *(f"protocol.{scheme}.allow=always" for scheme in GIT_SCHEMES),
)
# What git adds below the line that says what is wrong.
_EMPTY_PHRASES = (
    "Could not read from remote repository.",
    "Please make sure you have the correct access rights",
    "and the repository exists.",
)
# How to reach a host is the user's own affair; everything else could lead into a repository.
_KEPT = ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH")


class Checkout(NamedTuple):
    """The files of one commit.

    Attributes:
        folder: Where the source says the module is: the root or its subdirectory.
        commit: The full commit.
    """

    folder: Path
    commit: str


class GitCache:
    """The checkouts of one machine's user, shared by all processes.

    Args:
        root: The folder of the cache; made when first needed.
        executable: The git to run.
    """

    def __init__(self, root: Path, executable: str = "git") -> None:
        self._root = root
        self._git = executable

    def fetch(
        self, source: GitSource, *, commit: str | None = None, stop: threading.Event | None = None
    ) -> Checkout:
        """The files of a source.

        Args:
            source: What to fetch.
            commit: The commit its ref stands for, if the caller has looked it up.
            stop: When set, fetching ends.

        Raises:
            SourceError: The repository, the ref or the subdirectory cannot be had.
            Stopped: `stop` was set.
        """
        commit = commit or self.look_up(source, stop=stop)
        home = self._home(source) / commit
        if not home.is_dir():
            with locked(self._home(source) / ".lock", stop):
                if not home.is_dir():
                    self._fill(home, source, commit, stop)
        return Checkout(_inside(home / source.name, source), commit)

    def look_up(self, source: GitSource, *, stop: threading.Event | None = None) -> str:
        """The commit that the source's ref stands for now.

        Raises:
            SourceError: The repository cannot be read, or has no such ref.
            Stopped: `stop` was set.
        """
        if source.is_commit:
            assert source.ref is not None
            return source.ref
        wanted = _ref_names(source.ref)
        arguments = ["ls-remote", "--quiet", "--", source.url, *wanted]
        with self._staging(source) as stage:
            listed = self._run(arguments, stage, source, _LOOKUP_SECONDS, stop)
        found: dict[str, str] = {}
        for line in listed.stdout.splitlines():
            commit, _, name = line.partition("\t")
            found[name] = commit
        for name in wanted:
            if re.fullmatch(r"[0-9a-f]{40,64}", found.get(name, "")):
                return found[name]
        shown = without_password(source.url)
        if source.ref is None:
            raise SourceError(f"the repository {shown} is empty")
        short = re.fullmatch(r"[0-9a-f]{7,39}", source.ref)
        hint = "give all 40 digits of a commit" if short else "check the part after '@'"
        raise SourceError(f"{shown} has no branch or tag {source.ref!r}", hint=hint)

    # -- the cache -------------------------------------------------------------------

    def _home(self, source: GitSource) -> Path:
        digest = hashlib.sha256(source.url.encode()).hexdigest()[:16]
        return self._root / f"{source.name}-{digest}"

    @contextmanager
    def _staging(self, source: GitSource) -> Generator[Path]:
        import tempfile

        home = self._home(source)
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix=".stage-", dir=home) as stage:
            yield Path(stage)

    def _fill(
        self, home: Path, source: GitSource, commit: str, stop: threading.Event | None
    ) -> None:
        with self._staging(source) as stage:
            tree = stage / "commit" / source.name
            tree.mkdir(parents=True)
            self._check_out(tree, source, commit, stop)
            shutil.rmtree(tree / ".git")
            record = {
                "url": without_password(source.url),
                "ref": source.ref,
                "commit": commit,
                "fetched": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            (stage / "commit" / "source.json").write_text(json.dumps(record), encoding="utf-8")
            (stage / "commit").rename(home)

    def _check_out(
        self, tree: Path, source: GitSource, commit: str, stop: threading.Event | None
    ) -> None:
        def git(*arguments: str) -> Finished:
            return self._run(["-C", str(tree), *arguments], tree, source, _FETCH_SECONDS, stop)

        git("init", "--quiet", "--template=")
        plain = ("fetch", "--quiet", "--no-tags", "--no-recurse-submodules")
        try:
            git(*plain, "--depth=1", "--", source.url, commit)
        except SourceError:
            # Not every server gives a commit that no ref points to: then all refs are needed.
            refs = ("+refs/heads/*:refs/all/heads/*", "+refs/tags/*:refs/all/tags/*")
            git(*plain, "--", source.url, *refs)
        git("checkout", "--quiet", "--force", "--detach", commit)

    # -- git -------------------------------------------------------------------------

    def _run(
        self,
        arguments: list[str],
        cwd: Path,
        source: GitSource,
        seconds: float,
        stop: threading.Event | None,
    ) -> Finished:
        options = [part for option in _OPTIONS for part in ("-c", option)]
        shown = without_password(source.url)
        try:
            done = run(
                [self._git, *options, *arguments],
                cwd=cwd,
                env=_environment(cwd),
                seconds=seconds,
                stop=stop,
            )
        except FileNotFoundError as error:
            raise SourceError(
                f"{shown} cannot be fetched: there is no git on this machine",
                hint="install git, or give the module's folder as its source",
            ) from error
        except TimedOut as error:
            raise SourceError(f"{shown} cannot be fetched: {error}") from error
        if done.code != 0:
            raise _failure(shown, done)
        return done


def _ref_names(ref: str | None) -> list[str]:
    """The full names of a ref in the order in which they are believed."""
    if ref is None or ref == "HEAD":
        return ["HEAD"]
    if ref.startswith("refs/"):
        return [f"{ref}^{{}}", ref]
    return [f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}"]


def _environment(cwd: Path) -> dict[str, str]:
    env = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not name.startswith(("GIT_", "SSH_ASKPASS"))
    }
    env.update(
        GIT_CONFIG_NOSYSTEM="1",
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_ATTR_NOSYSTEM="1",
        GIT_TERMINAL_PROMPT="0",
        GIT_CEILING_DIRECTORIES=str(cwd.parent),
        SSH_ASKPASS_REQUIRE="never",
        LC_ALL="C",
    )
    if "GIT_SSH" not in env:
        env.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
    return env


def _failure(shown: str, done: Finished) -> SourceError:
    lines = [line.strip() for line in done.stderr.splitlines()]
    lines = [line for line in lines if line and not line.endswith(_EMPTY_PHRASES)]
    telling = [line for line in lines if line.lower().startswith(("fatal:", "error:"))]
    last = (telling or lines or ["it could not be read"])[-1]
    reason = without_password(re.sub(r"(?i)^(fatal|error): ", "", last))
    hint = None
    if "terminal prompts disabled" in reason or "Authentication failed" in reason:
        hint = "for a private repository use git+ssh:// with a key"
    elif "Permission denied" in done.stderr or "Host key verification failed" in done.stderr:
        hint = "check that 'ssh' reaches the host without asking"
    return SourceError(f"{shown} cannot be fetched: {reason}", hint=hint)


def _inside(root: Path, source: GitSource) -> Path:
    folder = (root / source.subdirectory).resolve()
    if not folder.is_relative_to(root.resolve()):
        raise SourceError(f"the subdirectory {source.subdirectory!r} leaves the repository")
    if not folder.is_dir():
        raise SourceError(
            f"{source.shown} has no folder {source.subdirectory!r}",
            hint="check the part after '#subdirectory='",
        )
    return folder
