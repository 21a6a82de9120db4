"""Which addresses are asked: none of this machine or of private networks, however they are written."""

import asyncio
from typing import Any

import pytest

from amplifier_support.addresses import AddressPolicy, RefusedAddress
from tests.modules.tool_web.support import Names, counting_server, tools
from tests.support.raw_http import answer, raw_server
from tests.support.results import read_text, to_exception

LITERALS = [
    *("127.0.0.1", "127.0.0.2", "127.255.255.254", "0.0.0.0", "127.0.0.1.", "0.1.2.3"),
    # Forms that some programs take for 127.0.0.1 or 169.254.169.254
    *("2130706433", "017700000001", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "127.1", "127.0.1"),
    *("0x7f.1", "127.0.0.01", "127.000.000.001", "0", "0x0", "00", "127.0.0.1..", "2852039166"),
    *("0xa9fea9fe", "169.254.43518", "4294967295", "127.0.0.256", "1.127.0.0.1", "127.0.0.0x1"),
    # The same in other scripts, which are folded to ASCII
    *("１２７.0.0.1", "①②⑦.⓪.⓪.①", "127。0。0。1", "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "𝟏𝟐𝟕.0.0.1", "²130706433"),
    *("localhost", "LOCALHOST", "localhost.", "ip6-localhost", "a.localhost"),
    *("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1", "100.64.0.1", "100.127.255.255"),
    *("169.254.169.254", "169.254.0.1", "168.63.129.16", "100.100.100.200", "192.0.0.192"),
    *("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.2.1"),
    *("198.51.100.1", "203.0.113.1", "192.88.99.1", "192.0.0.1"),
    *("[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
    *("[::127.0.0.1]", "[64:ff9b::127.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::7f00:1]"),
    *("[2002:7f00:1::]", "[2002:a9fe:a9fe::1]", "[2001:0:7f00:1::]", "[2001:db8::1]", "[3fff::1]"),
    *("[fe80::1]", "[fe80::1%25lo]", "[fe80::1%lo]", "[::1%25lo]", "[fc00::1]", "[fd00:ec2::254]"),
    *("[fec0::1]", "[ff02::1]", "[100::1]", "[5f00::1]", "[::ffff:0:127.0.0.1]", "[v1.x]"),
    *("user@127.0.0.1", "example.com@127.0.0.1", "example.com:80@127.0.0.1", "%31%32%37.0.0.1"),
    *("127.0.0.1%00.example.com", "127.0.0.1#@example.com", "127.0.0.1\\@example.com", "a..b"),
]

NAMES = {
    # Names that anybody may have registered
    "inside_example": [["10.1.2.3"]],
    "mapped_example": [["::ffff:127.0.0.1"]],
    "mixed_example": [["93.184.216.34", "127.0.0.1"]],
    "linklocal_example": [["fe80::1%lo"]],
    "strange_example": [["localhost"]],
    "localhost": [["127.0.0.1"]],
    "ip6-localhost": [["::1"]],
    "a_localhost": [["127.0.0.1", "::1"]],
}


@pytest.mark.parametrize("port", [True, False])
async def test_no_spelling_of_a_private_address_connects(port: bool) -> None:
    async with counting_server() as (number, connected), tools(Names(**NAMES), timeout=5) as web:
        hosts = [*LITERALS, *(name.replace("_", ".") for name in NAMES)]
        for host in hosts:
            error = to_exception(await web.fetch(f"http://{host}{f':{number}' if port else ''}/"))
            assert error["type"] == "Refused", (host, error)
        assert connected == []
        assert len(hosts) >= 95
        assert [name for name, _ in web.events] == ["web:refused"] * len(hosts)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://example.com/", "file:///etc/passwd", "gopher://example.com/", "//example.com/"),
        *("data:text/html,x", "javascript:alert(1)", "http:/example.com", "http:example.com"),
        *("https://", "http:///x", "example.com", "", "http://exa mple.com/", "http://a\tb/"),
        *("http://example.com:0/", "http://example.com:99999/", "http://example.com:x/"),
        *(
            "http://example.com/\r\nHost: 127.0.0.1",
            "http://" + "a" * 64 + ".com/",
            "http://-/\x00",
        ),
        *("http://[::1/", "http://::1/", "http://exa$mple.com/", "http://" + "a." * 200 + "com/"),
        *("http://example.com/" + "a" * 9000, "http://" + "é" * 70 + ".com/", "http://\u200d.com/"),
    ],
)
async def test_invalid_urls_are_refused(url: str) -> None:
    async with tools(Names()) as web:
        assert to_exception(await web.fetch(url))["type"] == "Refused"


