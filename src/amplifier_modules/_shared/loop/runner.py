"""Run one tool call: check its input, ask the hooks, execute, ask the hooks again.

Every call emits `tool:pre` and then `tool:post` or `tool:error`. A call that cannot or may not run emits
`tool:error`, alone or after `tool:pre`.

A tool is offered under the name it is mounted as. If vendors reject that name, the tool's own `name`
is used, or else the mount name in characters that vendors accept. The model may also call a tool by
its own `name` if that is unambiguous.

Published tools with the same purpose name the same parameter differently, and a guard reads the name
its author knew. A tool declares alternative names as `input_aliases`, a mapping from alias to
parameter: hooks then see the value under every name, and the tool receives it under its own.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Mapping
from typing import Any, cast

from amplifier_core._foreign import describe_exception
from amplifier_core.cancellation import await_result, is_failure, task_cancel_count
from amplifier_core.hooks import ToolResultData
from amplifier_core.message_models import ToolSpec
from amplifier_core.models import ToolResult
from amplifier_modules._shared.history.values import TOOL_SEARCH, portable_id
from amplifier_modules._shared.loop.parts import TurnParts
from amplifier_modules._shared.loop.replies import Call
from amplifier_modules._shared.loop.results import (
    apply_hook_changes,
    as_result,
    duplicate_result,
    failure,
    find_fault,
)
from amplifier_modules._shared.loop.schema import InputChecker
from amplifier_modules._shared.module.spans import Span
from amplifier_modules._shared.module.tools import InvalidInput
from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple

logger = logging.getLogger(__name__)


def offered_tools(provider: Any, tools: Mapping[str, Any], checker: InputChecker) -> list[ToolSpec]:
    """The tools to offer as `ToolSpec`s; none to a provider that does not support tools."""
    if not tools or not getattr(provider, "supports_tools", True):
        return []
    names = _offered_names(tools)
    specs: list[ToolSpec] = []
    for mounted, tool in tools.items():
        schema = checker.schema(tool, mounted)
        if schema is not None:
            spec = ToolSpec.model_construct(
                name=names[mounted],
                description=str(getattr(tool, "description", "") or ""),
                parameters=schema or {"type": "object", "properties": {}},
            )
            specs.append(spec)
    return specs


def _offered_names(tools: Mapping[str, Any]) -> dict[str, str]:
    """The unique name each tool is offered under, by the name it is mounted as."""
    legal = {name for name in tools if _is_legal(name)}
    taken = set(legal)
    names = {name: name for name in tools}
    for mounted in tools.keys() - legal:
        own = _own_name(tools[mounted])
        name = base = own if own and _is_legal(own) else portable_id(mounted)
        number = 1
        while name in taken:
            number += 1
            name = f"{base[:60]}_{number}"
        taken.add(name)
        names[mounted] = name
    return names


def _tool_called(name: str, tools: Mapping[str, Any]) -> str | None:
    """The mount name of the tool that a model calls `name`; None if there is no such tool."""
    if name in tools:
        return name
    for mounted, offered in _offered_names(tools).items():
        if offered == name:
            return mounted
    own = [mounted for mounted, tool in tools.items() if _own_name(tool) == name]
    return own[0] if own and all(tools[other] is tools[own[0]] for other in own) else None


def _own_name(tool: Any) -> str | None:
    name = getattr(tool, "name", None)
    return name if isinstance(name, str) else None


def _is_legal(name: str) -> bool:
    return portable_id(name) == name if name else False


def input_aliases(tool: Any) -> Mapping[str, str]:
    """The aliases a tool declares, by alias."""
    return to_mapping(getattr(tool, "input_aliases", None))


def _without_aliases(
    aliases: Mapping[str, str], arguments: dict[str, Any], original: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The input with each parameter under its own name.

    Args:
        aliases: The tool's aliases.
        arguments: The input, with any of the names.
        original: The input as hooks saw it, if `arguments` is their revision of it. A name whose value
            they changed takes precedence over one they left unchanged.

    Raises:
        InvalidInput: Two names of one parameter have different values, both changed.
    """
    if not aliases:
        return arguments
    values = {aliases.get(key, key): value for key, value in arguments.items()}
    changed: dict[str, str] = {}
    for key, value in arguments.items():
        if original is not None and key in original and original[key] == value:
            continue
        name = aliases.get(key, key)
        first = changed.setdefault(name, key)
        if arguments[first] != value:
            raise InvalidInput(
                f"'{first}' and '{key}' are the same parameter, but their values differ; "
                f"give only '{name}'"
            )
        values[name] = value
    return values


