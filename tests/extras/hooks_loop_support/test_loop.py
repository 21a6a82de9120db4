"""What an orchestrator of another author sees of the layer around its providers and tools."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.llm_errors import LLMError, ProviderUnavailableError
from amplifier_core.message_models import ChatRequest, ChatResponse, Message, TextBlock, Usage
from amplifier_core.models import ToolResult
from amplifier_extras import hooks_loop_support
from amplifier_modules._shared.loop.budget import Budget
from amplifier_modules._shared.providers.base import add_lost
from amplifier_modules.context_simple.manager import SimpleContextManager
from amplifier_modules.loop_basic.orchestrator import BasicOrchestrator
from amplifier_support.session_capabilities import BUDGET
from tests.modules._shared.context.conversations import filler
from tests.modules._shared.loop.rig import FunctionTool, ListContext, echo_tool

REQUEST = ChatRequest(messages=[Message(role="user", content="hi")])
Work = Callable[..., Awaitable[Any]]


class Answering:
    """A provider that answers every request with 100 tokens."""

    def __init__(self, name: str = "answering") -> None:
        self.name = name
        self.requests: list[Any] = []

    async def complete(self, request: Any, *, model: str | None = None) -> ChatResponse:
        self.requests.append(request)
        usage = Usage(input_tokens=90, output_tokens=10, total_tokens=100)
        return ChatResponse(content=[TextBlock(text=self.name)], usage=usage)

    def parse_tool_calls(self, response: Any) -> list[str]:
        return [self.name]


class Loop:
    """An orchestrator that does what a test asks of it."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def execute(
        self, prompt: str, context: Any, providers: Any, tools: Any, hooks: Any
    ) -> Any:
        await context.add_message({"role": "user", "content": prompt})
        return await self._work(context=context, providers=providers, tools=tools)


class Session:
    """A session in small with a limited orchestrator."""

    def __init__(self, loop: Any, **limits: Any) -> None:
        self.session: dict[str, Any] = {"orchestrator": "loop-foreign", "budget": limits}
        owner = SimpleNamespace(session_id="s", parent_id=None, config={"session": self.session})
        self.coordinator = ModuleCoordinator(owner, None, None)
        self.loop = loop if hasattr(loop, "execute") else Loop(loop)
        self.context: Any = ListContext()
        self.providers: dict[str, Any] = {"answering": Answering()}
        self.tools: dict[str, Any] = {}
        self.completed: list[dict[str, Any]] = []

    async def run(self) -> Any:
        hooks = self.coordinator.hooks
        hooks.register("orchestrator:complete", lambda event, data: self.completed.append(data))
        await self.coordinator.mount("orchestrator", self.loop)
        await hooks_loop_support.mount(self.coordinator)
        return await self.coordinator.get("orchestrator").execute(
            prompt="go",
            context=self.context,
            providers=self.providers,
            tools=self.tools,
            hooks=hooks,
        )

    @property
    def spent(self) -> tuple[int, int]:
        """Model calls and tokens."""
        budget = BUDGET.of(self.coordinator)
        assert isinstance(budget, Budget)
        return budget.spent.steps, budget.spent.tokens


async def ask(providers: Any) -> str:
    response = await providers["answering"].complete(REQUEST)
    return response.content[0].text


async def test_a_limit_cancels_an_orchestrator_that_would_answer_or_retry_errors() -> None:
    errors: list[Exception] = []

    async def work(providers: Any, **_: Any) -> str:
        while len(errors) < 10:
            try:
                await ask(providers)
            except Exception as error:
                errors.append(error)
        return "the provider failed"

    session = Session(work, max_steps=2)
    assert await session.run() == "Budget reached: 2 of 2 model calls"
    assert (errors, session.spent) == ([], (2, 200))
    [completed] = session.completed
    assert (completed["status"], completed["reason"]) == ("incomplete", "budget")
    assert completed["orchestrator"] == "loop-foreign"


async def test_an_answer_before_the_limit_is_kept() -> None:
    async def in_the_context(context: Any, providers: Any, **_: Any) -> str:
        text = await ask(providers)
        await context.add_message(
            {"role": "assistant", "content": [{"type": "text", "text": text}]}
        )
        return f"{text}, reviewed: {await ask(providers)}"

    async def returned(providers: Any, **_: Any) -> str:
        text = await ask(providers)
        title = asyncio.create_task(ask(providers))
        await asyncio.wait([title])
        return text

    for work in (in_the_context, returned):
        session = Session(work, max_steps=1)
        assert await session.run() == "answering"
        completed = session.completed[-1]
        assert (completed["status"], completed["reason"]) == ("success", "budget")


