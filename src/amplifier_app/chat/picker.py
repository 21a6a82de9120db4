"""Choose from a list on the terminal: type to filter, Enter chooses."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, Literal, TypeVar

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from prompt_toolkit.output.vt100 import Vt100_Output

from amplifier_app.base.errors import SessionError
from amplifier_app.base.paths import working_dir
from amplifier_app.base.sanitize import in_line, one_line
from amplifier_app.render.ansi import cells, clip, paint
from amplifier_app.runtime import describe
from amplifier_app.sessions.backups import files_changed_since
from amplifier_app.sessions.index import Listed, ask_index
from amplifier_app.sessions.removal import remove_sessions, with_sub_sessions
from amplifier_app.sessions.store import SessionStore
from amplifier_support.named_tuple import NamedTuple

_MAX_ROWS = 15

T = TypeVar("T")
R = TypeVar("R")

OnKey = Callable[[KeyPressEvent], object]


class Picker(Generic[T, R]):
    """A list of entries `T` with a filter, which ends with a result `R`.

    Args:
        entries: What is listed.

    Attributes:
        entries: What is listed.
        keys: What the keys do, shown below the list.
        nothing: What is shown of an empty list.
        message: Shown in its place once.
        size: Returns the columns and rows of the terminal.
    """

    keys = ""
    nothing = ""

    def __init__(self, entries: Sequence[T]) -> None:
        self.entries = entries
        self.message = ""
        self.size: Callable[[], tuple[int, int]] = lambda: (80, 24)
        self._filter = ""
        self._selected = 0
        self._first = 0

    # What an entry is

    def row(self, entry: T) -> str:
        """The line of an entry."""
        raise NotImplementedError

    def search_text(self, entry: T) -> str:
        """The text of an entry that the filter is compared with, without case."""
        raise NotImplementedError

    def accept(self) -> R | None:
        """Handle Enter; the result if that ends the list."""
        raise NotImplementedError

    # What is shown

    def matching_entries(self) -> list[T]:
        """The entries that contain every word of the filter."""
        words = self._filter.casefold().split()
        texts = ((entry, self.search_text(entry)) for entry in self.entries)
        return [entry for entry, text in texts if all(word in text for word in words)]

    @property
    def current(self) -> T | None:
        """The selected entry."""
        entries = self.matching_entries()
        return entries[min(self._selected, len(entries) - 1)] if entries else None

    def lines(self) -> StyleAndTextTuples:
        """The list as styled text."""
        columns, rows = self.size()
        entries = self.matching_entries()
        count = max(1, min(_MAX_ROWS, rows - 5))
        self._selected = max(0, min(self._selected, len(entries) - 1))
        self._first = max(min(self._first, self._selected), self._selected - count + 1)
        text: StyleAndTextTuples = []
        for n, entry in enumerate(entries[self._first : self._first + count], self._first):
            mark, style = ("▸ ", "bold") if n == self._selected else ("  ", "")
            text.append((style, clip(mark + self.row(entry), columns - 1) + "\n"))
        if not entries:
            text.append(("", f"  {self.nothing}{' matches' if self._filter else ''}\n"))
        more = len(entries) - self._first - count
        if more > 0:
            text.append(("class:dim", f"  {more:,} more\n"))
        return [*text, *self.below(columns)]

    def below(self, columns: int) -> StyleAndTextTuples:
        """Return the text below the entries: the filter and the keys."""
        below = self.message or clip(f"  type to filter · {self.keys}", columns - 1)
        return [("", f"  › {in_line(self._filter)}"), ("reverse", " "), ("dim", f"\n{below}")]

    # Keys

    def insert_text(self, text: str) -> None:
        """Handle typed text."""
        self.message = ""
        self._filter += text
        self._selected = 0

    def erase(self) -> None:
        """Handle Backspace."""
        self._filter = self._filter[:-1]

    def move(self, lines: int) -> None:
        """Select another entry."""
        self._selected = max(0, self._selected + lines)

    def select(self, entry: T) -> None:
        """Begin at an entry."""
        self._selected = self.entries.index(entry)

    def leave_mode(self) -> bool:
        """Return True if Esc only leaves a question about an entry."""
        return False

    def own_keys(self) -> Mapping[str, OnKey]:
        """Return more keys with what they do."""
        return {}


async def pick(picker: Picker[T, R]) -> R | None:
    """Let the user choose on the terminal; None if they leave.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    with _terminal() as output:
        picker.size = lambda: (output.get_size().columns, output.get_size().rows)
        control = FormattedTextControl(picker.lines, focusable=True, show_cursor=False)
        application: Application[R | None] = Application(
            layout=Layout(Window(control, wrap_lines=False, always_hide_cursor=True)),
            key_bindings=_bindings(picker),
            output=output,
            erase_when_done=True,
        )
        application.ttimeoutlen, application.timeoutlen = 0.05, 0.3
        try:
            return await application.run_async()
        except EOFError:  # the terminal is gone
            return None


