"""Check a module's behaviour in the child process: the kernel's suite of its kind, then further promises.

Published modules inherit the suites in their own tests, so checks of what the contracts promise beyond them
are here.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import amplifier_core
from amplifier_core.hooks import ToolResultData, plain
from amplifier_core.message_models import ChatResponse, TextBlock, ToolCall, ToolCallBlock
from amplifier_core.models import HookResult, ToolResult
from amplifier_core.module_checks import KINDS
from amplifier_core.session import accepts_keyword
from amplifier_kit.testing import (
    EventRecorder,
    MockContextManager,
    MockCoordinator,
    MockProvider,
    MockTool,
)
from amplifier_kit.validation.advice import ANY_CLEANUP, SUITE
from amplifier_kit.validation.contract import import_package
from amplifier_kit.validation.validators import FOREIGN_ERRORS, find_instances, run_cleanup

if TYPE_CHECKING:
    from amplifier_kit.validation.isolation import Findings, Request


async def _check_promises(findings: Findings, mount: Callable[..., Awaitable[Any]]) -> None:
    """Mount the module, check the promises of its kind, and clean up."""
    kind = str(findings.request.kind)
    findings.say(stage="mount")
    coordinator = MockCoordinator()
    handlers = _record_registrations(coordinator)
    returned = await mount(coordinator, dict(findings.request.config))
    if kind == "hook":
        await _check_handlers(findings, handlers)
    for _, instance in find_instances(KINDS[kind], coordinator, returned)[:1]:
        for name, check in _PROMISES.get(kind, {}).items():
            findings.say(stage=name)
            try:
                await check(findings, instance, name)
            except FOREIGN_ERRORS as error:
                message = f"it raised {findings.describe(error)}"
                advice = f"see contracts/{kind}.md of amplifier_core for what it can rely on"
                findings.bad(name, message, advice)
    findings.say(stage="cleanup")
    await run_cleanup(returned)
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
_RESULT = ToolResultData.of(ToolResult(output="three lines"))
_RESPONSE = plain(ChatResponse(content=[TextBlock(text="Hello.")]))
_DATA: dict[str, dict[str, Any]] = {
    "prompt:submit": {"prompt": "Say hello."},
    "prompt:complete": {"prompt": "Say hello.", "response": "Hello."},
    "provider:request": {**_PROVIDER, "messages": [{"role": "user", "content": "Say hello."}]},
    "provider:response": {**_PROVIDER, "response": _RESPONSE, "usage": {"input_tokens": 1}},
    "provider:error": {**_PROVIDER, **_ERROR},
    "tool:pre": _TOOL,
    "tool:post": {**_TOOL, "tool_result": _RESULT, "result": _RESULT, "duration_ms": 1.0},
    "tool:error": {**_TOOL, **_ERROR},
    "orchestrator:complete": {"orchestrator": "loop", "turn_count": 1, "status": "success"},
    "session:end": {"status": "completed"},
}
"""The data of an event in addition to the ids; events not listed have none."""


def _record_registrations(coordinator: MockCoordinator) -> list[tuple[str, Any]]:
    """A list that receives the event and handler of every registration from now on."""
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
    """Call each handler with its event's data; the registry itself would skip errors."""
    if not handlers:
        advice = "register one, or pass the --config with which it does"
        findings.bad("handlers", "it registers no handlers", advice, "warning")
        return
    faults: list[str] = []
    without_effect: list[str] = []
    for event, handler in handlers:
        findings.say(stage=f"its handler for {event}")
        try:
            answer = handler(event, copy.deepcopy({**_COMMON, **_DATA.get(event, {})}))
            if inspect.isawaitable(answer):
                answer = await answer
            if isinstance(answer, dict):
                answer = HookResult.model_validate(answer)
        except FOREIGN_ERRORS as error:
            faults.append(f"on {event} it raised {findings.describe(error)}")
            continue
        if isinstance(answer, HookResult):
            without_effect += [f"on {event} it returned {what}" for what in _ignored(answer)]
        elif answer is not None:
            faults.append(f"on {event} it returned {type(answer).__name__}, not a HookResult")
    if without_effect:
        message = "; ".join(list(dict.fromkeys(without_effect))[:3])
        findings.bad("hook_results", message, "see contracts/hook.md of amplifier_core", "warning")
    if faults:
        message = "; ".join(list(dict.fromkeys(faults))[:3])
        advice = (
            'read data with .get(…), and return HookResult(action="continue"): a handler that raises '
            "is skipped, and one that returns anything but a HookResult, a dict of its fields or "
            "None denies the event"
        )
        findings.bad("handlers", message, advice)
    else:
        events = {event for event, _ in handlers}
        findings.good("handlers", f"handle {len(events)} events as the contract requires")


