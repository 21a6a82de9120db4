"""The text of files: encodings, byte order marks and line ends, all preserved."""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

from amplifier_modules.tool_filesystem.errors import BinaryFile, NotEncodable

SNIFFED = 8192
"""Bytes at the start of a file that decide whether it is text, as in git."""

# Longer marks first: that of UTF-32 starts with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


_HALVES = re.compile("[\ud800-\udfff]")


class Coding(NamedTuple):
    """How a file's text is encoded, so that it can be written back the same way."""

    encoding: str = "utf-8"
    mark: bytes = b""
    errors: str = "strict"

    def encode(self, text: str) -> bytes:
        """Encode `text`, with the byte order mark. Raises NotEncodable."""
        try:
            return self.mark + text.encode(self.encoding, self.errors)
        except UnicodeEncodeError as error:
            character = text[error.start]
            if self.encoding.startswith("utf"):
                message = f"the text has half a surrogate pair (U+{ord(character):04X})"
            else:
                message = f"the file's encoding, {self.encoding}, cannot represent {character!r}"
            raise NotEncodable(message) from error


def decode(data: bytes) -> tuple[str, Coding]:
    """Decode a file's text and return how to write it back.

    Without a byte order mark it is UTF-8. Invalid UTF-8 is treated as damaged UTF-8 if it has more
    valid multi-byte characters than broken ones, otherwise as the western single-byte encoding;
    either way every byte is written back as it was.

    Raises:
        BinaryFile: There is a NUL near the start, or the text does not match the mark.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return data[len(mark) :].decode(encoding), Coding(encoding, mark)
            except UnicodeDecodeError:
                break
    if b"\0" in data[:SNIFFED]:
        raise BinaryFile("it is a binary file")
    try:
        return data.decode(), Coding()
    except UnicodeDecodeError:
        return _decode_broken(data)


def _decode_broken(data: bytes) -> tuple[str, Coding]:
    text = data.decode("utf-8", "surrogateescape")
    broken = sum("\udc80" <= character <= "\udcff" for character in text)
    whole = sum(character > "\x7f" for character in text) - broken
    if whole > broken:
        return text, Coding(errors="surrogateescape")
    try:
        return data.decode("cp1252"), Coding("cp1252")
    except UnicodeDecodeError:
        return data.decode("latin-1"), Coding("latin-1")


def line_end(text: str) -> str:
    """The first line end of `text`, or LF where it has none."""
    at = text.find("\n")
    return "\r\n" if at > 0 and text[at - 1] == "\r" else "\n"


def all_crlf(text: str) -> bool:
    """Whether `text` has lines and every one ends in CR LF."""
    ends = text.count("\n")
    return ends > 0 and text.count("\r\n") == ends


def with_line_end(text: str, end: str) -> str:
    """`text` with every line end replaced by `end`."""
    plain = text.replace("\r\n", "\n")
    return plain if end == "\n" else plain.replace("\n", end)


def for_model(text: str) -> str:
    """`text` for the model: LF line ends, invalid bytes as the replacement character."""
    return _HALVES.sub("\ufffd", text.replace("\r\n", "\n"))