async def test_redirects_to_private_addresses_are_refused() -> None:
    targets = [
        *(f"http://{host}:PORT/" for host in LITERALS if "#" not in host),
        *(
            "//127.0.0.1:PORT/",
            "http://inside.example:PORT/",
            "//localhost:PORT",
            "HTTP://[::1]:PORT",
        ),
        *("file:///etc/passwd", "ftp://127.0.0.1:PORT/", "\\\\127.0.0.1:PORT\\", "http://["),
    ]
    given = iter(targets)
    async with counting_server() as (number, connected):

        async def redirect(request: Any, write: Any) -> None:
            location = next(given).replace("PORT", str(number)).encode().decode("latin-1")
            head = f"HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"
            await write(head.encode("latin-1"))

        names = Names(site_test=[["127.0.0.1"]], **NAMES)
        async with raw_server(redirect) as server, tools(names, timeout=5) as web:
            port = server.url.rpartition(":")[2]
            for target in targets:
                # Only `site.test` on this very port is allowed, which the redirects have left.
                error = to_exception(await web.fetch(f"http://site.test:{port}/"))
                assert error["type"] == "Refused", (target, error)
            assert len(server.requests) == len(targets)
        assert connected == []


@pytest.mark.parametrize("public", ["93.184.216.34", "2606:2800:21f::1"])
async def test_a_name_that_resolves_differently_the_second_time_does_not_connect(
    public: str,
) -> None:
    """Public when it is looked at, this machine right after: what was looked at is what is used."""
    async with counting_server() as (port, connected):
        for local in ("127.0.0.1", "::1", "0.0.0.0", "::ffff:127.0.0.1", "10.0.0.1"):
            names = Names(rebind_example=[[public], [local]])
            async with tools(names, timeout=5) as web:
                first = to_exception(await web.fetch(f"http://rebind.example:{port}/"))
                # The suite forbids connections beyond this machine: it was tried, and once only.
                assert first["type"] == "Unreachable"
                assert names.asked == ["rebind.example"]
                second = to_exception(await web.fetch(f"http://rebind.example:{port}/"))
                assert second["type"] == "Refused"
        assert connected == []


async def test_a_redirect_to_the_same_name_is_checked_again() -> None:
    async with counting_server() as (port, connected):

        async def redirect(request: Any, write: Any) -> None:
            await write(answer(302, "", {"location": f"http://rebind.test:{port}/"}))

        names = Names(site_test=[["127.0.0.1"]], rebind_test=[["127.0.0.1"]])
        async with raw_server(redirect) as server, tools(names) as web:
            error = to_exception(await web.fetch(server.url.replace("127.0.0.1", "site.test")))
        assert error["type"] == "Refused"
        assert "rebind.test resolves to 127.0.0.1, an address of this machine" in error["message"]
        assert names.asked == ["site.test", "rebind.test"]
        assert connected == []


async def test_the_connection_uses_the_checked_address() -> None:
    """The control of the tests above: what may be asked is, with one look at its name."""
    names = Names(site_test=[["127.0.0.1"], ["10.0.0.1"]])
    async with counting_server() as (port, connected), tools(names) as web:
        assert "the secret" in read_text(await web.fetch(f"http://site.test:{port}/"))
        assert names.asked == ["site.test"]
        assert len(connected) == 1


