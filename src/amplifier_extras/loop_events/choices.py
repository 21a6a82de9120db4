"""Choices by handlers for each request and each tool call: provider, tools, the tool that runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from amplifier_core.llm_errors import ConfigurationError
from amplifier_core.models import ToolResult
from amplifier_extras.loop_events.config import Step
from amplifier_modules._shared.loop.calls import Call
from amplifier_modules._shared.loop.channel import Channel
from amplifier_modules._shared.loop.exchange import Exchanges, Reply
from amplifier_modules._shared.loop.runner import Runner
from amplifier_modules._shared.loop.schema import input_schema
from amplifier_modules._shared.module.spans import Span
from amplifier_support.provider_order import model_of

PROVIDER_RESOLVE = "provider:resolve"
TOOLS_OFFER = "tools:offer"
TOOL_SELECTING = "tool:selecting"
TOOL_SELECTED = "tool:selected"
CHOICE_EVENTS = (TOOLS_OFFER, TOOL_SELECTING, TOOL_SELECTED)
"""Events of choices in addition to `provider:resolve`, which the kernel defines."""


class RewrittenTool:
    """A mounted tool as a handler presents it to the model.

    Attributes:
        mounted: Name of the tool that runs.
    """

    def __init__(
        self, name: str, mounted: str, tool: Any, description: str, parameters: dict[str, Any]
    ) -> None:
        self.name = name
        self.mounted = mounted
        self.description = description
        self.input_schema = parameters
        self.execute = tool.execute


class ChosenExchanges(Exchanges):
    """Provider calls for which handlers choose the provider, the model and the tools.

    Attributes:
        step: The current step.
        runner: Runs only the tools that are offered.
    """

    step: Step
    runner: Runner
    _planning = False

    async def plan(self, instruction: str, span: Span) -> Reply:
        """Request steps without tools; the answer is neither shown nor stored."""
        ask = self._ask
        self._planning, self._ask = True, _quietly
        self._channel.append_note(instruction)
        try:
            return await self.make(span)
        finally:
            self._planning, self._ask = False, ask

    def _form(
        self, name: str, provider: Any, model: str | None, *, has_tools: bool
    ) -> dict[str, Any]:
        # The answer of a step need not have the form of the last one.
        return {}

    async def _choose(self, span: Span) -> tuple[str, str | None]:
        name, wanted = await super()._choose(span)
        step = self.step
        if step.provider is not None:
            self._check_provider(step.provider, f"step '{step.name}'")
            name, wanted = step.provider, wanted if step.provider == name else None
        wanted = step.model or wanted
        model = wanted or model_of(self._providers[name])
        data = {"provider": name, "model": model, "providers": list(self._providers)}
        final = await self._channel.step(
            PROVIDER_RESOLVE, {**data, "step": step.name, **span.fields}
        )
        chosen, asked = final.get("provider", name), final.get("model", model)
        if chosen != name:
            self._check_provider(chosen, f"a handler of {PROVIDER_RESOLVE}")
            # The model belongs to the original provider, unless the handler chose it.
            wanted = None
        if isinstance(asked, str) and asked != model:
            wanted = asked
        return chosen, wanted

    def _check_provider(self, name: Any, who: str) -> None:
        if not isinstance(name, str) or name not in self._providers:
            mounted = ", ".join(self._providers)
            raise ConfigurationError(
                f"{who} chose the provider '{name}', which is not mounted; "
                f"mounted providers: {mounted}"
            )

    async def _offer_tools(self, name: str, span: Span) -> Mapping[str, Any]:
        if self._planning:
            return {}
        tools = await super()._offer_tools(name, span)
        step = self.step
        if step.tools is not None:
            for wanted in step.tools:
                _check_tool(wanted, tools, f"step '{step.name}'")
            tools = {name: tool for name, tool in tools.items() if name in step.tools}
        tools = {name: t for name, t in tools.items() if self._checker.schema(t, name) is not None}
        offer = [_described(name, tool) for name, tool in tools.items()]
        final = await self._channel.step(
            TOOLS_OFFER, {"tools": offer, "provider": name, "step": step.name, **span.fields}
        )
        changed = final.get("tools")
        if isinstance(changed, list) and changed != offer:
            tools = self._rewritten(cast("list[Any]", changed))
        self.runner.tools = tools
        return tools

    def _rewritten(self, offer: list[Any]) -> dict[str, Any]:
        """The tools of an offer that a handler has changed, by the name the model sees."""
        who = f"a handler of {TOOLS_OFFER}"
        tools: dict[str, Any] = {}
        for entry in offer:
            entry = {"name": entry} if isinstance(entry, str) else entry
            if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
                raise ConfigurationError(f"{who} left a tool without a name: {str(entry)[:200]}")
            entry = cast("Mapping[str, Any]", entry)
            name, mounted = entry["name"], entry.get("tool", entry["name"])
            _check_tool(mounted, self._tools, who)
            tool = self._tools[mounted]
            plain = _described(mounted, tool)
            offered = {key: entry.get(key, plain[key]) for key in plain}
            if offered == plain:
                tools[name] = tool
                continue
            before = self.runner.tools.get(name)
            again = RewrittenTool(
                name, mounted, tool, offered["description"], offered["parameters"]
            )
            # Reuse the tool of the last request if unchanged: its schema is already compiled.
            tools[name] = before if _same(before, again) else again
        return tools


class ChoosingRunner(Runner):
    """Tool calls that handlers may block or redirect to another tool."""

    async def _tool_for(self, call: Call, data: dict[str, Any]) -> Any:
        tool = await super()._tool_for(call, data)
        if isinstance(tool, ToolResult):
            return tool
        offered = list(self.tools)
        about = {**data, "available_tools": offered}
        denied, final = await self._channel.ask(TOOL_SELECTING, about, hold=True)
        if denied is not None:
            return await self._refuse(data, "Denied", f"denied: {denied}")
        called = data["tool_name"]
        names = (final.get("tool"), final.get("tool_name"), called)
        selected = next(name for name in names if isinstance(name, str))
        if selected != called:
            tool = self.tools.get(selected)
        if tool is None:
            message = f"a handler chose the tool '{selected}', which is not offered: {offered}"
            return await self._refuse(data, "UnknownTool", message)
        # Policies use the name of the tool that runs, whatever name the model used.
        mounted = tool.mounted if isinstance(tool, RewrittenTool) else selected
        data |= {"tool_name": mounted, "called_as": call.name}
        by_handler = selected != called
        selection = {
            "tool": mounted,
            "source": "scheduler" if by_handler else "llm",
            "original_tool": call.name if by_handler else None,
        }
        await self._channel.ask(TOOL_SELECTED, {**data, **selection}, hold=True)
        return tool


async def _quietly(provider: Any, request: Any, channel: Channel, span: Span) -> Any:
    return await provider.complete(request)


def _described(name: str, tool: Any) -> dict[str, Any]:
    return {
        "name": name,
        "description": str(getattr(tool, "description", "") or ""),
        "parameters": input_schema(tool) or {"type": "object", "properties": {}},
    }


def _check_tool(name: Any, tools: Mapping[str, Any], who: str) -> None:
    if not isinstance(name, str) or name not in tools:
        mounted = ", ".join(tools) or "none"
        raise ConfigurationError(f"{who} names the tool '{name}', which is not mounted: {mounted}")


def _same(before: Any, again: RewrittenTool) -> bool:
    return isinstance(before, RewrittenTool) and all(
        getattr(before, field) == getattr(again, field)
        for field in ("mounted", "description", "input_schema", "execute")
    )
