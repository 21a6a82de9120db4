"""Git sources: a ref → a commit → a checkout in the cache.

    cache/git/<name>-<hash of the URL>/<commit>/<name>/…   the files of one commit, no .git
                                      /<commit>/source.json
                                      /<commit>.<hash of a subdirectory>/…   only that subdirectory
                                      /refs/<hash of a ref>   the commit it last resolved to

A commit is fetched into a staging folder and renamed into place, so a folder named after a
commit is always complete. Only what the source needs is fetched: one commit without its history,
and for a subdirectory only its files, unless they refer to others.

git runs with the configuration of the user and the system but of no repository. How to reach a host is up
to the user: `url.<base>.insteadOf`, `http.*`, credential helpers, `core.sshCommand`, `GIT_SSH`,
`GIT_SSH_COMMAND`, proxies, `~/.netrc` and certificates. Repositories around the cache, hooks, attributes,
submodules, prompts and other transports are ignored. A password in a URL is passed to git as a header, so
that it does not appear in process lists.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from amplifier_app.base.locks import hold_lock
from amplifier_app.base.slow_steps import slow_step
from amplifier_app.plan.source_spec import GIT_SCHEMES, GitSource, without_password
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.fetch.staging import links_out, staging, subfolder
from amplifier_app.sources.stopping import stop_event
from amplifier_support.clock import utc_now
from amplifier_support.files import make_private_folder, make_tree_private, write_private
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.programs import Finished, TimedOut, find_program, git_environment, run

REMOTE = "amplifier"
"""The name of the source's repository in git; the user's configuration may set up an `origin`."""

_CONFIG = {
    "core.attributesFile": os.devnull,
    "credential.interactive": "false",
    "fetch.recurseSubmodules": "false",
    "advice.detachedHead": "false",
    "protocol.allow": "never",
    **{f"protocol.{scheme}.allow": "always" for scheme in GIT_SCHEMES},
}
# How to reach a host is up to the user; other variables could redirect git to a repository.
_KEPT = ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH")

_CONFIG_SECONDS = 10.0

# Generic lines that git prints below the actual error.
_EMPTY_PHRASES = (
    "Could not read from remote repository.",
    "Please make sure you have the correct access rights",
    "and the repository exists.",
)


class GitFailed(SourceError):
    """Git failed; another way of fetching may still work."""


class Git:
    """Runs git for one source, whose repository is the remote `REMOTE`.

    Args:
        cwd: The working directory.
        source: The source whose URL is `REMOTE`.
        seconds: The time limit of each call.
        offline: Reach only repositories on this machine, also where the user's configuration
            replaces the URL.
    """

    def __init__(self, cwd: Path, source: GitSource, *, seconds: float, offline: bool) -> None:
        self._seconds = seconds
        self._executable = find_program("git", str(cwd))
        self._cwd = cwd
        self._shown = without_password(source.url)
        self._environment = _environment(cwd, source.url, ("file",) if offline else GIT_SCHEMES)

    def __call__(self, *arguments: str) -> Finished:
        """Run git with these arguments and wait for it.

        Raises:
            GitFailed: Git exited with an error.
            SourceError: Git timed out or is not installed.
            Stopped: The caller was cancelled.
        """
        try:
            if "GIT_SSH_COMMAND" not in self._environment:
                self._environment["GIT_SSH_COMMAND"] = self._choose_ssh()
            with slow_step(f"fetching {self._shown}"):
                done = self._run(arguments, self._seconds)
        except FileNotFoundError as error:
            raise SourceError(
                f"cannot fetch {self._shown}: git is not installed",
                hint="Install git, or use the module's folder as its source",
            ) from error
        except TimedOut as error:
            raise SourceError(f"cannot fetch {self._shown}: {error}") from error
        if done.code != 0:
            raise _failure(self._shown, done)
        return done

    def _choose_ssh(self) -> str:
        """Return the command of the user, which then takes precedence over that of a repository."""
        configured = self._run(("config", "--get", "core.sshCommand"), _CONFIG_SECONDS)
        program = self._environment.get("GIT_SSH")
        default = shlex.quote(program) if program else "ssh -o BatchMode=yes"
        return configured.stdout.strip() or default

    def _run(self, arguments: Sequence[str], seconds: float) -> Finished:
        if self._executable is None:
            raise FileNotFoundError("git")
        return run(
            [self._executable, *arguments],
            cwd=self._cwd,
            env=self._environment,
            seconds=seconds,
            stop=stop_event(),
        )


def _environment(cwd: Path, url: str, schemes: Sequence[str]) -> dict[str, str]:
    env = git_environment(
        [*_CONFIG.items(), *_remote(url).items()],
        folder=str(cwd),
        keep=_KEPT,
        user_config=True,
        credential_helpers=True,
        # Also applies to the server side of git+file://, which has our environment and its own
        # repository's configuration.
        protocols=schemes,
    )
    env.update(GIT_CEILING_DIRECTORIES=str(cwd.parent), GIT_ATTR_NOSYSTEM="1")
    return env


def _remote(url: str) -> dict[str, str]:
    """The configuration that makes a URL the remote `REMOTE`."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    config = {f"remote.{REMOTE}.url": url}
    if parts.scheme != "ssh":
        # Without a hook, also where the repository is on this machine. `env` runs the command as it is.
        config[f"remote.{REMOTE}.uploadpack"] = "git -c uploadpack.packObjectsHook=env upload-pack"
    if parts.scheme != "https" or not at:
        return config
    bare = parts._replace(netloc=host).geturl()
    name, _, password = user.partition(":")
    token = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode("ascii")
    return {
        **config,
        f"remote.{REMOTE}.url": bare,
        f"http.https://{host}/.extraHeader": f"Authorization: Basic {token}",
        # Git would have them erase what they know of a host that refuses this password.
        "credential.helper": "",
    }


