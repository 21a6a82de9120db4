"""Which provider and model a task asks for: the first of several wishes that can be had."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Mapping
from typing import Any, cast

from amplifier_app.plan import PlanError, ResolvedPlan
from amplifier_app.plan.overrides import asking

logger = logging.getLogger(__name__)

_PATTERN = frozenset("*?[")


async def preferring(plan: ResolvedPlan, wishes: Any, coordinator: Any) -> ResolvedPlan:
    """The plan with the first wish fulfilled that can be; as it is if none can.

    Args:
        plan: The plan.
        wishes: Mappings or objects with `provider` and `model`, as published tools have them.
            A model may be a pattern such as `claude-haiku-*`.
        coordinator: Of a session whose providers can be asked which models there are.
    """
    for wish in wishes or ():
        provider, model = _read(wish, "provider"), _read(wish, "model")
        if not provider:
            continue
        if model and _PATTERN & set(model):
            model = await _newest_like(model, provider, coordinator)
            if model is None:
                continue
        try:
            return plan.with_tree(asking(plan.tree, provider, model))
        except PlanError:
            logger.debug("The plan has no provider %r", provider)
    return plan


def _read(wish: Any, name: str) -> str | None:
    if isinstance(wish, Mapping):
        value = cast("Mapping[str, Any]", wish).get(name)
    else:
        value = getattr(wish, name, None)
    return value if isinstance(value, str) and value else None


async def _newest_like(pattern: str, provider: str, coordinator: Any) -> str | None:
    """The last by name of the models that a pattern fits."""
    providers: dict[str, Any] = coordinator.get("providers")
    mounted = providers.get(provider) or providers.get(provider.removeprefix("provider-"))
    if mounted is None:
        return None
    try:
        models = [str(model.id) for model in await mounted.list_models()]
    # Providers are foreign code and may have no network; there are other wishes, or none.
    except Exception as error:
        logger.warning("The models of %s cannot be listed for %r: %s", provider, pattern, error)
        return None
    return max(fnmatch.filter(models, pattern), default=None)
