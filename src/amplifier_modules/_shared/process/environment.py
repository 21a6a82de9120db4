"""The environment of a session's commands: the user's, without keys (Secrets)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from amplifier_support.environment import without_secrets
from amplifier_support.fields import mapping_of
from amplifier_support.redaction import configured_secrets
from amplifier_support.session_capabilities import SECRET_VARIABLES


def command_environment(coordinator: Any, passthrough: Iterable[str]) -> dict[str, str]:
    """The variables of this process that a command of the session gets.

    Args:
        coordinator: The session's, which knows the keys of its providers.
        passthrough: Patterns of names that are passed on whatever they hold.
    """
    # Without PATH a shell may search the folder it works in.
    return {"PATH": os.defpath} | without_secrets(
        os.environ,
        secrets=configured_secrets(mapping_of(coordinator.config).get("providers")),
        secret_names=SECRET_VARIABLES.of(coordinator) or (),
        passthrough=passthrough,
    )