def _failure(shown: str, done: Finished) -> GitFailed:
    lines = [line.strip() for line in done.stderr.splitlines()]
    lines = [line for line in lines if line and not line.endswith(_EMPTY_PHRASES)]
    errors = [line for line in lines if line.lower().startswith(("fatal:", "error:"))]
    last = (errors or lines or ["unknown error"])[-1]
    reason = without_password(re.sub(r"(?i)^(fatal|error): ", "", last))
    hint = None
    if "terminal prompts disabled" in reason or "Authentication failed" in reason:
        hint = (
            "for a private repository set up a credential helper of git, "
            "or use git+https://USER:${TOKEN}@… or git+ssh://"
        )
    elif "Permission denied" in done.stderr or "Host key verification failed" in done.stderr:
        hint = "check that 'ssh' can connect to the host without prompting"
    return GitFailed(f"cannot fetch {shown}: {reason}", hint=hint)


_LOOKUP_SECONDS = 60.0
_FETCH_SECONDS = 600.0
_FULL_COMMIT = r"[0-9a-f]{40}|[0-9a-f]{64}"

# Overrides the repository's own attributes, so that files are checked out byte for byte.
_ATTRIBUTES = "* -text -filter -ident -eol -working-tree-encoding -export-subst\n"


class Checkout(NamedTuple):
    """The files of one commit.

    Attributes:
        folder: The folder of the module: the root or the subdirectory.
        commit: The full commit.
        root: The root of the repository; `folder` is the same or below it.
    """

    folder: Path
    commit: str
    root: Path


