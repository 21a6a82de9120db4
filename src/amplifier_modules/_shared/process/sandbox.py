"""The sandbox of a session's commands: the session's, or one that a module's config asks for."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from amplifier_support.sandbox.policy import SCHEMA, parse_policy
from amplifier_support.sandbox.sandbox import Sandbox
from amplifier_support.session_capabilities import SANDBOX, WORKING_DIR


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
