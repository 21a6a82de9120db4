"""The layout of the chat application, from top to bottom."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from prompt_toolkit.application import get_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition, has_completions, is_done, is_searching
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText, StyleAndTextTuples
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.layout.processors import HighlightIncrementalSearchProcessor
from prompt_toolkit.styles import Style
from prompt_toolkit.widgets import SearchToolbar

from amplifier_app.base.sanitize import one_line
from amplifier_app.render.ansi import clip

STYLE = Style.from_dict(
    {
        "prompt": "bold",
        "status": "fg:ansibrightblack",
        "waiting": "fg:ansibrightblack",
        "search-match": "fg:ansibrightblack",
        "search-toolbar": "",
        "completion-menu": "noreverse bg:default",
        "completion-menu.completion": "noreverse bg:default fg:default",
        "completion-menu.completion.current": "reverse",
        "completion-menu.meta.completion": "noreverse bg:default fg:ansibrightblack",
        "completion-menu.meta.completion.current": "reverse fg:ansibrightblack",
        "scrollbar.background": "bg:default",
        "scrollbar.button": "bg:ansibrightblack",
    }
)

_MENU_ROWS = 8
_MAX_MATCHES = 5
_LINK = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


class Content(Protocol):
    """What the windows show."""

    buffer: Buffer
    live: list[str]
    note: str
    waiting: Callable[[], Sequence[str]]
    status: Callable[[int], str]

    @property
    def width(self) -> int: ...

    @property
    def height(self) -> int: ...


class ChatLayout:
    """The windows: live region, waiting messages, input line, search, completions, status."""

    def __init__(self, chat: Content) -> None:
        self._chat = chat
        search = SearchToolbar(
            backward_search_prompt="search history: ", forward_search_prompt="search history: "
        )
        line = Window(
            BufferControl(
                chat.buffer,
                search_buffer_control=search.control,
                preview_search=True,
                input_processors=[HighlightIncrementalSearchProcessor()],
            ),
            height=lambda: Dimension(min=1, max=max(1, chat.height // 2)),
            get_line_prefix=_line_prefix,
            wrap_lines=True,
            dont_extend_height=True,
        )
        self._root = HSplit(
            [
                self._text(self._live, ""),
                self._text(self._waiting, "class:waiting"),
                line,
                search,
                ConditionalContainer(self._text(self._matches, "class:search-match"), is_searching),
                ConditionalContainer(
                    CompletionsMenu(max_height=_MENU_ROWS), has_completions & ~is_done
                ),
                self._text(self._status, "class:status"),
            ]
        )
        self._search = search
        self.layout = Layout(self._root, focused_element=line)

    def height(self, size: Size) -> int:
        """Return the rows it needs now."""
        needed = self._root.preferred_height(size.columns, size.rows).preferred
        return min(needed, size.rows)

    def _text(self, content: Callable[[], AnyFormattedText], style: str) -> ConditionalContainer:
        """A window that is as high as its text, and absent without any."""
        text = _once_per_drawing(content)
        window = Window(FormattedTextControl(text), style=style, dont_extend_height=True)
        return ConditionalContainer(window, Condition(lambda: bool(_length(text()))))

    def _live(self) -> AnyFormattedText:
        chat = self._chat
        room = max(1, chat.height - chat.buffer.document.line_count - len(chat.waiting()) - 2)
        lines = [clip(_LINK.sub("", line), chat.width) for line in chat.live[-room:]]
        return ANSI("\n".join(lines)) if lines else ""

    def _waiting(self) -> AnyFormattedText:
        return "\n".join(clip(line, self._chat.width) for line in self._chat.waiting())

    def _matches(self) -> AnyFormattedText:
        """The other inputs that contain the searched text, newest first."""
        wanted = self._search.search_buffer.text
        if not wanted:
            return ""
        entries = reversed(self._chat.buffer.history.get_strings())
        found = dict.fromkeys(one_line(entry) for entry in entries if wanted in entry)
        return "\n".join(f"  {clip(one, self._chat.width - 2)}" for one in [*found][:_MAX_MATCHES])

    def _status(self) -> AnyFormattedText:
        chat = self._chat
        if chat.note:
            return f" {chat.note}"
        status = chat.status(chat.width)
        return ANSI(clip(status, chat.width)) if status else ""


def _once_per_drawing(content: Callable[[], AnyFormattedText]) -> Callable[[], AnyFormattedText]:
    """Keep a text until the next drawing: several parts of the layout ask for it each time."""
    drawing = -1
    text: AnyFormattedText = ""

    def content_of_drawing() -> AnyFormattedText:
        nonlocal drawing, text
        current = get_app().render_counter
        if current != drawing:
            drawing, text = current, content()
        return text

    return content_of_drawing


def _length(text: AnyFormattedText) -> int:
    return len(text.value) if isinstance(text, ANSI) else len(str(text))


def _line_prefix(line: int, wrapped: int) -> StyleAndTextTuples:
    return [("class:prompt", "› ")] if line == wrapped == 0 else [("", "  ")]
