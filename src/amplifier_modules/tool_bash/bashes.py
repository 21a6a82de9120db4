"""`/bashes` of the chat: the background commands of the session, what they write, and an end to one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from amplifier_modules._shared.module.tools import InvalidInput
from amplifier_modules.tool_bash.background import Background, BackgroundCommand

_TAIL_BYTES = 16_384
_TAIL_LINES = 20


def chat_commands(background: Background) -> list[dict[str, Any]]:
    """The commands for the channel `chat.commands`."""

    async def bashes(argument: str) -> str:
        words = argument.split()
        try:
            if not words:
                return "\n".join(map(_line, background)) or "No background commands."
            if words[0] == "stop" and len(words) == 2:
                command = background.find(words[1])
                await command.kill()
                return f"{command.id} {command.state}"
            if len(words) == 1:
                command = background.find(words[0])
                tail = "\n".join(_tail(command.log)[-_TAIL_LINES:])
                return f"{_line(command)}\n{tail or '(no output)'}"
        except InvalidInput as error:
            return str(error)
        return (
            "/bashes lists them, /bashes ID shows the end of the output, /bashes stop ID ends one"
        )

    return [
        {
            "name": "bashes",
            "summary": "Background commands: list, show the output of one, stop one",
            "usage": "[ID|stop ID]",
            "handler": bashes,
            "during_turn": True,
        }
    ]


def _line(command: BackgroundCommand) -> str:
    last = next(iter(_tail(command.log)[-1:]), "")
    text = f"{command.id}  {command.state}  {command.line.strip().splitlines()[0]}"
    return f"{text}\n    {last}" if last else text


def _tail(log: Path | None) -> list[str]:
    """The last lines of a log, without empty ones at its end."""
    if log is None:
        return []
    try:
        with log.open("rb") as file:
            start = file.seek(0, 2)
            file.seek(max(0, start - _TAIL_BYTES))
            data = file.read()
    except OSError:
        return []
    lines = data.decode("utf-8", "replace").rstrip().splitlines()
    return lines if start <= _TAIL_BYTES else lines[1:]
