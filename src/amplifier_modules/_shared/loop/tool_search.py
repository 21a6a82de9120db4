"""Tools that requests leave out until the model searches for them.

A tool with a true attribute `deferrable` is not offered. The tool `tool_search` is instead, and its
description lists the names of those tools. The tools that a search finds, and those that the model calls
without one, are offered from then on, after all others: what a provider has cached of earlier requests
stays valid. The stored conversation decides which these are, so they are the same in a resumed or copied
session, and undoing a step leaves them out again.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, cast

from amplifier_core.models import ToolResult
from amplifier_modules._shared.history.values import (
    TOOL_SEARCH,
    call_parts,
    found_tools,
    mappings,
    portable_id,
    stored_calls,
)
from amplifier_modules._shared.loop.conversation import stored_messages
from amplifier_modules._shared.loop.schema import input_schema
from amplifier_modules._shared.module.tools import CheckedTool
from amplifier_support.text import cut_text, lazy_pattern

MAX_FOUND = 5
"""Tools that one search finds; more if the query names them."""

_MAX_NAMED = 20
_MAX_LISTED = 8_000
"""Characters of the names in the description."""

_MAX_ABOUT = 200
_CAMEL_CASE = lazy_pattern(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = lazy_pattern(r"[^\W_]+")


class ToolSearch(CheckedTool):
    """Finds tools that requests leave out.

    Attributes:
        description: Its description for the model, with the names of these tools.
    """

    name = TOOL_SEARCH
    input_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "description": "What the tool should do, in a few words; or names from the list.",
            }
        },
        "required": ["query"],
    }

    def __init__(self) -> None:
        self._deferred: dict[str, Any] = {}
        self.description = ""

    @property
    def is_offered(self) -> bool:
        """True if some of the tools last selected from are deferrable."""
        return bool(self._deferred)

    async def select(self, tools: Mapping[str, Any], context: Any) -> Mapping[str, Any]:
        """The tools to offer now, in order.

        Args:
            tools: All tools, by the name they are mounted as. If one is called `tool_search`, or none is
                deferrable, they are all offered.
            context: See `amplifier_core.interfaces.ContextManager`.
        """
        deferred = {
            name: tools[name] for name in sorted(tools) if _is_deferrable(name, tools[name])
        }
        if TOOL_SEARCH in tools:
            deferred = {}
        if deferred.keys() != self._deferred.keys():
            self.description = _describe(deferred)
        self._deferred = deferred
        if not deferred:
            return tools
        used = dict.fromkeys(_names_in(await stored_messages(context)))
        return {
            **{name: tool for name, tool in tools.items() if name not in deferred},
            TOOL_SEARCH: self,
            **{name: deferred[name] for name in used if name in deferred},
        }

    async def run(self, values: dict[str, Any]) -> ToolResult:
        query: str = values["query"]
        named = [name for name in re.split(r"[\s,]+", query) if name in self._deferred]
        names = list(dict.fromkeys(named))[:_MAX_NAMED] or self._rank(query)
        if not names:
            return ToolResult(output="No tool matches. Use other words, or names from the list.")
        lines = [f"- {name}: {_summary(self._deferred[name])}" for name in names]
        return ToolResult(output="\n".join(["You can call these tools now:", *lines]))

    def _rank(self, query: str) -> list[str]:
        """The tools that fit a query best, by BM25."""
        texts = {name: Counter(_words_about(name, tool)) for name, tool in self._deferred.items()}
        mean_length = sum(words.total() for words in texts.values()) / len(texts)
        scores: defaultdict[str, float] = defaultdict(float)
        for word in dict.fromkeys(_words(query)):
            having = {name: words for name, words in texts.items() if word in words}
            rarity = math.log(1 + (len(texts) - len(having) + 0.5) / (len(having) + 0.5))
            for name, words in having.items():
                length = 0.25 + 0.75 * words.total() / mean_length
                scores[name] += rarity * words[word] * 2.2 / (words[word] + 1.2 * length)
        return sorted(scores, key=lambda name: (-scores[name], name))[:MAX_FOUND]


def _is_deferrable(name: str, tool: Any) -> bool:
    # The model must be able to call the tool by the name that the description lists.
    return getattr(tool, "deferrable", False) is True and portable_id(name) == name


def _describe(tools: Iterable[str]) -> str:
    names = ", ".join(tools)
    if len(names) > _MAX_LISTED:
        names = f"{names[:_MAX_LISTED].rpartition(', ')[0]}, and more that a search finds"
    return (
        "Find more tools. The tools listed here are available, but you see their parameters only after a "
        f"search. Search for a tool before you call it. Tools: {names}"
    )


def _names_in(messages: Iterable[Any]) -> Iterator[str]:
    """The names of the tools that a conversation calls or finds, in order."""
    for message in mappings(messages):
        yield from found_tools(message)
        if message.get("role") == "assistant":
            yield from (call_parts(call)[0] for call in stored_calls(message))


def _summary(tool: Any) -> str:
    return cut_text(" ".join(str(getattr(tool, "description", "") or "").split()), _MAX_ABOUT)


def _words_about(name: str, tool: Any) -> Iterator[str]:
    """The words that describe a tool; the words of its name count three times."""
    yield from _words(name) * 3
    yield from _words(str(getattr(tool, "description", "") or ""))
    properties = input_schema(tool).get("properties")
    if isinstance(properties, Mapping):
        yield from _words(" ".join(map(str, cast("Mapping[str, Any]", properties))))


def _words(text: str) -> list[str]:
    """The words of a text or an identifier, in lower case and without a plural s."""
    words = _WORD.findall(_CAMEL_CASE.sub(" ", text).lower())
    return [word.removesuffix("s") if len(word) > 3 else word for word in words]
