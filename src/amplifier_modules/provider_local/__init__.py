"""provider-local: a language model inside this process, downloaded on first use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "provider"

_module = ModuleDeclaration(__name__, "provider-local", ".config:LocalConfig", ".provider")
config_schema = _module.config_schema
mount = _module.mount


def missing_offline(config: Mapping[str, Any] | None, cache: str) -> list[str]:
    """Return the downloads of a session with this config, a phrase each.

    Args:
        config: As for `mount`.
        cache: The app's cache folder.

    Raises:
        ValueError: The config is invalid.
        ConfigurationError: The configured model is unknown.
    """
    from amplifier_modules.provider_local.store import missing_weights

    return missing_weights(config, cache)