def _with_aliases(aliases: Mapping[str, str], arguments: dict[str, Any]) -> dict[str, Any]:
    """The input with each parameter under all of its names."""
    named = {alias: arguments[name] for alias, name in aliases.items() if name in arguments}
    return {**arguments, **named} if named else arguments


_SHOWN = 200
"""Characters of an unknown tool's name to repeat to the model."""

INTERRUPTED = "interrupted (it may have taken effect)"


class Ready(NamedTuple):
    """A call that may run, with its final input and its event data."""

    call: Call
    tool: Any
    arguments: dict[str, Any]
    data: dict[str, Any]
    span: Span


class Runner:
    """Runs single tool calls.

    Attributes:
        tools: Tools by the name the model uses.
        results: The results so far, by call id.
    """

    def __init__(self, parts: TurnParts) -> None:
        self.tools = parts.tools
        self._channel = parts.channel
        self._token = parts.stop_signal
        self._checker = parts.loop.checker
        self._search = parts.loop.tool_search
        self.results: dict[str, ToolResult] = {}
        self._spans: dict[str, Span] = {}
        self._refused: dict[str, ToolResult] = {}

    async def prepare(self, call: Call, parent: Span) -> Ready | ToolResult:
        """Decide whether `call` runs and with what input; returns a result if it does not run."""
        span, data = self._new_call_span(call, parent)
        if call.repeats is not None:
            await self.report(data, "RepeatedCall", f"not run again: {call.repeats} ran before")
            return duplicate_result(self.results.get(call.repeats))
        tool = await self._tool_for(call, data)
        if isinstance(tool, ToolResult):
            return tool
        try:
            if call.problem is not None:
                raise InvalidInput(call.problem)
            aliases = input_aliases(tool)
            arguments = self._fitting(tool, call.name, aliases, call.arguments)
            original = _with_aliases(aliases, arguments)
            data = {**data, "tool_input": original, "input": original}
            denied, final = await self._channel.emit_and_apply("tool:pre", data, hold_results=True)
            if denied is not None:
                return await self._refuse(data, "Denied", f"denied: {denied}")
            changed = _changed(final, ("tool_input", "input"), original)
            if changed is not original:
                data = {**data, "tool_input": changed, "input": changed}
                arguments = self._fitting(tool, call.name, aliases, changed, original)
                changed = _with_aliases(aliases, arguments)
                data = {**data, "tool_input": changed, "input": changed}
        except InvalidInput as error:
            message = f"invalid arguments for tool '{call.name}': {error}"
            return await self._refuse(data, "InvalidArguments", message)
        return Ready(call, tool, arguments, data, span)

    def _fitting(
        self,
        tool: Any,
        name: str,
        aliases: Mapping[str, str],
        values: Any,
        original: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The input for the tool; `original` is what hooks saw, if `values` is their revision of it.

        Raises:
            InvalidInput: It is not an object, does not match the tool's schema, or has two values for
                one parameter.
        """
        if not isinstance(values, dict):
            raise InvalidInput(
                f"a hook replaced the input with {type(values).__name__}, expected an object"
            )
        arguments = _without_aliases(aliases, cast("dict[str, Any]", values), original)
        problem = self._checker.problem(tool, name, arguments)
        if problem is not None:
            raise InvalidInput(problem)
        return arguments

    async def _tool_for(self, call: Call, data: dict[str, Any]) -> Any:
        """The tool to run, or the result if none can run."""
        if call.name == TOOL_SEARCH and self._search.is_offered:
            return self._search
        mounted = _tool_called(call.name, self.tools)
        if mounted is not None:
            if mounted != call.name:
                # Policies use the mount name of a tool, whatever name the model used.
                data |= {"tool_name": mounted, "called_as": call.name}
            return self.tools[mounted]
        known = ", ".join(self.tools) or "none"
        return await self._refuse(
            data, "UnknownTool", f"unknown tool '{call.name[:_SHOWN]}'; available tools: {known}"
        )

    async def refuse(self, call: Call, parent: Span, message: str, kind: str) -> ToolResult:
        """Report a call that is not run, announced or not; returns its result.

        A call that was being refused when the turn was stopped has been reported.
        """
        before = self._refused.get(call.id)
        if before is not None:
            return before
        return await self._refuse(self._new_call_span(call, parent)[1], kind, message)

    def _new_call_span(self, call: Call, parent: Span) -> tuple[Span, dict[str, Any]]:
        """The span of a call and the data of every event about it."""
        span = self._spans.setdefault(call.id, parent.child())
        return span, {
            "tool_name": call.name,
            "tool_call_id": call.id,
            "tool_input": call.arguments,
            "input": call.arguments,
            **span.fields,
        }

    async def execute(self, ready: Ready) -> ToolResult:
        """Run a call; an exception raised by the tool becomes its result."""
        call, data = ready.call, ready.data
        ready.span.enter()
        self._token.register_tool_start(call.id, call.name)
        started, cancels = time.perf_counter(), task_cancel_count()
        try:
            # A copy, so that a tool that modifies its input does not change the record of the call.
            value = await await_result(ready.tool.execute(copy.deepcopy(ready.arguments)))
            fault = find_fault(value)
            if fault is not None:
                message = f"tool '{call.name}' returned {fault}"
                return await self._refuse(data, "InvalidResult", message)
            result = as_result(value)
        # Tools are third-party code: an exception becomes an answer to the model.
        except BaseException as error:
            if not is_failure(error, cancels):
                await self.report(data, "Interrupted", INTERRUPTED)
                raise
            logger.debug("Tool %r raised", call.name, exc_info=True)
            message = f"tool '{call.name}' failed: {describe_exception(error, None)}"
            return await self._refuse(data, type(error).__name__, message)
        finally:
            self._token.register_tool_complete(call.id)
        return await self._review(data, result, (time.perf_counter() - started) * 1000)

    async def _review(
        self, data: dict[str, Any], result: ToolResult, milliseconds: float
    ) -> ToolResult:
        """The result of a tool after hooks."""
        if not self._channel.has_listeners("tool:post"):
            return result
        original = ToolResultData.of(result)
        denied, final = await self._channel.emit_and_apply(
            "tool:post",
            {
                **data,
                "tool_result": original,
                "result": original,
                "duration_ms": round(milliseconds, 1),
            },
            hold_results=True,
        )
        if denied is not None:
            return failure(f"denied: {denied}", "Denied")
        changed = _changed(final, ("tool_result", "result"), original)
        return result if changed is original else apply_hook_changes(result, original, changed)

    async def _refuse(self, data: dict[str, Any], kind: str, message: str) -> ToolResult:
        result = self._refused[data["tool_call_id"]] = failure(message, kind)
        await self.report(data, kind, message)
        return result

    async def report(self, data: dict[str, Any], kind: str, message: str) -> None:
        error = {"type": kind, "message": message}
        await self._channel.emit_and_apply(
            "tool:error", {**data, "error": error}, hold_results=True
        )


def _changed(final: Mapping[str, Any], keys: tuple[str, str], original: Any) -> Any:
    """The value that hooks left under either of two names for the same field."""
    for key in keys:
        value = final.get(key, original)
        if value is not original and value != original:
            return value
    return original
