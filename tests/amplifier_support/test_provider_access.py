"""A key goes only to the address it is meant for: the environment's pair is never split."""

import os

import pytest

from amplifier_support import environment
from amplifier_support.environment import set_for_modules
from amplifier_support.provider_access import choose_access, is_same_address

GATEWAY = "https://gateway.example/v1"
PAIR = {"K": "env-key", "A": GATEWAY}


@pytest.mark.parametrize(
    ("environ", "key", "base_url", "sent", "address", "ignored"),
    [
        ({}, None, None, [], None, ""),
        ({"K": " k\n"}, None, None, ["k"], None, ""),
        ({"K": "k"}, None, "http://here", ["k"], "http://here", ""),
        ({"A": GATEWAY}, "mine", None, ["mine"], GATEWAY, ""),
        ({"A": GATEWAY}, None, None, [], GATEWAY, ""),
        ({"A": GATEWAY}, "mine", "http://here", ["mine"], "http://here", "A is not used"),
        (PAIR, None, None, ["env-key"], GATEWAY, ""),
        (PAIR, None, "https://gateway.example", ["env-key"], "https://gateway.example", ""),
        (PAIR, None, "http://here", [], "http://here", "K is not sent to base_url (http://here)"),
        (PAIR, "mine", None, ["mine"], None, f"A ({GATEWAY}) is not used for api_key: it is for K"),
        (PAIR, "env-key", None, ["env-key"], GATEWAY, ""),
        (PAIR, "env-key", "http://here", ["env-key"], "http://here", "A is not used"),
        ({"K": " ", "A": ""}, " ", " ", [], None, ""),
    ],
)
def test_a_key_is_sent_to_its_own_address_only(environ, key, base_url, sent, address, ignored):
    access = choose_access({"api_key": key}, base_url, environ, ["K"], "A")
    assert [*access.keys.values()] == sent
    assert access.address == address
    assert access.ignored.startswith(ignored)
    assert bool(access.ignored) == bool(ignored)


@pytest.mark.parametrize(
    ("stored_for", "base_url", "exported", "sent", "ignored"),
    [
        (None, None, None, ["k"], ""),
        (None, "https://own.example/v1", None, ["k"], ""),
        (None, "http://here", None, [], "to base_url (http://here): it is for https://own.example"),
        (None, None, "http://there", [], "to A (http://there): it is for https://own.example"),
        ("http://there", None, "http://there", ["k"], ""),
        ("http://there", "http://here", None, [], "it is for http://there"),
        ("http://here/v1", "http://here", None, ["k"], ""),
    ],
)
def test_a_stored_key_is_sent_to_its_address_or_else_to_the_providers_own(
    stored_for, base_url, exported, sent, ignored
):
    environ = {"K": "k"} | ({"A": exported} if exported else {})
    own = "https://own.example"
    access = choose_access({"api_key": None}, base_url, environ, ["K"], "A", own, {"K": stored_for})
    assert [*access.keys.values()] == sent
    assert ignored in access.ignored
    assert bool(ignored) == bool(access.ignored)
    mine = choose_access({"api_key": "mine"}, base_url, environ, ["K"], "A", own, {"K": stored_for})
    assert [*mine.keys.values()] == ["mine"]


def test_addresses_are_named_without_their_login():
    access = choose_access(
        {}, "https://me:pw1@here", {"K": "k", "A": "https://me:pw2@there"}, ["K"], "A"
    )
    assert "pw" not in access.ignored


@pytest.mark.parametrize(
    ("variable", "setting"), [("X_API_KEY", "api_key"), ("X_AUTH_TOKEN", "auth_token")]
)
def test_the_setting_for_a_key_at_another_address_is_named(variable: str, setting: str):
    environ = {variable: "k", "A": GATEWAY}
    access = choose_access({}, "http://here", environ, [variable], "A")
    assert f"set {setting}: ${{{variable}}} next to base_url" in access.ignored


def test_a_stored_address_is_not_used_for_another_key_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("STORED", "A"):
        monkeypatch.setenv(name, "")
    set_for_modules("STORED", "stored-key")
    set_for_modules("A", GATEWAY)
    environ = {**os.environ, "TOKEN": "exported"}

    def choose(token: str) -> str | None:
        return choose_access({"token": token}, None, environ, ["STORED", "TOKEN"], "A").address

    assert (choose("exported"), choose("stored-key")) == (None, GATEWAY)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://h", "https://H:443/v1/", True),
        ("https://h/v1", "https://h/v1/chat/completions", True),
        ("https://h", "http://h", False),
        ("https://h", "https://h:8443", False),
        ("https://h/one", "https://h/two", False),
        ("https://h", "https://h.evil.example", False),
        ("https://h:port", "https://h:port", True),
        ("https://h:port", "https://h", False),
    ],
)
def test_addresses_are_the_same_if_they_lead_to_the_same_api(one: str, other: str, same: bool):
    assert is_same_address(one, other) is same


def test_a_key_is_withheld_until_the_last_that_withholds_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "")
    environment.set_key_for_modules("SOME_API_KEY", "stored", "https://one.example")
    with environment.withholding(["SOME_API_KEY"]):
        assert environment.stored_addresses()["SOME_API_KEY"] == "https://one.example"
        with environment.withholding(["SOME_API_KEY"]):
            environment.set_key_for_modules("SOME_API_KEY", "newer", "https://one.example")
        assert "SOME_API_KEY" not in os.environ
    assert os.environ["SOME_API_KEY"] == "newer"
    assert environment.is_set_for_modules("SOME_API_KEY")
