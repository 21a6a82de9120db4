"""Runs tests of the provider with each of its HTTP clients."""

from collections.abc import Iterator

import pytest

from tests.modules.provider_anthropic import support


@pytest.fixture(params=["builtin", "sdk"])
def each_client(request: pytest.FixtureRequest) -> Iterator[None]:
    """The provider with its own client, and with that of the SDK."""
    token = support.client.set(request.param)
    yield
    support.client.reset(token)
