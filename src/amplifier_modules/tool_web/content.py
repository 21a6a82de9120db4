"""Turn a response body into text: its type, its character set, and HTML to Markdown."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import re
import sys
from pathlib import Path

from amplifier_support.environment import minimal_environment
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.programs import package_folder

_CONVERTER = Path(__file__).with_name("converter.py")

CONVERT_SECONDS = 20.0
"""Time limit for converting a page to Markdown, in seconds."""

_MAX_HTML = 2_000_000
"""Characters of a page that are converted; more would take too long."""

_TYPE = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,80}")
_HTML = ("text/html", "application/xhtml+xml")
_TEXT = re.compile(
    r"text/.*|(application|image)/(.*\+)?(json|xml|yaml|toml)"
    r"|application/(x-)?(ndjson|jsonl|javascript|ecmascript|yaml|toml|sh|sql|graphql|tex|latex)"
    r"|application/(x-www-form-urlencoded|x-subrip|rtf|x-httpd-php|manifest\+json|typescript)"
)
# Possessive, without backtracking: a page may be crafted to be read slowly.
_MARKUP = re.compile(
    rb"\s*+(?>(?:(?><!--.*?-->)\s*+)*)<(?:!doctype html|html|head|body)\b", re.I | re.S
)
_META_CHARSET = re.compile(
    rb"<(?:meta|\?xml)[^>]*?(?:charset|encoding)\s*=\s*[\"']?([\w:-]+)", re.I
)
_HEADER_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w:.-]+)", re.I)
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_WIDER = {
    # Names used by pages, and the larger set that browsers use for them.
    "iso8859-1": "cp1252",
    "ascii": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
_NO_CHARSETS = ("utf-7", "idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined")
_LOOK_AHEAD = 4096


class NoText(Exception):
    """The body cannot be shown as text; the message says what it is."""


class Text(NamedTuple):
    """A body as text.

    Attributes:
        text: Markdown if it was HTML.
        kind: Its type, for people.
        title: The page's title; None if it has none.
        cut: Whether it was cut.
    """

    text: str
    kind: str
    title: str | None = None
    cut: bool = False


async def as_text(body: bytes, content_type: str, url: str) -> Text:
    """Convert the body of a response to text.

    Args:
        body: Decompressed.
        content_type: The Content-Type header; may be empty.
        url: Its URL, which its links are relative to.

    Raises:
        NoText: It is not text, or could not be converted.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if not _TYPE.fullmatch(kind):
        kind = _guessed(body)
    charset = _HEADER_CHARSET.search(content_type)
    if kind in _HTML:
        html = decode_body(body, charset and charset[1], in_markup=True)
        return await _markdown(html, url)
    if not _TEXT.fullmatch(kind):
        raise NoText(f"{url} is {kind}, {len(body)} bytes, which cannot be shown as text")
    in_markup = kind.endswith("xml")
    return Text(decode_body(body, charset and charset[1], in_markup=in_markup), kind)


def decode_body(body: bytes, charset: str | None, *, in_markup: bool) -> str:
    """Decode a body; invalid bytes become U+FFFD.

    A byte order mark takes precedence over the header, which does over the markup.
    """
    for mark, name in _BOMS:
        if body.startswith(mark):
            return body.decode(name, "replace")
    declared = [charset] if charset else []
    if in_markup and (meta := _META_CHARSET.search(body[:_LOOK_AHEAD])):
        name = meta[1].decode("ascii", "replace")
        # Markup that reads as ASCII so far is not UTF-16, whatever it declares.
        declared.append("utf-8" if name.lower().startswith("utf-16") else name)
    for name in declared:
        if (known := _known(name)) is not None:
            return body.decode(known, "replace")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        # A page that was cut may end within a character.
        is_cut = error.end == len(body) and error.reason == "unexpected end of data"
        return body.decode("utf-8" if is_cut else "cp1252", "replace")


def _known(charset: str) -> str | None:
    with contextlib.suppress(LookupError, ValueError):
        name = codecs.lookup(charset).name
        name = _WIDER.get(name, name)
        if name not in _NO_CHARSETS:
            b"a".decode(name)  # a LookupError for codecs that are not character sets
            return name
    return None


def _guessed(body: bytes) -> str:
    """Guess the type of a body that comes without one."""
    start = body[:_LOOK_AHEAD]
    if _MARKUP.match(start):
        return "text/html"
    if b"\0" in start and not start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "application/octet-stream"
    return "text/plain"


async def _markdown(html: str, url: str) -> Text:
    """Convert HTML to Markdown in a separate process.

    A page can keep a parser busy for hours or use up all memory; a process can be killed.
    """
    # An isolated interpreter ignores PYTHONPATH and .pth files.
    path = [package_folder("markdownify"), *filter(None, sys.path)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", str(_CONVERTER), json.dumps({"url": url, "path": path})),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=minimal_environment(),
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(CONVERT_SECONDS):
            written, _ = await process.communicate(html[:_MAX_HTML].encode("utf-8", "replace"))
    except TimeoutError as error:
        raise NoText(
            f"{url} could not be converted to Markdown within {CONVERT_SECONDS:g} s"
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise NoText(f"{url} could not be converted to Markdown: too large or too deeply nested")
    converted = json.loads(written)
    return Text(converted["text"], "HTML, as Markdown", converted["title"], len(html) > _MAX_HTML)
