"""Random sessions with a hostile model, against strict servers: every request is valid.

A session is 3 to 6 prompts, each answered at random: as scripted models do, with a case of
`tests.support.llm.hostile`, or with a stream changed by a seed. Prompts are interrupted, the context is
compacted, and the session is resumed from its transcript in between. Without processes, so that a
thorough run has 1,000; `tests/e2e/test_hostile_model_e2e.py` runs the program.
"""

import asyncio
import contextlib
import random
from typing import Any

import pytest

from amplifier_core.llm_errors import LLMError
from amplifier_modules.context_simple.manager import SimpleContextManager
from amplifier_modules.loop_streaming.orchestrator import StreamingOrchestrator
from amplifier_support import journal
from tests.modules._shared.loop.rig import FunctionTool, Rig, shout
from tests.modules.apis import APIS
from tests.support.llm.hostile import CASES, random_reply
from tests.support.llm_server import Item, Reply, ScriptedLLM, ToolCall
from tests.support.thorough import Scale

# They take long, and their size is all that is special about them.
LARGE = ("a delta of 10 MB", "150 calls")
SMALL_CASES = [case for name, case in CASES.items() if name not in LARGE]


def answer(chance: random.Random) -> Item:
    """What the model answers next; also to the results of its calls."""
    kind = chance.randrange(4)
    if kind == 0:
        return chance.choice(SMALL_CASES)
    if kind == 1:
        return random_reply(chance.randrange(2**32))
    if kind == 2:
        names = [chance.choice(["echo", "absent", "b\udc80", "x" * 300, ""]) for _ in range(3)]
        ids = [chance.choice(["a", "b", "", "x:y", "ü" * 90, f"c{n}"]) for n in range(3)]
        calls = [ToolCall(name, {"text": "x"}, id=i) for name, i in zip(names, ids, strict=True)]
        return Reply(thinking="hm", text="Working.", tool_calls=calls[: chance.randint(1, 3)])
    return "An answer."


class Session:
    """One session over one API, which is replaced by another when it is resumed."""

    def __init__(self, api: str, server: ScriptedLLM, chance: random.Random) -> None:
        self.api = api
        self.server = server
        self.chance = chance
        self.rig = Rig(StreamingOrchestrator)
        self.cleanup: Any = None

    async def open(self, messages: list[dict[str, Any]]) -> None:
        self.rig = rig = Rig(StreamingOrchestrator)
        context = SimpleContextManager({"max_tokens": 3000})
        await context.set_messages(messages)
        rig.context = context  # type: ignore[assignment]
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        rig.add_tool(FunctionTool("echo", shout, schema))
        module, path, more = APIS[self.api]
        config = {"base_url": self.server.base_url + path, "api_key": "test-key", **more}
        self.cleanup = await module.mount(rig.coordinator, {**config, "max_retries": 0})
        rig.providers = rig.coordinator.get("providers")

    async def prompt(self, text: str, *, interrupt: float | None = None) -> None:
        """One prompt; the only exceptions are the kernel's, and a cancellation."""
        running = asyncio.create_task(self.rig.run(text))
        if interrupt is not None:
            await asyncio.wait([running], timeout=interrupt)
            await self.rig.coordinator.request_cancel(immediate=True)
        with contextlib.suppress(LLMError):
            assert isinstance(await running, str)
        self.rig.coordinator.cancellation.reset()

    async def resume(self) -> None:
        """Go on with what is in the transcript."""
        messages = await self.rig.context.get_messages()
        lines = [journal.encode(message) for message in messages]
        await self.cleanup()
        read = journal.read(b"".join(lines))
        assert len(read.records) == len(messages)
        await self.open(list(read.records))


async def play(api: str, seed: int) -> list[str]:
    """Play the session of a seed; returns what the server refused."""
    chance = random.Random(seed)
    prompts = chance.randint(3, 6)
    # A prompt with tool calls takes several answers.
    answers = [answer(chance) for _ in range(prompts * 2)]
    async with ScriptedLLM([*answers, "The end."], repeat_last=True) as server:
        session = Session(api, server, chance)
        await session.open([])
        for number in range(prompts):
            delay = chance.choice([None, None, None, 0.0, 0.003, 0.01])
            await session.prompt(f"prompt {number}", interrupt=delay)
            step = chance.randrange(6)
            if step == 0:
                await session.rig.context.compact()  # type: ignore[attr-defined]
            elif step == 1:
                await session.resume()
        server.replies[server._next :] = ["The end."]  # pyright: ignore[reportPrivateUsage]
        await session.prompt("the last one")
        await session.cleanup()
        return server.rejections


# asyncio forgets a socket if it is interrupted just after it connected; its deallocation closes it.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("api", list(APIS))
async def test_every_request_of_a_random_session_is_valid(api: str, scale: Scale) -> None:
    for seed in range(*scale((0, 4), (1000, 1334))):
        try:
            rejections = await play(api, seed)
        except BaseException as error:
            error.add_note(f"play({api!r}, {seed}) does it again")
            raise
        assert not rejections, f"play({api!r}, {seed}): {rejections}"
