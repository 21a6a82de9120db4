"""Prompt editor: per-project history, multi-line input, slash command completion."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History
from prompt_toolkit.input.typeahead import get_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPress
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.output import Output as TerminalOutput
from prompt_toolkit.output import create_output
from prompt_toolkit.styles import Style

from amplifier_app.base import paths
from amplifier_app.base.private_files import make_private_folder, open_private

_STYLE = Style.from_dict({"bottom-toolbar": "noreverse fg:ansibrightblack", "prompt": "bold"})


def terminal_output(fd: int) -> TerminalOutput:
    """Return the terminal at `fd` for prompt_toolkit; stdout may be redirected."""
    file = open(fd, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    return create_output(stdout=file)


class SlashCompleter(Completer):
    """Completes a slash command at the start of the input."""

    def __init__(self, commands: Iterable[tuple[str, str]]) -> None:
        self._commands = list(commands)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and " " not in text and "\n" not in text:
            for name, summary in self._commands:
                if name.startswith(text):
                    yield Completion(name, start_position=-len(text), display_meta=summary)


class LineEditor:
    """Reads prompts from a terminal.

    Args:
        fd: The terminal.
        history: Earlier inputs.
        commands: Slash commands with their summaries.
        status: Returns the text of the status line; called on every redraw.
        plain: Disable the status line and the completion menu.
    """

    def __init__(
        self,
        fd: int,
        *,
        history: History,
        commands: Iterable[tuple[str, str]],
        status: Callable[[], str],
        plain: bool,
    ) -> None:
        slash = Condition(lambda: not plain and self._typing_a_command())
        self._session: PromptSession[str] = PromptSession(
            "> " if plain else [("class:prompt", "› ")],
            output=terminal_output(fd),
            history=history,
            completer=SlashCompleter(commands),
            complete_while_typing=slash,
            key_bindings=_key_bindings(),
            multiline=True,
            bottom_toolbar=None if plain else status,
            style=_STYLE,
            prompt_continuation="  ",
            enable_history_search=False,
            mouse_support=False,
        )
        # Do not warn about terminals that cannot report the cursor position.
        renderer: Any = self._session.app.renderer
        renderer.cpr_not_supported_callback = lambda: None

    def _typing_a_command(self) -> bool:
        return self._session.default_buffer.text.startswith("/")

    async def read(self, draft: str = "") -> str:
        """Read the next input, possibly of several lines.

        Args:
            draft: Initial text.

        Raises:
            EOFError: Ctrl-D on an empty line.
        """
        return await self._session.prompt_async(default=draft)

    def remember(self, text: str) -> None:
        """Add an input read elsewhere to the history."""
        self._session.history.append_string(text)

    def ahead(self) -> list[KeyPress]:
        """Return, once, the keys typed after the last input."""
        return get_typeahead(self._session.input)


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def submit(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        event.current_buffer.validate_and_handle()

    @bindings.add("c-j")
    @bindings.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        event.current_buffer.insert_text("\n")

    @bindings.add("c-c", eager=True)
    @bindings.add("<sigint>")
    def clear(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        _discard(event.current_buffer)

    return bindings


def _discard(buffer: Buffer) -> None:
    buffer.cancel_completion()
    buffer.document = Document()


def project_history(project: str) -> FileHistory:
    """Return the prompt history of a directory, in a file only its owner can read.

    Raises:
        SessionError: The history file cannot be written.
    """
    name = hashlib.sha256(project.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    path = paths.state_dir() / "history" / name
    make_private_folder(path.parent)
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT))
    return FileHistory(path)
