"""Git, as it is run for a source: away from every configuration but what is said here.

Neither the user's nor the system's configuration counts, no repository around the cache, no
hooks, attributes, submodules, credential helpers or prompts, and no transport but the allowed
ones. How a host is reached stays the user's own affair: `ssh` with its own configuration,
`GIT_SSH`, `GIT_SSH_COMMAND`, proxies, `~/.netrc` and certificates. A password in a URL goes to git
as a header, so that no list of processes shows it.
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
# How to reach a host is the user's own affair; everything else could lead into a repository.
_KEPT = ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH")

# What git adds below the line that says what is wrong.
_EMPTY_PHRASES = (
    "Could not read from remote repository.",
    "Please make sure you have the correct access rights",
    "and the repository exists.",
)


class GitFailed(SourceError):
    """Git ended with an error; another way of asking the server may still do."""


class Git:
    """Runs git for one source, whose repository is the remote `origin`.

    Args:
        executable: The git to run; by default the one on the PATH.
        cwd: The folder it runs in.
        source: Whose URL `origin` is.
        stop: When set, git is ended.
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
        """Run it to its end.

        Args:
            arguments: What follows `git`.
            seconds: The longest it may take.

        Raises:
            GitFailed: It ended with an error.
            SourceError: It took too long, or is not there.
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
                f"{self._shown} cannot be fetched: there is no git on this machine",
                hint="install git, or give the module's folder as its source",
            ) from error
        except TimedOut as error:
            raise SourceError(f"{self._shown} cannot be fetched: {error}") from error
        if done.code != 0:
            raise _failure(self._shown, done)
        return done


def _environment(cwd: Path, url: str) -> dict[str, str]:
    config = {**_CONFIG, **_remote(url)}
    env = git_environment(config.items(), folder=str(cwd), keep=_KEPT)
    env.update(
        GIT_CEILING_DIRECTORIES=str(cwd.parent),
        # This holds for the other end of git+file:// as well, which has our environment and the
        # configuration of its repository.
        GIT_ALLOW_PROTOCOL=":".join(GIT_SCHEMES),
    )
    if "GIT_SSH" not in env:
        # Of a configuration, `core.sshCommand` would come after it.
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
    telling = [line for line in lines if line.lower().startswith(("fatal:", "error:"))]
    last = (telling or lines or ["it could not be read"])[-1]
    reason = without_password(re.sub(r"(?i)^(fatal|error): ", "", last))
    hint = None
    if "terminal prompts disabled" in reason or "Authentication failed" in reason:
        hint = "for a private repository write git+https://USER:${TOKEN}@…, or use git+ssh://"
    elif "Permission denied" in done.stderr or "Host key verification failed" in done.stderr:
        hint = "check that 'ssh' reaches the host without asking"
    return GitFailed(f"{shown} cannot be fetched: {reason}", hint=hint)