@contextmanager
def _terminal() -> Generator[Vt100_Output]:
    """The terminal, also where stdout is redirected."""
    with open("/dev/tty", "w", encoding="utf-8", errors="replace") as terminal:
        output = Vt100_Output.from_pty(terminal, term=os.environ.get("TERM"))
        output.enable_cpr = False  # as at the input line
        yield output


def _bindings(picker: Picker[T, R]) -> KeyBindings:
    def accept(event: KeyPressEvent) -> None:
        result = picker.accept()
        if result is not None:
            event.app.exit(result=result)

    def leave(event: KeyPressEvent) -> None:
        if not picker.leave_mode():
            event.app.exit(result=None)

    def insert(event: KeyPressEvent) -> None:
        if event.data.isprintable():
            picker.insert_text(event.data)

    keys: dict[Keys | str, OnKey] = {
        **dict.fromkeys(("up", "c-p"), lambda event: picker.move(-1)),
        **dict.fromkeys(("down", "c-n"), lambda event: picker.move(1)),
        "pageup": lambda event: picker.move(-_MAX_ROWS),
        "pagedown": lambda event: picker.move(_MAX_ROWS),
        "backspace": lambda event: picker.erase(),
        Keys.BracketedPaste: lambda event: picker.insert_text(in_line(event.data)),
        **dict.fromkeys(("enter", "c-j"), accept),
        **dict.fromkeys(("escape", "c-d"), leave),
        "c-z": lambda event: event.app.suspend_to_background(),
        "c-c": lambda event: event.app.exit(exception=KeyboardInterrupt),
        Keys.Any: insert,
        **picker.own_keys(),
    }
    bindings = KeyBindings()
    for key, act in keys.items():
        bindings.add(key, eager=key == "escape")(act)
    return bindings


_TITLE_FOR_MODEL = 24
"""Columns that a title keeps when the model is shown next to it."""

_KEYS = "Enter resume · ^F fork · ^R rename · ^X delete · Tab {}"


class Choice(NamedTuple):
    """The user's choice for a session."""

    action: Literal["resume", "fork"]
    session_id: str


def list_sessions(*, everywhere: bool) -> list[Listed]:
    """The sessions of this directory, or of all, last used first.

    Raises:
        SessionError: The folder of the sessions cannot be read.
    """
    where = None if everywhere else working_dir()
    page, _ = ask_index(SessionStore().root, lambda index: index.page(where, 0))
    return page.listed


