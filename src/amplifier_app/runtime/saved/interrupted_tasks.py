"""Tasks of sub-agents that a crash interrupted: their calls are answered from the sessions of the sub-agents.

Given the task again, another sub-agent would repeat their effects and requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from amplifier_app.base.errors import SessionError
from amplifier_app.sessions.folder import SavedSession
from amplifier_app.sessions.recording_context import answer_at_end, answers_to_interrupted
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import ID
from amplifier_app.sessions.tool_calls import calls_in

_KEY = "sub_sessions"
_MOST = 100
"""Far more than run at the same time."""


class _Found(NamedTuple):
    """A sub-session with a task.

    Attributes:
        id: Its id.
        answer: The answer to the task; None if it is unfinished.
    """

    id: str
    answer: str | None


def note_sub_session(parent: SavedSession, session_id: str) -> None:
    """Record in its parent that a sub-session is about to work on a task.

    Raises:
        SessionError: The parent cannot be written.
    """
    others = [one for one in _noted_tasks(parent) if one != session_id]
    parent.update(**{_KEY: [*others, session_id][-_MOST:]})


def answers_after_a_crash(
    saved: SavedSession, messages: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """`answers_to_interrupted`, but for tasks the answer of the sub-agent, or its session to be continued.

    Args:
        saved: The session, whose last run was interrupted.
        messages: Its conversation.
    """
    answers = answers_to_interrupted(messages)
    inputs = {call.id: _input(call.input) for message in messages for call in calls_in(message)}
    for answer in answers:
        values = inputs[answer["tool_call_id"]]
        instruction, named = values.get("instruction"), values.get("session_id")
        if not isinstance(instruction, str) or not instruction.strip():
            continue
        if named:
            # The answer at its end may be to an earlier task.
            found = _Found(str(named), None)
        else:
            # The others have answered earlier calls, or one of these.
            texts = json.dumps([*messages, *answers], default=str)
            left = (one for one in _noted_tasks(saved) if one not in texts)
            found = next(filter(None, (_find(one, instruction.strip()) for one in left)), None)
        if found is not None:
            answer["content"] = _content(found)
    return answers


def _content(found: _Found) -> str:
    if found.answer is not None:
        return json.dumps({"response": found.answer, "session_id": found.id})
    return (
        f"Error: the agent was interrupted before it finished; continue with session_id {found.id}"
    )


def _find(session_id: str, instruction: str) -> _Found | None:
    """A sub-session, if it was given this instruction, as it is or as a part of a longer one."""
    store = SessionStore()
    if not ID.fullmatch(session_id) or not store.exists(session_id):
        return None
    try:
        messages = store.find(session_id).messages()
    except SessionError:  # It cannot be continued.
        return None
    user_texts = (message.get("content") for message in messages if message.get("role") == "user")
    if not any(isinstance(text, str) and instruction in text for text in user_texts):
        return None
    return _Found(session_id, answer_at_end(messages))


def _noted_tasks(parent: SavedSession) -> list[str]:
    noted = parent.metadata.get(_KEY)
    return [str(one) for one in noted] if isinstance(noted, list) else []


def _input(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}
