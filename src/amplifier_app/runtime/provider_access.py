"""Providers outside of any session: which there are, what they need, whether they answer.

Each is mounted alone, on a coordinator of its own; nothing is saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from amplifier_app.base import keys
from amplifier_app.base.errors import ConfigError
from amplifier_app.runtime.capabilities import give_keys, model_of, register_capabilities
from amplifier_app.runtime.observer import Display, Renderer

if TYPE_CHECKING:
    from amplifier_app.plan import ResolvedPlan
    from amplifier_app.sources.resolver import AppModuleSourceResolver
    from amplifier_core.models import ModelInfo, ProviderInfo

PREFIX = "provider-"
CLEANUP_SECONDS = 5.0
TEST_PROMPT = "Reply with the one word: ready"
TEST_TOKENS = 16
"""Longest answer to the test, in tokens: enough for a word, and cheap."""

CredentialPlace = Literal["environment", "keyring", "file", "plan"]


class Credential(NamedTuple):
    """Where a provider has a key from; never the key.

    Attributes:
        variable: The environment variable, or the key of its config.
        where: Set in the environment, stored in the keyring or the file, or written in the plan.
    """

    variable: str
    where: CredentialPlace

    def __str__(self) -> str:
        if self.where == "environment":
            return f"{self.variable} is set"
        if self.where == "plan":
            return f"{self.variable} in the plan"
        return f"{self.variable} is stored in the {self.where}"


class Provider(NamedTuple):
    """A provider that can be mounted.

    Attributes:
        module: Its module id.
        config: Its configuration.
        source: Where a plan says it comes from.
        instance_id: What a plan calls it, if not by its module.
        in_plan: Whether the plan mounts it.
        left_out: Why a plan that names it does not mount it.
        origin: Where the plan names it.
        offered_by: The distribution it is part of, if no source is given.
    """

    module: str
    config: dict[str, Any] = {}  # noqa: RUF012 - never changed
    source: str | None = None
    instance_id: str | None = None
    in_plan: bool = False
    left_out: str | None = None
    origin: str | None = None
    offered_by: str | None = None

    @property
    def name(self) -> str:
        """What it is called on a command line."""
        return self.instance_id or self.module.removeprefix(PREFIX)


# -- which there are -------------------------------------------------------------------------


def all_providers(plan: ResolvedPlan) -> list[Provider]:
    """Those of the plan in its order, then those that are bundled or installed beside it."""
    from amplifier_app.plan.traffic import MODULE as recorder

    offers = _offers()

    def offered_by(module: str, source: str | None) -> str | None:
        return offers.get(module) if source is None else None

    found = [
        Provider(
            entry["module"],
            entry.get("config") or {},
            entry.get("source"),
            entry.get("instance_id"),
            in_plan=True,
            origin=str(plan.origin(["providers", index])),
            offered_by=offered_by(entry["module"], entry.get("source")),
        )
        for index, entry in enumerate(plan.mount_plan()["providers"])
    ]
    for left in plan.dropped:
        instance_id = left.key if left.key != left.module else None
        known = Provider(left.module, {}, left.source, instance_id, left_out=left.reason)
        offer = offered_by(left.module, left.source)
        found.append(known._replace(origin=str(left.at), offered_by=offer))
    named = {provider.module for provider in found}
    # Whoever records or replays stands for others and is nothing to set up.
    others = sorted(offers.keys() - named - {recorder})
    return [*found, *(Provider(module, offered_by=offers[module]) for module in others)]


def find_provider(plan: ResolvedPlan, name: str | None) -> Provider:
    """The provider a person means: one of the plan, or one that is bundled or installed.

    Args:
        plan: The plan, which mounts it if it has it.
        name: An instance id or module id, with or without `provider-`; by default the provider
            that the plan asks first.

    Raises:
        ConfigError: There is none of that name, or the plan has none.
    """
    known = all_providers(plan)
    if name is None:
        first = plan.default_provider
        chosen = next((one for one in known if first in (one.instance_id, one.module)), None)
        if first is None or chosen is None:
            raise ConfigError("the plan has no provider", hint="\n".join(plan.notes) or None)
        return chosen
    for provider in known:
        if name in (provider.instance_id, provider.module, provider.name):
            return provider
    from amplifier_app.plan.problems import suggest

    names = [provider.name for provider in known]
    raise ConfigError(f"there is no provider {name!r}", hint=suggest(name, names))


def _offers() -> dict[str, str]:
    """The provider modules that are there without a source → the distribution they are part of."""
    from amplifier_app.base import installed
    from amplifier_core.loader import kind_of

    there = [*installed.installed(), *installed.bundled().values()]
    return {
        one.module_id: f"{one.distribution} {one.version}"
        for one in there
        if kind_of(one.module_id) == "provider"
    }


# -- mounting one ----------------------------------------------------------------------------


class NotMounted(ConfigError):
    """The provider's mount went through and mounted nothing: it says what it needs."""


