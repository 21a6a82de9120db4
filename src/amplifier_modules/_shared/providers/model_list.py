"""Reads the list of models that a service returns, which may be anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from amplifier_core.llm_errors import ProviderUnavailableError
from amplifier_support.usage import token_count


def entries_in(answer: Mapping[str, Any], provider: str) -> list[dict[str, Any]]:
    """The entries of a list of models that have an id.

    Raises:
        ProviderUnavailableError: The answer has no list; the service is probably another one.
    """
    data = answer.get("data")
    if data is None and "data" in answer:
        return []  # how some servers say that they have none
    if not isinstance(data, list):
        raise ProviderUnavailableError(
            f"{provider} answered the request for its models without a list; check base_url",
            provider=provider,
            retryable=False,
        )
    found = [cast("dict[str, Any]", entry) for entry in data if isinstance(entry, dict)]
    return [entry for entry in found if isinstance(entry.get("id"), str) and entry["id"]]


def limit_in(entry: Mapping[str, Any], *names: str) -> int:
    """The first valid limit in tokens under these names; 0 if there is none."""
    return next((count for name in names if (count := token_count(entry.get(name)))), 0)
