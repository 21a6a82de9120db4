"""Convert HTML on stdin to Markdown on stdout; a separate program that the tool does not import.

    python -I converter.py '{"url": "<address of the page>", "path": ["<folder of libraries>", …]}'

Writes an object with `text` and `title`; exits with a nonzero code if it cannot.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from typing import Any
from urllib.parse import urljoin

if sys.platform == "linux":
    import ctypes
if sys.platform != "win32":
    import resource

_SECONDS = 30
_MEMORY = 2 * 1024**3
_DEPTH = 20_000
_PR_SET_PDEATHSIG = 1
_STACK = 512 * 1024 * 1024
_UNSEEN = (
    *("script", "style", "noscript", "template", "svg", "canvas", "iframe", "object", "embed"),
    *("button", "input", "select", "textarea", "dialog", "title"),
)
_HIDING_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.I)


def main() -> None:
    """Convert, within limits of time and memory."""
    request = json.loads(sys.argv[1])
    sys.path[1:1] = request["path"]
    _limit()
    html = sys.stdin.buffer.read().decode("utf-8", "replace")
    # Deeply nested pages need a large stack, which only a new thread can have.
    sys.setrecursionlimit(_DEPTH)
    threading.stack_size(_STACK)
    result: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: result.update(convert(html, request["url"])))
    thread.start()
    thread.join()
    if not result:
        sys.exit(1)
    sys.stdout.buffer.write(json.dumps(result).encode("ascii"))


def convert(html: str, url: str) -> dict[str, Any]:
    """The Markdown and the title of a page, without what a browser would not show."""
    from bs4 import BeautifulSoup, Comment
    from markdownify import ATX, MarkdownConverter

    soup = BeautifulSoup(html, "html.parser")
    title = " ".join(soup.title.get_text().split()) if soup.title else None
    base = soup.find("base", href=True)
    if base is not None:
        url = _joined(url, str(base["href"]))
    for element in soup.find_all(lambda tag: tag.name in (*_UNSEEN, "head") or _is_hidden(tag)):
        element.decompose()
    for comment in soup.find_all(string=lambda text: isinstance(text, Comment)):
        comment.extract()
    for link in soup.find_all("a", href=True):
        link["href"] = _joined(url, str(link["href"]))
    for image in soup.find_all("img"):
        source = str(image.get("src") or "")
        image["src"] = "" if source.startswith("data:") else _joined(url, source)
    text = MarkdownConverter(heading_style=ATX, bullets="-").convert_soup(soup)
    return {"text": text.strip(), "title": title or None}


def _is_hidden(tag: Any) -> bool:
    """Return True if a reader would not see it; text meant only for models is hidden like this."""
    if tag.attrs is None:
        return False  # Removed together with its parent.
    return (
        tag.has_attr("hidden")
        or tag.get("aria-hidden") == "true"
        or _HIDING_STYLE.search(str(tag.get("style") or "")) is not None
    )


def _joined(base: str, target: str) -> str:
    try:
        return urljoin(base, target)
    except ValueError:
        return target


def _limit() -> None:
    if sys.platform == "win32":
        return  # The parent's time limit applies.
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    if sys.platform == "linux":
        # If the parent is killed, no process is waiting for the Markdown.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


if __name__ == "__main__":
    main()
