"""Decompresses tar archives, with limits on output and memory."""

from __future__ import annotations

import bz2
import gzip
import lzma
from typing import IO, Protocol

_XZ_MEMORY = 128 * 1024 * 1024
_CHUNK = 64 * 1024


class Stream(Protocol):
    """Something that can be read sequentially."""

    def read(self, size: int, /) -> bytes: ...


class TooBig(Exception):
    """The stream is longer than the limit."""


class Limited:
    """Reads a stream up to a limit.

    Args:
        stream: The stream.
        limit: Bytes; reading more raises `TooBig`.
    """

    def __init__(self, stream: Stream, limit: int) -> None:
        self._stream = stream
        self._left = limit

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise TooBig
        return data


def open_decompressed(file: IO[bytes], name: str) -> Stream:
    """The bytes of a tar archive.

    Args:
        file: The archive.
        name: Its file name, whose suffix gives the compression.
    """
    ending = name.lower().rpartition(".")[2]
    if ending in ("gz", "tgz"):
        return gzip.GzipFile(fileobj=file)
    if ending in ("bz2", "tbz2"):
        return bz2.BZ2File(file)
    if ending in ("xz", "txz"):
        return _Xz(file)
    return file


class _Xz:
    """An xz stream with a memory limit, which `lzma.LZMAFile` does not have."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def read(self, size: int, /) -> bytes:
        while not self._decompressor.eof:
            more = self._file.read(_CHUNK) if self._decompressor.needs_input else b""
            if self._decompressor.needs_input and not more:
                raise EOFError("it ends early")
            if data := self._decompressor.decompress(more, size):
                return data
        return b""