async def test_the_answer_to_an_earlier_prompt_is_not_that_of_this_one() -> None:
    async def work(providers: Any, **_: Any) -> str:
        return await ask(providers)

    session = Session(work, max_steps=1)
    assert await session.run() == "answering"
    session.context.messages.append({"role": "assistant", "content": "answering"})
    assert (await session.run()).startswith("Budget reached")


async def test_the_time_limit_ends_an_orchestrator_that_ignores_cancellations() -> None:
    ran: list[str] = []

    async def work(context: Any, tools: Any, providers: Any, **_: Any) -> str:
        await ask(providers)
        for step in (lambda: asyncio.sleep(60), lambda: tools["echo"].execute({"text": "x"})):
            try:
                await step()
                ran.append("tool")
            except asyncio.CancelledError:
                await context.add_message({"role": "assistant", "content": "cancelled"})
        return await ask(providers)

    session = Session(work, max_seconds=0.1)
    session.tools["echo"] = echo_tool()
    assert (await session.run()).startswith("Budget reached: 0.1")
    assert (ran, session.spent) == ([], (1, 100))


@pytest.mark.parametrize("kind", [asyncio.CancelledError, SystemExit, TypeError])
async def test_a_failure_before_a_limit_is_raised(kind: type[BaseException]) -> None:
    async def work(**_: Any) -> str:
        raise kind

    with pytest.raises(kind):
        await Session(work, max_steps=1).run()


async def test_stopping_the_prompt_is_no_limit() -> None:
    begun = asyncio.Event()

    async def work(**_: Any) -> str:
        begun.set()
        await asyncio.sleep(60)
        return ""

    session = Session(work, max_steps=1)
    running = asyncio.create_task(session.run())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert session.completed == []


async def test_a_prompt_that_the_user_stops_is_not_ended_by_a_limit() -> None:
    async def work(**_: Any) -> str:
        session.coordinator.cancellation.request_graceful()
        await asyncio.sleep(60)
        return "never"

    session = Session(work, max_seconds=0.05)
    assert (await session.run(), session.completed) == ("", [])


async def test_providers_and_tools_look_like_those_of_the_session() -> None:
    seen: list[Any] = []

    async def work(providers: Any, tools: Any, **_: Any) -> str:
        provider, tool = providers["answering"], tools["echo"]
        seen.extend([isinstance(provider, Answering), isinstance(tool, FunctionTool)])
        seen.append([*inspect.signature(provider.complete).parameters])
        seen.append([*inspect.signature(tool.execute).parameters])
        seen.append(hasattr(provider, "stream"))
        copied = copy.copy(provider)
        copied.name = "copy"
        seen.append((await copied.complete(REQUEST)).content[0].text)
        return await ask(providers)

    session = Session(work, max_steps=5)
    session.tools["echo"] = echo_tool()
    assert await session.run() == "answering"
    assert seen == [True, True, ["request", "model"], ["input"], False, "copy"]
    assert session.spent == (2, 200)


async def test_tools_that_are_mounted_during_a_prompt_are_offered_in_it() -> None:
    seen: list[list[str]] = []

    async def work(tools: Any, **_: Any) -> str:
        seen.append([*tools])
        await tools["change"].execute({})
        seen.append([*tools])
        result = await tools["echo"].execute({"text": "new"})
        return result.output

    async def change(input: dict[str, Any]) -> ToolResult:
        session.tools["echo"] = echo_tool()
        session.tools["more"] = echo_tool("more")
        del session.tools["old"]
        return ToolResult(output="changed")

    async def outdated(input: dict[str, Any]) -> ToolResult:
        return ToolResult(output="outdated")

    session = Session(work, max_tool_calls=2)
    session.tools |= {"old": echo_tool("old"), "echo": FunctionTool("echo", outdated)}
    session.tools["change"] = FunctionTool("change", change)
    assert await session.run() == "NEW"
    assert seen == [["old", "echo", "change"], ["echo", "change", "more"]]


