"""Ask on the terminal whether to trust a project."""

from __future__ import annotations

import asyncio

from amplifier_app.base.sanitize import visible
from amplifier_app.chat.terminal_modes import forget_typed
from amplifier_app.trust import Answer
from amplifier_app.trust.content import Content
from amplifier_app.trust.review import changes, cut, listing, selection
from amplifier_app.trust.store import Record

_MAX_FILES = 20
_MAX_SELECTED = 30
_MAX_CHANGES = 200

_ANSWERS: dict[str, Answer] = {
    "trust": "trust",
    "skip project settings": "go on without",
    "quit": "stop",
}


def ask_on_terminal(content: Content, record: Record | None, terminal: int) -> Answer:
    """Return the answer given on the terminal; Ctrl-C and Ctrl-D mean "stop".

    Args:
        content: The files of the project.
        record: What was trusted before; None if nothing was.
        terminal: The descriptor of the terminal to ask on.
    """
    from amplifier_app.chat.ask import Stopped, ask_on_terminal

    question = "\n".join(question_about(content, record))
    forget_typed()
    try:
        chosen = asyncio.run(ask_on_terminal(terminal, question, list(_ANSWERS), None))
    except Stopped:
        return "stop"
    return _ANSWERS.get(chosen or "", "stop")


def question_about(content: Content, record: Record | None) -> list[str]:
    """Return the lines shown above the options."""
    root = visible(str(content.root))
    if record is None:
        head = f"The project {root} contains configuration that you have not trusted yet:"
        shown = cut(listing(content), _MAX_FILES, "files")
    else:
        head = f"The configuration of the project {root} has changed since you trusted it:"
        shown = cut([*changes(record.entries, content.entries)], _MAX_CHANGES, "lines")
    selected = cut(selection(content), _MAX_SELECTED, "lines")
    return [
        head,
        "",
        *(f"  {line}" for line in shown),
        "",
        *(["Contents:", "", *(f"  {line}" for line in selected), ""] if selected else []),
        "Trusted code runs with your permissions. You are asked again when any of it changes.",
        "Full contents: amplifier trust --show",
    ]
