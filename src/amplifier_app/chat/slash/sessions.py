"""Commands on saved sessions, this one and others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from amplifier_app import __version__
from amplifier_app.base.errors import AppError, SessionError, UsageError
from amplifier_app.base.file_writing import write_new
from amplifier_app.base.paths import working_dir
from amplifier_app.base.redact import redact
from amplifier_app.base.sanitize import one_line
from amplifier_app.chat.picker import SessionPicker
from amplifier_app.chat.slash.layout import Rows
from amplifier_app.chat.slash.registry import Chat, Reopen, Reply, command
from amplifier_app.render.conversation import ConversationView
from amplifier_app.runtime import describe
from amplifier_app.runtime.continuation import build_conversation, reopening_options
from amplifier_app.runtime.export.markdown import export_pieces
from amplifier_app.runtime.export.parts import (
    build_parts,
    call_text,
    export_session,
    last_prompts,
    redactor,
)
from amplifier_app.sessions.bundle import write_bundle
from amplifier_app.sessions.folder import SavedSession, SessionFolder, title_metadata
from amplifier_app.sessions.fork import fork_session
from amplifier_app.sessions.index import Page, ask_index
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import SessionSummary, short_id

_LISTED = 15


@command("/sessions", "Saved sessions of this directory", during_turn=True)
async def sessions(chat: Chat, argument: str) -> Reply:
    page = _sessions_here()
    if not page.listed:
        return "No saved sessions in this directory."
    ages = [describe.age(entry.session.updated) for entry in page.listed]
    width = max(map(len, ages))
    listed = [
        (short_id(row.session.id), f"{age:{width}}  {_title(row.session, chat)}")
        for row, age in zip(page.listed, ages, strict=True)
    ]
    if more := page.total - len(listed):
        listed.append(("", f"{more:,} more: /resume"))
    return Rows(listed)


def _title(session: SessionSummary, chat: Chat) -> str:
    title = one_line(session.about, 80)
    return f"{title} (this session)" if session.id == chat.session.id else title


def _sessions_here() -> Page:
    page, _ = ask_index(SessionStore().root, lambda index: index.page(working_dir(), _LISTED))
    return page


def _ids(chat: Chat, argument: str) -> Iterator[tuple[str, str]]:
    for listed in _sessions_here().listed:
        session = listed.session
        if session.id != chat.session.id:
            yield short_id(session.id), one_line(session.about, 80)


@command("/resume", "Choose another session, or continue it by its id", usage="[ID]", complete=_ids)
async def resume(chat: Chat, argument: str) -> Reply:
    if not argument and chat.is_plain:
        return await sessions(chat, "")
    if not argument:
        with _not_fatal():
            choice = await chat.pick(SessionPicker(everywhere=False, without=chat.session.id))
        if choice is None:
            return None
        raise _reopen(choice.session_id, choice.action)
    with _not_fatal():
        session = SessionStore().find(argument)
    if session.id == chat.session.id:
        raise UsageError("this is the session you are in")
    raise _reopen(session.id)


def _reopen(session_id: str, action: Literal["resume", "fork"] = "resume") -> Reopen:
    # The other session has a plan of its own.
    other: dict[str, Any] = dict.fromkeys(("plan", "profile", "provider", "model", "sets", "mode"))
    other[action] = session_id
    return Reopen(**other)


@contextlib.contextmanager
def _not_fatal() -> Generator[None]:
    """Report an error of another session; one of this session ends the chat."""
    try:
        yield
    except SessionError as error:
        raise AppError(error.message, hint=error.hint, location=error.location) from error


@command("/fork", "Go on in a copy of this session, from its end or a step", usage="[STEP]")
async def fork(chat: Chat, argument: str) -> Reply:
    saved = _saved_session(chat)
    step = _number("/fork", argument) if argument else None
    same: dict[str, Any] = reopening_options(chat.session) or {}
    with _not_fatal():
        store = SessionStore(saved.path.parent)
        new = fork_session(store, SessionFolder(saved.path), step=step, mode=same.get("mode"))
    same["resume"] = new.id
    raise Reopen(**same)


@command("/rename", "Change the session's title", usage="TITLE")
async def rename(chat: Chat, argument: str) -> Reply:
    title = one_line(redact(argument))
    if not title:
        raise UsageError("/rename expects a title")
    _saved_session(chat).update(**title_metadata(title))
    return f'Renamed to "{title}".'


@command("/history", "The conversation, or its last N prompts", usage="[N]", during_turn=True)
async def history(chat: Chat, argument: str) -> Reply:
    conversation = await build_conversation(chat.session)
    count = _number("/history", argument) if argument else 0
    parts = list(build_parts(last_prompts(conversation, count), chat.session.renderer.visibility))
    return ConversationView(parts) if parts else "No conversation yet."


@command("/show", "A tool call with its whole input and result", usage="[N]", during_turn=True)
async def show(chat: Chat, argument: str) -> Reply:
    calls = (await build_conversation(chat.session)).calls
    if not calls:
        return "No tool calls yet."
    number = _number("/show", argument) if argument else calls[-1].number
    match = next((call for call in calls if call.number == number), None)
    if match is None:
        raise UsageError(f"no tool call {number}; there are {len(calls)}")
    return chat.page_or_return(call_text(match))


@command("/save", "Write the last answer to a file", usage="FILE")
async def save(chat: Chat, argument: str) -> Reply:
    if not argument:
        raise UsageError("/save expects a file name")
    conversation = await build_conversation(chat.session)
    answers = [
        part.text
        for part in build_parts(conversation.items, chat.session.renderer.visibility)
        if part.kind == "answer" and part.text.strip()
    ]
    if not answers:
        raise UsageError("there is no answer to save yet")
    return _write(Path(os.path.expanduser(argument)), lambda: [answers[-1].rstrip("\n"), "\n"])


_FORMATS = {".md": "Markdown", ".json": "JSON", ".html": "a page", ".gz": "a bundle"}
_EXTENSIONS = "The extension selects the format: .md, .json, .html, .tar.gz"


@command("/export", "Write the session to a .md, .json, .html or .tar.gz file", usage="FILE")
async def export(chat: Chat, argument: str) -> Reply:
    if not argument:
        raise UsageError("/export expects a file name", hint=_EXTENSIONS)
    path = Path(os.path.expanduser(argument))
    if path.suffix not in _FORMATS:
        raise UsageError(f"/export does not know the format of {path.name!r}", hint=_EXTENSIONS)
    folder = SessionFolder(_saved_session(chat).path)
    spawned = _sub_sessions(folder)
    with _not_fatal():
        redact = redactor().value
        if path.suffix == ".gz":
            write_bundle(path, [folder, *spawned], redact, __version__)
            return f"Written to {path}."
        document = export_session(folder, spawned, redact)
    return _write(path, lambda: export_pieces(document, path.suffix[1:]))


def _sub_sessions(folder: SessionFolder) -> list[SessionFolder]:
    root = folder.path.parent
    summaries, _ = ask_index(root, lambda index: index.list_sub_sessions(folder.id))
    return [SessionFolder(root / summary.id) for summary in summaries]


def _write(path: Path, pieces: Callable[[], Iterable[str]]) -> str:
    with _not_fatal():
        write_new(path, pieces, mode=0o666)
    return f"Written to {path}."


def _saved_session(chat: Chat) -> SavedSession:
    saved = chat.session.saved
    if saved is None or not chat.session.is_saved:
        raise UsageError(
            "this session is not saved", hint="Send a prompt first, without --no-save."
        )
    return saved


def _number(name: str, argument: str) -> int:
    if not argument.isdecimal() or not int(argument):
        raise UsageError(f"{name} expects a number from 1, got {one_line(argument, 40)!r}")
    return int(argument)
