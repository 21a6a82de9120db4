"""The restrictions of one command: plain data, so that they can be sent to another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from amplifier_support.named_tuple import NamedTuple


class Confinement(NamedTuple):
    """The restrictions of the kernel layer, ready to apply.

    Attributes:
        rules: Descriptor of a Landlock rule set; stays the owner's.
        filter: Instructions of a seccomp filter.
        sockets: Folders with the UNIX sockets it may connect to; None if the filter does not ask.
        hidden: What is out of reach below these folders.
    """

    rules: int
    filter: bytes
    sockets: tuple[str, ...] | None = None
    hidden: tuple[str, ...] = ()


class Confined(NamedTuple):
    """The way to start a command in the sandbox.

    Attributes:
        argv: Absolute path of the program to start, and its arguments.
        environment: All of its environment.
        confinement: What to apply between fork and exec; None if the launcher has nothing to do.
        needed: Paths that it needs to start and that namespaces may hide.
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    confinement: Confinement | None
    needed: frozenset[str] = frozenset()
