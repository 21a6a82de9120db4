"""The files that the prompts of a chat mention, each added once."""

from __future__ import annotations

import os

from amplifier_app.chat.project_files import with_files
from amplifier_app.runtime.observers.observer import Renderer


class PromptFiles:
    """Adds files to prompts.

    Args:
        renderer: Shows what was added.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._typed: dict[str, str] = {}  # prompts with files → as typed
        self._quoted: set[str] = set()
        self._refused: str | None = None

    def is_refused(self, text: str) -> bool:
        """Report the files that cannot be added to a prompt, unless it was refused before; return whether there are any."""
        if text in self._typed or text == self._refused:
            return False
        problems = with_files(text, os.getcwd(), self._quoted).problems
        if problems:
            self._refused = text
            for problem in problems:
                self._renderer.notice(problem, "warning", "chat")
            hint = "The prompt was not sent. Edit it, or send it again to leave this as text."
            self._renderer.notice(hint, "warning", "chat")
        return bool(problems)

    def add_to(self, text: str) -> str:
        """Return a prompt with the files it mentions, unless it has them already."""
        if text in self._typed:
            return text
        included = with_files(text, os.getcwd(), self._quoted)
        for note in included.notes:
            self._renderer.notice(note, "info", "chat")
        if text != self._refused:
            for problem in included.problems:
                self._renderer.notice(problem, "warning", "chat")
        if included.notes:
            self._typed[included.text] = text
        return included.text

    def keep(self, text: str) -> None:
        """Note a prompt that has its files already."""
        self._typed[text] = text

    def as_typed(self, text: str) -> str:
        """Return a prompt without the files that were added."""
        return self._typed.get(text, text)

    def ignore_mentions_in(self, output: str | None) -> None:
        """Note the output of a shell command, which others have written: its lines add no files."""
        # Line by line: the user may edit the others.
        self._quoted.update(line.rstrip() for line in (output or "").split("\n"))
