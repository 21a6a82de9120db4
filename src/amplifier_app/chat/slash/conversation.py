"""Commands that act on the conversation."""

from __future__ import annotations

import inspect

from rich.text import Text

from amplifier_app.base.errors import AppError, UsageError
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.chat.slash.layout import Rows, lines
from amplifier_app.chat.slash.registry import (
    Chat,
    Leave,
    Reply,
    ask_module,
    by_heading,
    command,
    parse_switch,
)
from amplifier_app.runtime import describe
from amplifier_app.runtime.continuation import prompt_to_continue
from amplifier_app.runtime.turns.turn import NO_TURN
from amplifier_support.fields import read_field

_KEYS = (
    ("Enter", "Send the prompt; while one runs, a message for its next step"),
    ("Alt-Enter, Ctrl-J", "Start a new line"),
    ("Tab", "Complete a command, or a file after @"),
    ("Up, Ctrl-R", "Recall or search earlier prompts"),
    ("Shift-Tab", "Switch to the next approval mode"),
    ("Ctrl-X Ctrl-E", "Write the prompt in your editor"),
    ("Ctrl-C, Esc", "Stop the prompt; again to kill a running tool"),
    ("Ctrl-C", "Clear the line; twice on an empty line, leave"),
    ("Ctrl-B", "Let the running prompt go on in the background, and end the chat"),
    ("Ctrl-D", "Leave the chat"),
)
_PLAIN_KEYS = (
    ("Enter", "Send the line; while a prompt runs, a message for its next step"),
    ("\\ Enter", "Start a new line"),
    ("Ctrl-C", "Stop the prompt, or clear the line; twice, leave"),
    ("Ctrl-D", "Leave the chat"),
)
_INPUTS = (
    ("@path, @path:10-40", "Add a file, or some of its lines, to the prompt"),
    ("!command", "Run a shell command and offer its output for the prompt"),
)


@command("/help", "Commands and keys", during_turn=True)
async def show_help(chat: Chat, argument: str) -> Reply:
    listed: list[tuple[str, str]] = []
    for heading, commands in by_heading(chat.commands).items():
        listed.append((heading, ""))
        listed += [(f"  {each.name} {each.usage}".rstrip(), each.summary) for each in commands]
    typing = (
        "Anything you type while it works is sent to the model at its next step. Commands that "
        "change the session run when the prompt ends."
    )
    keys = _PLAIN_KEYS if chat.is_plain else _KEYS
    return lines(
        Rows(listed),
        "",
        "Input",
        Rows((f"  {name}", about) for name, about in (*_INPUTS, *keys)),
        "",
        typing,
    )


@command("/clear", "Clear the context")
async def clear(chat: Chat, argument: str) -> Reply:
    # The instruction is added again with the next prompt.
    await chat.session.context.clear()
    return "Context cleared. The earlier conversation stays in the session file."


@command(
    "/background", "Let the running prompt go on without the chat, which ends", during_turn=True
)
async def background(chat: Chat, argument: str) -> Reply:
    chat.on_background()
    return None


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
    if not chat.session.renderer.visibility.show_thinking(parse_switch("/think", argument)):
        return "Thinking is hidden."
    thought = for_terminal(chat.renderer.folded_thinking)
    return lines(
        "Thinking is shown.", *([Text(f"\n{thought}", style="dim italic")] if thought else [])
    )


@command("/verbose", "Show or hide the output of tools", usage="[on|off]", during_turn=True)
async def verbose(chat: Chat, argument: str) -> Reply:
    setting = parse_switch("/verbose", argument)
    renderer = chat.renderer
    renderer.verbose = not renderer.verbose if setting is None else setting
    return "Tool results are shown in full." if renderer.verbose else "Tool results are folded."


@command("/compact", "Make room in the context now; FOCUS is what a summary keeps", usage="[FOCUS]")
async def compact(chat: Chat, argument: str) -> Reply:
    function = getattr(chat.session.context, "compact", None)
    if not callable(function):
        raise AppError(
            "the context of this plan cannot be compacted on request",
            hint="context-simple and context-persistent can. /clear empties the context.",
        )
    if argument and not inspect.signature(function).parameters:
        raise AppError("the context of this plan takes no focus", hint="Run: /compact")
    result = await ask_module(function, *([argument] if argument else []))
    before, after = (read_field(result, f"{when}_tokens") for when in ("before", "after"))
    if not isinstance(before, int) or not isinstance(after, int):
        return "Compacted."
    if after >= before:
        return f"Nothing to compact: the conversation has about {describe.tokens(after)} tokens."
    return None  # A notice of the context shows how much.


@command("/retry", "Send the last prompt again, or continue an unfinished one")
async def retry(chat: Chat, argument: str) -> Reply:
    prompt = chat.last_prompt
    if prompt is None:
        raise UsageError("there is no prompt to send again")
    turn = chat.session.turn
    if chat.is_unanswered or (turn is not NO_TURN and turn.status != "success"):
        # Completed steps are not repeated.
        prompt = await prompt_to_continue(chat.session, prompt)
    chat.send(prompt)
    return None
