"""Runs uv for a module, with the versions in Amplifier's environment as constraints."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from amplifier_app.base.installed import OURS, normalised
from amplifier_app.base.slow_steps import slow_step
from amplifier_app.sources.errors import SourceError
from amplifier_support.environment import without_model_keys
from amplifier_support.programs import TimedOut, run, search_path

_SECONDS = 900.0
_SHOWN_LINES = 12
_NO_CONNECTION = re.compile(r"\(Connect\)|dns error|timed out|connection (?:reset|closed)", re.I)
_finding = threading.Lock()


class Uv:
    """Runs uv in one folder.

    Args:
        stage: An empty folder for its files.
        constraints: Name → the only acceptable version.
        offline: Use only what is on this machine.
        stop: Set it to end uv.
    """

    def __init__(
        self,
        stage: Path,
        constraints: Mapping[str, str],
        *,
        offline: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        self._stage = stage
        self._offline = offline
        self._stop = stop
        # uv uses the nearest configuration, and the cache may be inside another project.
        (stage / "uv.toml").touch()
        pinned = (f"{name}=={version}\n" for name, version in constraints.items())
        (stage / "constraints.txt").write_text("".join(pinned), encoding="utf-8")
        (stage / "overrides.txt").write_text(
            "".join(f"{ours} ; python_version < '0'\n" for ours in OURS), encoding="utf-8"
        )

    def install(self, target: Path, listed: Iterable[Path], what: str) -> None:
        """Install requirements, including transitive ones, into a folder.

        Args:
            target: The folder; created if missing.
            listed: Requirements files or project files.
            what: What is being installed, for error messages.

        Raises:
            SourceError: uv failed; the message has its reason.
            Stopped: `stop` was set.
        """
        self._run("install", "--target", str(target), listed=listed, what=what)
        _clean(target)

    def compile(self, listed: Iterable[Path], what: str) -> dict[str, str]:
        """Resolve requirements: name → version of everything that would be installed.

        Raises:
            SourceError: There is no solution; the message has uv's reason.
            Stopped: `stop` was set.
        """
        options = ("--no-header", "--no-annotate", "--quiet")
        text = self._run("compile", *options, listed=listed, what=what)
        found: dict[str, str] = {}
        for line in text.splitlines():
            match = re.match(r"([A-Za-z0-9][\w.-]*)==([^\s;]+)", line)
            if match:
                found[normalised(match[1])] = match[2]
        return found

    def install_one(self, target: Path, name: str, version: str, what: str) -> None:
        """Install one distribution into a folder, without its requirements.

        Raises:
            SourceError: uv failed; the message has its reason.
            Stopped: `stop` was set.
        """
        one = f"{name}=={version}"
        self._run("install", "--no-deps", "--target", str(target), one, what=what)
        _clean(target)

    def _run(self, verb: str, *arguments: str, listed: Iterable[Path] = (), what: str) -> str:
        files = [str(file) for file in listed]
        if verb == "install":
            files = [part for file in files for part in ("-r", file)]
        command = [
            *(_program(), "pip", verb, *arguments, "--python", sys.executable),
            *("--override", str(self._stage / "overrides.txt")),
            *("--constraint", str(self._stage / "constraints.txt")),
            *(("--offline",) if self._offline else ()),
            *files,
        ]
        # Build backends and programs such as git run in it, and they need no keys.
        env = {
            **without_model_keys(os.environ),
            **{"PATH": search_path(), "UV_NO_PROGRESS": "1", "NO_COLOR": "1"},
        }
        try:
            with slow_step(f"installing {what}"):
                done = run(command, cwd=self._stage, env=env, seconds=_SECONDS, stop=self._stop)
        except TimedOut as error:
            raise SourceError(f"cannot install {what}: {error}") from error
        if done.code != 0:
            raise self._failure(what, done.stderr)
        return done.stdout

    def _failure(self, what: str, stderr: str) -> SourceError:
        lines = [line.rstrip() for line in stderr.splitlines() if line.strip()]
        # Names the interpreter, which is never the cause.
        lines = [line for line in lines if not line.startswith("Using ")]
        if self._offline and "network was disabled" in stderr:
            return SourceError(
                f"cannot install {what} offline: not in the cache",
                hint="Run once without --offline",
            )
        fetched = re.search(r"Failed to fetch: `?([^\s`]+)", stderr)
        if fetched and _NO_CONNECTION.search(stderr):
            address = urlsplit(fetched[1])
            host = address.netloc.rpartition("@")[2]
            # The files of packages need not be where the index is.
            where = host if "Failed to download" in stderr else f"the package index at {host}"
            reason = lines[-1].strip().removeprefix("cause: ").removeprefix("Caused by: ")
            return SourceError(
                f"cannot install {what}: {where} cannot be reached: {reason}",
                hint="Check the network connection and the package index that uv is set to use",
            )
        hint = None
        if "No solution found" in stderr and "was not found" not in stderr:
            hint = "requirements must be compatible with the environment Amplifier runs in"
        reason = "\n".join(lines[-_SHOWN_LINES:])
        return SourceError(f"cannot install {what}:\n{reason}", hint=hint)


def _program() -> str:
    """The path of uv.

    Raises:
        SourceError: It is missing.
    """
    import uv

    try:
        # It calls `sysconfig`, whose first call is not thread-safe before Python 3.12.
        with _finding:
            return os.fsdecode(uv.find_uv_bin())
    except FileNotFoundError as error:
        raise SourceError(
            f"uv, which installs the dependencies of modules, is missing: {error}",
            hint="Reinstall Amplifier with its dependencies",
        ) from error


def _clean(target: Path) -> None:
    """Remove scripts, which contain the path of this machine's Python, and uv's lock."""
    (target / ".lock").unlink(missing_ok=True)
    for scripts in ("bin", "Scripts"):
        shutil.rmtree(target / scripts, ignore_errors=True)
