"""Which of several providers is asked first, and for which model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard, TypeVar, cast

from amplifier_support.fields import to_mapping

DEFAULT_PRIORITY = 100

_Provider = TypeVar("_Provider")


def first_provider(
    providers: Iterable[_Provider],
    default: str | None,
    *,
    name: Callable[[_Provider], str | None],
    priority: Callable[[_Provider], float],
) -> _Provider | None:
    """The provider called `default`, else the one with the lowest priority number.

    The first of several equal ones; None if there are no providers.
    """
    candidates = list(providers)
    named = [each for each in candidates if default is not None and name(each) == default]
    return min(named or candidates, key=priority, default=None)


def first_mounted(providers: Mapping[str, Any], default: str | None) -> str | None:
    """The name of the mounted provider that is asked first; see `first_provider`."""
    return first_provider(
        providers,
        default,
        name=lambda name: name,
        priority=lambda name: read_priority(providers[name]),
    )


def read_priority(provider: Any) -> float:
    """The number of a mounted provider: `provider.priority`, else that of its config, else 100."""
    own = getattr(provider, "priority", None)
    if _is_number(own):
        return own
    return configured_priority(getattr(provider, "config", None))


def find_model(provider: Any) -> str | None:
    """The model a mounted provider uses by default; None if it does not report one."""
    named = (getattr(provider, name, None) for name in ("model", "default_model"))
    return next((model for model in named if isinstance(model, str) and model), None)


def requested_model(orchestrator: Any, provider: Any) -> str | None:
    """The model that a plan's orchestrator requests of a mounted provider; None if neither names one."""
    config = to_mapping(to_mapping(orchestrator).get("config"))
    return config.get("default_model") or find_model(provider)


def has_no_price(provider: Any, model: str | None) -> bool:
    """Return True if a mounted provider reports that it does not know the price of a model.

    False if it has no `model_pricing`: then only its answers show what they cost.
    """
    find_pricing = getattr(provider, "model_pricing", None)
    return callable(find_pricing) and find_pricing(model or "") is None


def configured_priority(config: Any) -> float:
    """The priority in a provider's config, else 100."""
    value: Any = None
    if isinstance(config, Mapping):
        value = cast("Mapping[str, Any]", config).get("priority")
    return value if _is_number(value) else DEFAULT_PRIORITY


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
