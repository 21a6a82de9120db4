"""The body of a response, decompressed piece by piece, only as far as needed.

httpx decompresses everything that has arrived at once: a few kilobytes that unpack to gigabytes
would be unpacked whole before they could be counted.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from typing import Any

ACCEPTED = "gzip, deflate"
"""The supported encodings, for the request."""

_STEP = 64 * 1024


class UnreadableBody(Exception):
    """The body does not match its headers; the message says how."""


class Decoder:
    """Decode one content encoding.

    Args:
        encoding: The answer's Content-Encoding.
        max_bytes: Most bytes to decode.

    Attributes:
        full: Whether the body was longer than `max_bytes`.

    Raises:
        UnreadableBody: The encoding is not supported.
    """

    def __init__(self, encoding: str, max_bytes: int) -> None:
        self.full = False
        self._left = max_bytes
        self._data = bytearray()
        self._inflate: Any = None
        self._raw_deflate_possible = False
        match encoding.strip().lower():
            case "" | "identity":
                pass
            case "gzip" | "x-gzip":
                self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
            case "deflate":
                self._inflate = zlib.decompressobj()
                self._raw_deflate_possible = True
            case other:
                raise UnreadableBody(f"the response has the unsupported encoding {other!r}")

    def feed(self, data: bytes) -> None:
        """Add the next piece; anything over the limit is dropped.

        Raises:
            UnreadableBody: The data does not match the encoding.
        """
        if self._inflate is None:
            self._keep(data)
            return
        while data and not self.full and not self._inflate.eof:
            step = min(_STEP, self._left + 1)
            self._keep(self._inflated(data, step))
            data = self._inflate.unconsumed_tail
            self._raw_deflate_possible = False

    def data(self) -> bytes:
        """The decoded data."""
        return bytes(self._data)

    def _inflated(self, data: bytes, max_bytes: int) -> bytes:
        try:
            return self._inflate.decompress(data, max_bytes)
        except zlib.error as error:
            if not self._raw_deflate_possible:
                raise UnreadableBody(f"the compressed response is damaged: {error}") from error
        # Some servers leave out the header that `deflate` implies.
        self._raw_deflate_possible = False
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        return self._inflated(data, max_bytes)

    def _keep(self, data: bytes) -> None:
        self.full = self.full or len(data) > self._left
        data = data[: self._left]
        self._left -= len(data)
        self._data += data


async def read_body(
    pieces: AsyncIterator[bytes], encoding: str, max_bytes: int
) -> tuple[bytes, bool]:
    """Return the body, and whether it was cut at `max_bytes`.

    Raises:
        UnreadableBody: The data does not match the encoding.
    """
    decoder = Decoder(encoding, max_bytes)
    async for piece in pieces:
        decoder.feed(piece)
        if decoder.full:
            break
    return decoder.data(), decoder.full
