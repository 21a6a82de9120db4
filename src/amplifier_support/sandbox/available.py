"""The abilities of this machine to enforce a policy, as facts with reasons."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

from amplifier_support.environment import minimal_environment
from amplifier_support.files import is_below, make_private_folder, read_file, write_atomically
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.sandbox.policy import SandboxPolicy

_PACKAGES = str(Path(__file__).parents[2])
_PROBE = """\
import sys
sys.path.append(sys.argv[1])
__import__("amplifier_support.sandbox.entering", fromlist="x").probe(*sys.argv[2:])
"""
_PROBE_SECONDS = 10.0

logger = logging.getLogger(__name__)

SEATBELT = "/usr/bin/sandbox-exec"


class Layer(NamedTuple):
    """True if a layer of the sandbox works here.

    Attributes:
        works: Whether it can be enforced.
        detail: What enforces it; or else what is missing, as a clause.
        gaps: What this layer does not cover on this machine, as clauses.
    """

    works: bool
    detail: str
    gaps: tuple[str, ...] = ()


_memory: Path | None = None


def remember_in(file: Path) -> None:
    """Keep in `file` which layers work, so that other processes need no probe.

    It is not used once anything that a probe depends on has changed. A layer that does not work is
    probed each time; one that stops working makes commands fail, never run without it.
    """
    global _memory
    _memory = file


@cache
def kernel_layer() -> Layer:
    """The layer that needs nothing but the system's kernel."""
    if sys.platform.startswith("linux"):
        return _recalled("kernel", _linux)
    if sys.platform == "darwin":
        return _macos()
    return Layer(False, f"there is no sandbox for commands on {sys.platform}")


@cache
def namespace_layer() -> Layer:
    """The layer with own namespaces for mounts, processes and the network."""
    if not sys.platform.startswith("linux"):
        return Layer(False, "there are namespaces on Linux only")
    return _recalled("namespaces", _namespaces)


def _namespaces() -> Layer:
    lacking = _lacking_in_kernel()
    if lacking is not None:
        return Layer(False, lacking)
    problem = _start_one(inside=True)
    if problem is None:
        return Layer(True, "namespaces for files, processes and the network")
    reason = next((why for path, value, why in _SWITCHES if _content(path) == value), None)
    return Layer(False, reason or f"the system refuses to make namespaces: {problem}")


def _recalled(name: str, probe: Callable[[], Layer]) -> Layer:
    """The layer `name`: as remembered, or else as probed."""
    if _memory is None:
        return probe()
    machine = _machine()
    saved = _read_memory(_memory, machine)
    if name in saved:
        return Layer(True, *saved[name])
    layer = probe()
    if layer.works:
        # The probe may have remembered another layer.
        saved = {**_read_memory(_memory, machine), name: (layer.detail, layer.gaps)}
        try:
            make_private_folder(_memory.parent)
            data = json.dumps({"machine": machine, "works": saved}).encode()
            write_atomically(_memory, data, durable=False)
        except OSError as error:
            logger.debug("Cannot remember what works here in %s: %s", _memory, error)
    return layer


