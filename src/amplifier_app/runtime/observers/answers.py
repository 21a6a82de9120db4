"""The answer of a turn as it is shown: without hidden blocks, and what is left of a stopped one."""

from __future__ import annotations

from amplifier_app.runtime.observers.subscriptions import redacted_text
from amplifier_app.runtime.observers.visibility import Visibility, shown_text
from amplifier_app.runtime.turns.module_faults import read_messages
from amplifier_core.session import AmplifierSession


async def shown_answer(session: AmplifierSession, visibility: Visibility, answer: str) -> str:
    """Return an answer without hidden blocks and, if the session redacts, without secrets."""
    if not answer:
        return answer

    def redact(text: str) -> str:
        return redacted_text(session.coordinator, text)

    # Loops need not use what hooks make of the answer in `prompt:complete`.
    return shown_text(redact(answer), await read_messages(session), visibility, redact)


async def partial_answer(session: AmplifierSession) -> str:
    """Return what a stopped turn has kept of its answer."""
    messages = await read_messages(session)
    last = messages[-1] if messages else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        return ""
    content = last.get("content")
    return content if isinstance(content, str) else ""
