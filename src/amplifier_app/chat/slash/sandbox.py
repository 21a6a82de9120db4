"""`/sandbox`: what commands may do, changed for the rest of the session."""

from __future__ import annotations

import os
from collections.abc import Iterable

from amplifier_app.base.errors import AppError, UsageError
from amplifier_app.base.paths import short_path
from amplifier_app.base.sanitize import one_line
from amplifier_app.chat.slash.registry import Chat, Reply, command
from amplifier_app.runtime.sandbox import own_policies
from amplifier_support.sandbox.policy import PolicyError, SandboxPolicy, parse_policy
from amplifier_support.sandbox.sandbox import SandboxUnavailable
from amplifier_support.session_capabilities import SANDBOX

_MEANINGS = {
    "workspace": "commands change files in the working directory, without network",
    "read-only": "commands change nothing, without network",
    "off": "commands run with all your rights",
    "network none": "no network",
    "network all": "the whole network",
    "network HOST": "only these hosts, separated by spaces",
}


def _complete(chat: Chat, argument: str) -> Iterable[tuple[str, str]]:
    return list(_MEANINGS.items())[:-1]


@command(
    "/sandbox",
    "Show or change what commands may do",
    usage="[workspace|read-only|off|network none|all|HOST…]",
    during_turn=True,
    complete=_complete,
)
async def sandbox(chat: Chat, argument: str) -> Reply:
    coordinator = chat.session.session.coordinator
    current = SANDBOX.of(coordinator)
    if current is None:
        raise AppError("this session has no sandbox for commands")
    if argument:
        try:
            current.change(_parse(argument, current.policy))
        except (PolicyError, SandboxUnavailable) as error:
            raise UsageError(f"/sandbox {one_line(argument, 60)}: {error}") from error
    lines = current.describe()
    own = [
        f"{name} has a policy of its own: {policy}"
        for name, policy in own_policies(coordinator.config or {})
    ]
    if argument:
        return "\n".join([f"From the next command on: {lines[0]}", *lines[1:], *own])
    hosts = current.hosts_file
    stored = (
        []
        if hosts is None or not os.path.exists(hosts)
        else [f"hosts that are always allowed are in {short_path(hosts)}"]
    )
    return "\n".join(
        [*lines, *own, *stored, f"Change it for this session: /sandbox {' | '.join(_MEANINGS)}"]
    )


def _parse(argument: str, policy: SandboxPolicy | None) -> SandboxPolicy | None:
    """
    Raises:
        PolicyError: It is not a policy.
    """
    name, *values = argument.split()
    if name != "network":
        return parse_policy(argument)
    network = values[0] if values in (["none"], ["all"]) else values
    base = {} if policy is None else policy.as_value()
    return parse_policy({**base, "network": network})
