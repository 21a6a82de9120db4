"""Keeps a trusted project trusted when the user changes a file in it with a command."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

from amplifier_app.base.errors import ConfigError
from amplifier_app.trust import TrustStore, examine
from amplifier_app.trust.content import Content


@contextlib.contextmanager
def keeping_trust(folder: Path | None, file: Path) -> Generator[None]:
    """Trust a project with its content after the block, if it was trusted before.

    Only the given file may change, and what it newly selects outside of `.amplifier`. After any
    other change the project must be reviewed again.

    Args:
        folder: Its `.amplifier`; None to do nothing.
        file: The file that the block changes; ignored if it is not in `folder`.

    Raises:
        ConfigError: The file is a link out of the project, which may have been planted to change
            other settings.
    """
    if folder is None or not file.absolute().is_relative_to(folder):
        yield
        return
    if not Path(os.path.realpath(file)).is_relative_to(folder.parent):
        raise ConfigError(
            f"cannot change {file}: it is a link out of the project, to {os.path.realpath(file)}",
            hint="Change that file instead, or remove the link.",
        )
    store = TrustStore()
    before = _trusted_content(store, folder)
    yield
    if before is None:
        return
    after = examine(folder)
    if _differs_only_in(file.absolute().relative_to(folder.parent).as_posix(), before, after):
        store.trust(after)


def _trusted_content(store: TrustStore, folder: Path) -> Content | None:
    """The project's content; None if it is not trusted, or is always trusted."""
    record = store.record(folder.parent)
    if record is not None and record.always:
        return None
    try:
        content = examine(folder)
    except ConfigError:
        # An unreadable project is not trusted; using it reports why.
        return None
    # An empty project is the user's own.
    known = not content.entries or (record is not None and record.allows(content))
    return content if known else None


def _differs_only_in(name: str, before: Content, after: Content) -> bool:
    in_both = before.entries.keys() & after.entries.keys()
    # Entries outside the folder are files that its documents select.
    inside = {
        n for n in before.entries.keys() ^ after.entries.keys() if n.startswith(".amplifier/")
    }
    return all(before.entries.get(n) == after.entries.get(n) for n in in_both | inside if n != name)
