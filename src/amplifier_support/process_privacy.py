"""Keeping other processes of the same user out of this one."""

from __future__ import annotations

import sys

if sys.platform == "linux":
    import ctypes

_PR_SET_DUMPABLE = 4


def forbid_inspection() -> None:
    """Make this process's environment and memory unreadable to other processes of the user.

    That includes every command started from here, which otherwise could read the keys this process
    was started with from `/proc`. The superuser still can. Debuggers of the user are kept out as
    well, and there are no core dumps. It holds until another program is executed in this process;
    a fork inherits it. Systems other than Linux have nothing like it; there this does nothing.

    Raises:
        OSError: The system refused.
    """
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError("the system does not support PR_SET_DUMPABLE")
