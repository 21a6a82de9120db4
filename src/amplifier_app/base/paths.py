"""The folders of the program; `AMPLIFIER_HOME` moves all of them, `AMPLIFIER_SESSIONS` one.

By default the platform's own folders are used (`platformdirs`). Functions read the environment at each
call, so a test or a shell can change the home at any time. The files of a project are in its own
`.amplifier` folder (`project_dir`).
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from amplifier_app.base.errors import ConfigError
from amplifier_support.files import NO_TEMPORARY_FOLDER, NoTemporaryFolder, temporary_folder
from amplifier_support.working_folder import working_folder

PROJECT_FOLDER = ".amplifier"


def _home(kind: str) -> Path:
    moved = os.environ.get("AMPLIFIER_HOME")
    if moved:
        expanded = os.path.expanduser(moved)
        if expanded.startswith("~"):
            message = f"AMPLIFIER_HOME names an unknown home folder: {moved!r}"
            raise ConfigError(message, hint="Set it to an absolute path.")
        base = Path(expanded).absolute()
        if os.path.isfile(base):
            raise ConfigError(f"AMPLIFIER_HOME is not a folder: {base}", hint="Set it to a folder.")
        return base if kind != "cache" else base / "cache"
    # Takes 15 ms to import, and is not needed if AMPLIFIER_HOME is set.
    import platformdirs

    dirs = platformdirs.PlatformDirs("amplifier", appauthor=False)
    folder = Path(getattr(dirs, f"user_{kind}_dir"))
    if not folder.is_absolute():
        raise ConfigError(
            "the home folder is unknown", hint="Set HOME, or set AMPLIFIER_HOME to a folder."
        )
    return folder


def config_dir() -> Path:
    """Settings and the user's own profiles."""
    return _home("config")


def state_dir() -> Path:
    """Data to keep: sessions."""
    return _home("data")


def cache_dir() -> Path:
    """Data that can be fetched again: git checkouts, packages, model weights."""
    return _home("cache")


def prices_file() -> Path:
    """The table of prices that the user has fetched, whether or not it exists."""
    return state_dir() / "prices.json"


def working_dir() -> str:
    """The working directory.

    Raises:
        ConfigError: It was removed.
    """
    try:
        return working_folder()
    except FileNotFoundError:
        raise ConfigError(
            "the current directory no longer exists", hint="Change to another one."
        ) from None


def temporary_dir() -> str:
    """The folder in which Python creates temporary files.

    Raises:
        ConfigError: There is none.
    """
    try:
        temporary_folder()
        return tempfile.gettempdir()
    except (NoTemporaryFolder, FileNotFoundError) as error:
        hint = "Set TMPDIR to a folder that can be written to."
        raise ConfigError(NO_TEMPORARY_FOLDER, hint=hint) from error


def sessions_dir() -> Path:
    """The saved sessions; `AMPLIFIER_SESSIONS` names another folder, such as that of a batch."""
    moved = os.environ.get("AMPLIFIER_SESSIONS")
    return Path(moved).expanduser().absolute() if moved else state_dir() / "sessions"


def user_profiles_dir() -> Path:
    return config_dir() / "profiles"


def bundled_profiles_dir() -> Path:
    """The bundled profiles: in the wheel, or in the checkout."""
    return _bundled("profiles")


def bundled_examples_dir() -> Path:
    """The examples of the pages: in the wheel, or in the checkout."""
    return _bundled("examples")


def _bundled(name: str) -> Path:
    installed = Path(__file__).parents[1] / name
    return installed if installed.is_dir() else Path(__file__).parents[3] / name


def project_dir(start: Path | None = None) -> Path | None:
    """The `.amplifier` folder of the project that a directory belongs to.

    Searches the directory and its ancestors. The search ends at the first folder with `.git`, and
    before the home directory. Folders in which every user may create files (`/tmp`) are skipped, and
    so is AMPLIFIER_HOME. A project that is found is not necessarily trusted.

    Args:
        start: The directory; the working directory by default.

    Returns:
        Absolute, with links of `start` resolved; the folder itself may be a link.
        None if there is none.
    """
    try:
        folder = Path(os.path.realpath(start or working_folder()))
    except FileNotFoundError:
        # The working directory was removed.
        return None
    amplifier_home = _identity(
        Path(os.path.expanduser(os.environ.get("AMPLIFIER_HOME") or os.devnull))
    )
    home = _identity(Path(os.path.expanduser("~")))
    for ancestor in (folder, *folder.parents):
        if home is not None and _identity(ancestor) == home:
            return None
        path = ancestor / PROJECT_FOLDER
        if os.path.isdir(path) and _identity(path) != amplifier_home and not _is_shared(ancestor):
            return path
        if os.path.lexists(ancestor / ".git"):
            return None
    return None


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None if it does not exist."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return None


def _is_shared(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        mode = folder.stat().st_mode
        return bool(mode & stat.S_ISVTX and mode & stat.S_IWOTH)
    return False


def short_path(path: str) -> str:
    """Return a path with `~` for the home directory."""
    home = os.path.expanduser("~")
    inside = path == home or path.startswith(home + os.sep)
    return f"~{path[len(home) :]}" if inside and home not in ("~", os.sep) else path


VARIABLE = "AMPLIFIER_OFFLINE"


def is_offline(asked: bool = False) -> bool:
    """Return True if fetching is disabled, by the command line or by AMPLIFIER_OFFLINE.

    Args:
        asked: Whether the command line disables it.
    """
    return asked or os.environ.get(VARIABLE, "").lower() not in ("", "0", "false", "no")
