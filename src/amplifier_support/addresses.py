"""Which addresses are allowed: public ones, and those in the config.

The public ranges are listed here because the answers of `ipaddress` have changed between versions
of Python. Addresses that wrap another one, such as IPv4-mapped and NAT64 addresses, are judged by
the address they lead to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from urllib.parse import urlsplit

from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import lazy_pattern

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_PRIVATE = "an address of a private network"
_LOOPBACK = "an address of this machine"
_LINK_LOCAL = "a link-local address"
_METADATA = "a cloud metadata address"
_RESERVED = "a reserved address"

_NOT_PUBLIC: list[tuple[Network, str]] = [
    (ip_network(network), what)
    for network, what in (
        ("169.254.169.254/32", _METADATA),
        ("168.63.129.16/32", _METADATA),
        ("100.100.100.200/32", _METADATA),
        ("192.0.0.192/32", _METADATA),
        ("fd00:ec2::254/128", _METADATA),
        ("fd20:ce::254/128", _METADATA),
        ("127.0.0.0/8", _LOOPBACK),
        ("0.0.0.0/8", _LOOPBACK),
        ("::1/128", _LOOPBACK),
        ("::/128", _LOOPBACK),
        ("10.0.0.0/8", _PRIVATE),
        ("100.64.0.0/10", _PRIVATE),
        ("172.16.0.0/12", _PRIVATE),
        ("192.168.0.0/16", _PRIVATE),
        ("fc00::/7", _PRIVATE),
        ("169.254.0.0/16", _LINK_LOCAL),
        ("fe80::/10", _LINK_LOCAL),
        ("192.0.0.0/24", _RESERVED),
        ("192.0.2.0/24", _RESERVED),
        ("192.88.99.0/24", _RESERVED),
        ("198.18.0.0/15", _RESERVED),
        ("198.51.100.0/24", _RESERVED),
        ("203.0.113.0/24", _RESERVED),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", _RESERVED),
        ("ff00::/8", "a multicast address"),
        ("2001::/23", _RESERVED),
        ("2001:db8::/32", _RESERVED),
        ("3fff::/20", _RESERVED),
    )
]
_GLOBAL_IPV6 = ip_network("2000::/3")
_NAT64 = ip_network("64:ff9b::/96")
_RULE_NAME = lazy_pattern(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")
_BY_ALLOW_PRIVATE = (_LOOPBACK, _PRIVATE)


class RefusedAddress(Exception):
    """An address that is not allowed; the message says why and what could allow it."""


class Rule(NamedTuple):
    """One entry of `allow_hosts`.

    Attributes:
        name: A host name, or `*.` and a suffix; None if `network` is set.
        network: Addresses; None if `name` is set.
        port: The only port; None for all.
    """

    name: str | None
    network: Network | None
    port: int | None

    def covers(self, host: str, port: int, address: Address | None) -> bool:
        """Return True if the rule is for a host; `address` is None if it has a name that was not resolved."""
        if self.port is not None and self.port != port:
            return False
        if self.network is not None:
            return (
                address is not None
                and address.version == self.network.version
                and address in self.network
            )
        name = self.name or ""
        return host.endswith(name[1:]) if name.startswith("*.") else host == name


def read_rule(entry: str) -> Rule:
    """Parse an entry of `allow_hosts`.

    Raises:
        ValueError: It is invalid.
    """
    text = entry.strip().lower()
    with contextlib.suppress(ValueError):
        return Rule(None, ip_network(text), None)
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ValueError(_no_host(entry)) from error
    if "/" not in text:
        with contextlib.suppress(ValueError):
            return Rule(None, ip_network(host), port)
    if (
        port == 0
        or "[" in text
        or not _RULE_NAME.fullmatch(host)
        or parts.netloc != text
        or "@" in text
    ):
        raise ValueError(_no_host(entry))
    return Rule(host.removesuffix("."), None, port)


class AddressPolicy:
    """Decide which addresses may be connected to.

    Args:
        allow_hosts: Entries as in the config.
        allow_private: Allow all addresses of this machine and of private networks.
        setting: Where hosts are listed, for messages.
    """

    def __init__(
        self,
        allow_hosts: Sequence[str] = (),
        allow_private: bool = False,
        setting: str = "allow_hosts in the tool's config",
    ) -> None:
        self._setting = setting
        self._rules = [read_rule(entry) for entry in allow_hosts]
        self._allow_private = allow_private
        self.identity = repr((sorted(self._rules, key=repr), allow_private))

    def check(self, host: str, port: int, address: str) -> None:
        """Return if `address`, which `host` resolves to, may be connected to.

        Raises:
            RefusedAddress: It may not be connected to.
        """
        try:
            literal = ip_address(address)
        except ValueError as error:
            raise RefusedAddress(
                f"{host} resolves to {address!r}, which is not an IP address"
            ) from error
        meant = _meant(literal)
        why = _why_not_public(meant)
        if why is None or (self._allow_private and why in _BY_ALLOW_PRIVATE):
            return
        if any(rule.covers(host, port, meant) for rule in self._rules):
            return
        resolved = "is" if host == str(literal) else f"resolves to {address},"
        raise RefusedAddress(
            f"{host} {resolved} {why}; only public addresses are allowed unless the user lists "
            f"the host in {self._setting}"
        )


def _meant(address: Address) -> Address:
    """Unwrap an address that contains another one."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _why_not_public(address: Address) -> str | None:
    for network, what in _NOT_PUBLIC:
        if address.version == network.version and address in network:
            return what
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return _LINK_LOCAL
        if address not in _GLOBAL_IPV6:
            return _RESERVED
        if address.sixtofour is not None and (why := _why_not_public(address.sixtofour)):
            return f"a 6to4 address of {address.sixtofour}, {why}"
    return None


def _no_host(entry: str) -> str:
    return (
        f"{entry!r} is not a host: use a name, *.name, an address or a network such as 10.1.0.0/16"
    )
