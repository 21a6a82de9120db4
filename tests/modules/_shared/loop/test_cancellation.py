"""However a turn is stopped, every call is answered, every bracket closed, nothing is left running."""

import asyncio
from typing import Any

import pytest

from amplifier_core.models import HookResult
from amplifier_core.testing import wait_for
from amplifier_modules._shared.history.request import to_chat_request
from amplifier_modules._shared.loop import interrupt
from amplifier_modules._shared.loop.dispatch import INTERRUPTED, NOT_RUN
from tests.modules._shared.loop.rig import FunctionTool, Rig, call, calls, echo_tool

END = ["execution:end", "prompt:complete", "message.end", "orchestrator:complete"]


class Blocker:
    """A tool that runs until it is cancelled, or until it is let go."""

    def __init__(self, rig: Rig, name: str = "block", *, stubborn: bool = False) -> None:
        self.started = asyncio.Event()
        self.let_go = asyncio.Event()
        self.ended = False
        self.stubborn = stubborn
        rig.add_tool(FunctionTool(name, self.run))

    async def run(self, _: dict[str, Any]) -> str:
        self.started.set()
        try:
            await self._wait()
            return "finished"
        finally:
            self.ended = True

    async def _wait(self) -> None:
        while True:
            try:
                await self.let_go.wait()
                return
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise


async def start_turn(rig: Rig, *blockers: Blocker) -> asyncio.Task[str]:
    """Start a turn, and wait until these tools run."""
    turn = asyncio.create_task(rig.run())
    for blocker in blockers:
        await blocker.started.wait()
    return turn


async def cancel(turn: asyncio.Task[str]) -> None:
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn


def assert_closed(rig: Rig, reason: str = "cancelled") -> None:
    assert rig.names()[-4:] == END
    done = rig.of("orchestrator:complete")
    assert len(done) == 1
    assert (done[0]["status"], done[0]["reason"]) == ("incomplete", reason)


def assert_next_request_is_whole(rig: Rig) -> None:
    """The stored messages need no repair to be sent again."""
    messages = [*rig.context.messages, {"role": "user", "content": "go on"}]
    assert to_chat_request(messages).repairs == ()  # type: ignore[attr-defined]


class TestGraceful:
    async def test_tools_in_flight_finish_and_no_request_follows(self, rig: Rig) -> None:
        blocker = Blocker(rig)
        provider = rig.replies(calls(call("block", id="c1")), "never")
        turn = await start_turn(rig, blocker)

        await rig.coordinator.request_cancel()
        blocker.let_go.set()

        assert await turn == ""
        assert rig.context.results() == {"c1": "finished"}
        assert len(provider.requests) == 1
        assert_closed(rig)
        assert_next_request_is_whole(rig)

    async def test_calls_not_yet_started_are_not_run(self, rig: Rig) -> None:
        rig.config = {"parallel_tools": False}
        blocker = Blocker(rig)
        echo = rig.add_tool(echo_tool())
        rig.replies(calls(call("block", id="c1"), call(id="c2", text="a")), "never")
        turn = await start_turn(rig, blocker)

        await rig.coordinator.request_cancel()
        blocker.let_go.set()
        await turn

        assert rig.context.results() == {"c1": "finished", "c2": f"Error: {NOT_RUN}"}
        assert echo.inputs == []
        assert_closed(rig)
        assert_next_request_is_whole(rig)

    async def test_calls_of_the_answer_in_flight_are_not_run(self, rig: Rig) -> None:
        echo = rig.add_tool(echo_tool())
        rig.replies(calls(call(id="c1", text="a")), "never")

        rig.on(
            "provider:response", lambda _: rig.coordinator.cancellation.request_graceful() and None
        )

        assert await rig.run() == ""
        assert echo.inputs == []
        assert rig.context.results() == {"c1": f"Error: {NOT_RUN}"}
        assert_closed(rig)

    async def test_an_answer_in_flight_that_is_the_last_is_a_success(self, rig: Rig) -> None:
        rig.replies("the answer")
        rig.on(
            "provider:request", lambda _: rig.coordinator.cancellation.request_graceful() and None
        )

        assert await rig.run() == "the answer"
        assert rig.last("orchestrator:complete")["status"] == "success"

    async def test_a_turn_that_starts_cancelled_asks_no_provider(self, rig: Rig) -> None:
        provider = rig.replies("never")
        rig.coordinator.cancellation.request_graceful()

        assert await rig.run() == ""
        assert provider.requests == []
        assert_closed(rig)

    async def test_callbacks_are_called_once(self, rig: Rig) -> None:
        reported: list[str] = []
        rig.replies("never")
        rig.coordinator.cancellation.on_cancel(lambda: reported.append("stop"))
        rig.coordinator.cancellation.request_graceful()

        await rig.run()

        assert reported == ["stop"]


