"""The saved side of an open session: restore the conversation, then record it.

If a crash interrupted tasks of sub-agents, their calls are answered from the sessions of the sub-agents:
given the task again, another sub-agent would repeat their effects and requests.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Generator, Iterable, Mapping
from typing import Any, Literal, TypeAlias

from amplifier_app.base.errors import SessionError
from amplifier_app.base.redact import redact
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.runtime.module_modes import module_mode_to_save, restore_module_mode
from amplifier_app.runtime.observers.subscriptions import redacted_text
from amplifier_app.runtime.turns.module_faults import read_messages
from amplifier_app.sessions.folder import SavedSession, SessionFolder, make_title
from amplifier_app.sessions.recording_context import (
    RecordingContext,
    answer_at_end,
    answers_to_interrupted,
    not_in,
)
from amplifier_app.sessions.removal import remove_folder
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import short_id
from amplifier_app.sessions.tool_calls import calls_in
from amplifier_core._foreign import describe_exception
from amplifier_support.fields import to_mapping
from amplifier_support.journal import parse
from amplifier_support.session_capabilities import ACCEPTED_TOOLS, REPLICATE
from amplifier_support.working_folder import working_folder

_MOST = 100
"""Far more than run at the same time."""


def note_sub_session(parent: SavedSession, session_id: str) -> None:
    """Record in its parent that a sub-session is about to work on a task.

    Raises:
        SessionError: The parent cannot be written.
    """
    others = [task for task in _noted_tasks(parent) if task != session_id]
    parent.update(sub_sessions=[*others, session_id][-_MOST:])


def _answers_after_a_crash(
    saved: SavedSession, messages: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """`answers_to_interrupted`, but for tasks the answer of the sub-agent, or its session to be continued.

    Args:
        saved: The session, whose last run was interrupted.
        messages: Its conversation.
    """
    answers = answers_to_interrupted(messages)
    if not answers:
        return []
    inputs = {call.id: _input(call.input) for message in messages for call in calls_in(message)}
    for answer in answers:
        values = inputs[answer["tool_call_id"]]
        instruction, named = values.get("instruction"), values.get("session_id")
        if not isinstance(instruction, str) or not instruction.strip():
            continue
        if named:
            # The answer at its end may be to an earlier task.
            result = _task_result(str(named), None)
        else:
            # The others have answered earlier calls, or one of these.
            texts = json.dumps([*messages, *answers], default=str)
            left = (task for task in _noted_tasks(saved) if task not in texts)
            results = (_read_result(task, instruction.strip()) for task in left)
            result = next(filter(None, results), None)
        if result is not None:
            answer["content"] = result
    return answers


def _task_result(session_id: str, answer: str | None) -> str:
    """The result of a task; its answer is None if it is unfinished."""
    if answer is not None:
        return json.dumps({"response": answer, "session_id": session_id})
    return f"Error: the agent was interrupted before it finished; continue with session_id {session_id}"


def _read_result(session_id: str, instruction: str) -> str | None:
    """The result of a task, if it has this instruction, as it is or as a part of a longer one."""
    session = SessionStore().get(session_id)
    if session is None:
        return None
    try:
        messages = session.messages()
    except SessionError:  # It cannot be continued.
        return None
    user_texts = (message.get("content") for message in messages if message.get("role") == "user")
    if not any(isinstance(text, str) and instruction in text for text in user_texts):
        return None
    return _task_result(session_id, answer_at_end(messages))


def _noted_tasks(parent: SavedSession) -> list[str]:
    noted = parent.metadata.get("sub_sessions")
    return [str(task) for task in noted] if isinstance(noted, list) else []


def _input(value: Any) -> Mapping[str, Any]:
    return to_mapping(
        parse(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else value
    )


_MAX_PROMPT = 10_000
"""Characters of a prompt that its title is made from."""

_MAX_TITLE = 1_000
"""Characters of the model's answer that a title is made from."""

_MAX_TITLE_REQUESTS = 3
"""Requests for a title until one is answered, in the whole session."""

Remark: TypeAlias = tuple[Literal["info", "warning"], str]
"""Level and text of a notice."""


