"""Write files the user keeps next to plans: settings and locks."""

from __future__ import annotations

import os
from pathlib import Path

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location
from amplifier_support.atomic_write import write_atomically


def write_whole(file: Path, text: str) -> None:
    """Replace the content of a file with `text` (UTF-8) atomically, and sync it to disk.

    Owner and mode are kept. A missing folder is created.

    Args:
        file: The file; links are followed. A new file in the user's config folder gets mode 0600.
        text: The new content.

    Raises:
        ConfigError: It cannot be written; the old content is unchanged.
    """
    target = Path(os.path.realpath(file))
    private = target.is_relative_to(os.path.realpath(paths.config_dir()))
    try:
        target.parent.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
        write_atomically(target, text.encode(), mode=0o600 if private else 0o666)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot write: {reason}", location=Location(str(file))) from error
