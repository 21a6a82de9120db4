"""Searching through services that answer with JSON, each in its own way."""

import json
from typing import Any

import pytest

from tests.modules.tool_web.support import Names, Pages, tools
from tests.support.raw_http import answer, raw_server
from tests.support.results import read_text, to_exception

RESULTS = [
    {"title": "One", "url": "https://one.example/", "content": "The  first\nof them"},
    {"title": "", "url": "https://two.example/"},
    {"title": "No address"},
    {"title": "Three", "url": "https://three.example/", "content": "x" * 5000},
]


async def test_a_searxng_server_needs_only_a_url() -> None:
    pages = Pages(search=(json.dumps({"results": RESULTS}), {"content-type": "application/json"}))
    async with (
        raw_server(pages) as server,
        tools(Names(), search={"url": f"{server.url}/search"}) as web,
    ):
        text = read_text(await web.search("cats & dogs {key}"))
        two = read_text(await web.search("cats", limit=2))
    assert "1. One\n   https://one.example/\n   The first of them\n\n" in text
    assert "2. https://two.example/\n   https://two.example/\n" in text
    assert "3. Three" in text
    assert "No address" not in text
    assert len(text) < 1500
    assert "web-content" in text
    assert "Three" not in two
    assert server.requests[0].path == "/search?q=cats+%26+dogs+%7Bkey%7D&format=json"
    assert [data["results"] for name, data in web.events if name == "web:searched"] == [3, 2]


async def test_a_service_is_queried_as_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "the-key")
    body = {"web": {"hits": [{"name": "A", "links": ["https://a.example/"], "text": "t"}]}}

    async def service(request: Any, write: Any) -> None:
        assert request.method == "POST"
        assert request.headers["authorization"] == "Bearer the-key"
        assert request.json() == {"q": "cats {count}", "n": 7, "about": ["web"]}
        await write(answer(200, json.dumps(body)))

    search = {
        "params": {},
        "headers": {"Authorization": "Bearer {key}"},
        "body": {"q": "{query}", "n": "{count}", "about": ["web"]},
        "key_variable": "SEARCH_KEY",
        "results": "web.hits",
        "title": "name",
        "link": "links.0",
        "snippet": "text",
    }
    async with (
        raw_server(Pages(v1=service)) as server,
        tools(search={"url": f"{server.url}/v1", **search}, max_results=7) as web,
    ):
        text = read_text(await web.search("cats {count}"))
    assert "1. A\n   https://a.example/\n   t" in text


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (403, "{}", "answered 403"),
        (302, "", "answered 302"),
        (200, "<html>", "did not answer with JSON"),
        (200, '{"found": []}', "no list at 'results'"),
        (200, "[]", "no list at 'results'"),
    ],
)
async def test_a_service_that_fails_is_named(status: int, body: str, message: str) -> None:
    async def service(request: Any, write: Any) -> None:
        await write(answer(status, body, {"location": "http://127.0.0.1/"}))

    async with (
        raw_server(Pages(search=service)) as server,
        tools(search={"url": f"{server.url}/search?token=abc"}) as web,
    ):
        error = to_exception(await web.search("cats"))
    assert message in error["message"]
    assert f"{server.url}/search " in f"{error['message']} "
    assert "abc" not in error["message"]


async def test_a_missing_key_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEARCH_KEY", raising=False)
    search = {"url": "http://127.0.0.1:9/", "key_variable": "SEARCH_KEY"}
    async with tools(search=search) as web:
        error = to_exception(await web.search("cats"))
    assert error == {
        "type": "NoKey",
        "message": "the search service needs a key: SEARCH_KEY is not set",
    }


async def test_an_unreachable_service_is_a_failure() -> None:
    async with tools(search={"url": "http://127.0.0.1:9/"}, timeout=5) as web:
        assert to_exception(await web.search("cats"))["type"] == "Unreachable"
        assert to_exception(await web.search(" "))["type"] == "InvalidInput"


async def test_no_results_are_not_a_failure() -> None:
    pages = Pages(search='{"results": []}')
    async with raw_server(pages) as server, tools(search={"url": f"{server.url}/search"}) as web:
        assert read_text(await web.search("cats")) == "[no results]"


async def test_search_needs_a_configured_service() -> None:
    async with tools() as web:
        assert list(web.by_name) == ["web_fetch"]


@pytest.mark.parametrize(
    "search",
    [{}, {"url": "searx.example"}, {"url": "file:///etc/passwd"}, {"url": "http://x", "q": 1}],
)
async def test_an_invalid_service_is_a_config_error(search: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"tool-web: config is not valid: .*search"):
        async with tools(search=search):
            pass