@contextlib.contextmanager
def saved_session(
    plan: ResolvedPlan,
    session_id: str | None,
    resume: SessionFolder | None,
    save: bool,
    metadata: Mapping[str, Any],
) -> Generator[SavedSession | None]:
    """Open the saved session to resume, or create one; None with ``save=False``.

    Raises:
        SessionError: The session is in use or damaged, or its id is taken.
    """
    if resume is not None:
        saved = resume.open()
    elif save:
        saved = SessionStore().create(
            session_id,
            project=working_folder(),
            plan_yaml=plan.without_replay().to_yaml(),
            profile=plan.name,
            plan_digest=plan.digest,
            **metadata,
        )
    else:
        yield None
        return
    try:
        yield saved
    finally:
        saved.close()


class SessionRecord:
    """Records one conversation in its saved session.

    Args:
        saved: The saved session, in a folder of its own.
        resumed: Whether the session continues an earlier conversation.

    Attributes:
        is_resumable: Whether the session can be resumed.
    """

    def __init__(self, saved: SavedSession, *, resumed: bool) -> None:
        self.saved = saved
        self.is_resumable = resumed
        self._unrecorded: list[dict[str, Any]] = []
        self._begun: dict[str, Any] = {}
        # A conversation that began without requests for a title has its title from elsewhere.
        self._title_requests: int = (
            saved.metadata.get("title_requests", 0) if saved.steps else _MAX_TITLE_REQUESTS
        )
        self._coordinator: Any = None

    def restore_accepted(self, coordinator: Any) -> None:
        """Give servers what the session has accepted of them: what they have changed since is refused."""
        accepted = ACCEPTED_TOOLS.of(coordinator)
        if accepted is None:
            ACCEPTED_TOOLS.register(coordinator, accepted := {})
        for server, digests in to_mapping(self.saved.metadata.get("accepted_tools")).items():
            accepted.setdefault(server, dict(to_mapping(digests)))

    def _accepted(self) -> dict[str, Any]:
        accepted = self._coordinator and ACCEPTED_TOOLS.of(self._coordinator)
        copy = {server: dict(digests) for server, digests in (accepted or {}).items()}
        return {"accepted_tools": copy} if copy else {}

    async def restore(self, coordinator: Any) -> list[Remark]:
        """Restore the messages of the context and the mode, and record the context from now on.

        A context with its own file may hold other messages, and these take precedence. The
        transcript is completed with the next message.

        Returns:
            Notices for the user.

        Raises:
            SessionError: The context refuses the messages.
        """
        self._coordinator = coordinator
        context = coordinator.get("context")
        messages = self.saved.messages()
        if messages:
            await self._fill(context, messages)
        held = await read_messages(coordinator.session)
        self._unrecorded = not_in(messages, held)
        recording = RecordingContext(context, self._record)
        await coordinator.mount("context", recording)
        for answer in _answers_after_a_crash(self.saved, held):
            await recording.add_message(answer)
        return self._remarks()

    async def _fill(self, context: Any, messages: list[dict[str, Any]]) -> None:
        try:
            await context.set_messages(messages)
        except Exception as error:  # a module, given a file that anyone may have edited
            raise SessionError(
                f"the context cannot take over the messages of session {self.saved.id}: "
                f"{describe_exception(error, None)}",
                hint="Continue with an earlier step: "
                f"amplifier session fork {short_id(self.saved.id)} --at STEP",
            ) from error

    async def _record(self, record: dict[str, Any]) -> None:
        while self._unrecorded:
            self.saved.append(self._unrecorded[0])
            self._unrecorded.pop(0)
        self.saved.append(record)
        self.is_resumable = True
        if self._begun:
            begun, self._begun = self._begun, {}
            self.saved.metadata |= begun
            if "row" not in self.saved.metadata:
                self.saved.update(durable=False, **begun)
        if (replicate := REPLICATE.of(self._coordinator)) is not None:
            await replicate(self.saved.path)

    def _remarks(self) -> list[Remark]:
        remarks: list[Remark] = []
        if self.saved.repaired:
            size = f"({self.saved.repaired} bytes)"
            text = f"the last record of the session was incomplete and is skipped {size}"
            remarks.append(("warning", text))
        missing = restore_module_mode(self._coordinator, self.saved.metadata)
        if missing is not None:
            remarks.append(("warning", missing))
        return remarks

    def save_spent(self, spent: Mapping[str, Any], raised: Mapping[str, float]) -> None:
        """Save how much of its budget the session has used, and the limits that were raised.

        Raises:
            SessionError: The session cannot be written.
        """
        if self.is_resumable:
            budget = {**(self.saved.metadata.get("budget") or {}), **raised}
            changes = {"budget": budget} if budget else {}
            # What a row has used is in the ledger of its batch, too.
            durable = "row" not in self.saved.metadata
            self.saved.update(spent=dict(spent), durable=durable, **changes)

    def begin_prompt(self, prompt: str, *, is_counted: bool) -> None:
        """Count a prompt, and title the session, with its first message: the program may be killed later.

        For a row, which is found by its id, both are saved with its first answer.
        """
        before: dict[str, Any] = self.saved.metadata
        self._begun = {"prompts": (before.get("prompts") or 0) + is_counted, **self._accepted()}
        if not before.get("title"):
            text = redacted_text(self._coordinator, prompt)
            self._begun["title"] = make_title(redact(text[:_MAX_PROMPT]))

    def save_turn(
        self, usage: Mapping[str, int], answered: Iterable[tuple[str, str]], **facts: Any
    ) -> None:
        """Add a turn to the session's metadata.

        Args:
            usage: Tokens of the session.
            answered: Provider and model of each answer, whose prices are named.
            **facts: More metadata.

        Raises:
            SessionError: The session cannot be written.
        """
        if not self.is_resumable or not self.saved.size:
            return
        before: dict[str, Any] = {**self.saved.metadata, **self._begun}
        self._begun = {}
        self.saved.update(
            prompts=before["prompts"],
            turn_count=(before.get("turn_count") or 0) + 1,
            usage=dict(usage),
            **self._price_files(answered),
            **module_mode_to_save(self._coordinator, before),
            **self._accepted(),
            **facts,
            durable=False,
        )

    def begin_title_request(self) -> bool:
        """Count a request for a title; return False if there is to be none."""
        # A name is from the user, or from a module of the plan.
        is_due = self._title_requests > 0 and "name" not in self.saved.metadata
        self._title_requests -= is_due
        return is_due

    def save_title(self, title: str, usage: Mapping[str, int], spent: Any) -> None:
        """Save a title that the model has written, if any, and what the session has used with it.

        Raises:
            SessionError: The session cannot be written.
        """
        title = make_title(title[:_MAX_TITLE].strip(" \n\"'“”«»."))
        if title:
            self._title_requests = 0
        changes = {"title": title} if title and "name" not in self.saved.metadata else {}
        changes |= {"title_requests": self._title_requests}
        self.saved.update(usage=dict(usage), spent=spent, durable=False, **changes)

    def _price_files(self, answered: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """As `prices`, the files that the cost of the session was computed from, also of these answers.

        Providers name them with their optional method `price_file(model)`.
        """
        files: list[dict[str, str]] = list(self.saved.metadata.get("prices") or [])
        providers = self._coordinator.get("providers") or {}
        for name, model in answered:
            find = getattr(providers.get(name), "price_file", None)
            file = to_mapping(find(model)) if callable(find) else {}
            entry = {"provider": name, **{key: str(value) for key, value in file.items()}}
            if file and entry not in files:
                files.append(entry)
        return {"prices": files} if files else {}

    def close(self) -> None:
        """Delete the session if it was never used; otherwise save what was accepted since the last turn."""
        accepted = self._accepted()
        if not self.is_resumable:
            with contextlib.suppress(SessionError):
                remove_folder(self.saved.path)
        elif self.saved.metadata | accepted != self.saved.metadata:
            try:
                self.saved.update(**accepted)
            except SessionError as error:  # The outcome of the run matters more.
                text = "what the session accepted of its servers is not saved: %s"
                logging.getLogger(__name__).warning(text, error.message)
