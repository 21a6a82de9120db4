"""Capabilities the app registers on every coordinator, and what it reads from providers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from amplifier_app.base import paths
from amplifier_app.base.keys import Filled, fill_environment
from amplifier_app.base.redact import treat_keys_as_secret
from amplifier_support.provider_order import first_mounted
from amplifier_support.session_capabilities import (
    CACHE_DIR,
    CONFIG_DIR,
    OFFLINE,
    SECRET_VARIABLES,
    WORKING_DIR,
)

if TYPE_CHECKING:
    from amplifier_app.sources.resolver import AppModuleSourceResolver


def register_capabilities(coordinator: Any, sources: AppModuleSourceResolver) -> None:
    """Register the capabilities available to every module."""
    WORKING_DIR.register(coordinator, os.getcwd())
    CONFIG_DIR.register(coordinator, str(paths.config_dir()))
    CACHE_DIR.register(coordinator, str(paths.cache_dir()))
    OFFLINE.register(coordinator, sources.offline)


def set_stored_keys(coordinator: Any) -> Filled:
    """Set the stored keys as environment variables, and list them for modules that hide them.

    Call this after the modules are fetched: fetching needs no keys.

    Raises:
        ConfigError: See `amplifier_app.base.keys.KeyStore.names`.
    """
    filled = fill_environment()
    treat_keys_as_secret(coordinator)
    SECRET_VARIABLES.register(coordinator, filled.secret)
    return filled


def first_provider(session: Any) -> tuple[str, Any]:
    """Return the provider used first."""
    providers: dict[str, Any] = session.coordinator.get("providers")
    orchestrator = session.config["session"]["orchestrator"]
    config = orchestrator.get("config") or {} if isinstance(orchestrator, dict) else {}
    wanted = config.get("default_provider")
    name = first_mounted(providers, wanted)
    assert name is not None, "a session without providers does not open"
    return name, providers[name]


def credential_variable(session: Any) -> str | None:
    """Return the environment variable that made the first provider available, if one did."""
    _, provider = first_provider(session)
    try:
        names = provider.get_info().credential_env_vars
    # A provider may raise anything; this is only for a notice.
    except Exception:
        return None
    return next((name for name in names if os.environ.get(name)), None)
