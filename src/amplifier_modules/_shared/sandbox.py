"""The sandbox of a session's commands, and what it kept a command from doing, as far as that can be known.

The sandbox is the session's, or one that a module's config asks for. The kernel reports a refusal to the
command only. Its output may name the error; whether the sandbox or a permission of the file was the cause
is not certain then. What the proxy refused is certain.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from amplifier_modules._shared.module.spans import event_ids
from amplifier_support.environment import without_secrets
from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.redaction import configured_secrets
from amplifier_support.run_later import IN_PROJECTS
from amplifier_support.sandbox.policy import SCHEMA, parse_policy
from amplifier_support.sandbox.sandbox import Sandbox
from amplifier_support.session_capabilities import SANDBOX, SECRET_VARIABLES, WORKING_DIR
from amplifier_support.text import lazy_pattern


def command_sandbox(coordinator: Any, value: Any) -> Sandbox | None:
    """The sandbox for the commands of a module; call it while the module is mounted.

    Args:
        coordinator: The session's.
        value: The `sandbox` of the module's config; None for the session's.

    Returns:
        None if the session has no sandbox and the config does not ask for one.

    Raises:
        SandboxUnavailable: The machine cannot enforce it.
    """
    sandbox = SANDBOX.of(coordinator)
    if sandbox is None:
        if value is None:
            return None
        sandbox = Sandbox(None, folder=WORKING_DIR.of(coordinator) or os.getcwd())
        coordinator.register_cleanup(sandbox.close)
    return sandbox.for_commands(value)


def _checked(value: Any) -> Any:
    parse_policy(value)
    return value


SandboxValue = Annotated[Any, AfterValidator(_checked), WithJsonSchema(SCHEMA)]
"""The `sandbox` of a module's config, as `session.sandbox` in a plan; None for the session's."""


def command_environment(coordinator: Any, passthrough: Iterable[str]) -> dict[str, str]:
    """The variables of this process that a command of the session gets.

    Args:
        coordinator: The session's, which knows the keys of its providers.
        passthrough: Patterns of names that are passed on whatever they hold.
    """
    # Without PATH a shell may search the folder it works in.
    return {"PATH": os.defpath} | without_secrets(
        os.environ,
        secrets=configured_secrets(to_mapping(coordinator.config).get("providers")),
        secret_names=SECRET_VARIABLES.of(coordinator) or (),
        passthrough=passthrough,
    )


SANDBOX_DENIED = "sandbox:denied"
"""Event with `tool_name`, `kind` (``files``, ``network`` or ``calls``), `is_certain` and `reason`."""

_FILES = lazy_pattern(
    r"Permission denied|Read-only file system|Device or resource busy|\b(EACCES|EROFS|EBUSY)\b"
)
_EITHER = lazy_pattern(r"Operation not permitted|\bEPERM\b")
_NETWORK = lazy_pattern(
    r"Connection refused|Network is unreachable|No route to host|Could not resolve|Failed to connect"
    r"|Name or service not known|Temporary failure in name resolution|nodename nor servname"
    r"|CONNECT tunnel failed|\b(ENOTFOUND|EAI_AGAIN|ENETUNREACH|ECONNREFUSED)\b"
)
# sudo's error: it gets its rights from its file's mode, which has no effect in the sandbox.
_MORE_RIGHTS = lazy_pattern(r'"no new privileges" flag is set')
_LARGEST = 64 * 1024
_SIGSYS = 31


class Denial(NamedTuple):
    """Something that a command could not do.

    Attributes:
        kind: ``files``, ``network`` or ``calls``.
        is_certain: Whether it was the sandbox.
        reason: What is not allowed, and what to do, for the model.
    """

    kind: str
    is_certain: bool
    reason: str


class Denials:
    """Finds the denials of the commands of one tool.

    Args:
        sandbox: The sandbox of its commands; None if they have none.
        hooks: Where the events are emitted.
        tool: The tool's name.
    """

    def __init__(self, sandbox: Sandbox | None, hooks: Any, tool: str) -> None:
        self._sandbox = sandbox
        self._hooks = hooks
        self._tool = tool
        self._removed = 0

    async def report(self, exit_code: int | None, output: str) -> list[str]:
        """Emit an event for each denial of a command that has ended, and return notes for the model."""
        sandbox = self._sandbox
        if sandbox is None or not sandbox.enforced:
            return []
        denials = [*self._certain(sandbox), *_likely(sandbox, exit_code, output[-_LARGEST:])]
        for denial in denials:
            data = {"tool_name": self._tool, **denial._asdict()}
            await self._hooks.emit(SANDBOX_DENIED, {**data, **event_ids()})
        made = [
            f"{path} was made: it can run later, outside of the sandbox. Ask the user to read it"
            for path in sandbox.take_made()
        ]
        return [*(denial.reason for denial in denials), *made]

    def _certain(self, sandbox: Sandbox) -> Iterator[Denial]:
        for why in sandbox.take_refusals():
            yield Denial("network", True, f"the sandbox refused a connection: {why}")
        removed, self._removed = sandbox.removed[self._removed :], len(sandbox.removed)
        for path in removed:
            why = "git would take its configuration from another folder"
            yield Denial("files", True, f"the sandbox removed {path}: {why}")


def _likely(sandbox: Sandbox, exit_code: int | None, output: str) -> Iterator[Denial]:
    if exit_code in (-_SIGSYS, 128 + _SIGSYS):
        why = "the sandbox ends programs that use the system calls of another architecture"
        yield Denial("calls", True, why)
    if not exit_code:
        return
    if _MORE_RIGHTS.search(output):
        why = "the sandbox keeps programs from getting more rights than yours, so sudo fails"
        yield Denial("calls", True, f"{why}; ask the user to run the command")
        return
    policy = sandbox.policy
    either = _EITHER.search(output)
    if either or _FILES.search(output):
        yield Denial("files", False, f"the sandbox may be the reason: {_about_files(sandbox)}")
    if policy is not None and policy.network != "all" and (either or _NETWORK.search(output)):
        yield Denial("network", False, f"the sandbox may be the reason: {_about_network(sandbox)}")


def _about_files(sandbox: Sandbox) -> str:
    folders = sandbox.written
    text = f"commands can change only {' and '.join([*folders, '$TMPDIR'])}"
    if sandbox.has_namespaces and folders:
        names = ", ".join(name for name in IN_PROJECTS if name != ".git")
        text += f"; .git/hooks, .git/config, {names} and the plan are read-only"
    text = "; ".join([text, *sandbox.closed_folders])
    return f"{text}. Use $TMPDIR for temporary files, or ask the user to permit more"


def _about_network(sandbox: Sandbox) -> str:
    network = sandbox.policy.network if sandbox.policy is not None else "all"
    if isinstance(network, tuple):
        listed = ", ".join(network)
        return (
            f"commands reach only {listed}, through the proxy in HTTPS_PROXY; ask the user for more"
        )
    own = ", except to servers that they start" if sandbox.has_namespaces else ""
    return f"commands have no network{own}. Ask the user to list hosts in 'network' of the sandbox"
