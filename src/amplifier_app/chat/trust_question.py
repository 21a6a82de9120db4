"""Asking a person at the terminal whether a project is trusted."""

from __future__ import annotations

import asyncio

from amplifier_app.base.sanitize import visible
from amplifier_app.trust import Answer
from amplifier_app.trust.content import Content
from amplifier_app.trust.review import changes, cut, listing, selection
from amplifier_app.trust.store import Record

_MOST_FILES = 20
_MOST_SELECTED = 30
_MOST_CHANGES = 200

_ANSWERS: dict[str, Answer] = {
    "trust": "trust",
    "go on without": "go on without",
    "stop": "stop",
}


def ask_on_terminal(content: Content, record: Record | None, terminal: int) -> Answer:
    """What the person at the terminal decides; Ctrl-C and Ctrl-D are "stop".

    Args:
        content: What the project brings along.
        record: What is known of it from before.
        terminal: The descriptor of the terminal to ask on.
    """
    from amplifier_app.chat.ask import ask_on_terminal

    question = "\n".join(question_about(content, record))
    forget_typed()
    chosen = asyncio.run(ask_on_terminal(terminal, question, list(_ANSWERS), None))
    return _ANSWERS.get(chosen or "", "stop")


def forget_typed() -> None:
    """Drop what was typed before there was a question: it is no answer to it."""
    try:
        import termios
    except ImportError:  # no terminals of this kind on Windows
        return
    termios.tcflush(0, termios.TCIFLUSH)


def question_about(content: Content, record: Record | None) -> list[str]:
    """What is shown before it is asked, line by line."""
    root = visible(str(content.root))
    if record is None:
        head = f"The project {root} brings its own configuration, which you have not trusted yet:"
        shown = cut(listing(content), _MOST_FILES, "files")
    else:
        head = f"What the project {root} brings along has changed since you trusted it:"
        shown = cut([*changes(record.entries, content.entries)], _MOST_CHANGES, "lines")
    selected = cut(selection(content), _MOST_SELECTED, "lines")
    return [
        head,
        "",
        *(f"  {line}" for line in shown),
        "",
        *(["It selects:", "", *(f"  {line}" for line in selected), ""] if selected else []),
        "What you trust runs with your rights. You are asked again when anything of it changes.",
        "Every line of it: amplifier trust --show",
    ]
