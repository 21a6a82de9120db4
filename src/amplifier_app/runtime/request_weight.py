"""The tokens of the first request of a plan, by what puts them there; no model is asked.

The plan is opened as for a prompt, with a stand-in for its providers that keeps the request instead of
sending it. Hooks therefore run as they do for a prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from amplifier_app.base.errors import Location, ModuleError
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.runtime.cost_report import model_prices
from amplifier_app.runtime.mount import collect_pins
from amplifier_app.runtime.request_sections import (
    find_module_place,
    find_tool_entry,
    split_text,
    split_tool,
)
from amplifier_app.runtime.session import open_session
from amplifier_app.sources.resolver import AppModuleSourceResolver
from amplifier_core.llm_errors import LLMError
from amplifier_core.message_models import ChatRequest, ChatResponse, TextBlock
from amplifier_support.delegate import Delegate
from amplifier_support.fields import read_field
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.price_lists import Tokens
from amplifier_support.provider_order import find_model

PROMPT = "Hi"
_COUNT_SECONDS = 60.0
"""Seconds that the provider may take to count."""
_BYTES_PER_TOKEN = 4


class Part(NamedTuple):
    """A part of the request.

    Attributes:
        kind: `instruction`, `file`, `hook`, `tool`, `server`, `skill`, `other` text, or `messages`: the
            prompt and the frames of messages.
        name: Name of the tool, server or skill; module of the hook; path of the file; otherwise empty.
        tokens: Its tokens.
        at: Where the plan has it; None if it is not from the plan.
    """

    kind: str
    name: str
    tokens: int
    at: Location | None = None


class Weight(NamedTuple):
    """The tokens of a request.

    Attributes:
        model: The model it is for; None if the provider does not say.
        parts: Its parts, which add up to `total`.
        total: Its tokens.
        is_counted: True if the provider has counted them; otherwise they are estimated as a quarter of
            the UTF-8 bytes.
        cost: US dollars of its input; None if no price is known.
        cached_cost: The same when all of it is read from the provider's cache.
    """

    model: str | None
    parts: tuple[Part, ...]
    total: int
    is_counted: bool
    cost: Decimal | None
    cached_cost: Decimal | None


class _StandIn(Delegate):
    """In the place of a provider: keeps requests, and answers nothing."""

    _sent: list[tuple[Any, ChatRequest, Mapping[str, Any]]]

    def __getattr__(self, name: str) -> Any:
        if name == "stream_complete":  # Then a loop calls `complete`.
            raise AttributeError(name)
        return super().__getattr__(name)

    async def complete(self, request: ChatRequest, **options: Any) -> ChatResponse:
        self._sent.append((self._inner, request, options))
        return ChatResponse(content=[TextBlock(text=".")], finish_reason="stop")


class _StandIns:
    """Puts stand-ins in the place of all providers (see `Adjustment`)."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ChatRequest, Mapping[str, Any]]] = []

    def check(self, coordinator: Any) -> None:
        """Every plan has providers."""

    def apply(self, coordinator: Any) -> None:
        """Replace the providers that are not replaced yet."""
        providers: dict[str, Any] = coordinator.get("providers")
        for name, provider in providers.items():
            if not isinstance(provider, _StandIn):
                providers[name] = _StandIn(provider, _sent=self.sent)


async def weigh_request(plan: ResolvedPlan, sources: AppModuleSourceResolver) -> Weight:
    """Count the tokens of the first request of a plan.

    Raises:
        ModuleError: The orchestrator sent no request.
        AppError: See `open_session`.
    """
    stand_ins = _StandIns()
    async with open_session(plan, save=False, sources=sources, adjustment=stand_ins) as session:
        # This waits for the servers of the plan.
        await collect_pins(session.session.coordinator)
        tools = dict(session.session.coordinator.get("tools"))
        await session.run(PROMPT)
        if not stand_ins.sent:
            raise ModuleError("the orchestrator sent no request to a provider")
        provider, request, options = stand_ins.sent[0]
        counted = None if sources.offline else await _count(provider, request)
    model = options.get("model") or request.model or find_model(provider)
    parts = _scale(list(_split(plan, request, tools)), counted)
    total = sum(part.tokens for part in parts)
    prices = model_prices().get(model or "")
    fresh, cached = Tokens(total, 0), Tokens(0, 0, cache_read=total)
    costs = [prices.cost(each) if prices else None for each in (fresh, cached)]
    return Weight(model, tuple(parts), total, counted is not None, *costs)


async def _count(provider: Any, request: ChatRequest) -> int | None:
    """Return the provider's own count, if it has one and is reachable."""
    count = getattr(provider, "count_tokens", None)
    if not callable(count):
        return None
    try:
        async with asyncio.timeout(_COUNT_SECONDS):
            counted: Any = count(request)
            return int(await counted)
    except (LLMError, OSError):  # of which TimeoutError is one
        return None


def _split(plan: ResolvedPlan, request: ChatRequest, tools: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the parts of a request, each with its estimated tokens."""
    document, rest, text = plan.tree, "", "".join(_texts(request.messages))
    own, instruction = document.items.get("instruction"), plan.instruction
    if own is not None and instruction and instruction in text:
        yield Part("instruction", "", _tokens(instruction), own.at)
        text = text.replace(instruction, "", 1)
    for kind, name, piece in split_text("other", "", text):
        if kind == "other":
            rest += piece
            continue
        at = find_module_place(document, "hook", name) if kind == "hook" else Location(name, 1)
        yield Part(kind, name, _tokens(piece), at)
    rest = rest.strip().removesuffix(PROMPT)
    if rest.strip():
        yield Part("other", "", _tokens(rest))
    servers: dict[str, list[int]] = {}
    for spec in request.tools or ():
        tool = tools.get(spec.name)
        pieces = split_tool(spec, read_field(tool, "description_parts"))
        size = _tokens("".join(piece.text for piece in pieces))
        server = read_field(read_field(tool, "server"), "name")
        if isinstance(server, str):
            servers.setdefault(server, []).append(size)
            continue
        entry = find_tool_entry(document, tool)
        at = None if entry is None else entry.key_at("module")
        for kind, name, line in pieces:
            if kind == "skill":
                yield Part(kind, name, _tokens(line), at)
                size -= _tokens(line)
        yield Part("tool", spec.name, size, at)
    for name, sizes in servers.items():
        yield Part("server", name, sum(sizes))
    yield Part("messages", "", 4 * len(request.messages) + _tokens(PROMPT))


def _texts(messages: Sequence[Any]) -> Iterator[str]:
    for message in messages:
        content = read_field(message, "content")
        blocks = content if isinstance(content, list) else [{"text": content}]
        yield from (str(text) for block in blocks if (text := read_field(block, "text")))


def _tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


def _scale(parts: list[Part], counted: int | None) -> list[Part]:
    """Scale estimates to the provider's count; the largest part takes what rounding leaves."""
    if counted is None:
        return parts
    factor = counted / sum(part.tokens for part in parts)
    scaled = [part._replace(tokens=round(part.tokens * factor)) for part in parts]
    largest = max(range(len(scaled)), key=lambda index: scaled[index].tokens)
    left = counted - sum(part.tokens for part in scaled)
    scaled[largest] = scaled[largest]._replace(tokens=scaled[largest].tokens + left)
    return scaled
