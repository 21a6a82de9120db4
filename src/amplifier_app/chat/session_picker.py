"""Choose a session from a list on the terminal."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal, NamedTuple

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from prompt_toolkit.output.vt100 import Vt100_Output

from amplifier_app.base.errors import SessionError
from amplifier_app.base.paths import working_dir
from amplifier_app.base.sanitize import in_line, one_line
from amplifier_app.render.ansi import cells, clip
from amplifier_app.runtime import describe
from amplifier_app.sessions.backups import changed_since
from amplifier_app.sessions.index import Listed, ask_index
from amplifier_app.sessions.removal import remove_sessions, with_sub_sessions
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import SessionSummary

_MOST_ROWS = 15
_TITLE_FOR_MODEL = 24
"""Columns that a title keeps when the model is shown next to it."""

_KEYS = "Enter resume · ^F fork · ^R rename · ^X delete · Tab {}"


class Choice(NamedTuple):
    """What the user chose to do with a session."""

    action: Literal["resume", "fork"]
    session_id: str


def listed_sessions(*, everywhere: bool) -> list[Listed]:
    """The sessions of this directory, or of all, last used first.

    Raises:
        SessionError: The folder of the sessions cannot be read.
    """
    where = None if everywhere else working_dir()
    page, _ = ask_index(SessionStore().root, lambda index: index.page(where, 0))
    return page.listed


class Picker:
    """The list, with a filter, and what is done with the selected session.

    Args:
        everywhere: Whether to begin with the sessions of all directories.
        size: Returns the columns and rows of the terminal.
    """

    def __init__(self, *, everywhere: bool, size: Callable[[], tuple[int, int]]) -> None:
        self._everywhere = everywhere
        self._size = size
        self._filter = ""
        self._selected = 0
        self._first = 0
        self._mode: Literal["pick", "rename", "delete"] = "pick"
        self._title = ""
        self._message = ""
        self._changed: dict[str, str] = {}  # session → the files changed since
        self._all = listed_sessions(everywhere=everywhere)

    # What is shown

    def shown(self) -> list[Listed]:
        """The sessions that contain every word of the filter."""
        words = self._filter.casefold().split()
        return [one for one in self._all if all(word in _searched(one.session) for word in words)]

    @property
    def current(self) -> Listed | None:
        """The selected session."""
        shown = self.shown()
        return shown[min(self._selected, len(shown) - 1)] if shown else None

    def lines(self) -> StyleAndTextTuples:
        """The list as styled text."""
        columns, rows = self._size()
        shown = self.shown()
        count = max(1, min(_MOST_ROWS, rows - 5))
        self._selected = max(0, min(self._selected, len(shown) - 1))
        self._first = max(min(self._first, self._selected), self._selected - count + 1)
        text: StyleAndTextTuples = []
        for n, one in enumerate(shown[self._first : self._first + count], self._first):
            mark, style = ("▸ ", "bold") if n == self._selected else ("  ", "")
            text.append((style, clip(mark + self._row(one), columns - 1) + "\n"))
        if not shown:
            where = "no session" if self._everywhere else "no session of this directory"
            text.append(("", f"  {where} matches\n" if self._filter else f"  {where}\n"))
        more = len(shown) - self._first - count
        if more > 0:
            text.append(("class:dim", f"  {more:,} more\n"))
        changed = self._changed_since()
        if changed:
            text.append(("fg:ansiyellow", clip(f"  {changed}", columns - 1) + "\n"))
        return [*text, *self._prompt(columns)]

    def _changed_since(self) -> str:
        """The files of the selected session that have changed since; empty for none."""
        session = None if self.current is None else self.current.session
        if session is None or not session.project:
            return ""
        if session.id not in self._changed:
            files = changed_since(SessionStore().root / session.id, session.project)
            self._changed[session.id] = describe.changed_since(files)
        return self._changed[session.id]

    def _row(self, listed: Listed) -> str:
        session = listed.session
        age = describe.age(session.updated)
        facts = [
            "" if session.prompts is None else describe.count(session.prompts, "prompt"),
            "" if session.cost is None else describe.cost(session.cost),
            f"+{describe.count(listed.spawned, 'agent')}" if listed.spawned else "",
            one_line(session.project or "", 200) if self._everywhere else "",
        ]
        columns, _ = self._size()
        with_model = "  ".join(
            filter(None, [*facts[:2], one_line(session.model or "", 30), *facts[2:]])
        )
        tail = "  ".join(filter(None, facts))
        if columns - 18 - cells(with_model) >= _TITLE_FOR_MODEL:
            tail = with_model
        room = max(12, columns - 18 - cells(tail))
        title = clip(one_line(session.about), room)
        return f"{age:<11} {title}{' ' * max(2, room - cells(title) + 2)}{tail}"

    def _prompt(self, columns: int) -> StyleAndTextTuples:
        if self._mode == "rename":
            return [("bold", "  New title: "), ("", in_line(self._title)), ("reverse", " ")]
        if self._mode == "delete" and self.current is not None:
            question = f'Delete "{clip(one_line(self.current.session.about), 40)}"'
            if self.current.spawned:
                question += f" and {describe.count(self.current.spawned, 'sub-agent')}"
            return [("bold", f"  {question}? [y/N] ")]
        other = "here" if self._everywhere else "all"
        below = self._message or clip("  type to filter · " + _KEYS.format(other), columns - 1)
        return [("", f"  › {in_line(self._filter)}"), ("reverse", " "), ("class:dim", f"\n{below}")]

    # Keys

    def typed(self, text: str) -> None:
        """Handle typed text."""
        self._message = ""
        if self._mode == "rename":
            self._title += text
        elif self._mode == "delete":
            self._mode = "pick"
            if text in ("y", "Y"):
                self._delete()
        else:
            self._filter += text
            self._selected = 0

    def erase(self) -> None:
        """Handle Backspace."""
        if self._mode == "rename":
            self._title = self._title[:-1]
        else:
            self._filter = self._filter[:-1]

    def move(self, lines: int) -> None:
        """Select another session."""
        if self._mode == "pick":
            self._selected = max(0, self._selected + lines)

    def switch(self) -> None:
        """List the sessions of all directories, or of this one."""
        self._everywhere = not self._everywhere
        self._reload()

    def begin(self, mode: Literal["rename", "delete"]) -> None:
        """Ask for a title, or whether to delete."""
        if self.current is not None:
            self._mode, self._title = mode, self.current.session.title or ""

    def leave_mode(self) -> bool:
        """Whether there was a question to leave."""
        was, self._mode = self._mode, "pick"
        return was != "pick"

    def accept(self) -> Choice | None:
        """Handle Enter; the choice if that ends the list."""
        mode, self._mode = self._mode, "pick"
        if self.current is None or mode == "delete":
            return None
        if mode == "rename":
            self._rename()
            return None
        return Choice("resume", self.current.session.id)

    def _rename(self) -> None:
        title = one_line(self._title)
        if self.current is not None and title:
            self._try(lambda one: SessionStore().find(one.session.id).rename(title))

    def _delete(self) -> None:
        def delete(one: Listed) -> None:
            store = SessionStore()
            remove_sessions(store.root, with_sub_sessions(one.session.id, store.summaries()))

        self._try(delete)

    def _try(self, change: Callable[[Listed], None]) -> None:
        try:
            if self.current is not None:
                change(self.current)
        except SessionError as error:
            self._message = f"  {one_line(error.message)}"
        self._reload()

    def _reload(self) -> None:
        self._all = listed_sessions(everywhere=self._everywhere)


def _searched(session: SessionSummary) -> str:
    parts = (session.title, session.model, session.project, session.id)
    return " ".join(filter(None, parts)).casefold()


def pick_session(*, everywhere: bool) -> Choice | None:
    """Let the user choose a session on the terminal; None if they leave.

    Raises:
        SessionError: The folder of the sessions cannot be read.
        KeyboardInterrupt: Ctrl-C.
    """
    with open("/dev/tty", "w", encoding="utf-8", errors="replace") as terminal:
        output = Vt100_Output.from_pty(terminal, term=os.environ.get("TERM"))

        def size() -> tuple[int, int]:
            found = output.get_size()
            return found.columns, found.rows

        picker = Picker(everywhere=everywhere, size=size)
        control = FormattedTextControl(picker.lines, focusable=True, show_cursor=False)
        application: Application[Choice | None] = Application(
            layout=Layout(Window(control, wrap_lines=False, always_hide_cursor=True)),
            key_bindings=_bindings(picker),
            output=output,
            erase_when_done=True,
        )
        return application.run()


def _bindings(picker: Picker) -> KeyBindings:
    bindings = KeyBindings()

    def bind(*keys: Keys | str) -> Callable[[Callable[[KeyPressEvent], None]], None]:
        def register(handler: Callable[[KeyPressEvent], None]) -> None:
            for key in keys:
                bindings.add(key, eager=key == "escape")(handler)

        return register

    bind("up", "c-p")(lambda event: picker.move(-1))
    bind("down", "c-n")(lambda event: picker.move(1))
    bind("pageup")(lambda event: picker.move(-_MOST_ROWS))
    bind("pagedown")(lambda event: picker.move(_MOST_ROWS))
    bind("backspace")(lambda event: picker.erase())
    bind("tab")(lambda event: picker.switch())
    bind("c-r")(lambda event: picker.begin("rename"))
    bind("c-x")(lambda event: picker.begin("delete"))
    bind(Keys.BracketedPaste)(lambda event: picker.typed(in_line(event.data)))

    @bind("enter", "c-j")
    def _(event: KeyPressEvent) -> None:
        choice = picker.accept()
        if choice is not None:
            event.app.exit(result=choice)

    @bind("c-f")
    def _(event: KeyPressEvent) -> None:
        if picker.current is not None and not picker.leave_mode():
            event.app.exit(result=Choice("fork", picker.current.session.id))

    @bind("escape", "c-d")
    def _(event: KeyPressEvent) -> None:
        if not picker.leave_mode():
            event.app.exit(result=None)

    @bind("c-c")
    def _(event: KeyPressEvent) -> None:
        event.app.exit(exception=KeyboardInterrupt)

    @bind(Keys.Any)
    def _(event: KeyPressEvent) -> None:
        if event.data.isprintable():
            picker.typed(event.data)

    return bindings
