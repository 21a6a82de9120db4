"""Runs git for a source, isolated from all configuration except what is set here.

The user's and the system's configuration are ignored, as are repositories around the cache,
hooks, attributes, submodules, credential helpers, prompts and other transports. How to reach a
host remains up to the user: `ssh` with its own configuration, `GIT_SSH`, `GIT_SSH_COMMAND`,
proxies, `~/.netrc` and certificates. A password in a URL is passed to git as a header, so that
it does not appear in process lists.
"""

from __future__ import annotations

import base64
import os
import re
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

from amplifier_app.plan.source_spec import GIT_SCHEMES, GitSource, without_password
from amplifier_app.sources.errors import SourceError
from amplifier_support.git import git_environment
from amplifier_support.programs import Finished, TimedOut, find_program, run

_CONFIG = {
    "core.attributesFile": os.devnull,
    "fetch.recurseSubmodules": "false",
    "advice.detachedHead": "false",
    "protocol.allow": "never",
    **{f"protocol.{scheme}.allow": "always" for scheme in GIT_SCHEMES},
}
# How to reach a host is up to the user; other variables could redirect git to a repository.
_KEPT = ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH")

# Generic lines that git prints below the actual error.
_EMPTY_PHRASES = (
    "Could not read from remote repository.",
    "Please make sure you have the correct access rights",
    "and the repository exists.",
)


class GitFailed(SourceError):
    """Git failed; another way of fetching may still work."""


class Git:
    """Runs git for one source, whose repository is the remote `origin`.

    Args:
        executable: The git to run; by default the one on the PATH.
        cwd: The working directory.
        source: The source whose URL is `origin`.
        stop: Set it to end git.
    """

    def __init__(
        self, executable: str | None, cwd: Path, source: GitSource, stop: threading.Event | None
    ) -> None:
        self._executable = executable or find_program("git", str(cwd))
        self._cwd = cwd
        self._stop = stop
        self._shown = without_password(source.url)
        self._environment = _environment(cwd, source.url)

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
            if self._executable is None:
                raise FileNotFoundError("git")
            done = run(
                [self._executable, *arguments],
                cwd=self._cwd,
                env=self._environment,
                seconds=seconds,
                stop=self._stop,
            )
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


def _environment(cwd: Path, url: str) -> dict[str, str]:
    config = {**_CONFIG, **_remote(url)}
    env = git_environment(config.items(), folder=str(cwd), keep=_KEPT)
    env.update(
        GIT_CEILING_DIRECTORIES=str(cwd.parent),
        # Also applies to the server side of git+file://, which has our environment and its own
        # repository's configuration.
        GIT_ALLOW_PROTOCOL=":".join(GIT_SCHEMES),
    )
    if "GIT_SSH" not in env:
        # Takes precedence over `core.sshCommand` in any configuration.
        env.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
    return env


def _remote(url: str) -> dict[str, str]:
    """The configuration that makes a URL the remote `origin`."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if parts.scheme != "https" or not at:
        return {"remote.origin.url": url}
    bare = parts._replace(netloc=host).geturl()
    name, _, password = user.partition(":")
    token = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode("ascii")
    return {
        "remote.origin.url": bare,
        f"http.https://{host}/.extraHeader": f"Authorization: Basic {token}",
    }


def _failure(shown: str, done: Finished) -> GitFailed:
    lines = [line.strip() for line in done.stderr.splitlines()]
    lines = [line for line in lines if line and not line.endswith(_EMPTY_PHRASES)]
    errors = [line for line in lines if line.lower().startswith(("fatal:", "error:"))]
    last = (errors or lines or ["unknown error"])[-1]
    reason = without_password(re.sub(r"(?i)^(fatal|error): ", "", last))
    hint = None
    if "terminal prompts disabled" in reason or "Authentication failed" in reason:
        hint = "for a private repository use git+https://USER:${TOKEN}@… or git+ssh://"
    elif "Permission denied" in done.stderr or "Host key verification failed" in done.stderr:
        hint = "check that 'ssh' can connect to the host without prompting"
    return GitFailed(f"cannot fetch {shown}: {reason}", hint=hint)
