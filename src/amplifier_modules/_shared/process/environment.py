"""The environment of a session's commands: the user's, without keys (Secrets)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from amplifier_core.session_capabilities import SECRET_VARIABLES
from amplifier_core.utils.truncate import SENSITIVE_KEYS
from amplifier_support.environment import is_secret_name, without_secrets


def command_environment(coordinator: Any, passthrough: Iterable[str]) -> dict[str, str]:
    """The variables of this process that a command of the session gets.

    Args:
        coordinator: The session's, which knows the keys of its providers.
        passthrough: Patterns of names that are passed on whatever they hold.
    """
    return without_secrets(
        os.environ,
        secrets=_configured_secrets(coordinator.config),
        secret_names=SECRET_VARIABLES.of(coordinator) or (),
        passthrough=passthrough,
    )


def _configured_secrets(config: Any) -> list[str]:
    """The keys that providers are configured with, whatever variables they came from."""
    providers = cast("Mapping[str, Any]", config).get("providers") if config else None
    return list(_secrets(providers))


def _secrets(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[Any, Any]", value).items():
            if isinstance(inner, str):
                if str(key).lower() in SENSITIVE_KEYS or is_secret_name(str(key)):
                    yield inner
            else:
                yield from _secrets(inner)
    elif isinstance(value, list | tuple):
        for inner in cast("list[Any]", value):
            yield from _secrets(inner)
