"""What a module's project requires beside the kernel, installed by uv into a folder of its own.

    cache/dependencies/<hash of the requirements>/   put at the end of `sys.path`

The running environment comes first on `sys.path` and is never written to, so what it has
is a constraint of the resolution: a module that needs another version of something we run
on is refused with uv's reason instead of failing later in a strange way. `amplifier-core`
is always ours, whoever asks for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.installed import DISTRIBUTION, normalised
from amplifier_app.sources.layout import Layout
from amplifier_app.sources.locking import locked
from amplifier_app.sources.process import TimedOut, run

OURS = ("amplifier-core", DISTRIBUTION)

_INSTALL_SECONDS = 900.0
_SHOWN_LINES = 12


class DependencyCache:
    """Folders of installed requirements, shared by all processes.

    Args:
        root: The folder of the cache; made when first needed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder_for(self, layout: Layout, *, stop: threading.Event | None = None) -> Path | None:
        """A folder that has what a module requires; None if the environment has it all.

        Raises:
            SourceError: uv cannot install it.
            Stopped: `stop` was set.
        """
        if layout.project_file is None:
            return None
        required = [text for text in layout.dependencies if _name(text) not in OURS]
        if not layout.dynamic and (not required or all(map(_is_there, required))):
            return None
        settings = _uv_settings(layout.project_file)
        home = self._root / _key(required, settings, layout)
        present = distributions(sys.path)
        if not _fits(home, present):
            with locked(home.with_suffix(".lock"), stop):
                if not _fits(home, present):
                    self._fill(home, layout, required, bool(settings), present, stop)
        return home

    def _fill(
        self,
        home: Path,
        layout: Layout,
        required: list[str],
        by_project: bool,
        present: dict[str, str],
        stop: threading.Event | None,
    ) -> None:
        import shutil
        import tempfile

        assert layout.project_file is not None
        with tempfile.TemporaryDirectory(prefix=".stage-", dir=self._root) as name:
            stage = Path(name)
            (stage / "requirements.txt").write_text("\n".join(required), encoding="utf-8")
            (stage / "overrides.txt").write_text(
                "".join(f"{ours} ; python_version < '0'\n" for ours in OURS), encoding="utf-8"
            )
            pinned = (f"{name}=={version}\n" for name, version in present.items())
            (stage / "constraints.txt").write_text("".join(pinned), encoding="utf-8")
            # Only the project file itself knows its `tool.uv.sources` and computed requirements.
            whole = by_project or layout.dynamic
            listed = layout.project_file if whole else stage / "requirements.txt"
            _install(stage, listed, layout.project_file, stop)
            if home.exists():
                # Installed for another version of the environment.
                shutil.move(home, stage / "old")
            (stage / "target").rename(home)


def _install(stage: Path, listed: Path, project: Path, stop: threading.Event | None) -> None:
    import uv

    target = stage / "target"
    target.mkdir()
    command = [
        *(uv.find_uv_bin(), "pip", "install", "--target", str(target)),
        *("--python", sys.executable, "--override", str(stage / "overrides.txt")),
        *("--constraint", str(stage / "constraints.txt"), "-r", str(listed)),
    ]
    env = {**os.environ, "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
    try:
        done = run(command, cwd=stage, env=env, seconds=_INSTALL_SECONDS, stop=stop)
    except TimedOut as error:
        raise SourceError(f"what {project} requires cannot be installed: {error}") from error
    if done.code != 0:
        lines = [line.rstrip() for line in done.stderr.splitlines() if line.strip()]
        reason = "\n".join(lines[-_SHOWN_LINES:])
        raise SourceError(
            f"what {project} requires cannot be installed:\n{reason}",
            hint="requirements have to agree with the environment Amplifier runs in",
        )


def _key(required: Iterable[str], settings: dict[str, Any], layout: Layout) -> str:
    parts: list[Any] = [sorted(required), settings, sys.implementation.cache_tag]
    parts += [sys.platform, platform.machine()]
    if settings or layout.dynamic:
        # Such requirements may lead to other files of the project.
        parts.append(str(layout.project_file))
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _uv_settings(project_file: Path) -> dict[str, Any]:
    import tomllib

    with project_file.open("rb") as stream:
        settings = tomllib.load(stream).get("tool", {}).get("uv", {})
    return settings if isinstance(settings, dict) else {}


def _name(requirement: str) -> str:
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    return normalised(match[1]) if match else ""


def _is_there(requirement: str) -> bool:
    """Whether the running environment satisfies a requirement, as far as that is sure."""
    from importlib import metadata

    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(requirement)
    except InvalidRequirement:
        # uv tells what is wrong with it.
        return False
    if wanted.marker is not None and not wanted.marker.evaluate():
        return True
    if wanted.url or wanted.extras:
        return False
    try:
        version = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return False
    return wanted.specifier.contains(version, prereleases=True)


def distributions(folders: Iterable[str]) -> dict[str, str]:
    """Name → version of what is installed in these folders, by the names of its metadata."""
    found: dict[str, str] = {}
    for folder in folders:
        try:
            entries = os.listdir(folder or ".")
        except OSError:
            # Not a folder, or not there: nothing is installed in it.
            continue
        for entry in entries:
            match = re.fullmatch(r"([A-Za-z0-9._]+)-([^-]+)\.dist-info", entry)
            if match and normalised(match[1]) not in OURS:
                found.setdefault(normalised(match[1]), match[2].partition("+")[0])
    return found


def _fits(home: Path, present: dict[str, str]) -> bool:
    """Whether a folder is there and has nothing in another version than the environment."""
    if not home.is_dir():
        return False
    inside = distributions([str(home)])
    return all(present.get(name, version) == version for name, version in inside.items())
