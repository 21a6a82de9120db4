"""`amplifier session delete`."""

from __future__ import annotations

from typing import Annotated

import typer

from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.session.shared import YesOption, confirm, from_index
from amplifier_app.runtime import describe
from amplifier_app.sessions.removal import (
    remove_leftovers,
    remove_sessions,
    size_of,
    with_sub_sessions,
)
from amplifier_app.sessions.store import SessionStore

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def delete(
    session_ids: Annotated[
        list[str],
        typer.Argument(metavar="ID", help="Session ids or prefixes."),
    ],
    yes: YesOption = False,
) -> None:
    """Delete sessions with everything stored for them: sub-sessions, logs, copies of files.

    \b
      amplifier session delete 1a2b3c
      amplifier session delete 1a2b3c 4d5e6f --yes

    A session that is in use is not deleted. Nothing outside its folder is touched.
    """
    store = SessionStore()
    summaries = store.summaries()
    by_id = {summary.id: summary for summary in summaries}
    wanted: list[str] = []
    for session_id in session_ids:
        found = store.find(session_id).id
        wanted += [one for one in with_sub_sessions(found, summaries) if one not in wanted]
    for session_id in reversed(wanted):
        size = describe.size(size_of(store.root / session_id))
        title = one_line(by_id[session_id].about, 60)
        to_stderr(f"  {session_id}  {title}  ({size})".replace("    ", "  "))
    if not confirm(f"Delete {describe.count(len(wanted), 'session')}?", yes):
        to_stderr("Nothing was deleted.")
        return
    remove_sessions(store.root, wanted)
    remove_leftovers(store.root)
    from_index(lambda index: index.forget_removed())
    print(f"Deleted {describe.count(len(wanted), 'session')}.")
