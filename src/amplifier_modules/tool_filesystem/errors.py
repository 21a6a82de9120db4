"""Why a file could not be read or changed; each message is for the model.

FileProblem                  (these three are in `_shared.files`)
├── NotAFile                 a folder, a device, a pipe
├── FileTooLarge             more than the operation takes at once
├── NotAFolder               a folder was asked for
├── BinaryFile               the file is no text
├── ImageTooLarge            an image, too large to be shown
├── PastTheEnd               the file has fewer lines
├── TextNotFound             the text to replace is not there
├── TextNotUnique            it is there more than once
├── NothingToChange          the old text is the new one
└── NotEncodable             the file's encoding has no such characters
"""

from __future__ import annotations

import errno
import os

from amplifier_modules._shared.files.whole import FileProblem as FileProblem


class BinaryFile(FileProblem):
    """The file is no text."""


class NotAFolder(FileProblem):
    """What is there is no folder."""


class ImageTooLarge(FileProblem):
    """The image has more bytes or pixels than models are shown."""


class PastTheEnd(FileProblem):
    """The file has fewer lines than asked for."""


class TextNotFound(FileProblem):
    """The text to replace is not in the file."""


class TextNotUnique(FileProblem):
    """The text to replace is in the file more than once."""


class NothingToChange(FileProblem):
    """The replacement is the text that is there."""


class NotEncodable(FileProblem):
    """The file's encoding has no such characters."""


_REASONS = {
    errno.ENOENT: "no such file or folder",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder",
    errno.ELOOP: "too many links, or it was changed into a link just now",
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.ENAMETOOLONG: "a name in the path is too long",
}


def os_problem(error: OSError, path: str) -> str:
    """`error` as a sentence that names the path the model gave, not the one inside."""
    reason = _REASONS.get(error.errno or 0) or error.strerror
    if reason is None:
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
    return f"{path!r}: {reason}"
