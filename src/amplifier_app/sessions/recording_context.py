"""A context manager that saves each message before it acknowledges it."""

from collections.abc import Awaitable, Callable
from typing import Any

from amplifier_app.sessions.tool_calls import blocks_in, calls_in, results_in, text_in
from amplifier_app.sessions.transcript import is_by_hook
from amplifier_support.journal import CLEAR, replacement

INTERRUPTED = "interrupted (it may have taken effect)"
"""The result given for a tool call whose real result is lost; the call is not run again."""


class RecordingContext:
    """Wraps the plan's context manager for the whole session and records its messages.

    Everything else is delegated to the inner context, including attributes that are not part of
    the protocol.

    Args:
        context: The plan's context manager.
        save: Appends one record to the transcript and returns when it is on disk.

    Attributes:
        inner: The plan's context manager.
    """

    def __init__(self, context: Any, save: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        self.inner = context
        self._save = save

    async def add_message(self, message: dict[str, Any]) -> None:
        """Store and save `message`.

        Raises:
            amplifier_app.base.errors.SessionError: It could not be saved.
        """
        await self.inner.add_message(message)
        await self._save(message)

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        return await self.inner.get_messages_for_request(
            token_budget=token_budget, provider=provider
        )

    async def get_messages(self) -> list[dict[str, Any]]:
        return await self.inner.get_messages()

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        """Replace the conversation; the transcript keeps the earlier one.

        A context with a file of its own may refuse; the transcript then records what it holds.
        """
        await self.inner.set_messages(messages)
        held = await self.inner.get_messages()
        as_given = held and not not_in(messages, held)
        await self._save(replacement(messages if as_given else held))

    async def clear(self) -> None:
        """Clear the conversation; the transcript keeps the earlier one."""
        await self.inner.clear()
        await self._save(CLEAR)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def not_in(saved: list[dict[str, Any]], held: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records to append to a transcript of `saved` so that it has all a context holds.

    Empty if the context has nothing new: it may have dropped messages, extended some, or inserted
    notes to the model, and will do so again. An empty context was cleared.
    """
    if saved and not held:
        return [CLEAR]
    position = 0
    for index, message in enumerate(held):
        following = range(position, len(saved))
        match = next((other for other in following if _is_same(message, saved[other])), None)
        if match is not None:
            position = match + 1
        elif not following:
            return held[index:]
        elif not _is_note(message):
            return [replacement(held)]
    return []


def _is_same(held: Any, saved: dict[str, Any]) -> bool:
    """Return True if a context's message is the saved one, possibly with added keys."""
    if held is saved or not isinstance(held, dict):
        return held is saved
    return held == saved or all(key in held and held[key] == value for key, value in saved.items())


def _is_note(message: dict[str, Any]) -> bool:
    return message.get("role") in ("system", "developer")


def is_unbegun(instruction: str, messages: list[dict[str, Any]]) -> bool:
    """Return True if the conversation is still empty, even of the instruction; other notes do not count."""
    return all(_is_note(message) and message.get("content") != instruction for message in messages)


def answers_to_interrupted(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A tool result for each call in the last assistant message that has none."""
    answered: set[Any] = set()
    for message in reversed(messages):
        if message.get("role") == "assistant":
            return [
                {"role": "tool", "tool_call_id": call_id, "name": name, "content": INTERRUPTED}
                for call_id, name, _ in calls_in(message)
                if call_id not in answered
            ]
        if message.get("role") in ("tool", "function"):
            answered |= {call_id for call_id, _ in results_in(message)}
        elif not (is_by_hook(message) or _is_note(message)):
            return []
    return []


def answer_at_end(messages: list[dict[str, Any]]) -> str | None:
    """The text of the answer that ends a conversation; None if something else does."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or calls_in(last) or blocks_in(last, "tool_use"):
        return None
    return text_in(last) or None
