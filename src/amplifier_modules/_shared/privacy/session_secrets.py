"""The secret values that are known in a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from amplifier_core.session_capabilities import SECRET_VARIABLES
from amplifier_support.redaction import configured_secrets, secrets_in


def session_secrets(coordinator: Any) -> list[str]:
    """Values of environment variables, and those in the config of the session's providers."""
    config = getattr(coordinator, "config", None)
    providers = (
        cast("Mapping[str, Any]", config).get("providers") if isinstance(config, Mapping) else None
    )
    names = SECRET_VARIABLES.of(coordinator) or ()
    return [*secrets_in(names=names), *configured_secrets(providers)]
