"""Lines of the chat that are shell commands: `! git status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplifier_app.base.sanitize import one_line
from amplifier_app.chat.terminal import ChatTerminal
from amplifier_app.runtime import describe
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.shell import run_shell
from amplifier_support.process.commands import CommandError

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

_MAX_OUTPUT = 40
"""Lines shown of the output of a shell command."""

_MOST_OUTPUT_BYTES = 100_000
"""The end of its output that is offered for the prompt."""


async def run_shell_line(
    text: str, session: OpenSession, renderer: Renderer, terminal: ChatTerminal
) -> str | None:
    """Run a shell command, and return what becomes part of the input line; None if it cannot run."""
    command = text[1:].strip()
    if not command:
        renderer.notice("! expects a shell command", "error", "chat")
        return None
    try:
        coordinator = session.session.coordinator
        result = await run_shell(command, coordinator, most_bytes=_MOST_OUTPUT_BYTES)
    except CommandError as error:
        renderer.notice(f"cannot run the command: {error}", "error", "chat")
        return None
    output = result.output.rstrip("\n")
    lines = output.splitlines()
    more = len(lines) - _MAX_OUTPUT
    cut = [f"… {describe.count(more, 'earlier line')}", *lines[-_MAX_OUTPUT:]]
    if lines:
        renderer.reply("\n".join(cut if more > 0 else lines))
    if result.exit_code:
        renderer.notice(f"exit code {result.exit_code}", "warning", "chat")
    folded = f"$ {command}\n{output}\n[exit code {result.exit_code}]\n"
    label = f"output of `{one_line(command, 30)}`, {describe.count(len(lines), 'line')}"
    terminal.insert_folded(folded, label)
    return folded
