"""An open session and its saved one: what was said comes back, what is said is kept."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Generator, Mapping
from typing import Any, Literal, TypeAlias

from amplifier_app.plan import ResolvedPlan
from amplifier_app.runtime.foreign_faults import messages_of
from amplifier_app.sessions.recording_context import (
    RecordingContext,
    answers_to_interrupted,
    not_in,
)
from amplifier_app.sessions.store import SavedSession, SessionStore
from amplifier_support.usage import add_counts

Remark: TypeAlias = tuple[Literal["info", "warning"], str]
"""How much it matters, and a sentence."""


@contextlib.contextmanager
def saved_session(
    plan: ResolvedPlan,
    session_id: str | None,
    resume: str | None,
    save: bool,
    metadata: Mapping[str, Any],
) -> Generator[SavedSession | None]:
    """The saved session to go on with, or a new one; None with ``save=False``.

    Raises:
        SessionError: It is unknown, taken, locked or damaged.
    """
    if resume is not None:
        saved = SessionStore().open(resume)
    elif save:
        saved = SessionStore().create(
            session_id,
            project=os.getcwd(),
            plan_yaml=plan.to_yaml(),
            profile=plan.name,
            **metadata,
        )
    else:
        yield None
        return
    try:
        yield saved
    finally:
        saved.close()


class Keeper:
    """Keeps one conversation in its saved session.

    Args:
        saved: Where; its folder belongs to the session alone.
        resumed: Whether an earlier conversation goes on.

    Attributes:
        touched: Whether there is something to resume.
    """

    def __init__(self, saved: SavedSession, *, resumed: bool) -> None:
        self.saved = saved
        self.touched = resumed
        self._owed: list[dict[str, Any]] = []
        self._resumed = resumed

    async def restore(self, coordinator: Any) -> list[Remark]:
        """Give the context what was said, and stand in front of it from now on.

        A context with a file of its own may know better, and then what it holds counts. The
        transcript follows with the next thing that is said.

        Returns:
            What a person should know of that.
        """
        context = coordinator.get("context")
        messages = self.saved.messages()
        if messages:
            await context.set_messages(messages)
        held = await messages_of(coordinator.session)
        self._owed = not_in(messages, held)
        recording = RecordingContext(context, self._record)
        await coordinator.mount("context", recording)
        for answer in answers_to_interrupted(held):
            await recording.add_message(answer)
        return self._remarks()

    def _record(self, record: dict[str, Any]) -> None:
        while self._owed:
            self.saved.append(self._owed[0])
            self._owed.pop(0)
        self.saved.append(record)
        self.touched = True

    def _remarks(self) -> list[Remark]:
        remarks: list[Remark] = []
        if self.saved.repaired:
            torn = f"({self.saved.repaired} bytes)"
            text = f"the last record of the session was torn and is left out {torn}"
            remarks.append(("warning", text))
        project = self.saved.metadata.get("project")
        if self._resumed and project and project != os.getcwd():
            text = f"the session was started in {project}; its tools now work in {os.getcwd()}"
            remarks.append(("info", text))
        return remarks

    def note_spent(self, spent: Mapping[str, Any]) -> None:
        """Keep what the session has used of its budget.

        Raises:
            SessionError: The disk refused.
        """
        if self.touched:
            self.saved.update(spent=dict(spent))

    def note_turn(self, title: str, usage: Mapping[str, int], **facts: Any) -> None:
        """Count a turn in the session's metadata; a first one gives it its title.

        Raises:
            SessionError: The disk refused.
        """
        if not self.touched or self.saved.is_empty:
            return
        before: dict[str, Any] = dict(self.saved.metadata)
        tokens: dict[str, int] = dict(before.get("usage") or {})
        add_counts(tokens, usage)
        self.saved.update(
            title=before.get("title") or title,
            turns=(before.get("turns") or 0) + 1,
            usage=tokens,
            **facts,
        )

    def end(self) -> None:
        """A session that never began leaves nothing behind."""
        if not self.touched:
            shutil.rmtree(self.saved.path, ignore_errors=True)
