"""Access to providers outside a session: list them, describe them, test them.

Each provider is mounted alone, on its own coordinator; nothing is saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from amplifier_app.base import installed, keys
from amplifier_app.base.errors import ConfigError, ModuleError
from amplifier_app.plan.masking import is_secret_key
from amplifier_app.plan.schema.module_schemas import config_schema
from amplifier_app.plan.traffic import MODULE as recorder
from amplifier_app.plan.tree.problems import suggest
from amplifier_app.runtime.capabilities import GuardedLoader, register_capabilities, set_stored_keys
from amplifier_app.runtime.mount import clean_up
from amplifier_app.runtime.observers.observer import Display, Renderer
from amplifier_app.runtime.turns.module_faults import blame_module
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.llm_errors import LLMError, LLMTimeoutError, programming_error
from amplifier_core.loader import find_kind
from amplifier_core.message_models import ChatRequest, Message
from amplifier_core.module_sources import ModuleMountError
from amplifier_core.mounting import ModuleSpec, NothingMountedError, mount_module
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.provider_access import Access, choose_access, is_same_address
from amplifier_support.provider_order import find_model
from amplifier_support.text import without_login

if TYPE_CHECKING:
    from amplifier_app.plan.model import ResolvedPlan
    from amplifier_app.sources.resolver import AppModuleSourceResolver
    from amplifier_core.models import ConfigField, ModelInfo, ProviderInfo

PREFIX = "provider-"
CLEANUP_SECONDS = 5.0
TEST_PROMPT = "Reply with the one word: ready"
TEST_TOKENS = 16
"""Maximum length of the test answer, in tokens: enough for one word, and cheap."""

CredentialPlace = Literal["environment", "keyring", "file", "plan"]


class Credential(NamedTuple):
    """The source of a provider's key; never the key itself.

    Attributes:
        variable: The environment variable, or the config key.
        where: Set in the environment, stored in the keyring or the file, or set in the plan.
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
        source: Its source in the plan.
        instance_id: Its name in the plan, if not its module id.
        in_plan: Whether the plan mounts it.
        left_out: Why the plan skips it.
        origin: Where the plan names it.
        offered_by: The distribution that contains it, if no source is given.
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
        """Its name on the command line."""
        return self.instance_id or self.module.removeprefix(PREFIX)


# -- listing -----------------------------------------------------------------------------