@pytest.mark.parametrize(
    ("config", "host", "allowed"),
    [
        ({"allow_private": True}, "127.0.0.1", True),
        ({"allow_private": True}, "site.test", True),
        ({"allow_private": True}, "metadata.test", False),
        ({"allow_hosts": ["127.0.0.0/8"]}, "site.test", True),
        ({"allow_hosts": ["127.0.0.1"]}, "127.0.0.1", True),
        ({"allow_hosts": ["127.0.0.1:PORT"]}, "127.0.0.1", True),
        ({"allow_hosts": ["127.0.0.1:1"]}, "127.0.0.1", False),
        ({"allow_hosts": ["site.test:PORT"]}, "site.test", True),
        ({"allow_hosts": ["SITE.test."]}, "site.test", True),
        ({"allow_hosts": ["site.test:1"]}, "site.test", False),
        ({"allow_hosts": ["*.test"]}, "site.test", True),
        ({"allow_hosts": ["*.test"]}, "sitetest", False),
        ({"allow_hosts": ["other.test"]}, "site.test", False),
        ({"allow_hosts": ["10.0.0.0/8", "::1"]}, "site.test", False),
    ],
    ids=str,
)
async def test_hosts_allowed_by_the_config_are_fetched(
    config: dict[str, Any], host: str, allowed: bool
) -> None:
    names = Names(
        site_test=[["127.0.0.1"]], sitetest=[["127.0.0.1"]], metadata_test=[["169.254.169.254"]]
    )
    async with counting_server() as (port, connected):
        hosts = config.get("allow_hosts", [])
        hosts = [entry.replace("PORT", str(port)) for entry in hosts]
        async with tools(names, **{**config, "allow_hosts": hosts}) as web:
            result = await web.fetch(f"http://{host}:{port}/")
        assert result.success is allowed, result.error
        assert len(connected) == allowed


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8", "2002:808:808::"],
)
def test_public_addresses_are_allowed(address: str) -> None:
    AddressPolicy().check("site.example", 443, address)


def test_a_wrapped_address_is_allowed_as_the_one_it_leads_to() -> None:
    AddressPolicy(["10.0.0.0/8"]).check("site.example", 443, "::ffff:10.1.1.1")
    AddressPolicy(["10.0.0.0/8"]).check("site.example", 443, "64:ff9b::10.1.1.1")


@pytest.mark.parametrize(
    "entry", ["", "http://x", "a b", "x:0", "x:y", "*", "a/b", "u@x", "[x]", "*.*"]
)
async def test_a_rule_that_is_not_a_host_is_a_config_error(entry: str) -> None:
    with pytest.raises(ValueError, match=r"allow_hosts.*is not a host"):
        async with tools(allow_hosts=[entry]):
            pass


def test_the_message_says_how_to_allow_the_address() -> None:
    with pytest.raises(
        RefusedAddress, match=r"192\.168\.1\.1 is an address of a private network.*allow_hosts"
    ):
        AddressPolicy().check("192.168.1.1", 80, "192.168.1.1")


async def test_the_environments_proxy_is_not_used_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with counting_server() as (port, connected), counting_server() as (proxy, through):
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy}")
        async with tools() as web:
            read_text(await web.fetch(f"http://site.test:{port}/"))
        assert (len(connected), len(through)) == (1, 0)
        names = Names(site_test=[["93.184.216.34"]], inside_example=[["10.0.0.1"]])
        async with tools(names, use_proxy=True) as web:
            read_text(await web.fetch(f"http://site.test:{port}/"))
            assert (len(connected), len(through)) == (1, 1)
            assert to_exception(await web.fetch("http://inside.example/"))["type"] == "Refused"
            error = to_exception(await web.fetch("http://unknown.example/"))
            assert "not requested through the proxy" in error["message"]
            assert to_exception(await web.fetch("http://127.0.0.1/"))["type"] == "Refused"
        assert (len(connected), len(through)) == (1, 1)


async def test_a_failure_mentions_a_proxy_that_could_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    async with tools(Names()) as web:
        error = to_exception(await web.fetch("https://nowhere.example/"))
    assert error["type"] == "Unreachable"
    assert "unknown host" in error["message"]
    assert "use_proxy" in error["message"]


async def test_an_address_that_does_not_answer_leaves_time_for_the_next() -> None:
    async with counting_server() as (port, connected):
        names = Names(site_test=[["127.0.0.9", "127.0.0.1"]])
        closed = await asyncio.start_server(lambda r, w: None, "127.0.0.9", 0)
        refused = closed.sockets[0].getsockname()[1]
        closed.close()
        await closed.wait_closed()
        async with tools(names) as web:
            assert (
                to_exception(await web.fetch(f"http://site.test:{refused}/"))["type"]
                == "Unreachable"
            )
            read_text(await web.fetch(f"http://site.test:{port}/"))
        assert len(connected) == 1