@contextlib.asynccontextmanager
async def mounted(
    provider: Provider,
    sources: AppModuleSourceResolver,
    *,
    renderer: Renderer | None = None,
    with_keys: bool = False,
) -> AsyncGenerator[Any]:
    """The provider alone, mounted, and cleaned up afterwards.

    Args:
        provider: Which.
        sources: Where modules come from.
        renderer: What shows its notices.
        with_keys: Whether it gets the keys that are stored; without them nobody is asked for one,
            but it may not mount.

    Raises:
        NotMounted: It lacks what it needs, such as a key.
        ConfigError: Its configuration is not valid.
        SourceError: It cannot be had.
        ModuleLoadError: It cannot be imported or is no valid module.
        LLMError: It refuses to start.
    """
    from amplifier_core.coordinator import ModuleCoordinator
    from amplifier_core.load_errors import ModuleMountError
    from amplifier_core.loader import ModuleLoader
    from amplifier_core.mounting import ModuleSpec, NothingMountedError, mount_module

    shown_by = renderer or Renderer()
    coordinator = ModuleCoordinator(display_system=Display(shown_by))
    coordinator.loader = ModuleLoader(coordinator)
    register_capabilities(coordinator, sources)
    for event, handler in shown_by.handlers().items():
        coordinator.hooks.register(event, handler, name="app-renderer")
    await coordinator.mount("module-source-resolver", sources)
    if with_keys:
        await sources.async_resolve(provider.module, provider.source)
        for problem in give_keys(coordinator).problems:
            shown_by.notice(problem, "warning", "keys")
    spec = ModuleSpec("provider", provider.module, provider.source, provider.config)
    try:
        try:
            await mount_module(spec, coordinator)
        except NothingMountedError as error:
            reason = str(error)
            message = reason if provider.module in reason else f"{provider.module}: {reason}"
            raise NotMounted(message, hint="Set it up with: amplifier init") from error
        except ModuleMountError as error:
            if isinstance(error.__cause__, ValueError):
                raise ConfigError(str(error)) from error
            raise
        yield next(iter(coordinator.get("providers").values()))
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLEANUP_SECONDS):
                await coordinator.cleanup()
        coordinator.loader.cleanup()


class Described(NamedTuple):
    """What a provider says of itself.

    Attributes:
        info: What it is and needs.
        ready: Whether it mounts as it is configured here.
    """

    info: ProviderInfo
    ready: bool


async def describe(provider: Provider, sources: AppModuleSourceResolver) -> Described:
    """What a provider says of itself, whether or not it has what it needs to run.

    Raises:
        ConfigError: It cannot be had, or only with a configuration.
        Exception: Whatever a foreign module raises.
    """
    try:
        async with mounted(provider, sources) as there:
            return Described(there.get_info(), ready=True)
    except NotMounted:
        # Most mount nothing without a key. Nobody is asked anything with this one.
        config = {**provider.config, "api_key": "none-yet"}
        async with mounted(provider._replace(config=config), sources) as there:
            return Described(there.get_info(), ready=False)


