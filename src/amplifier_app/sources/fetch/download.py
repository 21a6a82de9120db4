"""Downloads one archive, with limits on size, time and redirects."""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

import httpx

from amplifier_app.base.slow_steps import slow_step
from amplifier_app.plan.source_spec import ArchiveSource, without_password
from amplifier_app.plan.source_syntax import LOOPBACK
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.fetch import unpack
from amplifier_support.programs import Stopped

_MAX_REDIRECTS = 5
_TOTAL_SECONDS = 600.0
_TIMEOUT = httpx.Timeout(30.0)


class Validators(NamedTuple):
    """HTTP validators of the last response, to ask whether an archive changed; empty if absent."""

    etag: str
    modified: str


class Answer(NamedTuple):
    """A completed download.

    Attributes:
        sha256: Hash of the bytes, in hexadecimal.
        validators: Validators for the next request.
    """

    sha256: str
    validators: Validators


def download(
    source: ArchiveSource,
    into: Path,
    known: Validators | None,
    stop: threading.Event | None,
) -> Answer | None:
    """Download an archive into a file.

    Args:
        source: What to download.
        into: The file to write.
        known: Validators of the cached copy; None if there is none.
        stop: Set it to cancel.

    Returns:
        None if the cached copy is current.

    Raises:
        SourceError: The archive is unavailable or too large.
        Stopped: `stop` was set.
    """
    # Hash and unpack the archive itself, not a compressed transfer form of it.
    headers = {"Accept-Encoding": "identity"}
    if known is not None and known.etag:
        headers["If-None-Match"] = known.etag
    if known is not None and known.modified:
        headers["If-Modified-Since"] = known.modified
    try:
        with (
            slow_step(f"downloading {source.shown}"),
            httpx.Client(timeout=_TIMEOUT, headers=headers) as client,
        ):
            return _follow(client, source, into, stop)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        reason = str(error) or type(error).__name__
        raise SourceError(f"cannot fetch {source.shown}: {reason}") from error


def _follow(
    client: httpx.Client,
    source: ArchiveSource,
    into: Path,
    stop: threading.Event | None,
) -> Answer | None:
    url = source.location
    for _ in range(_MAX_REDIRECTS + 1):
        with client.stream("GET", url) as response:
            if response.status_code == 304:
                return None
            if response.is_redirect:
                url = _next(url, response.headers.get("Location", ""), source)
                continue
            if response.status_code != 200:
                status = f"{response.status_code} {response.reason_phrase}".strip()
                raise SourceError(f"cannot fetch {source.shown}: the server returned {status}")
            digest = _write(response, into, source, stop)
            etag = response.headers.get("ETag", "")
            return Answer(digest, Validators(etag, response.headers.get("Last-Modified", "")))
    raise SourceError(f"cannot fetch {source.shown}: more than {_MAX_REDIRECTS} redirects")


def _next(url: str, location: str, source: ArchiveSource) -> str:
    """The target of a redirect, which must be https, or loopback when coming from loopback."""
    target = urljoin(url, location)
    parts = urlsplit(target)
    secure = parts.scheme == "https" and parts.hostname is not None
    if secure or (
        url.startswith("http:") and parts.scheme == "http" and parts.hostname in LOOPBACK
    ):
        return target
    raise SourceError(
        f"{source.shown} redirects to {without_password(target)}; only https:// is followed"
    )


def _write(
    response: httpx.Response,
    into: Path,
    source: ArchiveSource,
    stop: threading.Event | None,
) -> str:
    too_big = SourceError(f"{source.shown} is larger than {unpack.MAX_BYTES // 1024**2} MiB")
    claimed = response.headers.get("Content-Length", "")
    if claimed.isdigit() and int(claimed) > unpack.MAX_BYTES:
        raise too_big
    limit = time.monotonic() + _TOTAL_SECONDS
    digest, size = hashlib.sha256(), 0
    with into.open("wb") as file:
        for chunk in response.iter_bytes():
            if stop is not None and stop.is_set():
                raise Stopped(source.file_name)
            if time.monotonic() > limit:
                raise SourceError(
                    f"cannot fetch {source.shown}: it took longer than {_TOTAL_SECONDS:g} s"
                )
            size += len(chunk)
            if size > unpack.MAX_BYTES:
                raise too_big
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()
