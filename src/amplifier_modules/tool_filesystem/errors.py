"""Why a file could not be read or changed; each message is for the model.

FileProblem                  (these three are in `_shared.files`)
├── NotAFile                 a folder, a device, a pipe
├── FileTooLarge             more than the operation takes at once
├── NotAFolder               a folder was asked for
├── BinaryFile               the file is not text
├── ImageTooLarge            an image, too large to be shown
├── PastTheEnd               the file has fewer lines
├── TextNotFound             the text to replace is missing
├── TextNotUnique            it occurs more than once
├── NothingToChange          old and new text are the same
└── NotEncodable             the file's encoding cannot represent the text
"""

from __future__ import annotations

import errno
import os

from amplifier_modules._shared.files.guarded_files import FileProblem as FileProblem


class BinaryFile(FileProblem):
    """The file is not text."""


class NotAFolder(FileProblem):
    """The path is not a folder."""


class ImageTooLarge(FileProblem):
    """The image has more bytes or pixels than may be shown to models."""


class PastTheEnd(FileProblem):
    """The file has fewer lines than asked for."""


class TextNotFound(FileProblem):
    """The text to replace is missing from the file."""


class TextNotUnique(FileProblem):
    """The text to replace occurs in the file more than once."""


class NothingToChange(FileProblem):
    """The replacement is the same as the text to replace."""


class NotEncodable(FileProblem):
    """The file's encoding cannot represent the text."""


_REASONS = {
    errno.ENOENT: "no such file or folder",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOTDIR: "part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder",
    errno.ELOOP: "too many links, or it was replaced with a link meanwhile",
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.ENAMETOOLONG: "a name in the path is too long",
}


def os_problem(error: OSError, path: str) -> str:
    """Describe `error` using the path the model gave, not the resolved one."""
    reason = _REASONS.get(error.errno or 0) or error.strerror
    if reason is None:
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
    return f"{path!r}: {reason}"