def credentials_of(
    info: ProviderInfo, provider: Provider, stored: Mapping[str, keys.Where]
) -> list[Credential]:
    """Where a provider has its keys from, the one it uses first."""
    from amplifier_app.plan.masking import is_secret_key

    found = [
        Credential(name, "plan")
        for name, value in provider.config.items()
        if value and is_secret_key(name)
    ]
    for name in info.credential_env_vars:
        if name in os.environ:
            found += [Credential(name, "environment")] if os.environ[name] else []
        elif name in stored:
            found.append(Credential(name, stored[name]))
    return found


# -- asking one ------------------------------------------------------------------------------


class Answered(NamedTuple):
    """What came of a minimal request.

    Attributes:
        model: The model that answered.
        seconds: From the request to the whole answer.
        input_tokens: As the service counts them; None if it does not tell.
        output_tokens: Likewise.
        cost: In US dollars, if the price is known.
    """

    model: str | None
    seconds: float
    input_tokens: int | None
    output_tokens: int | None
    cost: Decimal | None


async def ask(
    provider: Provider,
    sources: AppModuleSourceResolver,
    *,
    model: str | None = None,
    timeout: float,
    renderer: Renderer | None = None,
) -> Answered:
    """Send a minimal request, once.

    Args:
        provider: Which.
        sources: Where modules come from.
        model: The model to ask for, instead of the configured one.
        timeout: Seconds until the answer must be there.
        renderer: What shows notices, such as that weights are being fetched.

    Raises:
        LLMError: There was no answer.
        ConfigError, ModuleError: As of `mounted`.
    """
    from amplifier_core.llm_errors import LLMTimeoutError
    from amplifier_core.message_models import ChatRequest, Message

    tested = provider._replace(config=await _without_retries(provider, sources))
    request = ChatRequest(
        messages=[Message(role="user", content=TEST_PROMPT)],
        model=model,
        max_output_tokens=TEST_TOKENS,
    )
    try:
        async with (
            asyncio.timeout(timeout),
            mounted(tested, sources, renderer=renderer, with_keys=True) as there,
        ):
            begun = time.monotonic()
            options = {"model": model} if model else {}
            response = await there.complete(request, **options)
            seconds = time.monotonic() - begun
    except TimeoutError:
        message = f"{provider.name} did not answer within {timeout:g} s"
        raise LLMTimeoutError(message, provider=provider.name) from None
    usage = response.usage
    return Answered(
        model=(response.metadata or {}).get("model") or model or model_of(there),
        seconds=seconds,
        input_tokens=usage.input_tokens if usage else None,
        output_tokens=usage.output_tokens if usage else None,
        cost=usage.cost_usd if usage else None,
    )


async def models(
    provider: Provider, sources: AppModuleSourceResolver, *, renderer: Renderer | None = None
) -> list[ModelInfo]:
    """The models a provider offers.

    Raises:
        LLMError: The service cannot be asked.
        ConfigError, ModuleError: As of `mounted`.
    """
    async with mounted(provider, sources, renderer=renderer, with_keys=True) as there:
        return list(await there.list_models())


async def _without_retries(provider: Provider, sources: AppModuleSourceResolver) -> dict[str, Any]:
    """The configuration with retries off, if its module knows such a setting."""
    from amplifier_app.base.errors import ModuleError
    from amplifier_app.plan.module_schemas import config_schema

    found = await sources.async_resolve(provider.module, provider.source)
    if not found.installed or not found.entry_point:
        return provider.config
    from importlib import import_module

    with contextlib.suppress(ImportError, ModuleError):
        schema = config_schema(import_module(found.entry_point.partition(":")[0])) or {}
        if "max_retries" in schema.get("properties", {}):
            return {**provider.config, "max_retries": 0}
    return provider.config
