"""A cache of fetched pages, in memory and in private files of the user."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, cast

from amplifier_support.atomic_write import write_atomically
from amplifier_support.private_files import make_private_folder
from amplifier_support.redaction import Redactor

logger = logging.getLogger(__name__)

_MOST_IN_MEMORY = 20_000_000
"""Characters of all pages in memory."""

_MOST_FILES = 200
_MOST_BYTES = 100_000_000
_SWEEP_EVERY = 20
_LONGEST_KEPT = 7 * 24 * 3600.0
_MAX_AGE = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?(\d{1,9})", re.I)


class Page(NamedTuple):
    """A page as shown to models.

    Attributes:
        url: Its URL, after redirects.
        kind: Its type, for people.
        title: None if it has none.
        text: Its text, as far as it was read.
        cut: Whether it was longer than that.
        fetched: When, in seconds since the epoch.
        fresh_for: Seconds until the server must be asked again.
        storable: Whether the server allows storing it in a file.
        etag: The server's name for this state of the page.
        last_modified: The server's date of it.
    """

    url: str
    kind: str
    title: str | None
    text: str
    cut: bool
    fetched: float
    fresh_for: float
    storable: bool = True
    etag: str | None = None
    last_modified: str | None = None

    @property
    def is_fresh(self) -> bool:
        return 0 <= time.time() - self.fetched < self.fresh_for

    def validators(self) -> dict[str, str]:
        """Headers that request the page only if it has changed."""
        headers = {"if-none-match": self.etag, "if-modified-since": self.last_modified}
        return {name: value for name, value in headers.items() if value}


def freshness(headers: Any, max_seconds: float) -> tuple[float, bool]:
    """For how many seconds a response may be reused, and whether it may be stored."""
    control = str(headers.get("cache-control", "")).lower()
    storable = "no-store" not in control
    if not storable or "no-cache" in control:
        return 0.0, storable
    age = _MAX_AGE.search(control)
    return (min(max_seconds, float(age[1])) if age else max_seconds), storable


class PageCache:
    """Cache the pages of a session in memory and, if there is a folder, for later sessions.

    Args:
        folder: Folder for the files; None for none. Created when first needed.
        identity: The access rules; pages cached under others are not found.
        secrets: Values that are secret whatever they look like; pages with secrets have no file.
    """

    def __init__(self, folder: Path | None, identity: str, secrets: Iterable[str] = ()) -> None:
        self._folder = folder
        self._redactor = Redactor(secrets)
        self._identity = identity
        self._pages: OrderedDict[str, Page] = OrderedDict()
        self._kept = 0

    def find(self, url: str) -> Page | None:
        """The cached page for a URL, of any age."""
        page = self._pages.get(url)
        if page is None and self._folder is not None:
            page = _read(self._folder / self._name(url))
        if page is not None:
            self._remember(url, page)
        return page

    def keep(self, url: str, page: Page) -> None:
        """Cache a page. A file that cannot be written is logged; the page stays in memory."""
        self._remember(url, page)
        if self._folder is None:
            return
        path = self._folder / self._name(url)
        try:
            data = page._asdict()
            if not page.storable or self._redactor.value(data) is not data:
                path.unlink(missing_ok=True)
                return
            make_private_folder(self._folder)
            write_atomically(path, json.dumps(data).encode(), durable=False)
            self._sweep(self._folder)
        except OSError as error:
            logger.warning("cannot cache a page in %s: %s", self._folder, error)

    def _remember(self, url: str, page: Page) -> None:
        self._pages[url] = page
        self._pages.move_to_end(url)
        while sum(len(one.text) for one in self._pages.values()) > _MOST_IN_MEMORY:
            self._pages.popitem(last=False)

    def _name(self, url: str) -> str:
        return hashlib.sha256(f"{self._identity}\n{url}".encode()).hexdigest() + ".json"

    def _sweep(self, folder: Path) -> None:
        """From time to time, remove old pages and those over the limits."""
        self._kept += 1
        if self._kept % _SWEEP_EVERY != 1:
            return
        now, total = time.time(), 0
        for number, file in enumerate(sorted(folder.iterdir(), key=_written, reverse=True)):
            total += _size(file)
            is_old = now - _written(file) > _LONGEST_KEPT
            if number >= _MOST_FILES or total > _MOST_BYTES or is_old:
                file.unlink(missing_ok=True)


def _written(path: Path) -> float:
    # Another session may have removed it meanwhile.
    with contextlib.suppress(OSError):
        return path.lstat().st_mtime
    return 0.0


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_size
    return 0


def _read(path: Path) -> Page | None:
    """Read a page from its file; None if there is none or it is damaged."""
    try:
        data = json.loads(path.read_bytes())
        return Page(**cast("dict[str, Any]", data))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        logger.warning("cannot read the cached page %s (%s); fetching it again", path, error)
        return None