def _ignored(result: HookResult) -> list[str]:
    """Parts of a result that have no effect."""
    parts: list[str] = []
    if result.action == "modify" and result.data is None:
        parts.append("'modify' without data, which changes nothing")
    if result.action == "inject_context" and not result.context_injection:
        parts.append("'inject_context' without context_injection, which adds nothing")
    if result.user_message and result.action not in ("deny", "inject_context"):
        parts.append(f"a user_message with {result.action!r}, which is not shown")
    return parts


# -- orchestrators -----------------------------------------------------------------------


async def _check_tool_calls(findings: Findings, loop: Any, name: str) -> None:
    """Run a turn in which the model calls an existing and an unknown tool."""
    context, tool = MockContextManager(), MockTool("look", output="three lines")
    calls = [ToolCall(id="call_1", name="look", arguments={"at": "notes"})]
    calls.append(ToolCall(id="call_2", name="gone", arguments={}))
    answer = await loop.execute(
        prompt="How long are the notes?",
        context=context,
        providers={"mock": _calling_provider(calls, "Three lines.")},
        tools={"look": tool},
        hooks=EventRecorder(),
    )
    answered = [_find_call_id(message) for message in context.messages]
    missing = [call.id for call in calls if call.id not in answered]
    if tool.last_input is None:
        message = "a tool that the model called was not executed"
    elif missing:
        message = f"{len(missing)} of 2 tool calls got no result in the context"
    elif not isinstance(answer, str) or "Three lines." not in answer:
        message = f"after tool calls it returned {answer!r} instead of the model's last answer"
    else:
        findings.good(name, "runs tools and answers every call")
        return
    advice = (
        "for each call run the tool, or give the reason why not, in a message of role 'tool' with "
        "its tool_call_id; then call the provider again"
    )
    findings.bad(name, message, advice, "warning")


def _calling_provider(calls: list[ToolCall], answer: str) -> MockProvider:
    """A provider that makes calls in its first response, and then answers."""
    provider = MockProvider(text=answer)
    provider.complete.side_effect = [_to_response(calls), *[provider.complete.return_value] * 9]
    return provider


def _to_response(calls: list[ToolCall]) -> ChatResponse:
    blocks = [ToolCallBlock(id=call.id, name=call.name, input=call.arguments) for call in calls]
    return ChatResponse(content=list(blocks), tool_calls=calls, finish_reason="tool_calls")


async def _check_injections(findings: Findings, loop: Any, name: str) -> None:
    """Run a turn in which a hook injects text after each of two tool calls."""
    coordinator, context = MockCoordinator(), MockContextManager()
    await coordinator.mount("context", context)
    text = HookResult(action="inject_context", context_injection="Be brief.")
    for event in ("tool:pre", "tool:post"):
        coordinator.hooks.register(event, lambda event, data: text)
    calls = [ToolCall(id=f"call_{n}", name="look", arguments={}) for n in (1, 2)]
    more = {"coordinator": coordinator} if accepts_keyword(loop.execute, "coordinator") else {}
    await loop.execute(
        prompt="Look twice.",
        context=context,
        providers={"mock": _calling_provider(calls, "Done.")},
        tools={"look": MockTool("look", output="three lines")},
        hooks=coordinator.hooks,
        **more,
    )
    kinds = [_find_call_id(message) or message.get("role") for message in context.messages]
    results = [at for at, kind in enumerate(kinds) if str(kind).startswith("call_")]
    if not results or results == [kinds.index("assistant") + 1 + at for at in range(len(results))]:
        findings.good(name, "text injected by hooks does not separate calls from their results")
        return
    message = "text that a hook injected on a tool event is stored between a call and its result"
    advice = "keep the results of emit() for tool events, and process them after the last result"
    findings.bad(name, message, advice, "warning")


