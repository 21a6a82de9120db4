"""Choose a session from a list on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyPressEvent

from amplifier_app.base.errors import SessionError
from amplifier_app.base.paths import working_dir
from amplifier_app.base.sanitize import in_line, one_line
from amplifier_app.chat.picker import Bind, Picker
from amplifier_app.render.ansi import cells, clip
from amplifier_app.runtime import describe
from amplifier_app.sessions.backups import files_changed_since
from amplifier_app.sessions.index import Listed, ask_index
from amplifier_app.sessions.removal import remove_sessions, with_sub_sessions
from amplifier_app.sessions.store import SessionStore

_TITLE_FOR_MODEL = 24
"""Columns that a title keeps when the model is shown next to it."""

_KEYS = "Enter resume · ^F fork · ^R rename · ^X delete · Tab {}"


class Choice(NamedTuple):
    """What the user chose to do with a session."""

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
        with_model = "  ".join(
            filter(None, [*facts[:2], one_line(session.model or "", 30), *facts[2:]])
        )
        tail = "  ".join(filter(None, facts))
        if columns - 18 - cells(with_model) >= _TITLE_FOR_MODEL:
            tail = with_model
        room = max(12, columns - 18 - cells(tail))
        title = clip(one_line(session.about), room)
        return f"{age:<11} {title}{' ' * max(2, room - cells(title) + 2)}{tail}"

    def below(self, columns: int) -> StyleAndTextTuples:
        changed = self._changed_files_text()
        note = clip(f"  {changed}", columns - 1) + "\n" if changed else ""
        return [("fg:ansiyellow", note), *self._question(columns)]

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
            self.message = f"  {one_line(error.message)}"
        self._reload()

    def _reload(self) -> None:
        listed = list_sessions(everywhere=self._everywhere)
        self.entries = [one for one in listed if one.session.id != self._without]

    def bind(self, bind: Bind) -> None:
        bind("tab")(lambda event: self.switch())
        bind("c-r")(lambda event: self.begin("rename"))
        bind("c-x")(lambda event: self.begin("delete"))

        @bind("c-f")
        def fork(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
            if self.current is not None and not self.leave_mode():
                event.app.exit(result=Choice("fork", self.current.session.id))
