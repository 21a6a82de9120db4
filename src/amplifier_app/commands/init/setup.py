"""Setting up a provider: the providers on offer, the choice, and its test.

interview.py   prompts on a terminal
saving.py      key → keyring or file, the rest → the user's settings; both or neither
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from amplifier_app.base.errors import UsageError
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.runtime.provider_access import (
    Answered,
    Credential,
    Provider,
    all_providers,
    ask,
    credentials_of,
    describe,
    find_provider,
)
from amplifier_app.sources.loading import load
from amplifier_app.sources.plan_resolver import resolver_for

if TYPE_CHECKING:
    from amplifier_app.base.keys import Where
    from amplifier_app.runtime.observers.observer import Renderer
    from amplifier_core.models import ConfigField, ProviderInfo

MODEL_FIELDS = ("model", "default_model")
NOT_OFFERED = frozenset({"provider-mock"})
"""Providers for tests, which can be chosen by name only."""


class Offer(NamedTuple):
    """A provider that can be set up.

    Attributes:
        provider: Its current configuration.
        info: Its own description.
        ready: Whether it can be used as configured.
        credentials: Where its keys come from.
    """

    provider: Provider
    info: ProviderInfo
    ready: bool
    credentials: tuple[Credential, ...]

    @property
    def secret(self) -> ConfigField | None:
        """The field that takes the key."""
        return next((one for one in self.info.config_fields if one.field_type == "secret"), None)

    @property
    def variable(self) -> str | None:
        """The variable the key is stored as; None if the provider needs no key."""
        if self.secret is None and not self.info.credential_env_vars:
            return None
        named = self.secret.env_var if self.secret is not None else None
        return named or next(iter(self.info.credential_env_vars), None) or self._own_variable

    @property
    def _own_variable(self) -> str:
        return re.sub(r"[^A-Za-z0-9]", "_", f"{self.provider.name}_api_key").upper()

    @property
    def reads_variable(self) -> bool:
        """Whether the provider reads the variable itself."""
        read = [*self.info.credential_env_vars, self.secret.env_var if self.secret else None]
        return self.variable in read

    @property
    def needs_key(self) -> bool:
        """Whether the provider requires a key and has none."""
        required = self.secret.required if self.secret is not None else True
        return self.variable is not None and not self.ready and not self.credentials and required

    @property
    def model_field(self) -> str:
        """The configuration key of the model."""
        ids = [field.id for field in self.info.config_fields]
        return next((name for name in MODEL_FIELDS if name in ids), MODEL_FIELDS[0])

    def field(self, name: str) -> ConfigField | None:
        """One of its configuration fields."""
        return next((one for one in self.info.config_fields if one.id == name), None)

    @property
    def found(self) -> str:
        """The key or server found for it here, in a few words."""
        address = self.field("base_url")
        server = os.environ.get(address.env_var or "") if address is not None else None
        words = [str(self.credentials[0])] if self.credentials else []
        if server:
            words.append(f"{address.env_var if address else ''} is set")
        if words:
            return ", ".join(words)
        return "needs no key" if self.variable is None else "no key yet"


class Choice(NamedTuple):
    """The provider to set up.

    Attributes:
        offer: The provider.
        key: A new key; None keeps the current one.
        changes: Changed configuration values; None removes a setting.
    """

    offer: Offer
    key: str | None = None
    changes: dict[str, Any] = {}  # noqa: RUF012 - never changed

    @property
    def provider(self) -> Provider:
        """The provider with the changes applied."""
        config = {**self.offer.provider.config, **self.changes}
        config = {name: value for name, value in config.items() if value is not None}
        if self.key and not self.offer.reads_variable and self.offer.secret is not None:
            config[self.offer.secret.id] = self.key
        return self.offer.provider._replace(config=config)

    @property
    def has_own_address(self) -> bool:
        """Whether the service is not the provider's own."""
        field = self.offer.field("base_url")
        variable = (field.env_var if field is not None else None) or ""
        return bool(self.provider.config.get("base_url") or os.environ.get(variable))

    def with_changes(self, changes: dict[str, Any]) -> Choice:
        """The choice with further configuration changes."""
        return self._replace(changes={**self.changes, **changes})


class Given(NamedTuple):
    """Values given as options, which are not asked for.

    Attributes:
        key: A new key.
        model: The model; empty for the provider's default.
        base_url: The address of the API; empty for the provider's own.
    """

    key: str | None = None
    model: str | None = None
    base_url: str | None = None

    def choice(self, offer: Offer) -> Choice:
        """The choice these values make for a provider.

        Raises:
            UsageError: The provider does not take one of the values, or the address is invalid.
        """
        name = offer.provider.name
        changes: dict[str, Any] = {}
        if self.model is not None:
            changes[offer.model_field] = self.model.strip() or None
        if self.base_url is not None:
            address = self.base_url.strip()
            problem = problem_of_address(address) if address else None
            if problem or offer.field("base_url") is None:
                raise UsageError(f"--base-url: {problem or f'{name} does not take an address'}")
            changes["base_url"] = address or None
        if self.key is not None and offer.variable is None:
            raise UsageError(f"--key-stdin: {name} does not take a key")
        return Choice(offer, self.key, changes)


def user_plan(provider: str | None = None) -> ResolvedPlan:
    """The plan of the user's own profile and settings, outside any project.

    Args:
        provider: A provider to include even if its condition is not met.

    Raises:
        ConfigError: The plan cannot be loaded.
    """
    return load(provider=provider, keep_unset=True)


async def offers(plan: ResolvedPlan, stored: dict[str, Where]) -> list[Offer]:
    """The providers on offer: those with a key here, then the others, and last those that need
    no key, such as the demo model."""
    found: list[Offer] = []
    for provider in all_providers(plan):
        if provider.module in NOT_OFFERED:
            continue
        try:
            found.append(await offer_of(provider, plan, stored))
        # A provider may be third-party code; one that fails is not offered, and `provider list`
        # shows why.
        except Exception:
            continue
    return sorted(found, key=lambda offer: (offer.variable is None, not offer.ready))


async def offer_of(provider: Provider, plan: ResolvedPlan, stored: dict[str, Where]) -> Offer:
    """One provider on offer.

    Raises:
        ConfigError: The provider is unavailable.
        Exception: Any error that a third-party module raises.
    """
    if provider.left_out is not None:
        provider = find_provider(user_plan(provider.name), provider.name)
    info, ready = await describe(provider, resolver_for(plan))
    return Offer(provider, info, ready, tuple(credentials_of(info, provider, stored)))


async def try_out(choice: Choice, timeout: float, renderer: Renderer | None = None) -> Answered:
    """Test the provider, as it would be configured, with a one-word request.

    Raises:
        LLMError: The request failed.
        AppError: The provider cannot be mounted.
    """
    use_key(choice)
    plan = user_plan()
    provider = choice.offer.provider
    if provider.origin is not None:
        # Load it again: its configuration may name the variable of the key.
        provider = find_provider(user_plan(provider.name), provider.name)
    candidate = choice._replace(offer=choice.offer._replace(provider=provider)).provider
    return await ask(candidate, resolver_for(plan), timeout=timeout, renderer=renderer)


def use_key(choice: Choice) -> None:
    """Make a new key available to modules mounted in this process from now on."""
    if choice.key and choice.offer.variable:
        os.environ[choice.offer.variable] = choice.key


def problem_of_address(text: str) -> str | None:
    """Why a text is not a URL of an API; None if it is one."""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if good and not any(character.isspace() for character in text):
        return None
    return f"{text} is not a URL (expected http:// or https://)"
