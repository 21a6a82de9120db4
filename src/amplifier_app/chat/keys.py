"""The keys of the chat, in addition to those of prompt_toolkit."""

# The functions are used by their bindings, which pyright does not see.
# pyright: reportUnusedFunction=false

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
    _add_input_keys(bindings, chat)
    _add_menu_keys(bindings, chat)
    _add_chat_keys(bindings, chat)
    return bindings


def _add_input_keys(bindings: KeyBindings, chat: Keyboard) -> None:
    """The keys that edit and send the input."""

    @bindings.add("enter", filter=~is_searching)
    def send(event: KeyPressEvent) -> None:
        menu = chat.buffer.complete_state
        if menu is not None and menu.current_completion is not None:
            chat.buffer.apply_completion(menu.current_completion)
        else:
            chat.send()

    @bindings.add("c-j", filter=~is_searching)
    @bindings.add("escape", "enter", filter=~is_searching)
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-x", "c-e", filter=~is_searching)
    def edit(event: KeyPressEvent) -> None:
        chat.edit()

    @bindings.add(Keys.BracketedPaste, filter=~is_searching)
    def paste(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text(chat.folds.fold_if_long(event.data))

    folded = Condition(
        lambda: chat.folds.marker_before(chat.buffer.document.text_before_cursor) is not None
    )

    @bindings.add("backspace", filter=folded & ~is_searching)
    def delete_folded(event: KeyPressEvent) -> None:
        marker = chat.folds.marker_before(chat.buffer.document.text_before_cursor)
        assert marker is not None
        chat.buffer.delete_before_cursor(len(marker))
        chat.folds.forget(marker)


def _add_menu_keys(bindings: KeyBindings, chat: Keyboard) -> None:
    """The keys of the search in the history and of the menu of completions."""
    bindings.add("escape", filter=is_searching, eager=True)(abort_search)

    @bindings.add("enter", filter=is_searching)
    def accept_match(event: KeyPressEvent) -> None:
        accept_search()
        chat.buffer.cursor_position = len(chat.buffer.text)

    @bindings.add("escape", filter=has_completions & ~is_searching & emacs_mode)
    def close_menu(event: KeyPressEvent) -> None:
        event.current_buffer.cancel_completion()


def _add_chat_keys(bindings: KeyBindings, chat: Keyboard) -> None:
    """The keys that act on the chat: stop, leave, suspend and the approval mode."""
    busy = Condition(lambda: chat.state is State.BUSY)
    empty = Condition(lambda: not chat.buffer.text)
    quiet = ~is_searching & ~has_completions

    @bindings.add("c-c", filter=~is_searching)
    def interrupt(event: KeyPressEvent) -> None:
        chat.interrupt()

    @bindings.add("escape", filter=busy & quiet & (emacs_mode | vi_navigation_mode))
    def stop(event: KeyPressEvent) -> None:
        chat.interrupt()

    @bindings.add("c-d", filter=empty & ~is_searching)
    def leave(event: KeyPressEvent) -> None:
        chat.leave()

    @bindings.add("s-tab", filter=~has_completions & ~is_searching)
    def cycle_mode(event: KeyPressEvent) -> None:
        chat.cycle_mode()

    @bindings.add("c-z")
    def suspend(event: KeyPressEvent) -> None:
        chat.suspend_to_background()
