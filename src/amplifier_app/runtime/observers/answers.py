"""The answer of a turn as it is shown: without hidden blocks, and what is left of a stopped one."""

from __future__ import annotations

from amplifier_app.runtime.observers.subscriptions import redacted_text
from amplifier_app.runtime.observers.visibility import Visibility, shown_text
from amplifier_app.runtime.turns.module_faults import messages_of
from amplifier_core.session import AmplifierSession


async def shown_answer(session: AmplifierSession, visibility: Visibility, answer: str) -> str:
    """Return an answer without hidden blocks."""
    if not answer:
        return answer
    messages = await messages_of(session)
    return shown_text(
        answer, messages, visibility, lambda text: redacted_text(session.coordinator, text)
    )


async def partial_answer(session: AmplifierSession) -> str:
    """Return what a stopped turn has kept of its answer."""
    messages = await messages_of(session)
    last = messages[-1] if messages else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        return ""
    content = last.get("content")
    return content if isinstance(content, str) else ""
