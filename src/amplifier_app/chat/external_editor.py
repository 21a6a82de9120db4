"""Edit the input line in the user's editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from amplifier_app.base.errors import AppError
from amplifier_support.environment import without_secrets
from amplifier_support.programs import find_program

_OTHERS = ("nano", "vi")


def edit(text: str, terminal: int) -> str:
    """Return the text after it was edited with `$VISUAL` or `$EDITOR`.

    Args:
        text: The text to edit.
        terminal: The descriptor of the terminal, which nothing else uses meanwhile.

    Raises:
        AppError: No editor was found, or it failed.
    """
    command = _command()
    try:
        with tempfile.TemporaryDirectory(prefix="amplifier-") as folder:
            file = Path(folder) / "prompt.md"
            file.write_text(text, encoding="utf-8", errors="replace")
            done = subprocess.run(
                [*command, str(file)],
                stdin=0,
                stdout=terminal,
                stderr=terminal,
                env=without_secrets(os.environ),
                check=False,
            )
            edited = file.read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError as error:
        what = error.strerror or str(error)
        raise AppError(
            f"cannot use the editor {command[0]}: {what}; nothing was changed"
        ) from error
    if done.returncode:
        raise AppError(f"the editor ended with exit code {done.returncode}; nothing was changed")
    return edited


def _command() -> list[str]:
    """Return the editor with its options; its program is never one of the project."""
    for variable in ("VISUAL", "EDITOR"):
        value = os.environ.get(variable)
        if value:
            try:
                program, *options = shlex.split(value) or [value]
            except ValueError as error:
                raise AppError(f"${variable} is not a command: {value!r}: {error}") from error
            found = program if os.path.isabs(program) else find_program(program)
            if found is None:
                raise AppError(f"${variable} is set to {program!r}, which is not on PATH")
            return [found, *options]
    found = next(filter(None, map(find_program, _OTHERS)), None)
    if found is None:
        raise AppError("no editor found; set $EDITOR")
    return [found]
