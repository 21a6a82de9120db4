"""Behaviour of the hook registry that published hooks and loops rely on."""

import asyncio
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any

import pytest

from amplifier_core.hooks import INVALID_RESPONSE, EventData, HookRegistry, InContext
from amplifier_core.message_models import TextBlock
from amplifier_core.models import HookResult

variable: ContextVar[str] = ContextVar("variable", default="unset")


@pytest.fixture
def hooks() -> HookRegistry:
    return HookRegistry()


# Registration


def test_all_arguments_can_be_positional(hooks: HookRegistry) -> None:
    hooks.register("e", print, 5, "late")
    hooks.on("e", print, -5, "early")
    assert hooks.list_handlers("e") == {"e": ["early", "late"]}


async def test_event_names_have_no_wildcards(hooks: HookRegistry) -> None:
    ran: list[str] = []
    for pattern in ("*", "tool:*", "TOOL:PRE", ""):
        hooks.register(pattern, lambda e, d: ran.append(e))
    await hooks.emit("tool:pre", {})
    assert ran == []


# Emitting


async def test_an_emit_is_a_coroutine_that_a_task_can_run(hooks: HookRegistry) -> None:
    assert (await asyncio.create_task(hooks.emit("e", {"a": 1}))).data == {"a": 1}
    assert await asyncio.create_task(hooks.emit_and_collect("e", {})) == []


async def test_emits_of_several_tasks_interleave(hooks: HookRegistry) -> None:
    order: list[str] = []
    turn = asyncio.Event()

    async def handler(event: str, data: dict[str, Any]) -> None:
        order.append(f"{data['n']} in")
        if data["n"] == 1:
            await turn.wait()
        turn.set()
        order.append(f"{data['n']} out")

    hooks.register("e", handler)
    await asyncio.gather(hooks.emit("e", {"n": 1}), hooks.emit("e", {"n": 2}))
    assert order == ["1 in", "2 in", "2 out", "1 out"]


async def test_a_handler_may_emit_the_same_event(hooks: HookRegistry) -> None:
    depths: list[int] = []

    async def handler(event: str, data: dict[str, Any]) -> None:
        depths.append(data["depth"])
        if data["depth"] < 3:
            await hooks.emit(event, {**data, "depth": data["depth"] + 1})

    hooks.register("e", handler)
    await hooks.emit("e", {"depth": 1})
    assert depths == [1, 2, 3]


# Context variables


@pytest.mark.parametrize("collect", [False, True])
async def test_handlers_see_the_callers_context_variables_but_cannot_change_them(
    hooks: HookRegistry, collect: bool
) -> None:
    seen: list[str] = []

    def sync(event: str, data: dict[str, Any]) -> None:
        seen.append(variable.get())
        variable.set("sync")

    async def asynchronous(event: str, data: dict[str, Any]) -> None:
        seen.append(variable.get())
        variable.set("before waiting")
        await asyncio.sleep(0)
        seen.append(variable.get())
        variable.set("after waiting")

    variable.set("caller's")
    hooks.register("e", sync)
    hooks.register("e", asynchronous)
    await (hooks.emit_and_collect if collect else hooks.emit)("e", {})
    assert seen == ["caller's", "caller's", "before waiting"]
    assert variable.get() == "caller's"


async def test_a_handler_can_await_time_out_and_catch_like_any_coroutine(
    hooks: HookRegistry,
) -> None:
    steps: list[str] = []

    async def handler(event: str, data: dict[str, Any]) -> None:
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            steps.append("timed out")
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        assert asyncio.current_task() is task is caller
        steps.append("done")

    caller = asyncio.current_task()
    hooks.register("e", handler)
    await hooks.emit("e", {})
    assert steps == ["timed out", "done"]


async def test_an_emit_that_is_abandoned_closes_its_handler(hooks: HookRegistry) -> None:
    seen: list[str] = []

    async def handler(event: str, data: dict[str, Any]) -> None:
        try:
            await asyncio.Event().wait()
        except GeneratorExit:
            seen.append(variable.get())
            raise

    variable.set("caller's")
    hooks.register("e", handler)
    emitting = hooks.emit("e", {})
    emitting.send(None)
    emitting.close()
    assert seen == ["caller's"]


async def test_values_sent_to_a_coroutine_in_a_context_arrive() -> None:
    import contextvars
    import types

    @types.coroutine
    def ask() -> Generator[str, int, int]:
        return (yield "question") * 2

    async def answer() -> int:
        return await ask()

    steps = InContext(answer(), contextvars.copy_context()).__await__()
    assert next(steps) == "question"
    with pytest.raises(StopIteration) as done:
        steps.send(21)
    assert done.value.value == 42


# Cancellation


