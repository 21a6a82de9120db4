"""Presents a project's content for review: its files, what it selects, what changed.

Nothing in it may control the terminal or be hidden: every non-printable character is shown as an
escape, including line breaks in names and bidirectional controls.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from amplifier_app.base.sanitize import visible
from amplifier_app.trust.content import Content, Entry
from amplifier_app.trust.selection import collect_facts

_CONTEXT = 3


INSTRUCTIONS = "Instruction files (later changes are trusted, too):"
"""The heading of the files that a trusted project gives the model."""


def listing(content: Content) -> list[str]:
    """The files, one line each; those outside `.amplifier` come first."""
    entries = sorted(content.entries.items(), key=lambda item: item[0].startswith(".amplifier/"))
    return [f"{visible(name)}  ({_described(entry)})" for name, entry in entries]


def _described(entry: Entry) -> str:
    if entry.kind == "link":
        return f"link to {visible(entry.text or '')}"
    if entry.kind == "special":
        return "not a regular file, never read"
    size = f"{entry.size:,} bytes"
    return f"executable, {size}" if entry.kind == "executable" else size


def selection(content: Content) -> list[str]:
    """Return the selections of the documents, one line each: modules, their sources, URLs,
    variables.
    """
    lines = [
        f"{visible(fact.at.file)}:{fact.at.line}: {fact.what} {visible(fact.text)}"
        for fact in facts(content)
    ]
    return list(dict.fromkeys(lines))


def facts(content: Content) -> list[Any]:
    """Return the selections of a project's documents (`selection.Fact`), file by file."""
    selections: list[Any] = []
    # Settings always apply, a profile only when chosen.
    for name, data in sorted(
        content.documents.items(), key=lambda item: (item[0].count("/"), item[0])
    ):
        selections += collect_facts(name, data)
    return selections


def changes(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> Iterator[str]:
    """The changes as a unified diff; nothing if there are none.

    Args:
        before: The trusted entries; empty to show everything.
        after: The current entries.
    """
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if (old and old[:2]) != (new and new[:2]):
            yield from _file_changes(visible(name), old, new)


def _file_changes(name: str, old: Entry | None, new: Entry | None) -> Iterator[str]:
    yield f"--- {'/dev/null' if old is None else name}{_mode(old)}"
    yield f"+++ {'/dev/null' if new is None else name}{_mode(new)}"
    before, after = _text(old), _text(new)
    if before is None or after is None:
        sizes = [_described(entry) if entry else "missing" for entry in (old, new)]
        yield f"  text cannot be shown: {' → '.join(sizes)}"
        return
    lines = difflib.unified_diff(before, after, n=_CONTEXT, lineterm="")
    for number, line in enumerate(lines):
        # The first two lines repeat the file names.
        if number > 1:
            yield visible(line)


def _mode(entry: Entry | None) -> str:
    return "" if entry is None or entry.kind == "file" else f"  ({entry.kind})"


def _text(entry: Entry | None) -> list[str] | None:
    if entry is None:
        return []
    if entry.text is None:
        return None
    lines = entry.text.split("\n")
    if lines[-1] == "":
        return lines[:-1]
    return [*lines[:-1], f"{lines[-1]}\\ (no line break at the end)"]


def cut(lines: list[str], max_lines: int, more: str) -> list[str]:
    """The first `max_lines` lines, then a line with the number of further ones, called `more`."""
    left = len(lines) - max_lines
    return lines if left <= 1 else [*lines[:max_lines], f"… and {left:,} more {more}"]
