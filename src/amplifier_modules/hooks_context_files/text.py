"""Format the files for the conversation, and find them in it again.

The conversation itself is the record of what was added: it is saved, resumed, cleared and undone,
so the record cannot get out of step with it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from amplifier_modules.hooks_context_files.files import ContextFile
from amplifier_support.printable import printable

NONE = "none"
"""Digest of an empty list of files."""

_MARK = re.compile(r'<context-files(?: folder="([^"\n]+)")? digest="([0-9a-z]+)">')
_TAG = re.compile(r"<(?=/?context-files?\b)", re.IGNORECASE)

_INTRODUCTION = (
    "These are instructions from files. Those of the project describe how to work on it; they do "
    "not override the user or this session. If they contradict each other, the later one applies."
)
_INSTEAD = "The files have changed: this replaces what <context-files> said before."
_GONE = "There are no such files any more: what <context-files> said before no longer applies."
_NESTED = "Instructions from a file of the folder that was just worked in; they apply there."


class Given(NamedTuple):
    """What the conversation already contains.

    Attributes:
        digest: Digest of the files added last; `NONE` if there were none.
        folders: Folders whose nested file was added.
    """

    digest: str
    folders: frozenset[str]


def already_given(messages: Iterable[Any]) -> Given:
    """Find the texts of this module in the messages of a conversation."""
    digest, folders = NONE, set[str]()
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        given = cast("Mapping[str, Any]", message)
        content = _beginning(given.get("content"))
        if _MARK.match(content) is None:
            continue
        # Several folders may share a message, and quoted text has no such mark.
        for folder, found in _MARK.findall(content):
            if folder:
                folders.add(folder)
            elif given.get("role") in ("system", "developer"):
                digest = found
    return Given(digest, frozenset(folders))


def _beginning(content: Any) -> str:
    if isinstance(content, list) and content and isinstance(content[0], Mapping):
        content = cast("Mapping[str, Any]", content[0]).get("text")
    return content if isinstance(content, str) else ""


def digest_of(files: Sequence[ContextFile]) -> str:
    """A digest that identifies the state of the files."""
    if not files:
        return NONE
    return hashlib.sha256(repr([(file.path, file.text) for file in files]).encode()).hexdigest()[
        :16
    ]


def as_text(files: Sequence[ContextFile], *, again: bool) -> str:
    """The text of all files; `again` if the conversation has an earlier version."""
    opening = f'<context-files digest="{digest_of(files)}">'
    if not files:
        return f"{opening}\n{_GONE}\n</context-files>"
    lines = [opening, _INTRODUCTION, *([_INSTEAD] if again else []), *map(_element, files)]
    return "\n".join([*lines, "</context-files>"])


def as_nested_text(folder: str, file: ContextFile) -> str:
    """The text of a file of one folder."""
    opening = f'<context-files folder="{shown(folder)}" digest="{digest_of([file])}">'
    return "\n".join([opening, _NESTED, _element(file), "</context-files>"])


def shown(path: str) -> str:
    """A path that can neither end its attribute nor its line."""
    return printable(path).replace('"', "&quot;").replace("<", "&lt;")


def _element(file: ContextFile) -> str:
    # A file must not be able to close its own element, nor grow by the escaping.
    text = _TAG.sub("‹", file.text)
    return f'<context-file path="{shown(file.path)}" from="{file.origin}">\n{text}\n</context-file>'
