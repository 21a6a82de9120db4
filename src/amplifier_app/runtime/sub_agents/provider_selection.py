"""Select the provider and model of a task: the first requested one that is available."""

from __future__ import annotations

import fnmatch
import logging
from typing import Any

from amplifier_app.plan import PlanError, ResolvedPlan
from amplifier_app.plan.agent_plan import full_agent_name
from amplifier_app.plan.overrides import asking
from amplifier_app.sources.requirements.missing_packages import requires_hint
from amplifier_core._foreign import describe_exception
from amplifier_support.fields import field_of, mapping_of
from amplifier_support.session_capabilities import MODEL_ROLES

logger = logging.getLogger(__name__)

_PATTERN = frozenset("*?[")


async def preferences_of(agent: str, coordinator: Any) -> Any:
    """Return the preferences of an agent: its own, as hooks may have changed them, or those of its role.

    Args:
        agent: Its name.
        coordinator: The coordinator of the session that delegates to it.
    """
    agents = mapping_of(mapping_of(coordinator.config).get("agents"))
    config = mapping_of(agents.get(full_agent_name(agent, agents)))
    own, role = config.get("provider_preferences"), config.get("model_role")
    if own or not role:
        return own
    resolver = MODEL_ROLES.of(coordinator)
    roles = " or ".join(map(str, role)) if isinstance(role, list) else role
    if resolver is None:
        logger.info("agent %s: no module chooses a model for %s", agent, roles)
        return None
    try:
        return await resolver.resolve(role)
    # A module may raise anything; the plan's provider can do the task.
    except Exception as error:
        text = "agent %s uses the model of the plan: none can be chosen for %s: %s"
        reason, hint = describe_exception(error, None), requires_hint(str(error), "its module")
        logger.warning(text, agent, roles, f"{reason}; {hint}" if hint else reason)
        return None


async def with_preferred_provider(
    plan: ResolvedPlan, preferences: Any, coordinator: Any
) -> ResolvedPlan:
    """Return the plan with the first available preference; unchanged if none is available.

    Args:
        plan: The plan.
        preferences: Mappings or objects with `provider` and `model`, as in published tools.
            A model may be a pattern such as `claude-haiku-*`.
        coordinator: The coordinator of a session whose providers list their models.
    """
    for preference in preferences or ():
        provider, model = _text_of(preference, "provider"), _text_of(preference, "model")
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


def _text_of(preference: Any, name: str) -> str | None:
    value = field_of(preference, name)
    return value if isinstance(value, str) and value else None


async def _newest_like(pattern: str, provider: str, coordinator: Any) -> str | None:
    """Return the last model by name that matches a pattern."""
    providers: dict[str, Any] = coordinator.get("providers")
    mounted = providers.get(provider) or providers.get(provider.removeprefix("provider-"))
    if mounted is None:
        return None
    try:
        models = [str(model.id) for model in await mounted.list_models()]
    # A provider may raise anything, for example offline; try the next preference.
    except Exception as error:
        logger.warning("Cannot list the models of %s for %r: %s", provider, pattern, error)
        return None
    return max(fnmatch.filter(models, pattern), default=None)
