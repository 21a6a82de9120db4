"""An image in the clipboard, saved as a file."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from amplifier_app.base import paths
from amplifier_app.base.errors import AppError, UsageError
from amplifier_app.runtime.attachments import to_image
from amplifier_support.files import make_private_folder, write_atomically
from amplifier_support.programs import find_program

_SECONDS = 5.0
_READERS = (
    ("wl-paste", "--no-newline", "--type", "image/png"),
    ("xclip", "-selection", "clipboard", "-target", "image/png", "-out"),
    ("pngpaste", "-"),
)
"""Programs that print an image in the clipboard: Wayland, X11, macOS."""


def clipboard_image() -> str:
    """The path of a file, private to the user, with the image in the clipboard.

    Raises:
        AppError: There is none, or no program to read it with.
    """
    readers = [[found, *rest] for name, *rest in _READERS if (found := find_program(name))]
    if not readers:
        names = ", ".join(name for name, *_ in _READERS)
        raise AppError(f"cannot read the clipboard: none of {names} is installed")
    for command in readers:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
            to_image("the clipboard", done.stdout)
        except (OSError, subprocess.TimeoutExpired, UsageError):
            continue
        return str(_save(done.stdout))
    raise AppError("there is no image in the clipboard")


def _save(data: bytes) -> Path:
    folder = paths.cache_dir() / "clipboard"
    file = folder / f"{hashlib.sha256(data).hexdigest()[:16]}.png"
    try:
        make_private_folder(folder)
        write_atomically(file, data, durable=False)
    except OSError as error:
        raise AppError(f"cannot save the image in {folder}: {error.strerror}") from error
    return file
