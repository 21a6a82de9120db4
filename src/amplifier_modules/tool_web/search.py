"""Query a search service that answers with JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode

from amplifier_modules.tool_web.config import SearchEndpoint
from amplifier_modules.tool_web.exchange import BadAnswer, FetchError, Web

_LONGEST_SNIPPET = 1000


class NoKey(FetchError):
    """The service's key is missing."""


class Found(NamedTuple):
    """A search result; missing texts are empty."""

    title: str
    link: str
    snippet: str


class Search:
    """The configured service.

    Args:
        web: Sends the requests.
        endpoint: How to query the service and read its response.
    """

    def __init__(self, web: Web, endpoint: SearchEndpoint) -> None:
        self._web = web
        self._endpoint = endpoint

    async def find(self, query: str, count: int) -> list[Found]:
        """At most `count` results, in the service's order.

        Raises:
            FetchError: The service is unreachable, refuses, or its response is invalid.
        """
        endpoint = self._endpoint
        filled = _Filler({"{query}": query, "{count}": count, "{key}": self._key()})
        separator = "&" if "?" in endpoint.url else "?"
        params = urlencode(filled(endpoint.params))
        url = f"{endpoint.url}{separator}{params}" if params else endpoint.url
        headers = {"accept": "application/json", **filled(endpoint.headers)}
        content = None
        if endpoint.body is not None:
            content = json.dumps(filled(endpoint.body)).encode()
            headers["content-type"] = "application/json"
        for name, value in headers.items():
            if not value.isascii() or not value.isprintable():
                raise BadAnswer(
                    f"the search header {name} contains a character that cannot be sent"
                )
        method = "GET" if content is None else "POST"
        answer = await self._web.ask_service(method, url, headers, content)
        if not 200 <= answer.status < 300:
            raise BadAnswer(f"the search service at {self._place} answered {answer.status}")
        return self._read(answer.body)[:count]

    @property
    def _place(self) -> str:
        """The URL without parts that may hold a key."""
        return self._endpoint.url.partition("?")[0]

    def _key(self) -> str:
        name = self._endpoint.key_variable
        if name is None:
            return ""
        key = os.environ.get(name, "")
        if not key:
            raise NoKey(f"the search service needs a key: {name} is not set")
        return key

    def _read(self, body: bytes) -> list[Found]:
        try:
            answer: Any = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise BadAnswer(
                f"the search service at {self._place} did not answer with JSON; check its url "
                "(a SearXNG server must have the format json enabled)"
            ) from error
        results = _at(answer, self._endpoint.results)
        if not isinstance(results, list):
            raise BadAnswer(
                f"the response of the search service at {self._place} has no list at "
                f"{self._endpoint.results!r}; check 'results' in search of tool-web"
            )
        found = [self._found(result) for result in cast("list[Any]", results)]
        return [result for result in found if result.link]

    def _found(self, result: Any) -> Found:
        paths = (self._endpoint.title, self._endpoint.link, self._endpoint.snippet)
        title, link, snippet = (_line(_at(result, path)) for path in paths)
        return Found(title, link, snippet[:_LONGEST_SNIPPET])


class _Filler:
    """Replace placeholders with values."""

    def __init__(self, values: Mapping[str, str | int]) -> None:
        self._values = values

    def __call__(self, template: Any) -> Any:
        if isinstance(template, str):
            return self._text(template)
        if isinstance(template, Mapping):
            mapping = cast("Mapping[str, Any]", template)
            return {key: self(value) for key, value in mapping.items()}
        if isinstance(template, list):
            return [self(value) for value in cast("list[Any]", template)]
        return template

    def _text(self, template: str) -> str | int:
        if template in self._values:
            return self._values[template]  # on its own, a number stays a number
        # The query goes in last: placeholders in it are not replaced.
        for name in ("{key}", "{count}", "{query}"):
            template = template.replace(name, str(self._values[name]))
        return template


def _at(value: Any, path: str) -> Any:
    for step in path.split("."):
        if isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value).get(step)
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = cast("list[Any]", value)[int(step)]
        else:
            return None
    return value


def _line(value: Any) -> str:
    return " ".join(str(value).split()) if isinstance(value, str | int | float) else ""
