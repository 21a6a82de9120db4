"""The settings that providers of HTTP model services have in common."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import AliasChoices, Field, SecretStr

from amplifier_modules._shared.http.client import CONNECT_TIMEOUT, IDLE_TIMEOUT
from amplifier_modules._shared.module.config import ModuleConfig, Published, ignored, several
from amplifier_modules._shared.providers.catalogue import PricesConfig
from amplifier_support.environment import stored_addresses
from amplifier_support.provider_access import Access, choose_access


class HTTPProviderConfig(ModuleConfig):
    """Settings of every provider of an HTTP service.

    Attributes:
        api_key: API key; prefer a `${VARIABLE}` to the key itself.
        base_url: Address of the service; by default the one in the environment, or stored with the key.
        model: Model to use (also `default_model`).
        temperature: Randomness of the output; 0 is the least.
        top_p: Cumulative probability of the tokens the model samples from.
        max_retries: Retries after a temporary failure; 0 for none.
        prices: Prices of the service, instead of the vendor's list.
        list_prices: Whether to use the vendor's list prices; by default only at its own address.
        debug: Log every request and answer at DEBUG level, without their texts.
    """

    published: ClassVar[Mapping[str, Published]] = {
        **several(
            "filtered raw raw_debug",
            ignored("use hooks-logging with 'level: debug' and 'include_messages: true'"),
        ),
        "use_streaming": ignored("set 'streaming' in the config of the orchestrator"),
        **several(
            "min_retry_delay max_retry_delay retry_jitter overloaded_delay_multiplier "
            "throttle_delay throttle_threshold max_concurrent_requests rate_limit_state_path",
            ignored("delays follow the service's answers; set 'max_retries'"),
        ),
    }

    api_key: SecretStr | None = None
    base_url: str | None = None
    model: str = Field(default="", validation_alias=AliasChoices("model", "default_model"))
    max_tokens: int | None = Field(
        default=None, gt=0, description="Maximum length of an answer, in tokens."
    )
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, ge=0, le=1)
    timeout: float | None = Field(
        default=None, gt=0, description="Time limit of one attempt, in seconds."
    )
    connect_timeout: float = Field(default=CONNECT_TIMEOUT, gt=0, description="In seconds.")
    idle_timeout: float = Field(
        default=IDLE_TIMEOUT,
        gt=0,
        description="Longest time without progress of an answer, in seconds; pings are not progress.",
    )
    max_retries: int = Field(default=4, ge=0)
    priority: int = Field(
        default=100, description="The provider with the lowest number is used first."
    )
    prices: PricesConfig | None = None
    list_prices: bool | None = None
    debug: bool = False


def find_access(
    config: HTTPProviderConfig,
    keys: Mapping[str, SecretStr | None],
    variables: Sequence[str],
    address_variable: str,
    own_address: str,
) -> Access:
    """Return the keys and the address to use; see `choose_access`."""
    configured = {name: key.get_secret_value() if key else None for name, key in keys.items()}
    return choose_access(
        configured,
        config.base_url,
        os.environ,
        variables,
        address_variable,
        own_address,
        stored_addresses(),
    )


def first_given(*values: Any) -> Any:
    """The first value that is not None: of a request, else of the config."""
    return next((value for value in values if value is not None), None)