class SessionPicker(Picker[Listed, Choice]):
    """The list of sessions, and what is done with the selected one.

    Args:
        everywhere: Whether to begin with the sessions of all directories.
        without: The id of a session to leave out.
    """

    def __init__(self, *, everywhere: bool, without: str | None = None) -> None:
        self._everywhere = everywhere
        self._without = without
        self._mode: Literal["pick", "rename", "delete"] = "pick"
        self._title = ""
        self._changed: dict[str, str] = {}  # session → the files changed since
        super().__init__(())
        self._reload()

    # What is shown

    @property
    def keys(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _KEYS.format("here" if self._everywhere else "all")

    @property
    def nothing(self) -> str:
        other = "other " if self._without else ""
        return f"no {other}session{'' if self._everywhere else ' of this directory'}"

    def search_text(self, entry: Listed) -> str:
        session = entry.session
        parts = (session.title, session.model, session.project, session.id)
        return " ".join(filter(None, parts)).casefold()

    def _changed_files_text(self) -> str:
        """The files of the selected session that have changed since; empty for none."""
        session = None if self.current is None else self.current.session
        if session is None or not session.project:
            return ""
        if session.id not in self._changed:
            files = files_changed_since(SessionStore().root / session.id, session.project)
            self._changed[session.id] = describe.changed_since(files)
        return self._changed[session.id]

    def row(self, entry: Listed) -> str:
        session = entry.session
        age = describe.age(session.updated)
        facts = [
            "" if session.prompts is None else describe.count(session.prompts, "prompt"),
            "" if session.cost is None else describe.cost(session.cost),
            f"+{describe.count(entry.spawned, 'agent')}" if entry.spawned else "",
            one_line(session.project or "", 200) if self._everywhere else "",
        ]
        columns, _ = self.size()
        model = one_line(session.model or "", 30)
        with_model = "  ".join(filter(None, [*facts[:2], model, *facts[2:]]))
        is_wide = columns - 18 - cells(with_model) >= _TITLE_FOR_MODEL
        tail = with_model if is_wide else "  ".join(filter(None, facts))
        room = max(12, columns - 18 - cells(tail))
        title = clip(one_line(session.about), room)
        return f"{age:<11} {title}{' ' * max(2, room - cells(title) + 2)}{tail}"

    def below(self, columns: int) -> StyleAndTextTuples:
        changed = self._changed_files_text()
        note = clip(f"  {changed}", columns - 1) + "\n" if changed else ""
        return [*to_formatted_text(ANSI(paint(note, "yellow"))), *self._question(columns)]

    def _question(self, columns: int) -> StyleAndTextTuples:
        if self._mode == "rename":
            return [("bold", "  New title: "), ("", in_line(self._title)), ("reverse", " ")]
        if self._mode == "delete" and self.current is not None:
            question = f'Delete "{clip(one_line(self.current.session.about), 40)}"'
            if self.current.spawned:
                question += f" and {describe.count(self.current.spawned, 'sub-agent')}"
            return [("bold", f"  {question}? [y/N] ")]
        return super().below(columns)

    # Keys

    def insert_text(self, text: str) -> None:
        if self._mode == "rename":
            self._title += text
        elif self._mode == "delete":
            self._mode = "pick"
            if text in ("y", "Y"):
                self._delete()
        else:
            super().insert_text(text)

    def erase(self) -> None:
        if self._mode == "rename":
            self._title = self._title[:-1]
        else:
            super().erase()

    def move(self, lines: int) -> None:
        if self._mode == "pick":
            super().move(lines)

    def switch(self) -> None:
        """List the sessions of all directories, or of this one."""
        self._everywhere = not self._everywhere
        self._reload()

    def begin(self, mode: Literal["rename", "delete"]) -> None:
        """Ask for a title, or whether to delete."""
        if self.current is not None:
            self._mode, self._title = mode, self.current.session.title or ""

    def leave_mode(self) -> bool:
        previous, self._mode = self._mode, "pick"
        return previous != "pick"

    def accept(self) -> Choice | None:
        mode, self._mode = self._mode, "pick"
        if self.current is None or mode == "delete":
            return None
        if mode == "rename":
            if title := one_line(self._title):
                self._try(lambda entry: SessionStore().find(entry.session.id).rename(title))
            return None
        return Choice("resume", self.current.session.id)

    def _delete(self) -> None:
        def delete(entry: Listed) -> None:
            store = SessionStore()
            remove_sessions(store.root, with_sub_sessions(entry.session.id, store.summaries()))

        self._try(delete)

    def _try(self, change: Callable[[Listed], None]) -> None:
        try:
            if self.current is not None:
                change(self.current)
        except SessionError as error:
            self.message = f"  {one_line(error.message)}"
        self._reload()

    def _reload(self) -> None:
        listed = list_sessions(everywhere=self._everywhere)
        self.entries = [entry for entry in listed if entry.session.id != self._without]

    def own_keys(self) -> Mapping[str, OnKey]:
        def fork(event: KeyPressEvent) -> None:
            if self.current is not None and not self.leave_mode():
                event.app.exit(result=Choice("fork", self.current.session.id))

        return {
            "tab": lambda event: self.switch(),
            "c-r": lambda event: self.begin("rename"),
            "c-x": lambda event: self.begin("delete"),
            "c-f": fork,
        }
