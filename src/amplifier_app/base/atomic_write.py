"""Writing files that people keep beside their plans: settings and locks."""

from __future__ import annotations

import os
from pathlib import Path

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location
from amplifier_support.atomic_write import write_atomically


def write_whole(file: Path, text: str) -> None:
    """Replace a file by `text` (UTF-8), whole or not at all, and have it on disk.

    Owner and mode stay. The folder is made if it is not there.

    Args:
        file: The file; a link is followed. A new one below the user's own folder is 0600.
        text: What it holds from then on.

    Raises:
        ConfigError: It cannot be written; what was there is still there.
    """
    target = Path(os.path.realpath(file))
    private = target.is_relative_to(os.path.realpath(paths.config_dir()))
    try:
        target.parent.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
        write_atomically(target, text.encode(), mode=0o600 if private else 0o666)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot write: {reason}", location=Location(str(file))) from error
