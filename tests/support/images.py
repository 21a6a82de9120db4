"""Small real images of 3x2 pixels, made by Pillow, and PNGs of any size."""

import base64
import struct
import zlib

_ENCODED = {
    "red.png": "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAIAAAASFvFNAAAAEElEQVR4nGP8zwAFTDAGAwATKQED8NgHhAAAAABJ"
    "RU5ErkJggg==",
    "red.jpg": "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAKBueIx4ZKCMgoy0qqC+8P//8Nzc8P////////////////////////"
    "//////////////////////////////////2wBDAaq0tPDS8P//////////////////////////////////////////////////"
    "////////////////////////////wAARCAACAAMDASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAAAAL/xAAUEAEAAAAAAA"
    "AAAAAAAAAAAAAA/8QAFQEBAQAAAAAAAAAAAAAAAAAAAgP/xAAUEQEAAAAAAAAAAAAAAAAAAAAA/9oADAMBAAIRAxEAPwCABW"
    "f/2Q==",
    "grey.jpeg": "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAKBueIx4ZKCMgoy0qqC+8P//8Nzc8P//////////////////////"
    "////////////////////////////////////wAALCAACAAMBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAv/EABQQAQAAAAAAAA"
    "AAAAAAAAAAAAD/2gAIAQEAAD8AD//Z",
    "red.gif": "R0lGODdhAwACAIEAAP8AAAAAAAAAAAAAACwAAAAAAwACAAAIBgABCBwYEAA7",
    "red.webp": "UklGRjIAAABXRUJQVlA4ICYAAABwAQCdASoDAAIADMDOJaACdAFAAAD+3FHSXS5Df6u/O36ntgAAAA==",
    "lossless.webp": "UklGRhwAAABXRUJQVlA4TA8AAAAvAkAAAAcQ/Y/+ByKi/wEA",
    "alpha.webp": "UklGRlQAAABXRUJQVlA4WAoAAAAQAAAAAgAAAQAAQUxQSAcAAAAAgICAgICAAFZQOCAmAAAAcAEAnQEqAwAC"
    "AAzAziWgAnQBQAAA/txR0l0uQ3+rvzt+p7YAAAA=",
}
IMAGES = {name: base64.b64decode(text) for name, text in _ENCODED.items()}
RED_PNG = IMAGES["red.png"]


def png(width: int, height: int, *, padding: int = 0) -> bytes:
    """A black PNG, with so many bytes of padding that do not compress away."""
    rows = zlib.compress(b"\0" * (height * (1 + width)))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"paDd", b"x" * padding), (b"IDAT", rows), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
