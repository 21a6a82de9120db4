"""The cost of a call to a provider's service, and the source of its prices.

The vendor's list applies at the vendor's own address. Other addresses bill differently: the cost there
is unknown unless the plan sets `prices`, or enables the vendor's with `list_prices`. An unknown cost is
None, never zero.
"""

from __future__ import annotations

from decimal import Decimal

from pydantic import Field

from amplifier_core.models import Pricing
from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_modules._shared.providers.catalogue import Model, Prices, Tokens


class PricesConfig(ModuleConfig):
    """US dollars per million tokens, for every model of the provider.

    Attributes:
        input: Price of input.
        output: Price of output, including thinking.
        cache_read: Price of a cache read; by default the price of input.
        cache_write: Price of a cache write; by default the price of input.
        cache_write_1h: Price of a one-hour cache write; by default that of `cache_write`.
    """

    input: Decimal = Field(ge=0)
    output: Decimal = Field(ge=0)
    cache_read: Decimal | None = Field(default=None, ge=0)
    cache_write: Decimal | None = Field(default=None, ge=0)
    cache_write_1h: Decimal | None = Field(default=None, ge=0)

    def as_prices(self) -> Prices:
        """The same with what is not given filled in."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        long = write if self.cache_write_1h is None else self.cache_write_1h
        return Prices(self.input, self.output, read, write, long)


class PriceSource:
    """Where a provider takes its prices from.

    Args:
        given: The plan's own prices, which count before any list.
        use_list: Whether the vendor's list counts; None to decide by `at_vendor`.
        at_vendor: The service is the vendor's own.
    """

    __slots__ = ("_given", "uses_list")

    def __init__(
        self, given: PricesConfig | None, use_list: bool | None, *, at_vendor: bool
    ) -> None:
        self._given = given.as_prices() if given is not None else None
        self.uses_list = at_vendor if use_list is None else use_list

    def cost(
        self, model: Model | None, tokens: Tokens, *, listed_tier: bool = True
    ) -> Decimal | None:
        """What a call cost in US dollars; None where that is not known.

        Args:
            model: The model in the vendor's list; None if it is not there.
            tokens: What the service counted.
            listed_tier: The call was billed as what the list has prices for.
        """
        if self._given is not None:
            return self._given.cost(tokens)
        if model is None or not (self.uses_list and listed_tier):
            return None
        return model.cost(tokens)

    def pricing(self, model: Model | None) -> Pricing | None:
        """The prices of a model for lists of models; None where they are not known."""
        if self._given is not None:
            return self._given.pricing()
        return model.prices.pricing() if model is not None and self.uses_list else None
