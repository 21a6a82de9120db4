"""The pictures of HTML pages in the READMEs: a saved session and the report of a batch, from real runs.

    python -m tests.picture.pages       # write tests/picture/session.svg and report.svg again

The model is `provider-mock`. A picture is the page itself in an SVG file, as wide and as high as a window.
"""

import json
import re
import tempfile
from html import escape
from html.parser import HTMLParser
from pathlib import Path

from tests.picture.chat import ANSWER, EDIT, FILES, QUESTION, SEARCH
from tests.support.cli import run_amplifier, succeed
from tests.support.plans import mock_plan

SESSION, REPORT = (Path(__file__).with_name(f"{name}.svg") for name in ("session", "report"))
WIDTH, HEIGHT = 900, 680
_CELLS = {"td", "th"}
_CLOSED_BY = {
    "li": {"li"},
    "td": _CELLS,
    "th": _CELLS,
    "tr": {*_CELLS, "tr"},
    "tbody": {*_CELLS, "tr", "thead"},
}
"""A tag → the elements that HTML ends before it."""
_VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta", "wbr"})


class _Page(HTMLParser):
    """The style and the body of a page as XML; scripts are left out."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.style = ""
        self.body = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        while self._open and self._open[-1] in _CLOSED_BY.get(tag, ()):
            self.handle_endtag(self._open[-1])
        self._open += [] if tag in _VOID else [tag]
        if "body" in self._open and "script" not in self._open:
            # A name that HTML writes alone has itself as its value in XML.
            names = ("viewBox" if name == "viewbox" else name for name, _ in attrs)
            values = (escape(value or name) for name, value in attrs)
            pairs = "".join(f' {name}="{value}"' for name, value in zip(names, values, strict=True))
            xml = ' xmlns="http://www.w3.org/2000/svg"' if tag == "svg" else ""
            self.body += f"<{tag}{xml}{pairs}{'/' if tag in _VOID else ''}>"

    def handle_endtag(self, tag: str) -> None:
        # HTML may leave out the end of list items, cells and paragraphs.
        while tag in self._open:
            last = self._open.pop()
            if "body" in [*self._open, last] and "script" not in [*self._open, last]:
                self.body += f"</{last}>"
            if last == tag:
                break

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.style += data
        elif "body" in self._open and "script" not in self._open:
            self.body += escape(data, quote=False)


def drawn(html: str, label: str) -> str:
    """Return a page as SVG."""
    page = _Page(html)
    body = page.body.replace("<body", '<body xmlns="http://www.w3.org/1999/xhtml"', 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-label="{escape(label)}">\n'
        f"<style>{escape(page.style, quote=False)}</style>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="var(--back)"/>\n'
        f'<foreignObject width="{WIDTH}" height="{HEIGHT}">\n{body}\n</foreignObject>\n</svg>\n'
    )


def session_page() -> str:
    """The page of a session in which a file was searched and edited."""
    with tempfile.TemporaryDirectory() as name:
        folder, home = Path(name), Path(name, "home")
        for path, text in FILES.items():
            file = folder / "shop" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        replies = [{"tool_calls": [SEARCH]}, {"tool_calls": [EDIT]}, ANSWER]
        tools = ["tool-search", "tool-filesystem"]
        plan = mock_plan(folder, replies, tools=tools, hooks=["hooks-logging"])
        options = ("-f", str(plan), "--session", "s1", "--approve", "allow")
        _run("run", QUESTION, *options, cwd=folder / "shop", home=home)
        page = _run("session", "export", "s1", "--html", cwd=folder, home=home)
        page = page.replace(str(folder.resolve()), "/home/me")
        # As a reader would open it.
        return re.sub(r"(<details [^>]*\bs1-call-2\b[^ >]*)", r"\1 open", page)


def batch_report() -> str:
    """The report of a batch whose rows are scored by the length of the answer; a short one fails."""
    texts = ("a", "some", "longer", "answers", "of different", "lengths, for scores")
    with tempfile.TemporaryDirectory() as name:
        folder, home = Path(name), Path(name, "home")
        rows = [{"id": f"row-{n}", "prompt": text} for n, text in enumerate(texts, 1)]
        (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        (folder / "scorers.py").write_text(
            "def size(answer, row, result):\n    return len(answer)\n"
        )
        prices = {"input": 1, "output": 5}
        plan = mock_plan(
            folder,
            [],
            mock={"on_end": "echo", "prices": prices},
            scores=[{"name": "size", "run": "python:scorers.py:size", "min": 15}],
        )
        options = ("-o", "out", "--retries", "0")
        run_amplifier("batch", "run", str(plan), "rows.jsonl", *options, cwd=folder, home=home)
        return _run("batch", "report", "out", "--format", "html", cwd=folder, home=home)


def _run(*arguments: str, cwd: Path, home: Path) -> str:
    done = succeed(*arguments, cwd=cwd, home=home)
    return done.stdout


if __name__ == "__main__":
    SESSION.write_text(drawn(session_page(), "The page of a session"), encoding="utf-8")
    REPORT.write_text(drawn(batch_report(), "The report of a batch"), encoding="utf-8")
