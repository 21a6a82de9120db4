"""Runs git for a source, with the configuration of the user and the system but of no repository.

How to reach a host is up to the user: `url.<base>.insteadOf`, `http.*`, credential helpers,
`core.sshCommand`, `GIT_SSH`, `GIT_SSH_COMMAND`, proxies, `~/.netrc` and certificates. Repositories
around the cache, hooks, attributes, submodules, prompts and other transports are ignored. A password
in a URL is passed to git as a header, so that it does not appear in process lists.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from amplifier_app.base.slow_steps import slow_step
from amplifier_app.plan.source_spec import GIT_SCHEMES, GitSource, without_password
from amplifier_app.sources.errors import SourceError
from amplifier_support.git import git_environment
from amplifier_support.programs import Finished, TimedOut, find_program, run

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
        executable: The git to run; by default the one on the PATH.
        cwd: The working directory.
        source: The source whose URL is `REMOTE`.
        stop: Set it to end git.
        offline: Reach only repositories on this machine, also where the user's configuration
            replaces the URL.
    """

    def __init__(
        self,
        executable: str | None,
        cwd: Path,
        source: GitSource,
        stop: threading.Event | None,
        *,
        offline: bool = False,
    ) -> None:
        self._executable = executable or find_program("git", str(cwd))
        self._cwd = cwd
        self._stop = stop
        self._shown = without_password(source.url)
        self._environment = _environment(cwd, source.url, ("file",) if offline else GIT_SCHEMES)

    def __call__(self, *arguments: str, seconds: float) -> Finished:
        """Run git and wait for it.

        Args:
            arguments: Its arguments.
            seconds: The time limit.

        Raises:
            GitFailed: Git exited with an error.
            SourceError: Git timed out or is not installed.
            Stopped: `stop` was set.
        """
        try:
            if "GIT_SSH_COMMAND" not in self._environment:
                self._environment["GIT_SSH_COMMAND"] = self._choose_ssh()
            with slow_step(f"fetching {self._shown}"):
                done = self._run(arguments, seconds)
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
            stop=self._stop,
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