def _find_call_id(message: dict[str, Any]) -> Any:
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
    keys = {"orchestrator", "turn_count", "status"}
    emitted = recorder.get_events(name)
    missing = sorted(keys - emitted[-1][1].keys()) if emitted else sorted(keys)
    if emitted and not missing:
        findings.good(name, "emitted at the end of a turn")
        return
    message = (
        f"the event is missing {', '.join(missing)}" if emitted else "the event is not emitted"
    )
    advice = (
        f'await hooks.emit("{name}", {{"orchestrator": …, "turn_count": …, "status": "success", '
        '"incomplete" or "error"}) however a turn ends'
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
        message = "messages are not returned as they were added"
    elif not _same(replaced):
        message = "messages are not returned as they were passed to set_messages()"
    else:
        findings.good(name, "returns messages as they were added")
        return
    advice = "store each message unchanged and in order: whole blocks, thinking with its signature"
    findings.bad(name, message, advice)


def _same(messages: Any) -> bool:
    """Return True if all messages are returned in order and unchanged; additional keys are allowed."""
    return (
        isinstance(messages, list)
        and len(messages) == len(_MESSAGES)
        and all(
            isinstance(message, dict) and {**message, **original} == message
            for message, original in zip(messages, _MESSAGES, strict=True)
        )
    )


async def _check_view(findings: Findings, context: Any, name: str) -> None:
    """Check the view of a conversation that is too long: pairs stay whole, the store unchanged."""
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
            "building a view within the budget changed the stored messages",
            "compact a copy, not the stored messages",
        )
    elif sorted(called) != sorted(answered):
        message, advice = (
            "a view within the budget has calls without results, or results without calls",
            "keep an assistant's tool calls and their results together, or drop them together",
        )
    elif len(view) >= len(before):
        message, advice = (
            "token_budget makes no difference: the view contains everything",
            "leave out the oldest turns until the rest fits",
        )
    else:
        findings.good(name, "a view within the budget keeps pairs whole and the store unchanged")
        return
    findings.bad(name, message, advice, "warning" if "no difference" in message else "error")


# -- providers ---------------------------------------------------------------------------


async def _check_parsing(findings: Findings, provider: Any, name: str) -> None:
    calls = [ToolCall(id=f"call_{n}", name=tool, arguments={}) for n, tool in enumerate("ab")]
    parsed = provider.parse_tool_calls(_to_response(calls))
    if [getattr(call, "name", None) for call in parsed] == ["a", "b"]:
        findings.good(name, "returns tool calls in order")
    else:
        message = "parse_tool_calls() does not return the calls of a response in order"
        findings.bad(name, message, "return list(response.tool_calls or ())")


async def _check_window(findings: Findings, provider: Any, name: str) -> None:
    defaults = provider.get_info().defaults or {}
    keys = ("context_window", "max_output_tokens")
    missing = [key for key in keys if not isinstance(defaults.get(key), int)]
    if missing:
        message = f"{' and '.join(missing)} missing in the defaults of get_info()"
        advice = "add them, in tokens: contexts use them to compute how much fits into a request"
        findings.bad(name, message, advice, "warning")
    else:
        findings.good(name, "get_info() has the limits that contexts need")


_Promise = Callable[["Findings", Any, str], Awaitable[None]]

_PROMISES: dict[str, dict[str, _Promise]] = {
    "orchestrator": {
        "tool_calls": _check_tool_calls,
        "injections": _check_injections,
        "orchestrator:complete": _check_completion,
    },
    "context": {"fidelity": _check_fidelity, "view": _check_view},
    "provider": {"parses_tool_calls": _check_parsing, "window": _check_window},
}


_PREFIX = "test_"


def check_behaviour(findings: Findings) -> None:
    """Run the suite of the module's kind, then the checks of `promises`."""
    path = list(sys.path)
    _run_suite(findings)
    # The module may have changed it.
    sys.path[:] = path
    if not findings.failed:
        target, _, attribute = (findings.request.entry_point or "").partition(":")
        package = import_package(target or Path(findings.request.package))
        asyncio.run(_check_promises(findings, getattr(package, attribute or "mount")))


