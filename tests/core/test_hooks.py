"""Dispatch order, the data handlers see, and merging of their results."""

import asyncio
import json
import logging
import re
from contextvars import ContextVar
from typing import Any

import pytest

from amplifier_core import events
from amplifier_core._foreign import belonging_to
from amplifier_core.hooks import INVALID_RESPONSE, EventData, HookRegistry, passed_on
from amplifier_core.message_models import ChatResponse, TextBlock
from amplifier_core.models import HookResult, ToolResult

variable: ContextVar[str] = ContextVar("variable", default="unset")


@pytest.fixture
def hooks() -> HookRegistry:
    return HookRegistry()


def answering(**fields: Any) -> Any:
    async def handler(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(**fields)

    return handler


# Registration


async def test_handlers_run_by_priority_then_in_order_of_registration(hooks: HookRegistry) -> None:
    ran: list[str] = []
    for name, priority in [("c", 10), ("a", -5), ("d", 10), ("b", 0)]:
        hooks.register("e", lambda e, d, n=name: ran.append(n), priority=priority, name=name)
    await hooks.emit("e", {})
    assert ran == ["a", "b", "c", "d"]
    assert hooks.list_handlers("e") == {"e": ["a", "b", "c", "d"]}


async def test_unregistering_removes_only_that_handler_and_is_idempotent(
    hooks: HookRegistry,
) -> None:
    ran: list[int] = []
    first = hooks.register("e", lambda e, d: ran.append(1), name="same")
    hooks.on("e", lambda e, d: ran.append(2), name="same")
    first()
    first()
    await hooks.emit("e", {})
    assert ran == [2]


async def test_unregistering_by_name_removes_the_one_registered_last_on_any_event(
    hooks: HookRegistry,
) -> None:
    ran: list[str] = []
    hooks.register("e", lambda e, d: ran.append("old"), name="same")
    hooks.register("f", lambda e, d: ran.append("new"), name="same")
    hooks.unregister("same")
    hooks.unregister("unknown")
    await hooks.emit("e", {})
    await hooks.emit("f", {})
    assert ran == ["old"]
    assert hooks.list_handlers() == {"e": ["same"], "f": []}
    assert hooks.list_handlers("never") == {"never": []}


def test_priorities_are_integers(hooks: HookRegistry) -> None:
    with pytest.raises(TypeError, match="int"):
        hooks.register("e", answering(), priority=1.5)  # type: ignore[arg-type]


async def test_handlers_added_or_removed_during_an_event_take_effect_after_it(
    hooks: HookRegistry,
) -> None:
    ran: list[str] = []

    def first(event: str, data: dict[str, Any]) -> None:
        ran.append("first")
        hooks.register("e", lambda e, d: ran.append("late"))
        remove_second()

    hooks.register("e", first)
    remove_second = hooks.register("e", lambda e, d: ran.append("second"))
    await hooks.emit("e", {})
    assert ran == ["first", "second"]


def test_event_names_are_reachable_from_the_registry() -> None:
    assert HookRegistry.TOOL_PRE == events.TOOL_PRE == "tool:pre"
    assert HookRegistry.ORCHESTRATOR_COMPLETE == "orchestrator:complete"


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


# Data of handlers


async def test_without_handlers_the_data_is_returned_unchanged(hooks: HookRegistry) -> None:
    hooks.set_default_fields(session_id="s")
    data = {"a": [1]}
    result = await hooks.emit("e", data)
    assert result.action == "continue"
    assert result.data is data
    assert (await hooks.emit("e", None)).data == {}


async def test_data_overrides_defaults_and_the_kernel_sets_the_timestamp(
    hooks: HookRegistry,
) -> None:
    seen: list[dict[str, Any]] = []
    hooks.register("e", lambda e, d: seen.append(dict(d)))
    hooks.set_default_fields(session_id="s", other=1)
    hooks.set_default_fields(session_id="s")
    result = await hooks.emit("e", {"session_id": "own", "timestamp": "old"})
    assert seen[0]["session_id"] == "own"
    assert "other" not in seen[0]
    assert seen[0]["timestamp"].endswith("+00:00")
    assert result.data == seen[0]


async def test_no_handler_can_change_what_the_caller_or_the_next_one_sees(
    hooks: HookRegistry,
) -> None:
    seen: list[Any] = []

    def vandal(event: str, data: dict[str, Any]) -> None:
        data["messages"][0]["content"] = "changed"
        data["messages"].append("more")
        data["response"].content[0].text = "changed"
        data["new"] = 1
        del data["kept"]

    def witness(event: str, data: dict[str, Any]) -> None:
        seen.append((data["messages"], data["response"].content[0].text, "new" in data))
        seen.append(data["kept"])

    hooks.register("e", vandal)
    hooks.register("e", witness)
    data = {
        "messages": [{"content": "original"}],
        "response": ChatResponse(content=[TextBlock(text="original")]),
        "kept": True,
    }
    result = await hooks.emit("e", data)
    assert seen == [([{"content": "original"}], "original", False), True]
    assert data["messages"] == [{"content": "original"}]
    assert data["response"].content[0].text == "original"
    assert result.data is not None
    assert result.data["messages"] == [{"content": "original"}]


async def test_model_data_is_converted_to_fields_and_other_data_is_unchanged(
    hooks: HookRegistry,
) -> None:
    seen: list[Any] = []
    hooks.register("e", lambda e, d: seen.append(d))
    await hooks.emit("e", TextBlock(text="t"))
    assert seen[0]["text"] == "t"
    result = await hooks.emit("e", None)
    assert seen[1] is None
    assert result.data == {}
    assert (await hooks.emit("e", [1])).data == {}


async def test_request_ids_follow_a_model_call_through_its_events(hooks: HookRegistry) -> None:
    opened = await hooks.emit("llm:request", {})
    assert opened.data is not None
    request_id = opened.data["request_id"]
    retry = await hooks.emit("provider:retry", {})
    closed = await hooks.emit("llm:response", {})
    after = await hooks.emit("provider:retry", {})
    assert retry.data == closed.data == {"request_id": request_id}
    assert after.data == {}
    assert (await hooks.emit("llm:request", {"request_id": "own"})).data == {"request_id": "own"}
    assert (await hooks.emit("provider:error", {})).data == {"request_id": "own"}


async def test_handlers_may_be_sync_or_async_or_objects(hooks: HookRegistry) -> None:
    class Callable:
        async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
            return HookResult(action="modify", data={**data, "object": True})

    hooks.register("e", Callable())
    hooks.register("e", lambda e, d: HookResult(action="modify", data={**d, "sync": True}))
    result = await hooks.emit("e", {})
    assert result.data is not None
    assert result.data["object"] is result.data["sync"] is True


# Merging results


async def test_a_modification_replaces_the_data_for_the_rest_and_for_the_caller(
    hooks: HookRegistry,
) -> None:
    seen: list[Any] = []
    hooks.register("e", answering(action="modify", data={"b": 2}), priority=1)
    hooks.register("e", answering(action="modify"), priority=2)
    hooks.register("e", lambda e, d: seen.append(dict(d)), priority=3)
    result = await hooks.emit("e", {"a": 1})
    assert seen == [{"b": 2}]
    assert result.action == "modify"
    assert result.data == {"b": 2}


async def test_deny_ends_the_chain_at_once(hooks: HookRegistry) -> None:
    ran: list[int] = []
    hooks.register("e", answering(action="inject_context", context_injection="x"))
    hooks.register("e", answering(action="ask_user", approval_prompt="?"))
    hooks.register("e", answering(action="modify", data={"m": 1}))
    hooks.register("e", answering(action="deny", reason="no"))
    hooks.register("e", lambda e, d: ran.append(1))
    result = await hooks.emit("e", {})
    assert (result.action, result.reason, result.data) == ("deny", "no", {"m": 1})
    assert ran == []


async def test_the_first_question_takes_precedence_over_injections_and_modifications(
    hooks: HookRegistry,
) -> None:
    hooks.register("e", answering(action="inject_context", context_injection="x"))
    hooks.register("e", answering(action="ask_user", approval_prompt="first"))
    hooks.register("e", answering(action="ask_user", approval_prompt="second"))
    hooks.register("e", answering(action="modify", data={"m": 1}))
    result = await hooks.emit("e", {})
    assert (result.action, result.approval_prompt, result.data) == ("ask_user", "first", {"m": 1})


async def test_a_single_injection_is_returned_unchanged_with_its_hook(hooks: HookRegistry) -> None:
    hooks.register(
        "e",
        answering(
            action="inject_context",
            context_injection="x",
            context_injection_role="user",
            ephemeral=True,
            user_message="note",
        ),
        name="author",
    )
    result = await hooks.emit("e", {"a": 1})
    assert (result.action, result.context_injection, result.user_message) == (
        "inject_context",
        "x",
        "note",
    )
    (item,) = result.context_injections
    assert (item.content, item.role, item.ephemeral) == ("x", "user", True)
    assert (item.hook_name, item.event) == ("author", "e")
    assert result.data is not None
    assert result.data["a"] == 1


async def test_several_injections_are_joined_and_also_listed_separately(
    hooks: HookRegistry,
) -> None:
    hooks.register(
        "e",
        answering(
            action="inject_context",
            context_injection="one",
            context_injection_role="user",
            suppress_output=True,
            user_message="dropped",
        ),
        name="a",
    )
    hooks.register("e", answering(action="inject_context"), name="without text")
    hooks.register(
        "e",
        answering(
            action="inject_context",
            context_injection="",
            ephemeral=True,
            append_to_last_tool_result=True,
        ),
        name="b",
    )
    result = await hooks.emit("e", {})
    assert result.context_injection == "one\n\n"
    assert result.context_injection_role == "user"
    assert result.ephemeral is False
    assert result.suppress_output is True
    assert result.append_to_last_tool_result is True
    assert result.user_message is None
    assert [item.hook_name for item in result.context_injections] == ["a", "b"]
    assert [item.ephemeral for item in result.context_injections] == [False, True]


async def test_a_result_lists_the_handlers_that_changed_the_data(hooks: HookRegistry) -> None:
    hooks.register("e", answering(action="modify", data={"a": 2}), name="second")
    hooks.register("e", answering(action="modify", data={"a": 1}), priority=-1, name="first")
    hooks.register("e", answering(action="modify"), name="without data")
    changes = [("first", {"a": 1}), ("second", {"a": 2})]
    assert (await hooks.emit("e", {"a": 0})).changes == changes
    hooks.register("e", answering(action="inject_context", context_injection="x"))
    result = await hooks.emit("e", {"a": 0})
    assert (result.action, result.changes) == ("inject_context", changes)
    assert "changes" not in result.model_dump()


async def test_the_owner_of_a_handler_is_found_by_its_name(hooks: HookRegistry) -> None:
    hooks.register("e", answering(), name="free")
    with belonging_to("hook", "hooks-guard"):
        hooks.register("f", answering(), name="guard")
    assert hooks.find_owner("guard") == "hooks-guard"
    assert hooks.find_owner("free") is None
    assert hooks.find_owner("missing") is None


# Handlers that fail


async def test_a_failing_handler_is_logged_and_skipped(
    hooks: HookRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(event: str, data: dict[str, Any]) -> None:
        raise RuntimeError("boom")

    async def cancelled(event: str, data: dict[str, Any]) -> None:
        raise asyncio.CancelledError

    hooks.register("e", broken, name="broken")
    hooks.register("e", cancelled, name="cancelled")
    hooks.register("e", answering(action="modify", data={"reached": True}))
    with caplog.at_level(logging.ERROR):
        result = await hooks.emit("e", {})
    assert result.data == {"reached": True}
    broken_line, cancelled_line = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(
        r"Handler 'broken' of tests\.core\.test_hooks failed on e: RuntimeError: boom "
        r"\(tests/core/test_hooks\.py, line \d+, in broken\); "
        "it was skipped and the event continued",
        broken_line,
    )
    assert cancelled_line.startswith("Handler 'cancelled' of tests.core.test_hooks failed on e: ")


async def test_a_handler_must_be_callable(hooks: HookRegistry) -> None:
    with pytest.raises(TypeError, match="handler for 'e' must be callable, not 'guard'"):
        hooks.register("e", "guard")  # type: ignore[arg-type]


@pytest.mark.parametrize("handlers", [1, 2])
async def test_a_handler_that_emits_its_own_event_is_reported_once(
    hooks: HookRegistry, caplog: pytest.LogCaptureFixture, handlers: int
) -> None:
    async def again(event: str, data: dict[str, Any]) -> None:
        await hooks.emit(event, data)

    with belonging_to("hook", "hooks-echo"):
        for _ in range(handlers):
            hooks.register("e", again)
    hooks.register("e", answering(action="modify", data={"reached": True}))
    result = await hooks.emit("e", {})
    assert result.data == {"reached": True}
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == handlers
    assert messages[0].startswith(
        "Handler 'hooks-echo.again' of hook 'hooks-echo' failed on e: RecursionError: "
    )
    assert "in again); it was skipped and the event continued" in messages[0]


async def test_results_and_answers_arrive_as_plain_data_from_any_emitter(
    hooks: HookRegistry,
) -> None:
    seen: list[dict[str, Any]] = []

    async def watch(event: str, data: dict[str, Any]) -> None:
        json.dumps(data)
        seen.append(data)

    hooks.register("e", watch)
    answer = ChatResponse(content=[TextBlock(text="hi")])
    result = ToolResult(success=False, error={"message": "no"})
    await hooks.emit("e", {"tool_result": result, "response": answer, "parts": [result]})
    (data,) = seen
    assert data["tool_result"]["error"] == data["tool_result"].error == {"message": "no"}
    assert data["parts"][0].get_serialized_output() == "no"
    assert data["response"]["content"][0]["text"] == data["response"].content[0].text == "hi"


@pytest.mark.parametrize(
    ("answer", "described"),
    [
        ("text", "str, not a HookResult"),
        (
            {"action": "block"},
            "the action 'block' (valid: continue, deny, modify, inject_context, ask_user)",
        ),
        ({"data": "text"}, "an invalid result: ValidationError: data: Input should be a valid"),
    ],
)
async def test_an_invalid_result_is_described_in_one_line(
    hooks: HookRegistry, caplog: pytest.LogCaptureFixture, answer: Any, described: str
) -> None:
    def guard(event: str, data: dict[str, Any]) -> Any:
        return answer

    with belonging_to("hook", "hooks-guard"):
        hooks.register("tool:pre", guard)
    await hooks.emit("tool:pre", {})
    (message,) = [record.getMessage() for record in caplog.records]
    line = guard.__code__.co_firstlineno
    assert message.startswith(
        f"Handler 'hooks-guard.guard' of hook 'hooks-guard' (tests/core/test_hooks.py, line {line}, "
        f"in guard) answered tool:pre with {described}"
    )
    assert message.endswith("; the event was denied")
    assert "\n" not in message
    assert "http" not in message


@pytest.mark.parametrize(
    "answer",
    [
        *("text", 1, True, [], object(), {"action": "unknown"}, {"data": "text"}, {"action": 5}),
        HookResult.model_construct(action="unknown"),
        HookResult.model_construct(action="modify", data=["no dict"]),
    ],
)
async def test_an_unreadable_result_denies(hooks: HookRegistry, answer: Any) -> None:
    hooks.register("e", lambda e, d: answer)
    result = await hooks.emit("e", {})
    assert (result.action, result.reason) == ("deny", INVALID_RESPONSE)


async def test_dicts_and_subclasses_are_accepted_as_results(hooks: HookRegistry) -> None:
    class Own(HookResult):
        pass

    hooks.register("a", lambda e, d: {"action": "deny", "reason": "r", "unknown": 1})
    hooks.register("b", lambda e, d: Own(action="deny", reason="own"))
    hooks.register("c", lambda e, d: {})
    assert (await hooks.emit("a", {})).reason == "r"
    assert (await hooks.emit("b", {})).reason == "own"
    assert (await hooks.emit("c", {})).action == "continue"


@pytest.mark.parametrize("collect", [False, True])
async def test_cancelling_the_caller_reaches_the_running_handler(
    hooks: HookRegistry, collect: bool
) -> None:
    entered = asyncio.Event()
    seen: list[str] = []

    async def slow(event: str, data: dict[str, Any]) -> None:
        entered.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    hooks.register("e", slow)
    emitting = hooks.emit_and_collect("e", {}, timeout=60) if collect else hooks.emit("e", {})
    task = asyncio.create_task(emitting)
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


# emit_and_collect


async def test_collecting_returns_the_data_of_every_result(hooks: HookRegistry) -> None:
    async def broken(event: str, data: dict[str, Any]) -> None:
        raise RuntimeError("boom")

    async def slow(event: str, data: dict[str, Any]) -> HookResult:
        await asyncio.sleep(60)
        return HookResult(data={"too": "late"})

    seen: list[Any] = []
    hooks.set_default_fields(session_id="s")
    hooks.register("e", answering(action="deny", data={"n": 1}))
    hooks.register("e", broken)
    hooks.register("e", slow)
    hooks.register("e", answering())
    hooks.register("e", lambda e, d: seen.append(dict(d)))
    hooks.register("e", answering(data={"n": 2}))
    assert await hooks.emit_and_collect("e", {"a": 1}, timeout=0.05) == [{"n": 1}, {"n": 2}]
    assert seen == [{"a": 1}]
    assert await hooks.emit_and_collect("no-handlers", {}) == []


@pytest.mark.parametrize("timeout", [None, "1", True])
async def test_collecting_needs_a_number_of_seconds(hooks: HookRegistry, timeout: Any) -> None:
    with pytest.raises(TypeError):
        await hooks.emit_and_collect("e", {}, timeout=timeout)


def test_the_unvalidated_continue_result_equals_a_validated_one() -> None:
    made, plain = passed_on({"a": 1}), HookResult(action="continue", data={"a": 1})
    assert made == plain
    assert made.model_dump() == plain.model_dump()
    assert made.__pydantic_fields_set__ == plain.__pydantic_fields_set__
    assert made.model_copy(update={"action": "deny"}).action == "deny"
    assert made.context_injections is not passed_on({}).context_injections


async def test_denying_does_not_end_a_collection(hooks: HookRegistry) -> None:
    hooks.register("e", lambda e, d: HookResult(action="deny", data={"n": 1}))
    hooks.register("e", lambda e, d: {"action": "ask_user", "data": {"n": 2}})
    hooks.register("e", lambda e, d: "nonsense")
    hooks.register("e", lambda e, d: HookResult(data={}))
    assert await hooks.emit_and_collect("e", {}, 1) == [{"n": 1}, {"n": 2}, {}]


# Emitting


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


async def test_any_object_that_dumps_the_fields_of_a_result_is_accepted(
    hooks: HookRegistry,
) -> None:
    class Foreign:
        def model_dump(self) -> dict[str, Any]:
            return {"action": "modify", "data": {"like": 1}, "reason": "foreign"}

    class Broken:
        def model_dump(self) -> dict[str, Any]:
            raise RuntimeError("boom")

    hooks.register("a", lambda e, d: Foreign())
    hooks.register("b", lambda e, d: Broken())
    assert (await hooks.emit("a", {})).data == {"like": 1}
    assert (await hooks.emit("b", {})).reason == INVALID_RESPONSE


async def test_messages_of_a_continue_result_are_discarded(hooks: HookRegistry) -> None:
    hooks.register("e", lambda e, d: HookResult(user_message="hello", data={"own": 1}))
    result = await hooks.emit("e", {"a": 1})
    assert (result.action, result.user_message) == ("continue", None)
    assert result.data is not None
    assert "own" not in result.data


async def test_data_returned_in_a_result_is_still_isolated(hooks: HookRegistry) -> None:
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