def _read_memory(file: Path, machine: list[str | None]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The remembered layers of this machine: their details and gaps."""
    try:
        data = json.loads(read_file(file, _MEMORY_BYTES))
        if data["machine"] != machine:
            return {}
        return {name: (str(detail), tuple(gaps)) for name, (detail, gaps) in data["works"].items()}
    # A missing or invalid file is written again.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


@cache
def _machine() -> list[str | None]:
    """Everything that a probe depends on."""
    status = _content("/proc/self/status") or ""
    rights = [line for line in status.splitlines() if line.startswith(_RIGHTS)]
    return [
        *(_content(path) for path in _CONDITIONS),
        *(_content(path) for path, _, _ in _SWITCHES),
        *rights,
        os.readlink("/proc/self/ns/user"),
        os.readlink("/proc/self/ns/mnt"),
        os.uname().release,
        str(os.geteuid()),
        sys.executable,
        __file__,
        str(os.stat(__file__).st_mtime_ns),
    ]


def missing(policy: SandboxPolicy) -> str | None:
    """Why this machine cannot enforce a policy, as a clause; None if it can."""
    by_name = isinstance(policy.network, tuple)
    layers = [kernel_layer()]
    if policy.level == "namespaces" or by_name:
        layers.append(namespace_layer())
    lacking = next((layer.detail for layer in layers if not layer.works), None)
    if lacking and by_name and policy.level == "kernel" and layers[0].works:
        return f"the network by host name needs namespaces: {lacking}"
    return lacking


def _linux() -> Layer:
    from amplifier_support.sandbox import system_calls

    lacking = _lacking_in_kernel()
    if lacking is not None:
        return Layer(False, lacking)
    # Where namespaces work, a command has run under Landlock and seccomp.
    problem = None if namespace_layer().works else _start_one(inside=False)
    if problem is not None:
        return Layer(False, f"no command starts with Landlock and seccomp here ({problem})")
    version = system_calls.landlock_version()
    detail = f"Landlock version {version}, seccomp"
    return Layer(True, detail, tuple(gap for since, gap in _GAPS if version < since))


def _lacking_in_kernel() -> str | None:
    """Name what the kernel lacks for the kernel layer, as a clause, as far as it can be asked."""
    from amplifier_support.sandbox import system_calls

    if os.uname().machine not in system_calls.ARCHITECTURES:
        return f"the seccomp filter does not support {os.uname().machine}"
    if not system_calls.has_seccomp_filters():
        return "the kernel has no seccomp filters"
    try:
        system_calls.landlock_version()
    except OSError as error:
        return (
            f"the kernel does not offer Landlock ({error.strerror}); Linux 5.13 or later with "
            "'landlock' among its security modules is needed"
        )
    return None


def _start_one(*, inside: bool) -> str | None:
    """Start a program that does nothing as commands are started; why it failed, or None.

    A kernel may offer what it then refuses.
    """
    from amplifier_support.sandbox.kernel_layer import KernelLayer, Places

    try:
        layer = KernelLayer(
            Places((), ("/",), (), ()), internet=inside, asks=not inside, shares=inside
        )
        restrictions = layer.confinement()
        options = [
            str(restrictions.rules),
            restrictions.filter.hex(),
            *(["inside"] if inside else []),
        ]
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", _PROBE, _PACKAGES, *options],
            check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_SECONDS,
            env=minimal_environment(), pass_fds=[restrictions.rules], start_new_session=True,
        )  # fmt: skip
        layer.close()
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return None if done.returncode == 0 else (lines or [f"exit code {done.returncode}"])[-1]


def _content(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


_SWITCHES = (
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "user namespaces are switched off: user.max_user_namespaces is 0",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "user namespaces are switched off: kernel.unprivileged_userns_clone is 0",
    ),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor restricts user namespaces: kernel.apparmor_restrict_unprivileged_userns is 1",
    ),
)
"""Settings that keep ordinary users from making namespaces: file, value, and what it means."""

_CONDITIONS = ("/proc/sys/kernel/random/boot_id", "/proc/self/attr/current")
_RIGHTS = ("NoNewPrivs", "Seccomp", "CapEff", "CapBnd")
_MEMORY_BYTES = 10_000

_LATER = (
    "commands can write to .git, .amplifier, .vscode and similar in the folders they may change"
)

WITHOUT_NAMESPACES = f"{_LATER}, and change mode, owner and times of your files anywhere"
"""The gaps of the kernel layer of Linux on any machine, as a clause."""

WITHOUT_NAMESPACES_BUT_NETWORK = (
    "commands can connect to UNIX sockets that have a path, such as those of Docker and ssh-agent"
)
"""The same, if commands may use the network."""

_GAPS = (
    (2, "files cannot be moved between folders"),
    (6, "commands can send signals to your other processes and connect to abstract sockets"),
)


def _macos() -> Layer:
    if not os.access(SEATBELT, os.X_OK):
        return Layer(False, f"{SEATBELT} is missing")
    return Layer(True, "Seatbelt", (_LATER,))


TABLE = "/proc/self/mountinfo"


class MountPoint(NamedTuple):
    """One mount: the device, the path on it that is mounted, and where."""

    device: str
    root: str
    path: str


def mount_points() -> list[MountPoint]:
    """All mounts, in order; none where the system does not list them."""
    try:
        with open(TABLE, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    fields = (line.split(b" ", 5)[2:5] for line in lines)
    return [MountPoint(*map(_unescaped, field)) for field in fields if len(field) == 3]


def other_paths(paths: Iterable[str]) -> Iterator[str]:
    """Yield the other mount points of paths, or of parts of what is below them.

    Args:
        paths: Absolute paths, links resolved.
    """
    mounts = mount_points()
    # Of several at one place, the last is seen.
    by_path = {mount.path: mount for mount in mounts}
    for path in paths:
        above = path
        while above not in by_path and above != os.path.dirname(above):
            above = os.path.dirname(above)
        if (own := by_path.get(above)) is None:
            continue
        inner = _moved(path, own.path, own.root)
        for mount in mounts:
            if mount is own or mount.device != own.device:
                continue
            if is_below(inner, mount.root):
                yield _moved(inner, mount.root, mount.path)
            elif is_below(mount.root, inner):
                yield mount.path


def _moved(path: str, folder: str, other: str) -> str:
    """A path in one folder as the same path in another one."""
    return os.path.normpath(os.path.join(other, os.path.relpath(path, folder)))


def _unescaped(field: bytes) -> str:
    octal = re.sub(rb"\\([0-7]{3})", lambda digits: bytes([int(digits[1], 8)]), field)
    return os.fsdecode(octal)
