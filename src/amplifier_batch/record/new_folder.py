"""The folder of a new batch, which is removed again if the batch is refused before a row has begun."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Generator
from pathlib import Path

from amplifier_batch.record.folder import has_begun, require_unused


@contextlib.contextmanager
def new_folder(path: Path, *, whole: bool = False) -> Generator[Callable[[], None]]:
    """Create the folder of a batch, and remove it if the block raises before a row has begun or a log was written.

    Args:
        path: The folder; new or empty.
        whole: Whether to remove it later, too: what is in it is a copy.

    Yields a function that removes it without an error, also with a log.

    Raises:
        ConfigError: There is something in it.
        SessionError: It cannot be created.
    """
    created = [one for one in (path, *path.parents) if not one.exists()]

    def remove() -> None:
        if whole or not has_begun(path):
            _remove(path, created)

    require_unused(path)
    try:
        yield remove
    except BaseException:
        log = path / "log.txt"
        # The log may be the only place with the reason why workers failed to start.
        if not (log.exists() and log.stat().st_size):
            remove()
        raise


def _remove(path: Path, created: list[Path]) -> None:
    # Failures to remove something must not hide why the batch was refused.
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        for folder in created:
            folder.rmdir()
