"""Where the program keeps things: one home, moved whole by `AMPLIFIER_HOME`.

Without it the platform's own folders are used (`platformdirs`). Functions read
the environment at each call, so a test or a shell can move the home at any time.
"""

from __future__ import annotations

import os
from pathlib import Path


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
    installed = Path(__file__).with_name("profiles")
    return installed if installed.is_dir() else Path(__file__).parents[2] / "profiles"
