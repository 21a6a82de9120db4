"""Where the program keeps things: one home, moved whole by `AMPLIFIER_HOME`.

Without it the platform's own folders are used (`platformdirs`). Functions read
the environment at each call, so a test or a shell can move the home at any time.
What a project brings along lies in its own `.amplifier` folder (`project_dir`).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

PROJECT_FOLDER = ".amplifier"


def _home(kind: str) -> Path:
    moved = os.environ.get("AMPLIFIER_HOME")
    if moved:
        base = Path(moved).expanduser().absolute()
        return base if kind != "cache" else base / "cache"
    # Costs 15 ms to import, which a run with AMPLIFIER_HOME set need not pay.
    import platformdirs

    dirs = platformdirs.PlatformDirs("amplifier", appauthor=False)
    return Path(getattr(dirs, f"user_{kind}_dir"))


def config_dir() -> Path:
    """Settings and the user's own profiles."""
    return _home("config")


def state_dir() -> Path:
    """What must outlive the process: sessions."""
    return _home("data")


def cache_dir() -> Path:
    """What can be fetched again: git checkouts, packages, model weights."""
    return _home("cache")


def sessions_dir() -> Path:
    return state_dir() / "sessions"


def user_profiles_dir() -> Path:
    return config_dir() / "profiles"


def packaged_profiles_dir() -> Path:
    """The profiles shipped with the program: in the wheel, or the checkout's own folder."""
    installed = Path(__file__).parents[1] / "profiles"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "profiles"


def project_dir(start: Path | None = None) -> Path | None:
    """The `.amplifier` folder of the project that a directory belongs to.

    It is that of the nearest ancestor which has one, the directory itself included. The search
    ends with the first folder that holds `.git`, and before the home directory. Folders in
    which everybody may create files (`/tmp`) are passed over, as is one that is AMPLIFIER_HOME.
    That it is found does not mean that it is trusted.

    Args:
        start: The directory; the working directory by default.

    Returns:
        Absolute, with links of `start` resolved; the folder itself may be a link.
        None if there is none.
    """
    try:
        folder = Path(os.path.realpath(start or os.getcwd()))
    except FileNotFoundError:
        # The working directory was removed: nothing is in it.
        return None
    amplifier_home = _identity(Path(os.environ.get("AMPLIFIER_HOME") or os.devnull).expanduser())
    home = _identity(Path(os.path.expanduser("~")))
    for ancestor in (folder, *folder.parents):
        if home is not None and _identity(ancestor) == home:
            return None
        found = ancestor / PROJECT_FOLDER
        if (
            os.path.isdir(found)
            and _identity(found) != amplifier_home
            and not _is_everybodys(ancestor)
        ):
            return found
        if os.path.lexists(ancestor / ".git"):
            return None
    return None


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from every other, whatever names it has; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_everybodys(folder: Path) -> bool:
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_ISVTX and mode & stat.S_IWOTH)
