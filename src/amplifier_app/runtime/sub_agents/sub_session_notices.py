"""Show the activity and the notices of a sub-session on the renderer of its parent."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from amplifier_app.runtime import describe
from amplifier_app.runtime.observers.notices import notice_handlers
from amplifier_app.runtime.observers.observer import Level, Renderer, SubSessionFacts
from amplifier_app.runtime.sub_agents.delegation import Delegation
from amplifier_app.runtime.turns.event_data import (
    EventHandler,
    has_succeeded,
    is_answer,
    peek,
    result_in,
)
from amplifier_app.runtime.turns.turn import SubSession


class SubSessionRenderer(Renderer):
    """Forwards to the renderer of the parent; text and results of the sub-session are not shown.

    Args:
        parent: The renderer of the parent session.
        delegation: The link from the sub-session to its parent.
        session_id: The id of the sub-session.
    """

    def __init__(self, parent: Renderer, delegation: Delegation, session_id: str) -> None:
        super().__init__()
        self._parent = parent
        self.retries, self.longest_note = parent.retries, parent.longest_note
        self.draws_retries = parent.draws_retries
        self._delegation = delegation
        self._id = session_id
        self._seen: set[Any] = set()  # ids of calls that the user has allowed

    def start(self, instruction: str, *, resumed: bool) -> None:
        """Report that the sub-session starts its task."""
        facts = SubSessionFacts(
            session_id=self._id,
            parent_id=self._delegation.parent_id,
            agent=self._delegation.agent,
            depth=self._delegation.depth,
            resumed=resumed,
            instruction=instruction,
        )
        self._parent.sub_session_started(facts)

    def end(self, ended: SubSession) -> None:
        """Report that its turn has ended."""
        self._parent.sub_session_ended(ended)

    def handlers(self) -> dict[str, EventHandler]:
        return {
            **notice_handlers(self),
            "provider:request": self._on_request,
            "provider:retry": self._on_retry,
            "tool:pre": self._on_tool,
            "approval:granted": self._on_approval,
            "tool:post": self._on_tool_end,
        }

    def notice(self, message: str, level: Level, source: str) -> None:
        if source == "session" and level == "info":
            return  # The parent has shown the same notice.
        self._parent.notice(f"{self._delegation.agent}: {message}", level, source)

    def paused(self) -> AbstractContextManager[None]:
        return self._parent.paused()

    def sub_session_started(self, facts: SubSessionFacts) -> None:
        self._parent.sub_session_started(facts)

    def sub_session_doing(self, session_id: str, what: str) -> None:
        self._parent.sub_session_doing(session_id, what)

    def sub_session_retries(self, session_id: str, data: dict[str, Any]) -> None:
        self._parent.sub_session_retries(session_id, data)

    def sub_session_ended(self, ended: SubSession) -> None:
        self._parent.sub_session_ended(ended)

    def sub_session_changed(self, agent: str, data: dict[str, Any], *, was_seen: bool) -> None:
        self._parent.sub_session_changed(agent, data, was_seen=was_seen)

    def _on_request(self, event: str, data: dict[str, Any]) -> None:
        self._parent.sub_session_doing(self._id, "")

    def _on_retry(self, event: str, data: dict[str, Any]) -> None:
        if self.draws_retries:
            self.retries.is_new_event(data)
            self._parent.sub_session_retries(self._id, data)
        else:
            notice_handlers(self)[event](event, data)

    def _on_tool(self, event: str, data: dict[str, Any]) -> None:
        what = f"{describe.tool_name(data)} {describe.tool_input(data)}".strip()
        self._parent.sub_session_doing(self._id, what)

    def _on_approval(self, event: str, data: dict[str, Any]) -> None:
        if is_answer(data):
            self._seen.add(peek(data, "tool_call_id"))

    def _on_tool_end(self, event: str, data: dict[str, Any]) -> None:
        if describe.changed_files(data) and has_succeeded(result_in(data)):
            was_seen = peek(data, "tool_call_id") in self._seen
            self._parent.sub_session_changed(self._delegation.agent, data, was_seen=was_seen)