@pytest.mark.parametrize("awaited", [False, True])
async def test_a_stream_counts_with_all_that_its_chunks_report(awaited: bool) -> None:
    class Chunks:
        """An asynchronous iterator without `aclose`."""

        def __init__(self) -> None:
            self._left = [{"input_tokens": 90}, {}, {"output_tokens": 10}]

        def __aiter__(self) -> Chunks:
            return self

        async def __anext__(self) -> dict[str, Any]:
            if not self._left:
                raise StopAsyncIteration
            return {"usage": self._left.pop(0)}

    class Streaming(Answering):
        def stream(self, request: Any) -> Chunks:
            return Chunks()

    class StreamingLater(Answering):
        async def stream(self, request: Any) -> Chunks:
            return Chunks()

    async def work(providers: Any, **_: Any) -> str:
        provider = providers["answering"]
        chunks = provider.stream(REQUEST)
        async for _ in await chunks if awaited else chunks:
            await ask(providers)
        return "done"

    session = Session(work, max_tokens=1000)
    session.providers["answering"] = StreamingLater() if awaited else Streaming()
    assert await session.run() == "done"
    assert session.spent == (4, 400)


@pytest.mark.parametrize("reads", [1, 3])
async def test_attempts_of_a_stream_that_are_lost_count(reads: int) -> None:
    class Cut(Answering):
        async def stream(self, request: Any) -> AsyncGenerator[dict[str, Any]]:
            add_lost(Usage(input_tokens=50, output_tokens=0, total_tokens=50))
            try:
                yield {}
                yield {"usage": {"input_tokens": 90, "output_tokens": 10, "total_tokens": 100}}
            except GeneratorExit:
                add_lost(Usage(input_tokens=90, output_tokens=1, total_tokens=91))
                raise

    async def work(providers: Any, **_: Any) -> str:
        stream = providers["answering"].stream(REQUEST)
        for _ in range(reads):
            await anext(stream, None)
        await stream.aclose()
        return "done"

    session = Session(work, max_tokens=1000)
    session.providers["answering"] = Cut()
    assert await session.run() == "done"
    assert session.spent == (1, 141 if reads == 1 else 150)


async def test_the_provider_that_answers_reads_the_calls_of_its_answer() -> None:
    class Down(Answering):
        async def complete(self, request: Any, *, model: str | None = None) -> ChatResponse:
            raise ProviderUnavailableError("down", retryable=True)

    async def work(providers: Any, **_: Any) -> str:
        provider = providers["answering"]
        response = await provider.complete(REQUEST, model="big")
        return provider.parse_tool_calls(response)[0]

    session = Session(work, max_steps=5)
    session.session["fallbacks"] = ["second"]
    session.providers = {"answering": Down(), "second": Answering("second")}
    assert await session.run() == "second"


async def test_errors_of_a_provider_are_those_of_the_provider() -> None:
    class Broken(Answering):
        async def complete(self, request: Any, *, model: str | None = None) -> ChatResponse:
            raise LLMError("wrong key")

    async def work(providers: Any, **_: Any) -> str:
        return await ask(providers)

    session = Session(work, max_steps=5)
    session.providers["answering"] = Broken()
    with pytest.raises(LLMError, match="wrong key"):
        await session.run()
    assert session.spent == (0, 0)


async def test_summaries_of_the_bundled_context_count_once_and_do_not_wait_for_themselves() -> None:
    async def work(context: Any, providers: Any, **_: Any) -> str:
        await context.get_messages_for_request(provider=providers["answering"])
        return await ask(providers)

    session = Session(work, max_tokens=150)
    config = {"strategy": "summarize", "max_tokens": 4_000, "compaction_threshold": 1.0}
    session.context = SimpleContextManager(config, coordinator=session.coordinator)
    await session.context.set_messages(filler(40))
    assert await session.run() == "answering"
    assert session.spent == (2, 200)


async def test_an_orchestrator_that_runs_a_bundled_one_counts_once() -> None:
    class Outer:
        def __init__(self) -> None:
            self.inner = BasicOrchestrator()

        async def execute(self, **session: Any) -> str:
            return await self.inner.execute(**session)

    session = Session(Outer(), max_steps=5)
    session.providers["answering"].parse_tool_calls = lambda response: []
    assert await session.run() == "answering"
    assert session.spent == (1, 100)
