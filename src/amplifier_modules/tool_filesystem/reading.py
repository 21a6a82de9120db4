"""A page of lines from a text file of any size, or an image."""

from __future__ import annotations

import io
import os
from typing import BinaryIO, NamedTuple

from amplifier_modules._shared.files.guarded_files import open_guarded
from amplifier_modules._shared.files.roots import Location
from amplifier_modules.tool_filesystem.errors import BinaryFile, ImageTooLarge, PastTheEnd
from amplifier_modules.tool_filesystem.images import (
    MOST_PIXELS,
    DamagedImage,
    Image,
    looks_like_image,
    read_image,
)
from amplifier_modules.tool_filesystem.text import SNIFFED, decode, for_model

WHOLE = 8 * 1024 * 1024
"""Files up to this many bytes are read and decoded whole, which detects the encoding best."""

_COUNTED = 256 * 1024 * 1024
_PIECE = 64 * 1024
_LARGEST_IMAGE = 256 * 1024 * 1024


class Page(NamedTuple):
    """Some lines of a file.

    Attributes:
        text: The lines, line ends as LF.
        first: Number of the first line, from 1.
        last: Number of the last line.
        total: Number of lines in the file; None when it is too large to count them.
        cut: The last line is cut.
        size: Bytes of the file that the page covers.
    """

    text: str
    first: int
    last: int
    total: int | None
    cut: bool
    size: int

    @property
    def note(self) -> str:
        """A note for the model on the rest of the file; empty if this is all of it."""
        of = f" of {self.total}" if self.total is not None else ""
        if self.cut:
            where = f"line {self.last}{of} is cut here: it is too long"
            return f"{where}; the next line is at offset {self.last + 1}"
        if self.total is None or self.last < self.total:
            return f"lines {self.first}-{self.last}{of}; continue with offset {self.last + 1}"
        return f"lines {self.first}-{self.last}{of}" if self.first > 1 else ""


class ImageFile(NamedTuple):
    """An image file: what is known of it, and all its bytes."""

    image: Image
    data: bytes

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(self.data)


class Limits(NamedTuple):
    """The range requested, and the most to return.

    Attributes:
        first: Number of the first line, from 1.
        lines: Number of lines.
        text: Bytes of text.
        image: Bytes of an image.
    """

    first: int
    lines: int
    text: int
    image: int


def read_file(location: Location, limits: Limits) -> Page | ImageFile:
    """Read lines of a text file, or a whole image.

    Raises:
        BinaryFile: It is neither text nor an image.
        PastTheEnd: The file has fewer lines.
        ImageTooLarge: The image has too many bytes or pixels.
        NotAFile: The path is not a file.
        OSError: It cannot be read.
    """
    with open_guarded(location) as (descriptor, size):
        file = os.fdopen(descriptor, "rb", closefd=False)
        start = file.peek(SNIFFED)[:SNIFFED]
        if looks_like_image(start):
            found = _image(file, size, limits)
            if found is not None:
                return found
        if size > WHOLE:
            if b"\0" in start:
                raise BinaryFile(f"it is a binary file of {size} bytes")
            return _page(file, limits, counted=size <= _COUNTED)
        data = file.read()
    try:
        text, coding = decode(data)
    except BinaryFile as error:
        raise BinaryFile(f"{error} of {len(data)} bytes") from None
    if coding.encoding != "utf-8" or coding.mark or coding.errors != "strict":
        data = for_model(text).encode()
    return _page(io.BytesIO(data), limits, counted=True)


def _image(file: BinaryIO, size: int, limits: Limits) -> ImageFile | None:
    """The image in `file`; None, with the file at its start, if it is text after all."""
    if size > _LARGEST_IMAGE:
        raise ImageTooLarge(_too_large(f"an image of {size} bytes", limits))
    data = file.read()
    try:
        image = read_image(data)
    except DamagedImage as error:
        if b"\0" in data[:SNIFFED]:
            raise BinaryFile(f"it starts like an image, but is damaged: {error}") from None
        file.seek(0)
        return None
    if len(data) > limits.image or max(image.width, image.height) > MOST_PIXELS:
        raise ImageTooLarge(_too_large(f"a {image.described}, of {size} bytes", limits))
    return ImageFile(image, data)


def _too_large(what: str, limits: Limits) -> str:
    most = f"{limits.image} bytes and {MOST_PIXELS} pixels a side"
    return f"it is {what}; the limit is {most}: make a smaller copy and read that"


def _page(file: BinaryIO, limits: Limits, *, counted: bool) -> Page:
    first = limits.first
    _skip(file, first - 1)
    kept, cut = _take(file, limits.lines, limits.text)
    if not kept and first > 1:
        raise PastTheEnd(f"it has {first - 1} lines")
    last = first - 1 + _lines(kept)
    # The rest of a line that was cut does not count as a line.
    total = last + _lines_left(file) - cut if counted else None
    text = for_model(decode(kept)[0])
    return Page(text, first, last, total, cut, len(kept))


def _skip(file: BinaryIO, lines: int) -> None:
    """Skip so many lines. Raises PastTheEnd."""
    left, piece = lines, b"\n"
    while left:
        piece, before = file.read(_PIECE), piece
        if not piece:
            found = lines - left + (not before.endswith(b"\n"))
            raise PastTheEnd(f"it has {found} lines")
        ends = piece.count(b"\n")
        if ends < left:
            left -= ends
            continue
        at = -1
        while left:
            at = piece.find(b"\n", at + 1)
            left -= 1
        file.seek(at + 1 - len(piece), os.SEEK_CUR)


def _take(file: BinaryIO, limit: int, max_bytes: int) -> tuple[bytes, bool]:
    """Whole lines that fit, or the start of the first and True; leaves the file after them."""
    data = file.read(max_bytes + 1)
    lines = data.split(b"\n", limit)
    kept = data[: len(data) - len(lines[-1])] if len(lines) > limit else data
    cut = False
    if len(kept) > max_bytes:
        kept = kept[: kept.rfind(b"\n", 0, max_bytes) + 1]
        if not kept:
            kept, cut = _whole_characters(data[:max_bytes]), True
    file.seek(len(kept) - len(data), os.SEEK_CUR)
    return kept, cut


def _whole_characters(data: bytes) -> bytes:
    """`data` without an incomplete UTF-8 character at its end."""
    for back, byte in enumerate(reversed(data[-4:]), start=1):
        if byte & 0xC0 != 0x80:
            needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return data[:-back] if needed > back else data
    return data


def _lines(data: bytes) -> int:
    return data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))


def _lines_left(file: BinaryIO) -> int:
    count, last = 0, b"\n"
    while piece := file.read(_PIECE):
        count += piece.count(b"\n")
        last = piece
    return count + (not last.endswith(b"\n"))
