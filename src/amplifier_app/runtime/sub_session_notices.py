"""What is shown of a sub-session: what it does at the moment, and what a person has to know."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from amplifier_app.runtime import describe
from amplifier_app.runtime.lineage import Lineage
from amplifier_app.runtime.notices import notice_handlers
from amplifier_app.runtime.observer import Level, Renderer, SubSessionFacts
from amplifier_app.runtime.turn import EventHandler, SubSession


class SubSessionRenderer(Renderer):
    """Tells the renderer of the parent; the sub-session's own text and results are for its parent.

    Args:
        above: The renderer of the session that gave the task.
        lineage: Of the sub-session.
        session_id: Its id.
    """

    def __init__(self, above: Renderer, lineage: Lineage, session_id: str) -> None:
        super().__init__()
        self._above = above
        self.retries, self.longest_note = above.retries, above.longest_note
        self._lineage = lineage
        self._id = session_id

    def began(self, instruction: str, *, resumed: bool) -> None:
        """Its modules are mounted and it gets its task."""
        facts = SubSessionFacts(
            session_id=self._id,
            parent_id=self._lineage.parent_id,
            agent=self._lineage.agent,
            depth=self._lineage.depth,
            resumed=resumed,
            instruction=instruction,
        )
        self._above.sub_session_started(facts)

    def ended(self, ended: SubSession) -> None:
        """Its turn is over, whatever way."""
        self._above.sub_session_ended(ended)

    def handlers(self) -> dict[str, EventHandler]:
        return {
            **notice_handlers(self),
            "provider:request": self._on_request,
            "tool:pre": self._on_tool,
        }

    def notice(self, message: str, level: Level, source: str) -> None:
        if source == "session" and level == "info":
            return  # The parent has told the same of itself.
        self._above.notice(f"{self._lineage.agent}: {message}", level, source)

    def paused(self) -> AbstractContextManager[None]:
        return self._above.paused()

    def sub_session_started(self, facts: SubSessionFacts) -> None:
        self._above.sub_session_started(facts)

    def sub_session_doing(self, session_id: str, what: str) -> None:
        self._above.sub_session_doing(session_id, what)

    def sub_session_ended(self, ended: SubSession) -> None:
        self._above.sub_session_ended(ended)

    def _on_request(self, event: str, data: dict[str, Any]) -> None:
        self._above.sub_session_doing(self._id, "")

    def _on_tool(self, event: str, data: dict[str, Any]) -> None:
        what = f"{describe.tool_name(data)} {describe.tool_input(data)}".strip()
        self._above.sub_session_doing(self._id, what)