class TestImmediate:
    async def test_running_tools_are_cancelled_and_answered(self, rig: Rig) -> None:
        first, second = Blocker(rig, "first"), Blocker(rig, "second")
        rig.add_tool(echo_tool())
        rig.replies(
            calls(call("first", id="a"), call(id="b", text="x"), call("second", id="c")), "never"
        )
        turn = await start_turn(rig, first, second)

        await rig.coordinator.request_cancel(immediate=True)

        assert await turn == ""
        assert first.ended
        assert second.ended
        assert rig.context.results() == {
            "a": f"Error: {INTERRUPTED}",
            "b": "X",
            "c": f"Error: {INTERRUPTED}",
        }
        assert [d["tool_call_id"] for d in rig.of("tool:error")] == ["a", "c"]
        assert rig.coordinator.cancellation.running_tools == set()
        assert_closed(rig)
        assert_next_request_is_whole(rig)

    async def test_a_tool_that_will_not_end_is_left_behind(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(interrupt, "GRACE_SECONDS", 0.05)
        blocker = Blocker(rig, stubborn=True)
        rig.replies(calls(call("block", id="c1")), "never")
        turn = await start_turn(rig, blocker)

        await rig.coordinator.request_cancel(immediate=True)
        await turn

        assert not blocker.ended
        assert rig.context.results() == {"c1": f"Error: {INTERRUPTED}"}
        assert [d["tool_call_id"] for d in rig.of("tool:error")] == ["c1"]
        assert_closed(rig)
        blocker.let_go.set()

    async def test_a_request_under_way_is_given_up(self, rig: Rig) -> None:
        rig.replies({"text": "never", "delay": 600})
        turn = await start_turn(rig)
        assert await wait_for(lambda: bool(rig.of("provider:request")))

        await rig.coordinator.request_cancel(immediate=True)

        assert await turn == ""
        assert rig.context.roles() == ["user"]
        assert rig.last("provider:error")["error"]["type"] == "AbortError"
        assert_closed(rig)

    async def test_a_question_under_way_is_withdrawn(self, rig: Rig) -> None:
        asked = asyncio.Event()

        class Person:
            async def request_approval(self, *_: Any) -> str:
                asked.set()
                await asyncio.Event().wait()
                raise AssertionError

        rig.with_people(Person())
        echo = rig.add_tool(echo_tool())
        rig.replies(calls(call(id="a", text="x"), call(id="b", text="y")), "never")
        rig.on("tool:pre", HookResult(action="ask_user"))
        turn = await start_turn(rig)
        await asked.wait()

        await rig.coordinator.request_cancel(immediate=True)

        assert await turn == ""
        assert echo.inputs == []
        assert rig.context.results() == {"a": f"Error: {NOT_RUN}", "b": f"Error: {NOT_RUN}"}
        assert_closed(rig)


class TestTaskCancelled:
    """The task that runs the turn is cancelled, as asyncio.run does on Ctrl-C."""

    @pytest.mark.parametrize("count", [1, 8])
    async def test_with_tools_running_every_call_is_answered(self, rig: Rig, count: int) -> None:
        blockers = [Blocker(rig, f"block{i}") for i in range(count)]
        rig.replies(calls(*[call(f"block{i}", id=f"c{i}") for i in range(count)]), "never")
        turn = await start_turn(rig, *blockers)

        await cancel(turn)

        assert all(blocker.ended for blocker in blockers)
        assert rig.context.results() == {f"c{i}": f"Error: {INTERRUPTED}" for i in range(count)}
        assert_closed(rig)
        assert_next_request_is_whole(rig)

    async def test_while_the_provider_answers(self, rig: Rig) -> None:
        rig.replies({"text": "never", "delay": 600})
        turn = await start_turn(rig)
        assert await wait_for(lambda: bool(rig.of("provider:request")))

        await cancel(turn)

        assert rig.context.roles() == ["user"]
        assert rig.of("provider:error")
        assert_closed(rig)

    async def test_twice_in_a_row_still_answers_every_call(self, rig: Rig) -> None:
        blocker = Blocker(rig)
        rig.replies(calls(call("block", id="c1")), "never")
        stores = rig.context.add_message
        storing = asyncio.Event()

        async def slow_store(message: dict[str, Any]) -> None:
            if message["role"] == "tool":
                storing.set()
                for _ in range(5):
                    await asyncio.sleep(0)
            await stores(message)

        rig.context.add_message = slow_store  # type: ignore[method-assign]
        turn = await start_turn(rig, blocker)
        turn.cancel()
        await storing.wait()
        await cancel(turn)

        assert rig.context.results() == {"c1": f"Error: {INTERRUPTED}"}
        assert_closed(rig)

    async def test_a_closing_handler_that_hangs_cannot_hold_the_turn(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(interrupt, "GRACE_SECONDS", 0.05)
        hanging = asyncio.Event()

        async def hang(event: str, data: dict[str, Any]) -> None:
            hanging.set()
            await asyncio.Event().wait()

        rig.replies("done")
        rig.coordinator.hooks.register("execution:end", hang)
        turn = await start_turn(rig)
        await hanging.wait()

        await cancel(turn)

    async def test_a_time_limit_around_a_turn_is_a_timeout(self, rig: Rig) -> None:
        """asyncio.timeout works by cancellation and must still recognise its own."""
        blocker = Blocker(rig)
        rig.replies(calls(call("block", id="c1")), "never")

        async def expire(limit: asyncio.Timeout) -> None:
            await blocker.started.wait()
            limit.reschedule(asyncio.get_running_loop().time())

        async def run_for_a_while() -> None:
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
                group.create_task(expire(limit))
                await rig.run()

        with pytest.raises(TimeoutError):
            await run_for_a_while()

        assert rig.context.results() == {"c1": f"Error: {INTERRUPTED}"}

    async def test_at_every_point_of_a_turn(self, rig: Rig) -> None:
        """Cancelled after each number of event loop cycles in turn, until the turn is too short."""
        survived = 0
        for cycles in range(400):
            one = Rig(rig.kind)
            one.add_tool(echo_tool())
            one.replies(calls(call(id="a", text="x"), call(id="b", text="y")), "done")
            turn = asyncio.create_task(one.run())
            for _ in range(cycles):
                await asyncio.sleep(0)
            if turn.done():
                break
            turn.cancel()
            try:
                await turn
            except asyncio.CancelledError:
                survived += 1
            if one.names():
                assert one.names().count("orchestrator:complete") == 1, cycles
                assert one.names()[-1] == "orchestrator:complete", cycles
            assert len(one.of("execution:start")) == len(one.of("execution:end")), cycles
            assert len(one.of("prompt:submit")) == len(one.of("prompt:complete")), cycles
            assert_next_request_is_whole(one)
        else:
            pytest.fail("the turn never ended by itself")
        assert survived > 5
        assert len(asyncio.all_tasks()) == 1


async def test_a_tool_that_ends_the_program_leaves_no_call_open(rig: Rig) -> None:
    """A fatal exception of the context is not an answer to the model, but calls are answered."""
    rig.add_tool(echo_tool())
    rig.replies(calls(call(id="a", text="x"), call(id="b", text="y")), "never")
    stores = rig.context.add_message
    failed: list[str] = []

    async def store(message: dict[str, Any]) -> None:
        if message["role"] == "tool" and not failed:
            failed.append(message["tool_call_id"])
            raise OSError("no space")
        await stores(message)

    rig.context.add_message = store  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no space"):
        await rig.run()

    assert failed == ["a"]
    assert list(rig.context.results()) == ["b"]
    assert rig.last("orchestrator:complete")["status"] == "error"
