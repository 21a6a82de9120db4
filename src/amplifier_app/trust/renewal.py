"""A trusted project stays trusted over what the person changes in it by a command."""

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
    """Trust a project with what it holds after the block, if it was trusted before it.

    Only the one file may differ, and what it newly selects outside of `.amplifier`. After any
    other change the project has to be looked at again.

    Args:
        folder: Its `.amplifier`; None does nothing.
        file: What is changed in the block; nothing is done for one that is not in `folder`.

    Raises:
        ConfigError: The file is a link that leads out of the project; it may have been planted to
            have other settings changed.
    """
    if folder is None or not file.absolute().is_relative_to(folder):
        yield
        return
    if not Path(os.path.realpath(file)).is_relative_to(folder.parent):
        raise ConfigError(
            f"{file} is not changed: it leads out of the project, to {os.path.realpath(file)}",
            hint="Change that file instead, or remove the link.",
        )
    store = TrustStore()
    before = _trusted(store, folder)
    yield
    if before is None:
        return
    after = examine(folder)
    if _differs_only_in(file.absolute().relative_to(folder.parent).as_posix(), before, after):
        store.trust(after)


def _trusted(store: TrustStore, folder: Path) -> Content | None:
    """What the project holds; None if it is not trusted with it, or trusted with anything."""
    record = store.record(folder.parent)
    if record is not None and record.always:
        return None
    try:
        content = examine(folder)
    except ConfigError:
        # What cannot be looked through is not trusted; who uses it tells why.
        return None
    # A project that holds nothing yet is the person's own.
    known = not content.entries or (record is not None and record.allows(content))
    return content if known else None


def _differs_only_in(name: str, before: Content, after: Content) -> bool:
    in_both = before.entries.keys() & after.entries.keys()
    # Outside of the folder are only files that the documents in it select.
    inside = {
        n for n in before.entries.keys() ^ after.entries.keys() if n.startswith(".amplifier/")
    }
    return all(before.entries.get(n) == after.entries.get(n) for n in in_both | inside if n != name)
