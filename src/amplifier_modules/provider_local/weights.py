"""The weights of the configured model: where they are kept, and downloading them.

Loaded with the first request: the tools for a download take as long to import as the provider.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amplifier_modules._shared.module.config import parse_config
from amplifier_modules.provider_local.catalogue import Weights, default_model, find_model
from amplifier_modules.provider_local.config import MODULE_ID, LocalConfig
from amplifier_modules.provider_local.notices import FetchNotices
from amplifier_modules.provider_local.store import WeightStore
from amplifier_support.session_capabilities import CACHE_DIR, OFFLINE, Capability


def models_dir(config: LocalConfig, cache: str | None) -> Path:
    """The folder of downloaded weights.

    Args:
        config: The provider's settings.
        cache: The app's cache folder, if any.
    """
    if given := config.cache_dir or cache:
        return Path(given).expanduser() / "models"
    if home := os.environ.get("AMPLIFIER_HOME"):
        return Path(home).expanduser() / "cache" / "models"
    import platformdirs

    return Path(platformdirs.user_cache_dir("amplifier", appauthor=False)) / "models"


def missing_weights(config: Mapping[str, Any] | None, cache: str) -> list[str]:
    """Implement `missing_offline`."""
    settings = parse_config(LocalConfig, config, MODULE_ID)
    weights = find_model(settings.model or default_model()).weights
    if weights is None or WeightStore(models_dir(settings, cache)).find(weights):
        return []
    return [f"the weights of {weights.id} ({weights.size / 1e6:.0f} MB)"]


async def obtain_weights(weights: Weights, config: LocalConfig, coordinator: Any) -> Path:
    """The file of weights, downloaded first if missing; raises like `WeightStore.obtain`."""

    def known(capability: Capability[Any]) -> Any:
        has_some = hasattr(coordinator, "get_capability")
        return capability.of(coordinator) if has_some else None

    store = WeightStore(models_dir(config, known(CACHE_DIR)))
    notices = FetchNotices(coordinator)
    return await store.obtain(weights, offline=bool(known(OFFLINE)), report=notices)