def all_providers(plan: ResolvedPlan) -> list[Provider]:
    """Return the plan's providers in order, then other bundled or installed ones."""
    offers = _offers()

    def offered_by(module: str, source: str | None) -> str | None:
        return offers.get(module) if source is None else None

    providers = [
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
        providers.append(known._replace(origin=str(left.at), offered_by=offer))
    named = {provider.module for provider in providers}
    # The recorder wraps other providers and needs no setup.
    others = sorted(offers.keys() - named - {recorder})
    return [*providers, *(Provider(module, offered_by=offers[module]) for module in others)]


def find_provider(plan: ResolvedPlan, name: str | None) -> Provider:
    """Find a provider of the plan, or one that is bundled or installed.

    Args:
        plan: The plan; its providers take precedence.
        name: An instance id or module id, with or without `provider-`; by default the first
            provider of the plan.

    Raises:
        ConfigError: No provider has that name, or the plan has no provider.
    """
    known = all_providers(plan)
    if name is None:
        key = plan.default_provider
        # Another provider may have the key as its short name.
        keyed = (it for it in known if key in (it.instance_id, it.module))
        if key is None or (provider := next(keyed, None)) is None:
            hint = "\n".join([*plan.notes, "Set one up: amplifier init"])
            raise ConfigError("the plan has no provider", hint=hint)
        return provider
    for provider in known:
        if name in (provider.instance_id, provider.module, provider.name):
            return provider
    names = [provider.name for provider in known]
    raise ConfigError(f"unknown provider {name!r}", hint=suggest(name, names), is_usage=True)


def _offers() -> dict[str, str]:
    """Return provider modules available without a source → the distribution that contains them."""
    available = [*installed.modules_on_path(), *installed.bundled_modules().values()]
    return {
        module.module_id: f"{module.distribution} {module.version}"
        for module in available
        if find_kind(module.module_id) == "provider"
    }


# -- mounting ----------------------------------------------------------------------------


class NotMounted(ConfigError):
    """The provider mounted nothing; the message says what it needs."""


@contextlib.asynccontextmanager
async def mount_alone(
    provider: Provider,
    sources: AppModuleSourceResolver,
    *,
    renderer: Renderer | None = None,
    with_keys: bool = False,
) -> AsyncGenerator[Any]:
    """Mount a provider alone, and clean up afterwards.

    Args:
        provider: The provider.
        sources: Resolves module sources.
        renderer: Shows its notices.
        with_keys: Whether to set the stored keys; without them it may not mount, but the keyring
            never asks to be unlocked.

    Raises:
        NotMounted: Something it needs is missing, such as a key.
        ConfigError: Its config is invalid.
        SourceError: Its source is unavailable.
        ModuleLoadError: It cannot be imported or is not a valid module.
        LLMError: It failed to start.
    """
    shown_by = renderer or Renderer()
    coordinator = ModuleCoordinator(display_system=Display(shown_by))
    coordinator.loader = GuardedLoader(coordinator)
    register_capabilities(coordinator, sources)
    for event, handler in shown_by.handlers().items():
        coordinator.hooks.register(event, handler, name="app-renderer")
    await coordinator.mount("module-source-resolver", sources)
    if with_keys:
        await sources.async_resolve(provider.module, provider.source)
        for problem in set_stored_keys(coordinator).problems:
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
        await clean_up(coordinator.cleanup(), CLEANUP_SECONDS)
        coordinator.loader.cleanup()


class Described(NamedTuple):
    """The description of a provider.

    Attributes:
        info: Its name, capabilities and requirements.
        ready: Whether it mounts with the current configuration.
    """

    info: ProviderInfo
    ready: bool


async def describe(provider: Provider, sources: AppModuleSourceResolver) -> Described:
    """Describe a provider, even if its key is missing.

    Raises:
        ConfigError: It is unavailable, or needs a configuration.
        Exception: Any error of a third-party module.
    """
    try:
        async with mount_alone(provider, sources) as instance:
            return Described(instance.get_info(), ready=True)
    except NotMounted:
        # Most mount nothing without a key. No request is sent with this one.
        config = {**provider.config, "api_key": "none-yet"}
        async with mount_alone(provider._replace(config=config), sources) as instance:
            return Described(instance.get_info(), ready=False)


def find_credentials(
    info: ProviderInfo, provider: Provider, stored: Mapping[str, keys.StoredKey]
) -> list[Credential]:
    """Return where the keys of a provider come from, the one it uses first."""
    credentials = [
        Credential(name, "plan")
        for name, value in provider.config.items()
        if value and is_secret_key(name)
    ]
    # A key for another address is not used.
    for name in info.credential_env_vars if find_access(info, provider).keys else ():
        if name in os.environ:
            credentials += [Credential(name, "environment")] if os.environ[name] else []
        elif name in stored and stored[name].overriding(name, os.environ) is None:
            credentials.append(Credential(name, stored[name].where))
    return credentials


def find_access(info: ProviderInfo, provider: Provider) -> Access:
    """Return the address a provider uses, and what of the environment it does not use.

    Its keys are placeholders unless the config has one: the keyring may ask to be unlocked.
    """
    environ = keys.environment()
    stored: dict[str, str | None] = {}
    field = address_field(info)
    configured = {
        name: str(value) for name, value in provider.config.items() if value and is_secret_key(name)
    }
    if isinstance(environ, keys.Environment) and not configured:
        stored = {name: key.address and key.address.url for name, key in environ.used.items()}
        environ = {**os.environ, **environ.addresses, **dict.fromkeys(environ.used, "stored")}
    variable = (field.env_var if field is not None else None) or ""
    own_address = (field.default if field is not None else None) or ""
    address = provider.config.get("base_url")
    names = info.credential_env_vars
    access = choose_access(configured, address, environ, names, variable, own_address, stored)
    is_ours = provider.source is None and provider.module in installed.bundled_modules()
    if is_ours or access.keys or not access.ignored:
        return access
    given = {name: "set" for name in names if environ.get(name) and name not in stored}
    if not given:
        return access
    target = without_login(access.address or "")
    warning = (
        f"{provider.module} may send {next(iter(given))}, which is for another address, to base_url ({target}): "
        "modules of others read the environment themselves; set its api_key next to base_url"
    )
    return access._replace(keys=given, ignored=warning)


def address_field(info: ProviderInfo) -> ConfigField | None:
    """Return the configuration field with the address of a provider."""
    return next((field for field in info.config_fields if field.id == "base_url"), None)


def describe_address(info: ProviderInfo, access: Access) -> str:
    """Return the address and its source; empty for the provider's own address."""
    field = address_field(info)
    default = (field.default if field is not None else None) or ""
    if access.address is None or is_same_address(access.address, default):
        return ""
    is_stored = access.address_from != "base_url" and not os.environ.get(access.address_from)
    source = "stored with the key" if is_stored else f"from {access.address_from}"
    return f"{without_login(access.address)} ({source})"


# -- testing -----------------------------------------------------------------------------


class Answered(NamedTuple):
    """The result of a minimal request.

    Attributes:
        model: The model that answered.
        seconds: From the request to the end of the answer.
        input_tokens: As reported by the service; None if it reports none.
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
    """Send a minimal request, without retries.

    Args:
        provider: The provider.
        sources: Resolves module sources.
        model: The model to use instead of the configured one.
        timeout: Seconds to wait for the answer.
        renderer: Shows notices, for example about downloaded weights.

    Raises:
        LLMError: The provider did not answer.
        ConfigError, ModuleError: See `mount_alone`.
    """
    tested = provider._replace(config=await _without_retries(provider, sources))
    request = ChatRequest(
        messages=[Message(role="user", content=TEST_PROMPT)],
        model=model,
        max_output_tokens=TEST_TOKENS,
    )
    try:
        async with (
            asyncio.timeout(timeout),
            mount_alone(tested, sources, renderer=renderer, with_keys=True) as instance,
        ):
            begun = time.monotonic()
            options = {"model": model} if model else {}
            with _blaming(provider, instance, "complete"):
                response = await instance.complete(request, **options)
                seconds = time.monotonic() - begun
                usage = response.usage
                return Answered(
                    model=(response.metadata or {}).get("model") or model or find_model(instance),
                    seconds=seconds,
                    input_tokens=usage.input_tokens if usage else None,
                    output_tokens=usage.output_tokens if usage else None,
                    cost=usage.cost_usd if usage else None,
                )
    except TimeoutError:
        message = f"{provider.name} did not answer within {timeout:g} s"
        raise LLMTimeoutError(message, provider=provider.name) from None


async def models(
    provider: Provider, sources: AppModuleSourceResolver, *, renderer: Renderer | None = None
) -> list[ModelInfo]:
    """List the models of a provider.

    Raises:
        LLMError: The service did not answer.
        ConfigError, ModuleError: See `mount_alone`.
    """
    async with mount_alone(provider, sources, renderer=renderer, with_keys=True) as instance:
        with _blaming(provider, instance, "list_models"):
            infos = list(await instance.list_models())
            for info in infos:
                if not isinstance(getattr(info, "id", None), str):
                    raise TypeError(f"expected a list of ModelInfo, got {type(info).__name__}")
        return infos


@contextlib.contextmanager
def _blaming(provider: Provider, instance: Any, call: str) -> Generator[None]:
    """Record on an exception that the provider raised it, unless it describes itself."""
    try:
        yield
    # A provider is foreign code and may raise anything.
    except Exception as error:
        if not isinstance(error, (LLMError, TimeoutError)) or programming_error(error):
            blame_module(error, kind="provider", obj=instance, name=provider.name, call=call)
        raise


async def _without_retries(provider: Provider, sources: AppModuleSourceResolver) -> dict[str, Any]:
    """Return the config with retries disabled, if the module has that setting."""
    source = await sources.async_resolve(provider.module, provider.source)
    if not source.installed or not source.entry_point:
        return provider.config
    with contextlib.suppress(ImportError, ModuleError):
        schema = config_schema(import_module(source.entry_point.partition(":")[0])) or {}
        if "max_retries" in schema.get("properties", {}):
            return {**provider.config, "max_retries": 0}
    return provider.config
