"""Checks of what is stored on disk: keys, cache and sessions."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError
from amplifier_app.base.keys import Keyring, KeyringUnavailable, KeyStore
from amplifier_app.base.logins import LoginStore
from amplifier_app.commands.doctor.check import Check
from amplifier_app.runtime import describe

_LITTLE_ROOM = 500 * 1024 * 1024
_NO_ROOM = 10 * 1024 * 1024
_COUNTING_SECONDS = 0.5
"""Time limit for adding up a folder's size; after it the size is shown as 'more than'."""


def home() -> Iterator[Check]:
    """The folders of settings and state."""
    config, state = paths.config_dir(), paths.state_dir()
    moved = os.environ.get("AMPLIFIER_HOME")
    where = str(config) if config == state else f"settings in {config}, sessions in {state}"
    yield from _folder("home", config, f"{where}{', from AMPLIFIER_HOME' if moved else ''}")


def keys() -> Iterator[Check]:
    """Which keys are stored where, and whether only the user can read them."""
    store, logins = KeyStore(), LoginStore().file
    if logins.exists():
        yield from _private(logins.parent, 0o700)
        yield from _private(logins, 0o600)
    try:
        stored = store.names()
    except ConfigError as error:
        yield Check("keys", "fail", f"{error.location or ''} {error.message}".strip(), error.hint)
        return
    if not stored:
        yield Check("keys", "ok", "none stored; add one with: amplifier init")
        return
    for place in ("keyring", "file"):
        names = [name for name, where in stored.items() if where == place]
        if names:
            where = f"in {store.file}" if place == "file" else "in the keyring"
            yield Check("keys", "ok", f"{', '.join(names)} {where}")
    yield from _private(store.folder, 0o700)
    yield from _private(store.file, 0o600)
    overridden = [name for name in stored if name in os.environ]
    if overridden:
        listed = ", ".join(overridden)
        message = f"the stored {listed} is overridden by an environment variable"
        yield Check("keys", "warn", message, f"unset {listed} to use the stored key")
    if "keyring" in stored.values():
        yield from _keyring()


def _keyring() -> Iterator[Check]:
    try:
        yield Check("keyring", "ok", Keyring().name)
    except KeyringUnavailable as error:
        fix = "unlock or start it, or store the keys in a file: amplifier init --key-in file"
        yield Check("keyring", "fail", str(error), fix)


def _private(path: Path, wanted: int) -> Iterator[Check]:
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name != "nt" and mode & ~wanted:
        message = f"{path} is readable by other users (mode {mode:o})"
        yield Check("keys", "fail", message, f"chmod {wanted:o} '{path}'")


def cache() -> Iterator[Check]:
    """The cache folder and its size."""
    folder = paths.cache_dir()
    size, whole = _size(folder)
    amount = f"{'' if whole else 'more than '}{describe.size(size)}"
    yield from _folder("cache", folder, f"{folder}, {amount}")


def sessions() -> Iterator[Check]:
    """The sessions folder, the number of sessions and the free disk space."""
    folder = paths.sessions_dir()
    count = sum(1 for entry in _entries(folder) if entry.is_dir(follow_symlinks=False))
    free = shutil.disk_usage(_existing(folder)).free
    message = f"{folder}, {count} saved, {describe.size(free)} free"
    if folder.is_symlink():
        fix = "remove the link, or point AMPLIFIER_HOME at a folder of your own"
        yield Check(
            "sessions",
            "fail",
            f"{folder} is a symbolic link; sessions are not saved through it",
            fix,
        )
        return
    if free < _LITTLE_ROOM:
        state = "fail" if free < _NO_ROOM else "warn"
        yield Check("sessions", state, message, "free some disk space")
        return
    yield from _folder("sessions", folder, message)
    if folder.is_dir() and os.name != "nt":
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & 0o077:
            fix = f"chmod 700 '{folder}'"
            yield Check("sessions", "warn", f"readable by other users (mode {mode:o})", fix)


def _folder(name: str, folder: Path, message: str) -> Iterator[Check]:
    """Check that a folder can be written or created."""
    existing = _existing(folder)
    if not existing.is_dir():
        yield Check(
            name,
            "fail",
            f"{existing} is not a folder",
            "remove it, or set AMPLIFIER_HOME to another folder",
        )
    elif not os.access(existing, os.W_OK | os.X_OK):
        fix = f"make {existing} writable, or set AMPLIFIER_HOME to another folder"
        yield Check(name, "fail", f"{message}; not writable", fix)
    else:
        yield Check(name, "ok", message)


def _existing(path: Path) -> Path:
    """The path itself, or its nearest existing parent."""
    return next(one for one in (path, *path.parents) if os.path.lexists(one))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _size(folder: Path) -> tuple[int, bool]:
    """Bytes below a folder, and whether the count is complete."""
    until = time.monotonic() + _COUNTING_SECONDS
    total = 0
    waiting = [folder]
    while waiting:
        for entry in _entries(waiting.pop()):
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            else:
                total += entry.stat(follow_symlinks=False).st_size
        if time.monotonic() > until:
            return total, not waiting
    return total, True
