"""Completion in the input line: slash commands, their arguments, and files after `@`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Iterable

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from amplifier_app.chat.project_files import matching, project_files, to_mention
from amplifier_app.chat.slash.registry import Chat, find
from amplifier_app.runtime import describe

_FILES_SECONDS = 10.0
"""Seconds for which a list of files is used."""


class ChatCompleter(Completer):
    """Completes what is typed before the cursor.

    Args:
        chat: The chat, with its commands.
    """

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._files: list[str] = []
        self._listed = -_FILES_SECONDS

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion]:
        if self._mention(document) is not None and time.monotonic() > self._listed + _FILES_SECONDS:
            self._files = await asyncio.to_thread(project_files, os.getcwd())
            self._listed = time.monotonic()
        for completion in self.get_completions(document, complete_event):
            yield completion

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and "\n" not in text:
            name, space, argument = text.partition(" ")
            yield from self._arguments(name, argument) if space else self._commands(name)
            return
        typed = self._mention(document)
        if typed is not None:
            for name in matching(self._files, typed.removeprefix('"')):
                mention = to_mention(name)
                if mention is not None:
                    yield Completion(
                        mention,
                        start_position=-len(typed),
                        display=name,
                        display_meta=_size(name),
                    )

    @staticmethod
    def _mention(document: Document) -> str | None:
        """Return what follows `@` in the word before the cursor."""
        word = document.get_word_before_cursor(WORD=True)
        return word[1:] if word.startswith("@") else None

    def _commands(self, typed: str) -> Iterable[Completion]:
        for command in self._chat.commands.values():
            if command.name.startswith(typed):
                meta = f"{command.usage}  {command.summary}" if command.usage else command.summary
                yield Completion(command.name, start_position=-len(typed), display_meta=meta)

    def _arguments(self, name: str, typed: str) -> Iterable[Completion]:
        command = find(name, self._chat.commands)
        if command is None or command.complete is None:
            return
        for value in command.complete(self._chat, typed):
            text, meta = (value, "") if isinstance(value, str) else value
            if typed.lower() in text.lower():
                yield Completion(text, start_position=-len(typed), display_meta=meta)


def _size(name: str) -> str:
    try:
        return describe.size(os.path.getsize(name))
    except OSError:
        return ""
