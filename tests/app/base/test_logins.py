"""Stored logins: found by server and URL, replaced by one process at a time, and never variables."""

import asyncio
import json
import os
import threading

import pytest

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.keys import environment, fill_environment
from amplifier_app.base.logins import Login, LoginFacts, LoginStore

URL = "https://a.example/mcp"


def login(server: str = "a", url: str = URL, token: str = "access words") -> Login:
    facts = LoginFacts(server, url, "https://login.example", 10.5, is_renewable=True)
    return Login(
        facts, token, "refresh", "one two", "https://login.example/token", url, {"x": ["ä"]}
    )


@pytest.fixture(autouse=True)
def no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")


def test_a_login_is_read_as_it_was_stored() -> None:
    store = LoginStore()
    assert store.facts() == []
    for made in (login(), login("b"), login("a", f"{URL}2"), login(token="another")):
        store.store(made)
    assert LoginStore().read("a", URL) == login(token="another")
    assert store.read("a", f"{URL}3") is None
    assert store.read("c", URL) is None
    assert [facts.url for facts in store.forget("a")] == [URL, f"{URL}2"]
    assert store.facts() == [login("b").facts]
    assert store.forget("a") == []


def test_a_login_is_valid_until_its_end_or_while_it_can_be_renewed() -> None:
    facts = login().facts
    assert facts.is_valid
    assert not facts._replace(is_renewable=False).is_valid
    assert facts._replace(is_renewable=False, expires_at=None).is_valid


def test_tokens_are_no_variables() -> None:
    LoginStore().store(login())
    assert fill_environment().added == ()
    assert "access words" not in set(os.environ.values())
    assert environment() is os.environ


@pytest.mark.parametrize("note", ["", "{", "[]", '{"server": "a"}', '{"other": 1}'])
def test_damaged_logins_are_reported_with_a_fix(note: str) -> None:
    store = LoginStore()
    store.store(login())
    content = json.loads(store.file.read_text())
    for entry in content["keys"].values():
        entry |= {"note": note, "value": note.replace(" ", "") or "x"}
    store.file.write_text(json.dumps(content))
    for use in (store.facts, lambda: store.read("a", URL)):
        with pytest.raises(ConfigError, match="the stored logins are damaged") as raised:
            use()
        assert raised.value.hint == "Log in again with: amplifier mcp login NAME"


async def test_a_login_that_is_being_replaced_is_deleted_after_it() -> None:
    store = LoginStore()
    store.store(login())
    forgotten: list[LoginFacts] = []
    deleting = threading.Thread(target=lambda: forgotten.extend(store.forget("a")))
    async with store.replacing("a", URL):
        deleting.start()
        await asyncio.sleep(0.2)
        assert forgotten == []
        store.store(login(token="new"))
    await asyncio.to_thread(deleting.join)
    assert len(forgotten) == 1
    assert store.read("a", URL) is None
