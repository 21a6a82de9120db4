"""The secret values that are known in a session."""

from __future__ import annotations

from typing import Any

from amplifier_support.fields import mapping_of
from amplifier_support.redaction import configured_secrets, secrets_in
from amplifier_support.session_capabilities import SECRET_VARIABLES


def session_secrets(coordinator: Any) -> list[str]:
    """Values of environment variables, and those in the config of the session's providers."""
    providers = mapping_of(getattr(coordinator, "config", None)).get("providers")
    names = SECRET_VARIABLES.of(coordinator) or ()
    return [*secrets_in(names=names), *configured_secrets(providers)]
