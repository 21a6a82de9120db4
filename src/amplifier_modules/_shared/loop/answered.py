"""The model that answered a step, and the reason if it is not the one that was requested.

`provider:switched` reports the first step that another model answers, and the first after it that the
requested model answers again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from amplifier_core.models import Pricing
from amplifier_modules._shared.loop.channel import error_data
from amplifier_modules._shared.loop.replies import read_metadata
from amplifier_support.lazy_pattern import lazy_pattern
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.provider_order import find_model

PROVIDER_SWITCHED = "provider:switched"

Cause = Literal["fallback", "hook", "service"]

GOES_BACK: Mapping[Cause, str | None] = {
    "fallback": "next_prompt",
    "hook": "next_request",
    "service": None,
}
"""When the requested model is asked again, by cause; None if only the service knows."""

# What names a release of the same model: a date, `latest`, the version of a cloud.
_RELEASE = lazy_pattern(r"(?:[-@:](?:\d{8}|\d{4}-\d{2}-\d{2}|latest|default))?(?:-v\d+(?::\d+)?)?$")


class Answered(NamedTuple):
    """The model that answered a step.

    Attributes:
        provider: The name of its provider.
        model: The model; None if unknown.
        requested_provider: The provider that was requested.
        requested_model: The model that was requested; None to leave the choice to the provider.
        cause: Why another model answered; None if the requested one did.
        reason: The same in words.
        price: US dollars per million tokens of `input` and `output`; None if unknown.
        requested_price: Those of the requested model.
    """

    provider: str
    model: str | None
    requested_provider: str
    requested_model: str | None
    cause: Cause | None = None
    reason: str | None = None
    price: Mapping[str, float] | None = None
    requested_price: Mapping[str, float] | None = None

    @property
    def until(self) -> str | None:
        """When the requested model is asked again; None if unknown, or if it has answered."""
        return None if self.cause is None else GOES_BACK[self.cause]

    def as_event(self) -> dict[str, Any]:
        """The data of `provider:switched`."""
        return {**self._asdict(), "until": self.until}

    def as_metadata(self) -> dict[str, Any]:
        """The fields to store with the answer."""
        about: dict[str, Any] = {
            "provider": self.provider,
            "requested_model": self.requested_model,
            "price": self.price,
        }
        if self.cause is not None:
            about["switched"] = {
                "requested_provider": self.requested_provider,
                "cause": self.cause,
                "reason": self.reason,
                "until": self.until,
            }
        return {name: value for name, value in about.items() if value is not None}


class Switches:
    """Finds the steps at which the answering model changes; outlives turns."""

    def __init__(self) -> None:
        self._reported: tuple[Any, ...] | None = None

    def differs(self, answered: Answered) -> bool:
        """Return True if `answered` is to be reported: another model answers, or no longer does."""
        return self._key(answered) != self._reported

    def keep(self, answered: Answered) -> None:
        """Record that `answered` has been reported."""
        self._reported = self._key(answered)

    def _key(self, answered: Answered) -> tuple[Any, ...] | None:
        return None if answered.cause is None else tuple(answered[:5])


def is_same_model(requested: str | None, answered: str | None) -> bool:
    """Return True if both names may mean the same model: a gateway's prefix, a snapshot, an alias."""
    if requested is None or answered is None or requested == answered:
        return True
    return _base_name(requested) == _base_name(answered)


def _base_name(model: str) -> str:
    name = re.split(r"[/\\]", model.lower())[-1]
    name = name.rpartition("anthropic.")[2]  # The ids of clouds: us.anthropic.claude-…
    return _RELEASE.sub("", name)


def find_price(provider: Any, model: str | None) -> dict[str, float] | None:
    """The price of a model of a mounted provider, if the provider has the method `model_pricing`."""
    method = getattr(provider, "model_pricing", None)
    pricing = method(model) if callable(method) and model is not None else None
    if not isinstance(pricing, Pricing) or pricing.currency != "USD":
        return None
    return {"input": pricing.input_per_million, "output": pricing.output_per_million}


class Use(NamedTuple):
    """A provider by name, and one of its models; None if unknown."""

    provider: str
    model: str | None


def identify_model(
    response: Any,
    requested: Use,
    used: Use,
    providers: Mapping[str, Any],
    error: Exception | None = None,
) -> Answered:
    """Identify the model that answered, and why it is not the requested one.

    Args:
        response: The answer.
        requested: The provider and the model that were requested.
        used: Those that the request was sent to, after hooks and fallbacks.
        providers: The providers by name.
        error: The error that made the requested provider unavailable.
    """
    reported = read_metadata(response).get("model")
    model = reported if isinstance(reported, str) else used.model
    cause: Cause | None = None
    reason: str | None = None
    if used.provider != requested.provider:
        cause, reason = "fallback", None if error is None else error_data(error)["message"]
    elif not is_same_model(requested.model, used.model):
        cause, reason = "hook", "a hook of provider:request chose the model"
    elif not is_same_model(used.model, model):
        cause, reason = "service", f"the service answered with it when asked for {used.model}"
    price = find_price(providers[used.provider], model)
    before = find_price(providers[requested.provider], requested.model) if cause else price
    return Answered(used.provider, model, *requested, cause, reason, price, before)


def fallback_event(
    provider: str, following: str, error: Exception, providers: Mapping[str, Any]
) -> dict[str, Any]:
    """The data of `provider:fallback`: the provider `following` is asked after `provider` failed."""
    model = find_model(providers[following])
    return {
        "provider": provider,
        "fallback": following,
        "error": error_data(error),
        "fallback_model": model,
        "price": find_price(providers[following], model),
        "until": GOES_BACK["fallback"],
    }
