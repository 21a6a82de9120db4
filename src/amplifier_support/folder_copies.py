"""What copies of folders leave out, and why they fail; for `shutil.copytree`."""

from __future__ import annotations

import os
import re
import shutil
import stat


def is_special(path: str) -> bool:
    """Whether there is a pipe, a socket or a device, which a copy leaves out."""
    try:
        kind = stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:  # reported by the copy
        return False
    return kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


def reason_of(error: OSError) -> str:
    """Why a folder cannot be copied; if several files failed, the reason of the first."""
    if isinstance(error, shutil.Error) and error.args[0]:
        path, _, reason = error.args[0][0]
        # The text of a system error, which ends with the path.
        found = re.match(r"\[Errno \d+\] (.*?): '", reason)
        return f"{path}: {found[1] if found else reason}"
    return error.strerror or str(error)
