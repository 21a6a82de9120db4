"""`amplifier view`: the sessions of this machine in a browser, live and read-only.

Packages add pages about folders, such as that of a batch: an entry point of the group `amplifier.pages` is called with a
folder, or with the text of a URL, and returns a `FolderPage`, or None if that is not one of its own.
"""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import hmac
import logging
import os
import secrets
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from functools import cached_property
from html import escape
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Protocol
from urllib.parse import parse_qs, quote

import typer

from amplifier_app.base.errors import AppError, SessionError, Terminated
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.runtime import describe
from amplifier_app.runtime.export.page import as_page
from amplifier_app.runtime.export.parts import export_session, redactor
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.index import Page, ask_index
from amplifier_app.sessions.store import SessionStore
from amplifier_serve.local_http import LocalHandler, Refused, serving

app = typer.Typer(add_completion=False, rich_markup_mode=None)

logger = logging.getLogger(__name__)

_LISTED = 200
"""Sessions in the list."""
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { margin: 0; height: 100vh; display: flex; flex-direction: column }
header { padding: .6rem 1rem; border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent) }
main { padding: 1rem; overflow: auto } iframe { flex: 1; border: 0; width: 100% }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .25rem .7rem .25rem 0 }
.number { text-align: right !important; white-space: nowrap } td { vertical-align: top }
"""
_SCRIPT = """
let known;
async function look() {
  try {
    const now = await (await fetch("VERSION")).text();
    if (known !== undefined && now !== known) {
      const frame = document.querySelector("iframe");
      if (frame === null) { location.reload(); return; }
      const top = frame.contentWindow.scrollY, all = frame.contentDocument.documentElement;
      const atEnd = top + frame.clientHeight >= all.scrollHeight - 40;
      frame.addEventListener("load", () => frame.contentWindow.scrollTo(
        0, atEnd ? frame.contentDocument.documentElement.scrollHeight : top), { once: true });
      frame.contentWindow.location.reload();
    }
    known = now;
  } catch { document.title = "(ended) " + document.title.replace("(ended) ", ""); }
  setTimeout(look, 1000);
}
look();
"""


@app.command()
def view(
    session: Annotated[
        str | None,
        argument("SESSION|FOLDER", "The session, or the folder or URL of a batch, to open first."),
    ] = None,
    port: Annotated[int, option("--port PORT", "The port; 0 chooses one.", min=0, max=65535)] = 0,
    no_open: Annotated[bool, option("--no-open", "Do not open a browser.")] = False,
) -> None:
    """Show the sessions of this machine, or a batch, in a browser, read-only and live, until Ctrl-C.

    Only the browser that opens the printed address first can read them. Secrets are replaced as in
    'amplifier session export'.
    """
    path, folder_page = ("/", None) if session is None else _find_first(session)

    class Handler(_Handler):
        token = _Token()
        shown = _Sessions()
        folder = folder_page

    with serving(Handler, port, "--port") as base:
        address = f"{base}{path}?token={Handler.token.once}"
        print(address, flush=True)
        displays = {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
        if not no_open and sys.stdout.isatty() and (displays or sys.platform == "darwin"):
            webbrowser.open(address)
        try:
            threading.Event().wait()
        except Terminated:
            raise
        except KeyboardInterrupt:  # the way to end it
            raise typer.Exit(130) from None


def _find_first(name: str) -> tuple[str, "FolderPage | None"]:
    """The path of the first page, and the page of a folder.

    Raises:
        SessionError: There is neither a folder with a page nor a session of this name.
    """
    if ("://" in name or os.path.isdir(name)) and (page := _find_page(name)) is not None:
        return "/folder", page
    try:
        return f"/session/{quote(SessionStore().find(name).id)}", None
    except SessionError as error:
        if not os.path.isdir(name):
            raise
        hint = "Folders of 'amplifier batch run' have a page."
        raise SessionError(f"there is no page about the folder {name!r}", hint=hint) from error


class FolderPage(Protocol):
    """A page about a folder."""

    @property
    def title(self) -> str:
        """Its title."""
        ...

    def version(self) -> str:
        """A text that changes with the page."""
        ...

    def page(self) -> Iterator[str]:
        """The HTML in pieces, without secrets."""
        ...


def _find_page(folder: str) -> FolderPage | None:
    for entry in entry_points(group="amplifier.pages"):
        try:
            if (page := entry.load()(folder if "://" in folder else Path(folder))) is not None:
                return page
        except AppError:
            raise
        except (Exception, SystemExit) as error:  # The package may be someone else's.
            name = type(error).__name__
            logger.warning("cannot load the page %s: %s: %s", entry.value, name, error)
    return None


class _Token:
    """The key of one browser.

    Attributes:
        once: In the address; the first request with it gets the cookie.
        cookie: In the requests of that browser.
    """

    def __init__(self) -> None:
        self.once = secrets.token_urlsafe(32)
        self.cookie = secrets.token_urlsafe(32)
        self._lock = threading.Lock()
        self._is_used = False

    def use(self, token: str) -> bool:
        """Return True for the first request that has the token of the address."""
        with self._lock:
            if self._is_used or not hmac.compare_digest(token.encode(), self.once.encode()):
                return False
            self._is_used = True
            return True


class _Sessions:
    """The saved sessions as pages."""

    @cached_property
    def _redact(self) -> Callable[[Any], Any]:
        return redactor().value

    def version(self, session_id: str | None) -> str:
        """A text that changes with the session, or with the list."""
        store = SessionStore()
        if session_id is None:
            return f"{hash(tuple(self._page().listed)):x}"
        folder = store.find(session_id).path
        states: list[str] = []
        for name in ("transcript.jsonl", "metadata.json", "events.jsonl"):
            try:
                state = os.stat(folder / name)
            except OSError:  # not every session has all of them
                continue
            states.append(f"{state.st_mtime_ns}-{state.st_size}")
        return " ".join(states)

    def list_page(self) -> str:
        """The list of sessions, last used first."""
        page = self._page()
        rows: list[str] = []
        for entry in page.listed:
            session = entry.session
            cost = "" if session.cost is None else describe.cost(session.cost)
            cells = (
                f'<td><a href="/session/{quote(session.id)}">{self._text(session.about)}</a></td>',
                f"<td>{self._text(session.project or '')}</td>",
                f"<td>{escape(describe.age(session.updated))}</td>",
                f"<td>{escape(session.model or '')}</td>",
                f"<td class=number>{session.prompts or ''}</td><td class=number>{escape(cost)}</td>",
            )
            rows.append(f"<tr>{''.join(cells)}</tr>")
        heads = "".join(f"<th>{name}</th>" for name in ("Session", "Directory", "Used", "Model"))
        heads += "<th class=number>Prompts</th><th class=number>Cost</th>"
        more = page.total - len(page.listed)
        note = f"<p>{more} older: amplifier session list</p>" if more > 0 else ""
        body = f"<main><table><tr>{heads}</tr>{''.join(rows)}</table>{note}</main>"
        return _document("Sessions", body, "/version")

    def frame_page(self, session_id: str) -> str:
        """The page around a session, which shows it again when it changes."""
        session = SessionStore().find(session_id)
        title = session.metadata.get("title")
        heading = self._redact(title) if isinstance(title, str) else session.id
        return _frame(heading, f"/session/{quote(session.id)}")

    def session_page(self, session_id: str) -> str:
        """The conversation of a session, without secrets."""
        store = SessionStore()
        session = store.find(session_id)
        below, _ = ask_index(store.root, lambda index: index.list_sub_sessions(session.id))
        spawned = [SessionFolder(store.root / summary.id) for summary in below]
        return "".join(as_page(export_session(session, spawned, self._redact)))

    def _text(self, text: str) -> str:
        return escape(self._redact(text))

    @staticmethod
    def _page() -> Page:
        return ask_index(SessionStore().root, lambda index: index.page(None, _LISTED))[0]


class _Handler(LocalHandler):
    """One connection of a browser."""

    token: _Token
    shown: _Sessions
    folder: FolderPage | None

    def do_GET(self) -> None:
        try:
            self.refuse_strangers()
            path, _, query = self.path.partition("?")
            if self._let_in(path, parse_qs(query).get("token", [""])[0]):
                return
            page = self._page(path)
        except Refused as refused:
            self._send(refused.status, f"{refused}\n", "text/plain")
        except AppError as error:
            self._send(404, f"{error.message}\n", "text/plain")
        else:
            is_version = path.endswith("/version")
            self._send(200, page, "text/plain" if is_version else "text/html")

    do_HEAD = do_GET

    def _let_in(self, path: str, token: str) -> bool:
        """Answer the first request with the token; False for those that have the cookie.

        Raises:
            Refused: It has neither.
        """
        # Browsers send a cookie to every port, so that two views would take it from each other.
        name = f"amplifier-view-{self.connection.getsockname()[1]}"
        if token and self.token.use(token):
            cookie = f"{name}={self.token.cookie}; Path=/; HttpOnly; SameSite=Strict"
            self.answer(
                303, b"", "", Location=path, Set_Cookie=cookie, Referrer_Policy="no-referrer"
            )
            return True
        sent = (part.strip().partition("=") for part in self.headers.get("Cookie", "").split(";"))
        kept = {key: value for key, _, value in sent}.get(name, "")
        if not hmac.compare_digest(kept.encode(), self.token.cookie.encode()):
            raise Refused(401, "open the address that 'amplifier view' has printed; it works once")
        return False

    def _page(self, path: str) -> str:
        match path.strip("/").split("/"):
            case [""]:
                return self.shown.list_page()
            case ["version"]:
                return self.shown.version(None)
            case ["session", id]:
                return self.shown.frame_page(id)
            case ["session", id, "page"]:
                return self.shown.session_page(id)
            case ["session", id, "version"]:
                return self.shown.version(id)
            case ["folder", *below] if self.folder is not None and len(below) < 2:
                return self._folder_page(self.folder, "".join(below))
            case _:
                raise Refused(404, "there is no such page")

    def _folder_page(self, folder: FolderPage, name: str) -> str:
        match name:
            case "":
                return _frame(folder.title, "/folder")
            case "page":
                return "".join(folder.page())
            case "version":
                return folder.version()
            case _:
                raise Refused(404, "there is no such page")

    def _send(self, status: int, text: str, content_type: str) -> None:
        headers = {"Referrer_Policy": "no-referrer", "X_Frame_Options": "SAMEORIGIN"}
        kind = f"{content_type}; charset=utf-8"
        self.answer(status, text.encode("utf-8", "replace"), kind, **headers)


def _frame(title: str, source: str) -> str:
    """The page around another one, which shows it again when it changes."""
    header = f'<header><a href="/">Sessions</a> · {escape(title)}</header>'
    # No script of the page runs, whatever it has in it.
    frame = f'<iframe sandbox="allow-same-origin" src="{source}/page"></iframe>'
    return _document(title, header + frame, f"{source}/version")


def _document(title: str, body: str, version: str) -> str:
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
        "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'"
    )
    script = _SCRIPT.replace("VERSION", version)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width">'
        f'<title>{escape(title)}</title><style nonce="{nonce}">{_STYLE}</style></head>'
        f'<body>{body}<script nonce="{nonce}">{script}</script></body></html>\n'
    )
