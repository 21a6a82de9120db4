"""The key a provider sends, and the address it is sent to.

A key never goes to an address it was not meant for. A key and an address that are both in the environment
belong together, and neither is combined with the address or the key of the config. If only one of them is in the
environment, it goes with what the config sets. A stored key goes only to the address it was stored for; if that is
unknown, to the provider's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from urllib.parse import urlsplit

from amplifier_support.environment import is_set_for_modules
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import without_login

_API_PATHS = ("/chat/completions", "/responses", "/v1")
"""Ends of a path that providers add to an address, or accept in it."""


NOT_STORED: Mapping[str, str | None] = MappingProxyType({})


class Access(NamedTuple):
    """The keys and the address of a provider.

    Attributes:
        keys: The keys, by their setting or environment variable; empty if there is none for the address.
        address: The address; None for the provider's own.
        address_from: The setting or environment variable with the address.
        ignored: Why a key or an address in the environment is not used; empty if everything is.
    """

    keys: Mapping[str, str]
    address: str | None
    address_from: str
    ignored: str = ""


def choose_access(
    configured: Mapping[str, str | None],
    base_url: str | None,
    environ: Mapping[str, str],
    variables: Sequence[str],
    address_variable: str,
    own_address: str = "",
    stored: Mapping[str, str | None] = NOT_STORED,
) -> Access:
    """Return the keys and the address to use.

    Args:
        configured: The keys in the config, by setting.
        base_url: The address in the config.
        environ: The environment.
        variables: The environment variables of the keys.
        address_variable: The environment variable of the address.
        own_address: The provider's own address.
        stored: The variables in `environ` that are stored keys, with the address of each; None if it is unknown.
    """
    keys = _without_blanks(configured)
    exported = _without_blanks({name: environ.get(name) for name in variables})
    address = (environ.get(address_variable) or "").strip()
    base_url = (base_url or "").strip()
    variable = next(iter(exported), "")
    place = without_login(address)
    misplaced = [
        name
        for name in exported
        if is_misplaced(name, base_url or address or own_address, stored, own_address)
    ]
    if misplaced and not keys:
        exported = {name: key for name, key in exported.items() if name not in misplaced}
        if not exported:
            where = "base_url" if base_url else address_variable
            meant = without_login(stored[variable] or own_address)
            ignored = _refuse_key(variable, where, without_login(base_url or address), meant)
            return Access({}, base_url or address, where, ignored)
        variable = next(iter(exported))
    if not base_url:
        # An address that was stored belongs to the stored key, not to others of the environment.
        is_stored = is_set_for_modules(address_variable)
        own = {key for name, key in exported.items() if is_set_for_modules(name) or not is_stored}
        if keys and exported and address and not own & set(keys.values()):
            setting = next(iter(keys))
            ignored = (
                f"{address_variable} ({place}) is not used for {setting}: it is for {variable}"
            )
            return Access(keys, None, "base_url", ignored)
        return Access(keys or exported, address or None, address_variable)
    target = without_login(base_url)
    is_other = bool(address) and not is_same_address(base_url, address)
    if exported and is_other and not keys:
        ignored = _refuse_key(variable, "base_url", target, place)
        return Access({}, base_url, "base_url", ignored)
    ignored = f"{address_variable} is not used: base_url is {target}" if is_other else ""
    return Access(keys or exported, base_url, "base_url", ignored)


def is_misplaced(
    name: str, address: str, stored: Mapping[str, str | None], own_address: str = ""
) -> bool:
    """Return True if a stored key is for another address than this one."""
    return name in stored and not is_same_address(stored[name] or own_address, address)


def _refuse_key(variable: str, where: str, target: str, meant: str) -> str:
    setting = "auth_token" if variable.endswith("AUTH_TOKEN") else "api_key"
    owner = f"it is for {meant}" if meant else "the address it was stored for is unknown"
    how = f"set {setting}: ${{{variable}}} next to base_url"
    if where != "base_url":
        how = "store it for that address: amplifier init"
    return f"{variable} is not sent to {where} ({target}): {owner}; to use it there as well, {how}"


def _without_blanks(values: Mapping[str, str | None]) -> dict[str, str]:
    stripped = {name: (value or "").strip() for name, value in values.items()}
    return {name: value for name, value in stripped.items() if value}


def is_same_address(left: str, right: str) -> bool:
    """Return True if two URLs are the same API, with or without `/v1` or the path of a request."""
    return _normalise(left) == _normalise(right)


def _normalise(url: str) -> tuple[object, ...]:
    try:
        parts = urlsplit(url.strip())
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return (url,)
    path = parts.path.rstrip("/")
    for end in _API_PATHS:
        path = path.removesuffix(end).rstrip("/")
    return parts.scheme, parts.hostname, port, parts.username, path, parts.query
