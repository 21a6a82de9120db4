"""Where fuzzing writes its files."""

import functools
import os
import shutil
import tempfile
from pathlib import Path

FOLDER = "AMPLIFIER_FUZZ_FOLDER"
"""Variable with the folder of a process that cannot remove its files itself."""


def memory_folder() -> Path | None:
    """A folder in the kernel's memory, where syncing costs nothing; None if there is none."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else None


@functools.cache
def folder() -> Path:
    """The folder for the files of this process."""
    base = os.environ.get(FOLDER) or memory_folder()
    return Path(tempfile.mkdtemp(prefix="amplifier-fuzz-", dir=base))


def remove_files() -> None:
    """Remove what the targets wrote."""
    shutil.rmtree(folder(), ignore_errors=True)
    folder.cache_clear()