def _run_suite(findings: Findings) -> None:
    # The environment's plugins must not affect the result.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    request = findings.request
    kind = str(request.kind)
    suite = Path(amplifier_core.__file__).parent / "validation" / "behavioral.py"
    recorder = _Recorder(findings)
    plugins = ["pytest_asyncio.plugin", "amplifier_kit.pytest_plugins.module_fixtures"]
    plugins += ["no:cacheprovider", "no:terminal", "no:faulthandler"]
    code = int(
        pytest.main(
            [
                *(part for name in plugins for part in ("-p", name)),
                # The suite's own messages are enough, and rewriting it would take longer than running it.
                "--assert=plain",
                # Not captured: the supervisor reads the module's output, however much it is.
                *("-s", "-c", os.devnull, "--rootdir", str(Path.cwd())),
                *("-o", "python_classes=*Tests"),
                *("-o", "asyncio_default_fixture_loop_scope=function"),
                *("--module-path", str(_importable(request)), "--module-type", kind),
                *("--module-config", json.dumps(request.config)),
                f"{suite}::{kind.capitalize()}BehaviorTests",
            ],
            plugins=[recorder],
        )
    )
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        findings.bad(
            "behavior",
            f"the suite was aborted: {recorder.problem or pytest.ExitCode(code).name}",
            "do not raise KeyboardInterrupt; do not replace or close sys.stdout, the event loop or "
            "other shared objects",
        )


def _importable(request: Request) -> Path:
    """Return the import path for the suite's fixtures: the package, or a file that imports its
    `mount`.
    """
    target, _, attribute = (request.entry_point or "").partition(":")
    if "." not in target and attribute in ("", "mount"):
        return Path(request.package)
    shim = Path.cwd() / "module_under_test.py"
    shim.write_text(f"from {target} import {attribute} as mount\n", encoding="utf-8")
    return shim


class _Recorder:
    """Reports each test as a finding when it ends."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._ended: set[str] = set()
        self._around: set[tuple[str, str]] = set()
        self.problem = ""

    def pytest_configure(self, config: pytest.Config) -> None:
        # Its tracebacks are not shown, and the other styles search all modules for their sources.
        config.option.tbstyle = "native"

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._findings.say(stage=_name(nodeid))

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        name = _name(item.nodeid)
        error = None if call.excinfo is None else call.excinfo.value
        if error is None:
            if call.when == "call":
                self._findings.good(name, "follows the contract")
            return
        if name in self._ended:
            return
        self._ended.add(name)
        kind = type(error).__name__
        if kind == "Skipped":
            message = f"not checked: {error}"
            self._findings.bad(name, message, "provide what this check needs", "info")
            return
        message = _own_message(error) if kind in ("AssertionError", "Failed") else ""
        message = message or self._findings.describe(error)
        if call.when == "call":
            self._findings.bad(name, message, SUITE.get(name, SUITE["mount_succeeds"]))
        else:
            self._report_once(call.when == "setup", message)

    def _report_once(self, in_mount: bool, message: str) -> None:
        """Report what failed around a test; it fails in the same way around every other one."""
        name, advice = ("mount_succeeds", SUITE["mount_succeeds"])
        if not in_mount:
            name, advice = "cleanup", ANY_CLEANUP
            message = f"the cleanup raised {message}"
        if (name, message) not in self._around:
            self._around.add((name, message))
            self._findings.bad(name, message, advice)

    def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
        self.problem = self._findings.describe(excinfo.value)

    def pytest_internalerror(self, excrepr: Any, excinfo: Any) -> bool:
        self.problem = self._findings.describe(excinfo.value)
        return True

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.problem = str(report.longrepr)


def _name(nodeid: str) -> str:
    return nodeid.rpartition("::")[2].removeprefix(_PREFIX)


def _own_message(error: BaseException) -> str:
    """The message of an assertion, without the comparison that pytest appends."""
    text = str(error)
    return text.partition("\nassert ")[0].strip()
