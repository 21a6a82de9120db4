"""The batch services of a plan's providers, each mounted without a session."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from amplifier_app.base.errors import ConfigError
from amplifier_app.plan.default_provider import NO_PROVIDER, SET_UP
from amplifier_app.runtime.provider_access import NotMounted, all_providers, mount_alone
from amplifier_support.provider_batches import ProviderBatches
from amplifier_support.provider_order import first_mounted

if TYPE_CHECKING:
    from amplifier_app.plan import ResolvedPlan
    from amplifier_app.sources.resolver import AppModuleSourceResolver

Services = dict[str, ProviderBatches]


@contextlib.asynccontextmanager
async def batch_services(
    plan: ResolvedPlan, sources: AppModuleSourceResolver
) -> AsyncGenerator[Services]:
    """Mount the plan's providers and return those with batches, by `ProviderBatches.service`.

    Raises:
        ConfigError: The provider that the plan uses first has no batches, or none is available.
    """
    async with contextlib.AsyncExitStack() as stack:
        instances: dict[str, Any] = {}
        missing: NotMounted | None = None
        for provider in all_providers(plan):
            if not provider.in_plan:
                continue
            try:
                instance = await stack.enter_async_context(
                    mount_alone(provider, sources, with_keys=True)
                )
            except NotMounted as error:
                missing = missing or error
                continue
            instances[provider.name] = instance
        name = first_mounted(instances, _preferred_provider(plan))
        if name is None:
            reasons = [one.note for one in plan.dropped if not one.is_fallback]
            raise missing or ConfigError(NO_PROVIDER, hint="\n".join([*reasons, SET_UP]))
        services: Services = {}
        for instance in instances.values():
            if (batches := getattr(instance, "batches", None)) is not None:
                services[batches.service] = batches
        if getattr(instances[name], "batches", None) is None:
            raise ConfigError(
                f"provider {name!r} has no batches, which --economy needs",
                hint="Use provider-anthropic or provider-openai, or leave out --economy.",
            )
        yield services


def _preferred_provider(plan: ResolvedPlan) -> str | None:
    """The provider that the plan's orchestrator asks first, if it names one."""
    orchestrator = plan.mount_plan()["session"]["orchestrator"]
    config = orchestrator.get("config") or {} if isinstance(orchestrator, dict) else {}
    return config.get("default_provider")
