"""Commands that act on the conversation."""

from __future__ import annotations

from amplifier_app.chat.slash.layout import lines, rows
from amplifier_app.chat.slash.registry import Chat, Leave, Reply, command, one_of

_KEYS = (
    ("Enter", "Send the prompt, or a message to the running turn"),
    ("Alt-Enter, Ctrl-J", "Start a new line"),
    ("Ctrl-R", "Search earlier prompts"),
    ("Ctrl-C, Esc", "Stop the turn; again to kill a running tool"),
    ("Ctrl-C", "Clear the line; twice on an empty line, leave"),
    ("Ctrl-D", "Leave the chat"),
)


@command("/help", "Commands and keys", during_turn=True)
async def show_help(chat: Chat, argument: str) -> Reply:
    listed = [(f"{one.name} {one.usage}".strip(), one.summary) for one in chat.commands.values()]
    typing = (
        "Anything you type while it works is sent to the model at its next step. Commands that "
        "change the session run when the turn ends."
    )
    return lines(rows(listed), "", rows(_KEYS), "", typing)


@command("/clear", "Clear the context")
async def clear(chat: Chat, argument: str) -> Reply:
    await chat.session.clear()
    return "Context cleared. The earlier conversation stays in the session file."


@command("/quit", "Leave the chat", aliases=("/exit",))
async def leave(chat: Chat, argument: str) -> Reply:
    raise Leave


@command(
    "/think",
    "Show or hide the model's thinking",
    usage="[on|off]",
    during_turn=True,
    complete=lambda chat, argument: ("on", "off"),
)
async def think(chat: Chat, argument: str) -> Reply:
    wanted = {"": None, "on": True, "off": False}[one_of("/think", argument, ("", "on", "off"))]
    shown = chat.session.renderer.visibility.show_thinking(wanted)
    return "Thinking is shown." if shown else "Thinking is hidden."
