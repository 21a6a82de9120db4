"""The lists of model prices in use: one from each bundled provider, and the table that the user has fetched."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.sanitize import one_line
from amplifier_support.files import describe_reason
from amplifier_support.price_lists import PriceList, in_order, read_fetched, read_shipped

PROVIDERS = {"provider-anthropic": "anthropic", "provider-openai": "openai"}
"""Bundled providers with a price list → their name in tables of prices."""

UPDATE = "amplifier provider prices --update"


def shipped_list(module: str) -> PriceList:
    """The price list of a bundled provider."""
    path = files("amplifier_modules") / module.replace("-", "_") / "models.json"
    return read_shipped(Path(str(path)))


def shipped_lists() -> dict[str, list[PriceList]]:
    """The price list that ships with each bundled provider, by module id."""
    return {module: [shipped_list(module)] for module in PROVIDERS}


def price_lists() -> dict[str, list[PriceList]]:
    """The lists of each bundled provider by module id, in the order in which they are searched.

    Raises:
        ConfigError: The table that the user has fetched is damaged, or cannot be read.
    """
    path = paths.prices_file()
    try:
        fetched = read_fetched(path)
    except OSError as error:
        reason = f"cannot read the table of prices: {describe_reason(error)}"
        raise ConfigError(reason, location=Location(str(path))) from error
    except ValueError as error:
        raise ConfigError(
            f"the table of prices is damaged: {error}",
            hint=f"Remove it, or fetch it again: {UPDATE}",
            location=Location(str(path)),
        ) from error
    return {
        module: in_order(shipped_list(module), fetched.get(name))
        for module, name in PROVIDERS.items()
    }


def describe_prices(file: Mapping[str, str]) -> str:
    """Describe a file of prices in one line: its `provider`, and `as_of`, `sha256` and `source` where known."""
    date = f" of {file['as_of']}" if "as_of" in file else ""
    digest = f", sha256 {file['sha256'][:12]}" if "sha256" in file else ""
    source = file.get("source", "unknown source")
    return one_line(f"{file.get('provider')}: prices{date}{digest}, {source}", 300)
