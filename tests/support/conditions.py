"""The conditions a process starts in: closed descriptors, limits, another user, a removed directory.

    run_amplifier("session", "list", conditions=Conditions(closed=(1,), umask=0o777))

Standard library only: the warm interpreter imports it by itself.
"""

import ctypes
import os
import resource
import signal
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

_CLONE_NEWUSER = 0x10000000
ORDINARY_USER = 65534
"""The id of `nobody`, for tests that run as root, to whom no permission applies."""


class Conditions(NamedTuple):
    """What a process finds when it starts.

    Attributes:
        closed: Standard descriptors that are closed.
        umask: Its umask.
        limits: Resource limits by name, such as `{"RLIMIT_NOFILE": 32}`.
        user: The user and group it runs as; needs root.
        namespaces: False if it can make none.
        folder: Its working directory is `"removed"` or `"unreadable"` (needs `user`).
        steps: File in which it notes its steps; see `tests.support.kill_points`.
        kill_at: Number of the step at which it gets a signal.
        kill_by: The signal.
    """

    closed: tuple[int, ...] = ()
    umask: int | None = None
    limits: Mapping[str, int] = {}
    user: int | None = None
    namespaces: bool = True
    folder: str | None = None
    steps: str | None = None
    kill_at: int | None = None
    kill_by: int = signal.SIGKILL


def forbid_namespaces() -> None:
    """Enter a user namespace in which neither others nor mount namespaces can be made."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "no user namespace")
    for name, text in (
        *(
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    for name in ("user", "mnt"):
        with open(f"/proc/sys/user/max_{name}_namespaces", "w") as file:
            file.write("0")


def apply_conditions(wanted: Mapping[str, Any]) -> None:
    """Establish `Conditions` (as a mapping) in this process, which has just been forked."""
    if wanted["folder"] is not None:
        folder = os.path.join(os.getcwd(), f"{wanted['folder']}-{os.getpid()}")
        os.mkdir(folder)
        os.chdir(folder)
        if wanted["folder"] == "removed":
            os.rmdir(folder)
        else:
            os.chmod(folder, 0)
    if wanted["umask"] is not None:
        os.umask(wanted["umask"])
    for name, value in wanted["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    if not wanted["namespaces"]:
        forbid_namespaces()
    if wanted["user"] is not None:
        os.setgroups([])
        os.setgid(wanted["user"])
        os.setuid(wanted["user"])
    if wanted["steps"] is not None:
        import_module("kill_points").install(wanted["steps"], wanted["kill_at"], wanted["kill_by"])
    for descriptor in wanted["closed"]:
        os.close(descriptor)