class GitCache:
    """A user's checkouts, shared by all processes.

    Args:
        root: The cache folder; created when first needed.
        offline: Use only the cache and local repositories.
    """

    def __init__(self, root: Path, *, offline: bool = False) -> None:
        self._root = root
        self._offline = offline
        self._looked_up: dict[tuple[str, str | None], str] = {}

    def fetch(self, source: GitSource, *, commit: str | None = None) -> Checkout:
        """Check out a source.

        Args:
            source: What to fetch.
            commit: A commit to use instead of the current one of its ref, which is looked up once.

        Raises:
            SourceError: The repository, the ref or the subdirectory is unavailable.
            Stopped: The caller was cancelled.
        """
        if commit is None:
            # Modules of one repository get the same commit.
            key = source.url, source.ref
            commit = self._looked_up[key] = self._looked_up.get(key) or self.look_up(source)
        home = self._commit_home(source, commit)
        if not home.is_dir():
            self._refuse_offline(source, f"commit {commit}")
            with hold_lock(self._home(source) / ".lock", stop_event()):
                if not home.is_dir():
                    self._fill(home, source, commit)
        folder = subfolder(home / source.name, source)
        _refuse_links(home, source)
        if not source.is_commit and self.last_used(source) != commit:
            self._remember(source, commit)
        return Checkout(folder, commit, (home / source.name).resolve())

    def last_used(self, source: GitSource) -> str | None:
        """The commit last fetched for the source's ref; None if none was."""
        try:
            return self._revision_file(source).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def look_up(self, source: GitSource) -> str:
        """The current commit of the source's ref; offline, the one last used.

        Raises:
            SourceError: The repository cannot be read, or has no such ref.
            Stopped: The caller was cancelled.
        """
        if source.is_commit:
            assert source.ref is not None
            return source.ref
        if self._offline and not source.is_local:
            remembered = self.last_used(source)
            if remembered is not None:
                return remembered
        self._refuse_offline(source, source.ref or "the default branch")
        names = _ref_names(source.ref)
        with staging(self._home(source)) as stage:
            git = self._command(stage, source, _LOOKUP_SECONDS)
            listed = git("ls-remote", "--quiet", "--", REMOTE, *names)
        commits: dict[str, str] = {}
        for line in listed.stdout.splitlines():
            commit, _, name = line.partition("\t")
            commits[name] = commit
        for name in names:
            if re.fullmatch(_FULL_COMMIT, commits.get(name, "")):
                return commits[name]
        url = without_password(source.url)
        if source.ref is None:
            raise SourceError(f"the repository {url} is empty")
        short = re.fullmatch(r"[0-9a-f]{7,39}", source.ref)
        hint = "use the full 40-digit commit" if short else "check the part after '@'"
        raise SourceError(f"{url} has no branch or tag {source.ref!r}", hint=hint)

    def _command(self, cwd: Path, source: GitSource, seconds: float) -> Git:
        return Git(cwd, source, seconds=seconds, offline=self._offline)

    def _refuse_offline(self, source: GitSource, what: str) -> None:
        if self._offline and not source.is_local:
            raise SourceError(
                f"{what} of {without_password(source.url)} is not in the cache "
                "and cannot be downloaded offline",
                hint="Run once without --offline",
            )

    # -- the cache -------------------------------------------------------------------

    def _home(self, source: GitSource) -> Path:
        digest = hashlib.sha256(source.url.encode()).hexdigest()[:16]
        return self._root / f"{source.name}-{digest}"

    def _commit_home(self, source: GitSource, commit: str) -> Path:
        whole = self._home(source) / commit
        if not source.subdirectory or whole.is_dir():
            return whole
        digest = hashlib.sha256(source.subdirectory.encode()).hexdigest()[:16]
        return whole.with_name(f"{commit}.{digest}")

    def _revision_file(self, source: GitSource) -> Path:
        digest = hashlib.sha256((source.ref or "HEAD").encode()).hexdigest()[:16]
        return self._home(source) / "refs" / digest

    def _remember(self, source: GitSource, commit: str) -> None:
        file = self._revision_file(source)
        make_private_folder(file.parent)
        write_private(file, commit.encode())

    def _fill(self, home: Path, source: GitSource, commit: str) -> None:
        with staging(self._home(source)) as stage:
            tree = stage / "commit" / source.name
            self._check_out(tree, source, commit)
            shutil.rmtree(tree / ".git")
            record = {
                "url": without_password(source.url),
                "ref": source.ref,
                "commit": commit,
                "fetched": utc_now().isoformat(timespec="seconds"),
                "links_out": sorted(links_out(tree)),
            }
            (stage / "commit" / "source.json").write_text(json.dumps(record), encoding="utf-8")
            make_tree_private(stage / "commit")
            (stage / "commit").rename(home)

    def _check_out(self, tree: Path, source: GitSource, commit: str) -> None:
        strategies = (
            (_fetch_part, _fetch_commit, _fetch_all)
            if source.subdirectory
            else (_fetch_commit, _fetch_all)
        )
        for strategy in strategies:
            tree.mkdir(parents=True)
            git = self._command(tree, source, _FETCH_SECONDS)
            names = "sha1" if len(commit) == 40 else "sha256"
            git("init", "--quiet", "--template=", f"--object-format={names}")
            (tree / ".git" / "info").mkdir(exist_ok=True)
            (tree / ".git" / "info" / "attributes").write_text(_ATTRIBUTES, encoding="ascii")
            try:
                strategy(git, tree, source, commit)
                return
            except GitFailed:
                # Servers differ in what they support; every server supports the last one.
                if strategy is strategies[-1]:
                    raise
            shutil.rmtree(tree)


_FETCH = ("fetch", "--quiet", "--no-tags", "--no-recurse-submodules")
_CHECKOUT = ("checkout", "--quiet", "--force", "--detach")


def _fetch_part(git: Git, tree: Path, source: GitSource, commit: str) -> None:
    """Fetch one commit, with only the files in the subdirectory and in the folders above it."""
    git(*_FETCH, "--depth=1", "--filter=blob:none", "--", REMOTE, commit)
    git("sparse-checkout", "set", "--cone", "--", source.subdirectory)
    git(*_CHECKOUT, commit)
    if _leads_out(tree / source.subdirectory):
        git("sparse-checkout", "disable")


def _fetch_commit(git: Git, tree: Path, source: GitSource, commit: str) -> None:
    """Fetch one commit with all its files; some servers refuse one that no ref points to."""
    git(*_FETCH, "--depth=1", "--", REMOTE, commit)
    git(*_CHECKOUT, commit)


def _fetch_all(git: Git, tree: Path, source: GitSource, commit: str) -> None:
    """Fetch everything reachable from branches and tags."""
    git(*_FETCH, "--", REMOTE, "+refs/heads/*:refs/all/heads/*", "+refs/tags/*:refs/all/tags/*")
    git(*_CHECKOUT, commit)


def _leads_out(folder: Path) -> bool:
    """Return True if a folder needs other files of its repository: through links or `tool.uv`."""
    project = folder / "pyproject.toml"
    if project.is_file() and b"tool.uv" in project.read_bytes():
        return True
    return any(path.is_symlink() and not path.exists() for path in folder.rglob("*"))


def _ref_names(ref: str | None) -> list[str]:
    """The full names a ref may have, in order of precedence."""
    if ref is None or ref == "HEAD":
        return ["HEAD"]
    if ref.startswith("refs/"):
        return [f"{ref}^{{}}", ref]
    return [f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}"]


def _refuse_links(home: Path, source: GitSource) -> None:
    record = json.loads((home / "source.json").read_text(encoding="utf-8"))
    for link in map(Path, record.get("links_out", ())):
        if link.is_relative_to(source.subdirectory):
            raise SourceError(f"{source.shown} has a link that leaves the repository: {link}")
