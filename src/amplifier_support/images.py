"""Images in the formats models take: PNG, JPEG, GIF and WebP, complete and within size limits.

A service refuses a request with a damaged or oversized image, and every later one, as the image
stays in the conversation. So only what is certainly an image is passed on as one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator

from amplifier_support.named_tuple import NamedTuple

MAX_PIXELS = 8_000
"""Longest side in pixels that the large services accept."""

Size = tuple[int, int]

_SCAN = 0xDA
"""Marker of the segment before the pixels of a JPEG."""


class Image(NamedTuple):
    """The facts of an image: its media type, and width and height in pixels."""

    media_type: str
    width: int
    height: int

    @property
    def described(self) -> str:
        """Such as `PNG image, 640x480 pixels`."""
        kind = self.media_type.removeprefix("image/").upper().replace("WEBP", "WebP")
        return f"{kind} image, {self.width}x{self.height} pixels"


class DamagedImage(Exception):
    """It starts like an image but is damaged; the message says what is wrong."""


def image_type(start: bytes) -> str | None:
    """The media type of an image of a supported kind, by its first 16 bytes; None for anything else."""
    return kind[0] if (kind := _kind(start)) else None


def read_image(data: bytes) -> Image:
    """Identify the image in `data`, checking its structure to the end.

    Raises:
        DamagedImage: It is not an image, or not complete.
    """
    kind = _kind(data)
    if kind is None:
        raise DamagedImage("it is not an image")
    media_type, measure = kind
    try:
        width, height = measure(data)
    except (IndexError, struct.error):
        raise DamagedImage("it ends too early") from None
    if not width or not height:
        raise DamagedImage("it has no pixels")
    return Image(media_type, width, height)


def _kind(start: bytes) -> tuple[str, Callable[[bytes], Size]] | None:
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png", _png
    if start.startswith(b"\xff\xd8\xff"):
        return "image/jpeg", _jpeg
    if start.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif", _gif
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return "image/webp", _webp
    return None


def _png(data: bytes) -> Size:
    size, has_pixels = (0, 0), False
    for kind, at, end in _png_chunks(data):
        (checksum,) = struct.unpack_from(">I", data, end - 4)
        if zlib.crc32(data[at + 4 : end - 4]) != checksum:
            raise DamagedImage("it has a wrong checksum")
        if kind == b"IHDR":
            size = struct.unpack_from(">II", data[at + 8 : end - 4])
        has_pixels = has_pixels or kind == b"IDAT"
    return size if has_pixels else (0, 0)


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the kind, start and end of each chunk: length, kind, content and checksum, from IHDR to IEND."""
    kind, end = b"", 8
    while kind != b"IEND":
        at = end
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        yield kind, at, end


def _jpeg(data: bytes) -> Size:
    size = (0, 0)
    for marker, at, end in _jpeg_segments(data):
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            size = (width, height)
        elif marker == _SCAN and b"\xff\xd9" not in data[end:]:
            raise DamagedImage("it ends too early")
    return size


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the marker, start and end of each segment up to the scan; one of them is the frame, which has the size."""
    marker, end = 0, 2
    while marker != _SCAN:
        at = end
        if data[at] != 0xFF:
            raise DamagedImage("it has an invalid marker")
        marker, end = data[at + 1], at + 1
        if marker != 0xFF:  # filling
            end += 1 + struct.unpack_from(">H", data, at + 2)[0]
            yield marker, at, end


def _gif(data: bytes) -> Size:
    """Blocks up to the trailer, which some writers omit; one of them must be an image."""
    size: Size = struct.unpack_from("<HH", data, 6)
    at, has_pixels = 13 + _colours(data[10]), False
    while at < len(data) and data[at] != ord(";"):
        if data[at] == ord(","):
            at, has_pixels = at + 11 + _colours(data[at + 9]), True
        elif data[at] == ord("!"):
            at += 2
        else:
            raise DamagedImage("it has an invalid block")
        while data[at]:
            at += 1 + data[at]
        at += 1
    if not has_pixels:
        raise DamagedImage("it ends too early")
    return size


def _colours(flags: int) -> int:
    """Bytes of the colour table that `flags` declare."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _webp(data: bytes) -> Size:
    (length,) = struct.unpack_from("<I", data, 4)
    if len(data) < length + 8:
        raise DamagedImage("it ends too early")
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        return width, height
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise DamagedImage("it has no valid pixel data")


def without_metadata(data: bytes) -> bytes:
    """The image without what it says about its origin, such as place, camera and time.

    Args:
        data: A PNG, JPEG or WebP that `read_image` accepts; others are returned unchanged.
    """
    parts = {b"\x89P": _png_parts, b"\xff\xd8": _jpeg_parts, b"RI": _webp_parts}.get(data[:2])
    return data if parts is None else b"".join(parts(data))


_PNG_METADATA = frozenset({b"eXIf", b"tEXt", b"zTXt", b"iTXt", b"tIME"})


def _png_parts(data: bytes) -> Iterator[bytes]:
    yield data[:8]
    for kind, at, end in _png_chunks(data):
        if kind not in _PNG_METADATA:
            yield data[at:end]


def _jpeg_parts(data: bytes) -> Iterator[bytes]:
    yield data[:2]
    for marker, at, end in _jpeg_segments(data):
        # Application segments hold metadata, except those that say how to decode the pixels; so do comments.
        if marker == _SCAN:
            yield data[at:]
        elif not (0xE1 <= marker <= 0xED or marker in (0xEF, 0xFE)):
            yield data[at:end]


def _webp_parts(data: bytes) -> Iterator[bytes]:
    kept: list[bytes] = []
    at = 12
    while at + 8 <= len(data):
        kind = data[at : at + 4]
        (length,) = struct.unpack_from("<I", data, at + 4)
        chunk = data[at : at + 8 + length + length % 2]
        if kind == b"VP8X":
            # Its flags name the chunks that follow.
            chunk = chunk[:8] + bytes([chunk[8] & ~0x0C]) + chunk[9:]
        if kind not in (b"EXIF", b"XMP "):
            kept.append(chunk)
        at += 8 + length + length % 2
    content = b"WEBP" + b"".join(kept)
    yield b"RIFF" + struct.pack("<I", len(content)) + content
