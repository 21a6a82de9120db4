"""What this machine can enforce, as facts with reasons."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import NamedTuple

from amplifier_support.sandbox.policy import SandboxPolicy

SEATBELT = "/usr/bin/sandbox-exec"


class Layer(NamedTuple):
    """Whether a layer of the sandbox works here.

    Attributes:
        works: Whether it can be enforced.
        detail: What enforces it; or else what is missing, as a clause.
        gaps: What this layer does not cover on this machine, as clauses.
    """

    works: bool
    detail: str
    gaps: tuple[str, ...] = ()


@cache
def kernel_layer() -> Layer:
    """The layer that needs nothing but the system's kernel."""
    if sys.platform.startswith("linux"):
        return _linux()
    if sys.platform == "darwin":
        return _macos()
    return Layer(False, f"there is no sandbox for commands on {sys.platform}")


@cache
def namespace_layer() -> Layer:
    """The layer with own namespaces for mounts, processes and the network."""
    from amplifier_support.sandbox import namespaces

    try:
        program = namespaces.starter()[0]
    except namespaces.Unavailable as error:
        return Layer(False, str(error))
    return Layer(True, f"bubblewrap ({program})")


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

    if os.uname().machine not in system_calls.ARCHITECTURES:
        return Layer(False, f"the seccomp filter does not support {os.uname().machine}")
    if not system_calls.has_seccomp_filters():
        return Layer(False, "the kernel has no seccomp filters")
    try:
        version = system_calls.landlock_version()
    except OSError as error:
        return Layer(
            False,
            f"the kernel does not offer Landlock ({error.strerror}); Linux 5.13 or later with "
            "'landlock' among its security modules is needed",
        )
    detail = f"Landlock version {version}, seccomp"
    return Layer(True, detail, tuple(gap for since, gap in _GAPS if version < since))


_LATER = "commands can write to .git and .amplifier in the folders they may change"

WITHOUT_NAMESPACES = (
    "commands can change the attributes of your files anywhere (mode, owner, times)",
    _LATER,
)
"""What the kernel layer of Linux does not cover on any machine, as clauses."""

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
