"""Ask a question on the terminal and wait for the choice."""

from __future__ import annotations

import asyncio

from prompt_toolkit import PromptSession

from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.chat.editor import terminal_output


async def ask_on_terminal(
    fd: int, question: str, options: list[str], timeout: float | None
) -> str | None:
    """Return the option chosen by its number, name or prefix; None on Ctrl-C or Ctrl-D.

    Args:
        fd: The terminal.
        question: Text shown above the options.
        options: The possible answers.
        timeout: Seconds to wait for an answer; None to wait forever.

    Raises:
        TimeoutError: No answer within `timeout` seconds.
    """
    output = terminal_output(fd)
    output.write(f"\n{for_terminal(question)}\n")
    output.flush()
    choices = "  ".join(f"[{n}] {one_line(option)}" for n, option in enumerate(options, 1))
    session: PromptSession[str] = PromptSession(f"{choices}: ", output=output)
    async with asyncio.timeout(timeout):
        while True:
            try:
                answer = await session.prompt_async()
            except (KeyboardInterrupt, EOFError):
                return None
            choice = choose(answer, options)
            if choice is not None:
                return choice


def choose(answer: str, options: list[str]) -> str | None:
    """Return the option that `answer` selects; None if it matches none or several."""
    answer = answer.strip().lower()
    if answer.isdecimal():
        return options[int(answer) - 1] if 0 < int(answer) <= len(options) else None
    exact = [option for option in options if option.lower() == answer]
    near = [option for option in options if answer and option.lower().startswith(answer)]
    found = exact or near
    return found[0] if len(found) == 1 else None
