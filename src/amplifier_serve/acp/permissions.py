"""Questions for approval, asked in the editor."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from amplifier_app.base.json_rpc import Peer, RpcError
from amplifier_core.approval import ToolApproval, ToolApprovalAnswer
from amplifier_serve.acp.updates import Updates, text_block


class Permissions:
    """Asks through `session/request_permission`; an editor that cannot answer denies.

    Args:
        peer: The connection to the editor.
        updates: Has shown the calls that run.
    """

    def __init__(self, peer: Peer, updates: Updates) -> None:
        self._peer = peer
        self._updates = updates
        self._numbers = itertools.count(1)

    async def ask(self, prompt: str, options: list[str], timeout: float | None) -> str | None:
        """Ask a question that is about no tool call; see `amplifier_app.runtime.approvals.Ask`."""
        call = {
            "toolCallId": self._new_id(),
            "title": prompt.partition("\n")[0],
            "kind": "other",
            "status": "pending",
            "content": [{"type": "content", "content": text_block(prompt)}],
        }
        return await self._request(call, options, options, timeout)

    async def ask_about_tool(
        self, about: ToolApproval, agent: str, timeout: float | None
    ) -> ToolApprovalAnswer | None:
        """Ask about a tool call; see `amplifier_app.runtime.approvals.AskAboutTool`."""
        call = self._updates.describe_call(about.tool_name, about.tool_input)
        call |= {"toolCallId": self._id(about), "status": "pending"}
        if agent:
            call["title"] = f"{agent}: {call['title']}"
        notes = [about.reason] if about.reason else []
        if about.is_proposal:
            notes.append(str(about.tool_input.get("proposal", "")))
        if notes:
            content = {"type": "content", "content": text_block("\n\n".join(notes))}
            call["content"] = [*call.get("content", []), content]
        names = [_name(option, about) for option in about.options]
        option = await self._request(call, about.options, names, timeout)
        return None if option is None else ToolApprovalAnswer(option)

    async def _request(
        self, call: dict[str, Any], options: list[str], names: list[str], timeout: float | None
    ) -> str | None:
        """The chosen option; None if the question was cancelled.

        Raises:
            TimeoutError: No answer within the timeout.
        """
        session = self._updates.session
        assert session is not None
        is_approval = any(option.lower().startswith("allow") for option in options)
        listed = [
            {"optionId": str(number), "name": name, "kind": _kind(option, is_approval)}
            for number, (option, name) in enumerate(zip(options, names, strict=True))
        ]
        params = {"sessionId": session.id, "toolCall": call, "options": listed}
        try:
            async with asyncio.timeout(timeout):
                answer = await self._peer.request("session/request_permission", params)
        except RpcError as error:
            self._updates.notice(f"the editor could not ask: {error.message}", "warning", "acp")
            return None
        match answer:
            case {"outcome": {"outcome": "selected", "optionId": str(chosen)}}:
                by_id = {
                    entry["optionId"]: option for entry, option in zip(listed, options, strict=True)
                }
                return by_id.get(chosen)
            case _:
                return None

    def _id(self, about: ToolApproval) -> str:
        """The id of the call in question, or a new one for a call of a sub-agent."""
        arguments = self._updates.redacted_input(about.tool_name, about.tool_input)
        for id, (name, input) in self._updates.running.items():
            if name == about.tool_name and input == arguments:
                return id
        return self._new_id()

    def _new_id(self) -> str:
        return f"question-{next(self._numbers)}"


def _kind(option: str, is_approval: bool = True) -> str:
    words = option.lower()
    if not is_approval:  # each option is an answer, but for the one that gives none
        return "reject_once" if words == "decline" else "allow_once"
    if not words.startswith("allow"):
        return "reject_once"
    is_remembered = "session" in words or "always" in words
    return "allow_always" if is_remembered else "allow_once"


def _name(option: str, about: ToolApproval) -> str:
    """An option with the calls that it allows from now on."""
    if _kind(option) != "allow_always" or not about.ranges:
        return option
    return f"{option}: {about.ranges[about.usual_range]}"
