"""The policy as a Seatbelt profile, which is what macOS enforces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_DEVICES = (
    "/dev/null",
    "/dev/zero",
    "/dev/tty",
    "/dev/dtracehelper",
    "/dev/random",
    "/dev/urandom",
)


def profile(
    *, write: Sequence[str], read: Sequence[str], hidden: Sequence[str], internet: bool
) -> str:
    """The text of a profile.

    Args:
        write: Folders that may be changed, links resolved.
        read: Folders that may be read as well.
        hidden: Files and folders that may not be read or changed.
        internet: Whether the network may be used.
    """
    lines = [
        "(version 1)",
        "(deny default)",
        "(allow process-exec process-fork process-info* sysctl-read mach-lookup signal)",
        "(allow ipc-posix-sem ipc-posix-shm pseudo-tty)",
        "(allow file-read-metadata)",
        *_rule("allow file-read*", [*read, *write]),
        *_rule("allow file-write*", write),
        *_rule("allow file-read* file-write* file-ioctl", _DEVICES, kind="literal"),
        *_rule("deny file-read* file-write*", hidden),
        *(["(allow network* system-socket)"] if internet else []),
    ]
    return "\n".join(lines) + "\n"


def _rule(start: str, paths: Iterable[str], *, kind: str = "subpath") -> list[str]:
    places = [f"({kind} {_quoted(path)})" for path in paths]
    return [f"({start} {' '.join(places)})"] if places else []


def _quoted(path: str) -> str:
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
