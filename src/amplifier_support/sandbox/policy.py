"""The permissions of an agent's commands: the value of `session.sandbox` in a plan.

    sandbox: workspace
    sandbox: {write: [., build], read: system, network: none, level: namespaces}

A mapping changes the policy `workspace`. `Sandbox` enforces a policy; to each command it gives a `Confinement`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import did_you_mean

Read = Literal["host", "system"]
Network = Literal["none", "all"] | tuple[str, ...]
Level = Literal["kernel", "namespaces"]
Unavailable = Literal["fail", "warn"]

OFF = "off"
NAMES = (OFF, "read-only", "workspace")
CHOICES: Mapping[str, tuple[str, ...]] = {
    "read": ("host", "system"),
    "level": ("kernel", "namespaces"),
    "unavailable": ("fail", "warn"),
}
KEYS = ("write", "read", "network", "level", "unavailable")

_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"(\*\.)?({_LABEL}\.)*{_LABEL}(:\d{{1,5}})?"

SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"enum": [*NAMES, False, None]},
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "write": {
                    "description": "Folders that commands may change.",
                    "default": ["."],
                    "type": ["string", "array"],
                    "pattern": r"\S",
                    "items": {"type": "string", "pattern": r"\S"},
                },
                "read": {
                    "description": "What they may read: all but credentials, or the system's folders.",
                    "enum": list(CHOICES["read"]),
                    "default": "host",
                },
                "network": {
                    "description": "Whether they may use the network, or the names of hosts.",
                    "default": "none",
                    "anyOf": [
                        {"enum": ["none", "all"]},
                        {
                            "type": "array",
                            "items": {"type": "string", "pattern": f"^{_HOST}$"},
                            "minItems": 1,
                        },
                    ],
                },
                "level": {
                    "description": "The layer that must be enforced.",
                    "enum": list(CHOICES["level"]),
                    "default": "kernel",
                },
                "unavailable": {
                    "description": "What to do on machines that cannot enforce it.",
                    "enum": list(CHOICES["unavailable"]),
                    "default": "fail",
                },
            },
        },
    ]
}
"""A policy in a plan, as JSON Schema."""


class PolicyError(ValueError):
    """A value that is not a sandbox policy.

    Attributes:
        key: The key with the wrong value, such as `network`; empty for the whole value.
        problem: What is wrong, with the exact value.
        expected: What to write instead.
    """

    def __init__(self, key: str, problem: str, expected: str) -> None:
        super().__init__(f"{problem}; expected {expected}")
        self.key = key
        self.problem = problem
        self.expected = expected


class SandboxPolicy(NamedTuple):
    """The permissions of a command.

    Attributes:
        write: Folders it may change, absolute or relative to the working directory.
        read: Whether it may read the whole file system except known credentials (`host`), or only
            the system's folders and those it may change (`system`).
        network: Whether it may use the network: not at all, freely, or for some hosts.
        level: The layer that must be enforced; more is enforced where that is possible.
        unavailable: What to do where `level` cannot be enforced.
    """

    write: tuple[str, ...] = (".",)
    read: Read = "host"
    network: Network = "none"
    level: Level = "kernel"
    unavailable: Unavailable = "fail"

    def __str__(self) -> str:
        network = self.network if isinstance(self.network, str) else ", ".join(self.network)
        parts = {
            "write": ", ".join(self.write) or "nothing",
            "read": self.read,
            "network": network,
            "level": self.level,
        }
        return "; ".join(f"{key}: {value}" for key, value in parts.items())

    def as_value(self) -> dict[str, Any]:
        """The policy as written in a plan."""
        network = self.network if isinstance(self.network, str) else list(self.network)
        return {**self._asdict(), "write": list(self.write), "network": network}


WORKSPACE = SandboxPolicy()
READ_ONLY = WORKSPACE._replace(write=())


def parse_policy(value: object) -> SandboxPolicy | None:
    """The policy of a value in a plan; None if it turns the sandbox off.

    Raises:
        PolicyError: It is not a policy.
    """
    match value:
        case None if not sys.platform.startswith(("linux", "darwin")):
            # There is no sandbox for commands at all; a policy that a plan names is still enforced or refused.
            return WORKSPACE._replace(unavailable="warn")
        case "workspace" | None:
            return WORKSPACE
        case "read-only":
            return READ_ONLY
        # YAML reads a bare `off` as false.
        case "off" | False:
            return None
        case Mapping():
            return _parse_mapping(cast("Mapping[object, object]", value))
        case _:
            expected = f"{', '.join(NAMES)}, or a mapping of {', '.join(KEYS)}"
            near = did_you_mean(value, NAMES) if isinstance(value, str) else None
            expected += f"; {near}" if near else ""
            raise PolicyError("", f"{_quoted(value)} is not a sandbox policy", expected)


def is_at_least(policy: SandboxPolicy | None, other: SandboxPolicy | None) -> bool:
    """Return True if a policy permits nothing that another one does not."""
    if policy is None or other is None:
        return other is None
    return (
        set(policy.write) <= set(other.write)
        and CHOICES["read"].index(policy.read) >= CHOICES["read"].index(other.read)
        and _network_within(policy.network, other.network)
        and CHOICES["level"].index(policy.level) >= CHOICES["level"].index(other.level)
        and (policy.unavailable == "fail" or other.unavailable == "warn")
    )


def _network_within(network: Network, other: Network) -> bool:
    if network == "none" or other == "all":
        return True
    return network != "all" and other != "none" and set(network) <= set(other)


def _parse_mapping(value: Mapping[object, object]) -> SandboxPolicy:
    changes: dict[str, Any] = {}
    for key, item in value.items():
        if key not in KEYS:
            near = did_you_mean(str(key), KEYS)
            expected = f"one of {', '.join(KEYS)}" + (f"; {near}" if near else "")
            raise PolicyError(str(key), f"unknown key {_quoted(key)}", expected)
        changes[str(key)] = _PARSERS[str(key)](str(key), item)
    return WORKSPACE._replace(**changes)


def _choice(key: str, value: object) -> str:
    allowed = CHOICES[key]
    if isinstance(value, str) and value in allowed:
        return value
    raise PolicyError(key, f"{key!r} is {_quoted(value)}", " or ".join(allowed))


def _write(key: str, value: object) -> tuple[str, ...]:
    expected = "a list of folders such as [., build]"
    folders = _texts(value)
    if folders is None:
        if value is None or (isinstance(value, list) and None in value):
            expected += "; YAML reads a bare ~ as null, so write '~' for your home directory"
        raise PolicyError(key, f"{key!r} is {_quoted(value)}", expected)
    for folder in folders:
        if not folder.strip() or "\0" in folder:
            raise PolicyError(key, f"{key!r} contains {_quoted(folder)}", expected)
    return folders


def _network(key: str, value: object) -> Network:
    expected = "none, all, or a list of host names such as [example.com, '*.example.org']"
    if value == "none":
        return "none"
    if value == "all":
        return "all"
    hosts = None if isinstance(value, str) else _texts(value)
    if not hosts:
        raise PolicyError(key, f"{key!r} is {_quoted(value)}", expected)
    for host in hosts:
        if not re.fullmatch(_HOST, host) or int(host.partition(":")[2] or 1) not in range(1, 65536):
            raise PolicyError(key, f"{key!r} contains {_quoted(host)}", expected)
    return tuple(host.lower() for host in hosts)


def _texts(value: object) -> tuple[str, ...] | None:
    """The strings of a string or a list; None if it is something else."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        return None
    items = cast("Sequence[object]", value)
    texts = tuple(item for item in items if isinstance(item, str))
    return texts if len(texts) == len(items) else None


def _quoted(value: object) -> str:
    # As it is written in YAML.
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_PARSERS: Mapping[str, Any] = {
    "write": _write,
    "read": _choice,
    "network": _network,
    "level": _choice,
    "unavailable": _choice,
}


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
