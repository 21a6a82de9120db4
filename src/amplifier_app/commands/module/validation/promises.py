"""What the contracts promise beyond the suites, tried out on a module that is mounted for it.

The suites are inherited by modules that are published, so they cannot grow; this can.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from amplifier_core.message_models import ChatResponse, TextBlock, ToolCall, ToolCallBlock
from amplifier_core.models import HookResult, ToolResult
from amplifier_core.testing import (
    EventRecorder,
    MockContextManager,
    MockCoordinator,
    MockProvider,
    MockTool,
)
from amplifier_core.validation._kinds import KINDS, cleanup_of

if TYPE_CHECKING:
    from amplifier_app.commands.module.validation.findings import Findings

# A module's own code may raise anything, and may call sys.exit().
_FOREIGN_ERRORS = (Exception, SystemExit)


async def check_promises(findings: Findings, mount: Callable[..., Awaitable[Any]]) -> None:
    """Mount the module, check what its kind promises, clean up."""
    kind = str(findings.request.kind)
    findings.say(stage="mount")
    coordinator = MockCoordinator()
    handlers = _recorded(coordinator)
    returned = await mount(coordinator, dict(findings.request.config))
    if kind == "hook":
        await _check_handlers(findings, handlers)
    for _, instance in KINDS[kind].instances(coordinator, returned)[:1]:
        for name, check in _PROMISES.get(kind, {}).items():
            findings.say(stage=name)
            try:
                await check(findings, instance, name)
            except _FOREIGN_ERRORS as error:
                message = f"it raised {findings.told(error)}"
                advice = f"contracts/{kind}.md of amplifier_core says what it can rely on"
                findings.bad(name, message, advice)
    findings.say(stage="cleanup")
    cleanup = cleanup_of(returned)
    pending = cleanup() if cleanup is not None else None
    if inspect.isawaitable(pending):
        await pending
    await coordinator.cleanup()


# -- hooks -------------------------------------------------------------------------------

_TOOL: dict[str, Any] = {
    "tool_name": "read_file",
    "tool_call_id": "call_1",
    "tool_input": {"file_path": "notes.txt", "path": "notes.txt"},
    "input": {"file_path": "notes.txt", "path": "notes.txt"},
}
_COMMON: dict[str, Any] = {
    "session_id": "validation",
    "parent_id": None,
    "turn_id": "turn-1",
    "span_id": "span-1",
    "parent_span_id": None,
    "iteration": 1,
    "timestamp": "2026-01-01T00:00:00+00:00",
}
_ERROR: dict[str, Any] = {"error": {"type": "OSError", "message": "no such file"}}
_PROVIDER: dict[str, Any] = {"provider": "mock", "model": "mock-model"}
_RESULT = ToolResult(output="three lines")
_DATA: dict[str, dict[str, Any]] = {
    "prompt:submit": {"prompt": "Say hello."},
    "prompt:complete": {"prompt": "Say hello.", "response": "Hello."},
    "provider:request": {**_PROVIDER, "messages": [{"role": "user", "content": "Say hello."}]},
    "provider:response": {**_PROVIDER, "response": {"content": []}, "usage": {"input_tokens": 1}},
    "provider:error": {**_PROVIDER, **_ERROR},
    "tool:pre": _TOOL,
    "tool:post": {**_TOOL, "tool_result": _RESULT, "result": _RESULT, "duration_ms": 1.0},
    "tool:error": {**_TOOL, **_ERROR},
    "orchestrator:complete": {"orchestrator": "loop", "turn_count": 1, "status": "success"},
    "session:end": {"status": "completed"},
}
"""What comes with an event beside the ids; nothing with those that are not here."""


def _recorded(coordinator: MockCoordinator) -> list[tuple[str, Any]]:
    """Event and handler of everything that is registered from now on."""
    handlers: list[tuple[str, Any]] = []
    register = coordinator.hooks.register

    def recording(
        event: str, handler: Any, priority: int = 0, name: str | None = None
    ) -> Callable[[], None]:
        handlers.append((event, handler))
        return register(event, handler, priority, name)

    for spelling in ("register", "on"):
        setattr(coordinator.hooks, spelling, recording)
    return handlers


async def _check_handlers(findings: Findings, handlers: list[tuple[str, Any]]) -> None:
    """Each handler with the data of its event: the registry would pass over one that raises."""
    if not handlers:
        advice = "register one, or give the --config with which it does"
        findings.bad("handlers", "it registers no handler", advice, "warning")
        return
    faults: list[str] = []
    for event, handler in handlers:
        findings.say(stage=f"its handler of {event}")
        try:
            answer = handler(event, copy.deepcopy({**_COMMON, **_DATA.get(event, {})}))
            if inspect.isawaitable(answer):
                answer = await answer
            if isinstance(answer, dict):
                answer = HookResult.model_validate(answer)
        except _FOREIGN_ERRORS as error:
            faults.append(f"on {event} it raised {findings.told(error)}")
            continue
        if answer is not None and not isinstance(answer, HookResult):
            faults.append(f"on {event} it answered {type(answer).__name__}, not a HookResult")
    if faults:
        message = "; ".join(list(dict.fromkeys(faults))[:3])
        advice = (
            "a handler that raises is skipped, and one that answers anything but a HookResult, "
            "a dict of its fields or None denies the event: read data with .get(…), return "
            'HookResult(action="continue")'
        )
        findings.bad("handlers", message, advice)
    else:
        events = {event for event, _ in handlers}
        findings.good("handlers", f"they answer {len(events)} events as the contract has it")


# -- orchestrators -----------------------------------------------------------------------


async def _check_tool_calls(findings: Findings, loop: Any, name: str) -> None:
    """A turn in which the model calls a tool that is there and one that is not."""
    context, recorder, provider = MockContextManager(), EventRecorder(), MockProvider()
    tool = MockTool("look", output="three lines")
    calls = [ToolCall(id="call_1", name="look", arguments={"at": "notes"})]
    calls.append(ToolCall(id="call_2", name="gone", arguments={}))
    blocks = [ToolCallBlock(id=call.id, name=call.name, input=call.arguments) for call in calls]
    asking = ChatResponse(content=list(blocks), tool_calls=calls, finish_reason="tool_calls")
    answering = ChatResponse(content=[TextBlock(text="Three lines.")], finish_reason="stop")
    provider.complete.side_effect = [asking, answering, *[answering] * 8]
    answer = await loop.execute(
        prompt="How long are the notes?",
        context=context,
        providers={"mock": provider},
        tools={"look": tool},
        hooks=recorder,
    )
    answered = [_answered_call(message) for message in context.messages]
    missing = [call.id for call in calls if call.id not in answered]
    if tool.last_input is None:
        message = "the model called a tool, and it was not executed"
    elif missing:
        message = f"of two tool calls {len(missing)} got no answer in the context"
    elif not isinstance(answer, str) or "Three lines." not in answer:
        message = f"after tool calls it returned {answer!r}, not the model's last answer"
    else:
        findings.good(name, "tools are run, and every call is answered")
        return
    advice = (
        "for each call run the tool, or say why not, and add a message of role 'tool' with its "
        "tool_call_id; then ask the provider again"
    )
    findings.bad(name, message, advice, "warning")


def _answered_call(message: dict[str, Any]) -> Any:
    if message.get("tool_call_id"):
        return message["tool_call_id"]
    content = message.get("content")
    for block in content if isinstance(content, list) else []:
        if isinstance(block, dict) and block.get("tool_call_id"):
            return block["tool_call_id"]
    return None


async def _check_completion(findings: Findings, loop: Any, name: str) -> None:
    recorder = EventRecorder()
    await loop.execute(
        prompt="Say hello.",
        context=MockContextManager(),
        providers={"mock": MockProvider()},
        tools={},
        hooks=recorder,
    )
    wanted = {"orchestrator", "turn_count", "status"}
    told = recorder.get_events(name)
    lacking = sorted(wanted - told[-1][1].keys()) if told else sorted(wanted)
    if told and not lacking:
        findings.good(name, "the end of a turn is told")
        return
    message = f"the event lacks {', '.join(lacking)}" if told else "the event is not emitted"
    advice = (
        f'await hooks.emit("{name}", {{"orchestrator": …, "turn_count": …, "status": "success", '
        '"incomplete" or "error"}) whatever way a turn ends'
    )
    findings.bad(name, message, advice)


# -- contexts ----------------------------------------------------------------------------

_CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
_MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "How long are the notes?"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I look.", "signature": "c2ln"},
            {"type": "text", "text": "I look."},
        ],
        "tool_calls": [_CALL],
    },
    {"role": "tool", "tool_call_id": "call_1", "name": "look", "content": "three lines"},
    {"role": "assistant", "content": "Three lines."},
]


async def _check_fidelity(findings: Findings, context: Any, name: str) -> None:
    await context.clear()
    for message in copy.deepcopy(_MESSAGES):
        await context.add_message(message)
    added = await context.get_messages()
    await context.set_messages(copy.deepcopy(_MESSAGES))
    replaced = await context.get_messages()
    if not _same(added):
        message = "messages do not come back as they were added"
    elif not _same(replaced):
        message = "messages do not come back as set_messages() was given them"
    else:
        findings.good(name, "messages come back as they went in")
        return
    advice = "store each message as it comes: blocks whole, thinking with its signature, in order"
    findings.bad(name, message, advice)


def _same(found: Any) -> bool:
    """Whether the messages are all there, in order and unchanged; a context may add to them."""
    return (
        isinstance(found, list)
        and len(found) == len(_MESSAGES)
        and all(
            isinstance(message, dict) and {**message, **wanted} == message
            for message, wanted in zip(found, _MESSAGES, strict=True)
        )
    )


async def _check_view(findings: Findings, context: Any, name: str) -> None:
    """A conversation that is too long: the view of it has whole pairs, the rest stays."""
    await context.clear()
    for number in range(40):
        call = {**_CALL, "id": f"call_{number}"}
        await context.add_message({"role": "user", "content": f"Question {number}. " + "x" * 400})
        await context.add_message({"role": "assistant", "content": None, "tool_calls": [call]})
        await context.add_message(
            {"role": "tool", "tool_call_id": call["id"], "content": "y" * 400}
        )
    before = copy.deepcopy(await context.get_messages())
    view = await context.get_messages_for_request(token_budget=2_000)
    called = [call["id"] for message in view for call in message.get("tool_calls") or ()]
    answered = [m["tool_call_id"] for m in view if m.get("role") == "tool"]
    if await context.get_messages() != before:
        message, advice = (
            "making a view that fits the budget changed what is stored",
            "compact a copy; what is stored stays",
        )
    elif sorted(called) != sorted(answered):
        message, advice = (
            "a view that fits the budget has calls without results, or results without calls",
            "keep an assistant's tool calls and their results together, or drop them together",
        )
    elif len(view) >= len(before):
        message, advice = (
            "token_budget makes no difference: the view has everything",
            "leave out the oldest turns until the rest fits",
        )
    else:
        findings.good(name, "a view that fits keeps pairs whole, and what is stored stays")
        return
    findings.bad(name, message, advice, "warning" if "no difference" in message else "error")


# -- providers ---------------------------------------------------------------------------


async def _check_parsing(findings: Findings, provider: Any, name: str) -> None:
    calls = [ToolCall(id=f"call_{n}", name=tool, arguments={}) for n, tool in enumerate("ab")]
    blocks = [ToolCallBlock(id=call.id, name=call.name, input={}) for call in calls]
    parsed = provider.parse_tool_calls(ChatResponse(content=list(blocks), tool_calls=calls))
    if [getattr(call, "name", None) for call in parsed] == ["a", "b"]:
        findings.good(name, "tool calls are found, in their order")
    else:
        message = "parse_tool_calls() does not give the calls of a response in their order"
        findings.bad(name, message, "return list(response.tool_calls or ())")


async def _check_window(findings: Findings, provider: Any, name: str) -> None:
    defaults = provider.get_info().defaults or {}
    wanted = ("context_window", "max_output_tokens")
    lacking = [key for key in wanted if not isinstance(defaults.get(key), int)]
    if lacking:
        message = f"the defaults of get_info() lack {' and '.join(lacking)}"
        advice = "give them, in tokens: contexts compute from them how much fits into a request"
        findings.bad(name, message, advice, "warning")
    else:
        findings.good(name, "contexts can tell how much fits into a request")


_Promise = Callable[["Findings", Any, str], Awaitable[None]]

_PROMISES: dict[str, dict[str, _Promise]] = {
    "orchestrator": {"tool_calls": _check_tool_calls, "orchestrator:complete": _check_completion},
    "context": {"fidelity": _check_fidelity, "view": _check_view},
    "provider": {"parses_tool_calls": _check_parsing, "window": _check_window},
}