async def test_a_cancellation_requested_just_before_an_event_is_not_lost(
    hooks: HookRegistry,
) -> None:
    async def waits(event: str, data: dict[str, Any]) -> None:
        await asyncio.sleep(60)

    async def turn() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # like a signal handler while the task runs
        await hooks.emit("e", {})

    hooks.register("e", waits)
    task = asyncio.create_task(turn())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_handlers_own_cancelled_error_is_skipped_while_a_stopped_task_cleans_up(
    hooks: HookRegistry,
) -> None:
    reached: list[str] = []

    async def cancels_its_own_work(event: str, data: dict[str, Any]) -> None:
        work = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        work.cancel()
        await work

    async def turn() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await hooks.emit("e", {})
            await hooks.emit_and_collect("e", {})

    hooks.register("e", cancels_its_own_work)
    hooks.register("e", lambda e, d: reached.append(e))
    task = asyncio.create_task(turn())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reached == ["e", "e"]


async def test_cancelling_the_caller_of_a_collection_is_not_treated_as_a_timeout(
    hooks: HookRegistry,
) -> None:
    entered = asyncio.Event()

    async def slow(event: str, data: dict[str, Any]) -> None:
        entered.set()
        await asyncio.sleep(60)

    hooks.register("e", slow)
    task = asyncio.create_task(hooks.emit_and_collect("e", {}, timeout=60))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_handler_that_exits_has_failed_and_the_program_continues(
    hooks: HookRegistry,
) -> None:
    def leave(event: str, data: dict[str, Any]) -> None:
        raise SystemExit(0)

    hooks.register("e", leave)
    assert (await hooks.emit("e", {})).action == "continue"


async def test_an_interrupt_in_a_handler_is_raised(hooks: HookRegistry) -> None:
    def interrupted(event: str, data: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    hooks.register("e", interrupted)
    with pytest.raises(KeyboardInterrupt):
        await hooks.emit("e", {})


# Results


@pytest.mark.parametrize(
    "answer",
    [
        HookResult.model_construct(action="unknown"),
        HookResult.model_construct(action="modify", data=["no dict"]),
    ],
)
async def test_a_result_that_bypassed_validation_denies(
    hooks: HookRegistry, answer: HookResult
) -> None:
    hooks.register("e", lambda e, d: answer)
    result = await hooks.emit("e", {})
    assert (result.action, result.reason) == ("deny", INVALID_RESPONSE)


async def test_any_object_that_dumps_the_fields_of_a_result_is_accepted(
    hooks: HookRegistry,
) -> None:
    class Foreign:
        def model_dump(self) -> dict[str, Any]:
            return {"action": "deny", "reason": "foreign"}

    class Broken:
        def model_dump(self) -> dict[str, Any]:
            raise RuntimeError("boom")

    hooks.register("a", lambda e, d: Foreign())
    hooks.register("b", lambda e, d: Broken())
    assert (await hooks.emit("a", {})).reason == "foreign"
    assert (await hooks.emit("b", {})).reason == INVALID_RESPONSE


async def test_messages_of_a_continue_result_are_discarded(
    hooks: HookRegistry,
) -> None:
    hooks.register("e", lambda e, d: HookResult(user_message="hello", data={"own": 1}))
    result = await hooks.emit("e", {"a": 1})
    assert (result.action, result.user_message) == ("continue", None)
    assert result.data is not None
    assert "own" not in result.data


async def test_data_returned_in_a_result_is_still_isolated(
    hooks: HookRegistry,
) -> None:
    def changes_its_answer(event: str, data: dict[str, Any]) -> HookResult:
        result = HookResult(action="modify", data=data)
        assert result.data is not None
        result.data["messages"].append("more")
        return result

    hooks.register("e", changes_its_answer)
    original: dict[str, Any] = {"messages": []}
    result = await hooks.emit("e", original)
    assert original == {"messages": []}
    assert result.data is not None
    assert result.data["messages"] == ["more"]


async def test_data_of_a_subclass_of_dict_may_be_emitted_again(hooks: HookRegistry) -> None:
    seen: list[Any] = []
    hooks.register("e", lambda e, d: seen.append(d["a"]))
    data = EventData({"a": [1]})
    await hooks.emit("e", data)
    assert seen == [[1]]
    assert (await hooks.emit("no-handlers", data)).data == {"a": [1]}


# emit_and_collect


async def test_a_collection_passes_models_as_their_fields(hooks: HookRegistry) -> None:
    hooks.register("e", lambda e, d: HookResult(data={"text": d["text"]}))
    assert await hooks.emit_and_collect("e", TextBlock(text="t")) == [{"text": "t"}]


async def test_denying_does_not_end_a_collection(hooks: HookRegistry) -> None:
    hooks.register("e", lambda e, d: HookResult(action="deny", data={"n": 1}))
    hooks.register("e", lambda e, d: {"action": "ask_user", "data": {"n": 2}})
    hooks.register("e", lambda e, d: "nonsense")
    hooks.register("e", lambda e, d: HookResult(data={}))
    assert await hooks.emit_and_collect("e", {}, 1) == [{"n": 1}, {"n": 2}, {}]
