"""Which provider and model answers: fallbacks while one is unavailable, and reports of a switch.

A provider of `fallbacks` of the plan is used while another is unavailable. `provider:switched` reports
the first step that another model answers, and the first after it that the requested model answers again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from amplifier_core.llm_errors import (
    LLMError,
    NotFoundError,
    ProviderUnavailableError,
    RateLimitError,
)
from amplifier_core.models import Pricing
from amplifier_modules._shared.loop.channel import error_data
from amplifier_modules._shared.loop.replies import read_metadata
from amplifier_support.fields import read_field, to_mapping
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.provider_order import find_model
from amplifier_support.text import lazy_pattern

PROVIDER_SWITCHED = "provider:switched"

Cause = Literal["fallback", "hook", "service"]

GOES_BACK: Mapping[Cause, str | None] = {
    "fallback": "next_prompt",
    "hook": "next_request",
    "service": None,
}
"""When the requested model is asked again, by cause; None if only the service knows."""

# What names a release of the same model: a date, `latest`, the version of a cloud.
_RELEASE = lazy_pattern(
    r"(?:[-@:](?:(\d{8}|\d{4}-\d{2}-\d{2})|latest|default))?(?:-v\d+(?::\d+)?)?$"
)


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
    """Finds the steps at which the answering model changes; outlives turns.

    Attributes:
        has_begun: False until `begin`.
    """

    def __init__(self) -> None:
        self._reported: tuple[Any, ...] | None = None
        self.has_begun = False

    def begin(self, messages: Sequence[Any]) -> None:
        """Begin after the stored messages: another model may have answered last, in another process."""
        self.has_begun = True
        last = next((m for m in reversed(messages) if read_field(m, "role") == "assistant"), None)
        if read_metadata(last).get("switched"):
            self._reported = ()  # Differs from every answer: hooks of this process know of none.

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
    (name, date), (other, other_date) = _split_name(requested), _split_name(answered)
    return name == other and (not date or not other_date or date == other_date)


def _split_name(model: str) -> tuple[str, str]:
    """Return the name without its release, and the date of the release, empty if it has none."""
    name = re.split(r"[/\\]", model.lower())[-1]
    name = name.rpartition("anthropic.")[2]  # The ids of clouds: us.anthropic.claude-…
    release = _RELEASE.search(name)
    if release is None:
        return name, ""
    return name[: release.start()], (release[1] or "").replace("-", "")


def _find_price(provider: Any, model: str | None) -> dict[str, float] | None:
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
    price = _find_price(providers[used.provider], model)
    before = _find_price(providers[requested.provider], requested.model) if cause else price
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
        "price": _find_price(providers[following], model),
        "until": GOES_BACK["fallback"],
    }


PROVIDER_FALLBACK = "provider:fallback"
_PREFIX = "provider-"


class Fallbacks:
    """The fallback providers of one turn.

    A provider that was unavailable is not asked again in the turn: each attempt costs all its retries.

    Args:
        names: Names of providers in the order in which they are tried.
        providers: The mounted providers by name. Other names are skipped: their conditions may
            have excluded them.
    """

    def __init__(self, names: Sequence[str], providers: Mapping[str, Any]) -> None:
        mounted = (name if name in providers else name.removeprefix(_PREFIX) for name in names)
        self._chain = [name for name in dict.fromkeys(mounted) if name in providers]
        self._away: dict[str, Exception] = {}

    def substitute(self, name: str) -> str:
        """The provider to use for `name`: itself, unless it is known to be unavailable."""
        return self._next() or name if name in self._away else name

    def reason(self, name: str) -> Exception | None:
        """The error that made a provider unavailable; None if it is not known to be."""
        return self._away.get(name)

    def after(self, name: str, error: Exception) -> str | None:
        """The provider to use after `name` failed; None if the error ends the turn."""
        if not self._chain or not _is_unavailable(error):
            return None
        self._away[name] = error
        return self._next()

    def _next(self) -> str | None:
        return next((name for name in self._chain if name not in self._away), None)


def _is_unavailable(error: Exception) -> bool:
    """Return True if another provider may answer the same request.

    True if the network or the service is down, overloaded or slow, if a rate limit or the credit is
    exhausted, or if the model is missing. False if the request, the key or the settings are wrong.
    """
    if not isinstance(error, LLMError):
        return False
    if error.retryable or isinstance(error, (RateLimitError, NotFoundError)):
        return True
    status = error.status_code or 0
    # A service may report that a retry is pointless.
    return isinstance(error, ProviderUnavailableError) and status >= 500


def find_fallbacks(coordinator: Any) -> list[str]:
    """`session.fallbacks` of a session's plan."""
    config = to_mapping(getattr(coordinator, "config", None))
    named = to_mapping(config.get("session")).get("fallbacks")
    if isinstance(named, str):
        return [named]
    items = cast("list[Any]", named) if isinstance(named, list) else []
    return [name for name in items if isinstance(name, str)]
