"""Completion in the input line: slash commands and their arguments."""

from __future__ import annotations

from collections.abc import Iterable

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from amplifier_app.chat.slash.registry import Chat, find


class ChatCompleter(Completer):
    """Completes what is typed before the cursor.

    Args:
        chat: The chat, with its commands.
    """

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and "\n" not in text:
            name, space, argument = text.partition(" ")
            yield from self._arguments(name, argument) if space else self._commands(name)

    def _commands(self, typed: str) -> Iterable[Completion]:
        for one in self._chat.commands.values():
            if one.name.startswith(typed):
                meta = f"{one.usage}  {one.summary}" if one.usage else one.summary
                yield Completion(one.name, start_position=-len(typed), display_meta=meta)

    def _arguments(self, name: str, typed: str) -> Iterable[Completion]:
        command = find(name, self._chat.commands)
        if command is None or command.complete is None:
            return
        for value in command.complete(self._chat, typed):
            text, meta = (value, "") if isinstance(value, str) else value
            if typed.lower() in text.lower():
                yield Completion(text, start_position=-len(typed), display_meta=meta)
