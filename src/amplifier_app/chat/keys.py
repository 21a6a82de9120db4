"""The keys of the chat, in addition to those of prompt_toolkit."""

from __future__ import annotations

from typing import Protocol

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import (
    Condition,
    emacs_mode,
    has_completions,
    is_searching,
    vi_navigation_mode,
)
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.bindings.search import abort_search
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.search import accept_search

from amplifier_app.chat.folding import Folds
from amplifier_app.chat.terminal import State


class Keyboard(Protocol):
    """What the keys act on."""

    state: State
    buffer: Buffer
    folds: Folds

    def send(self) -> None: ...
    def interrupt(self) -> None: ...
    def leave(self) -> None: ...
    def suspend_to_background(self) -> None: ...
    def cycle_mode(self) -> None: ...
    def edit(self) -> None: ...


def key_bindings(chat: Keyboard) -> KeyBindings:
    """Return the keys of a chat."""
    bindings = KeyBindings()
    busy = Condition(lambda: chat.state is State.BUSY)
    empty = Condition(lambda: not chat.buffer.text)

    @bindings.add("enter", filter=~is_searching)
    def send(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        menu = chat.buffer.complete_state
        if menu is not None and menu.current_completion is not None:
            chat.buffer.apply_completion(menu.current_completion)
        else:
            chat.send()

    @bindings.add("c-j", filter=~is_searching)
    @bindings.add("escape", "enter", filter=~is_searching)
    def new_line(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        event.current_buffer.insert_text("\n")

    @bindings.add("c-c", filter=~is_searching)
    def interrupt(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        chat.interrupt()

    bindings.add("escape", filter=is_searching, eager=True)(abort_search)

    @bindings.add("enter", filter=is_searching)
    def accept_match(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        accept_search()
        chat.buffer.cursor_position = len(chat.buffer.text)

    @bindings.add("escape", filter=has_completions & ~is_searching & emacs_mode)
    def close_menu(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        event.current_buffer.cancel_completion()

    quiet = ~is_searching & ~has_completions

    @bindings.add("escape", filter=busy & quiet & (emacs_mode | vi_navigation_mode))
    def stop(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        chat.interrupt()

    @bindings.add("c-d", filter=empty & ~is_searching)
    def leave(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        chat.leave()

    @bindings.add("s-tab", filter=~has_completions & ~is_searching)
    def cycle_mode(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        chat.cycle_mode()

    @bindings.add("c-x", "c-e", filter=~is_searching)
    def edit(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        chat.edit()

    @bindings.add("c-z")
    def suspend(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        chat.suspend_to_background()

    @bindings.add(Keys.BracketedPaste, filter=~is_searching)
    def paste(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        event.current_buffer.insert_text(chat.folds.pasted(event.data))

    folded = Condition(
        lambda: chat.folds.marker_before(chat.buffer.document.text_before_cursor) is not None
    )

    @bindings.add("backspace", filter=folded & ~is_searching)
    def delete_folded(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        marker = chat.folds.marker_before(chat.buffer.document.text_before_cursor)
        assert marker is not None
        chat.buffer.delete_before_cursor(len(marker))
        chat.folds.forget(marker)

    return bindings
