"""HTML as Markdown: what a reader would see, with addresses that lead somewhere."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amplifier_modules.tool_web import converter
from amplifier_modules.tool_web.converter import convert
from amplifier_modules.tool_web.tools import Page, PageCache

HERE = "https://site.example/docs/page.html"


def markdown(html: str) -> str:
    return convert(html, HERE)["text"]


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<a href='other.html'>x</a>", "[x](https://site.example/docs/other.html)"),
        ("<a href='/top?a=1#b'>x</a>", "[x](https://site.example/top?a=1#b)"),
        ("<a href='//else.example/'>x</a>", "[x](https://else.example/)"),
        ("<base href='https://base.example/a/'><a href='b'>x</a>", "[x](https://base.example/a/b)"),
        ("<base href='/a/'><a href='b'>x</a>", "[x](https://site.example/a/b)"),
        ("<a href='http://['>x</a>", "[x](http://[)"),
        ("<img src='i.png' alt='pic'>", "![pic](https://site.example/docs/i.png)"),
        ("<img src='data:image/png;base64,AAAA' alt='pic'>", "![pic]()"),
        ("<h2>A</h2><p>b <em>c</em> <code>d</code></p>", "## A\n\nb *c* `d`"),
        ("<ol><li>a</li><li>b</li></ol>", "1. a\n2. b"),
        ("<blockquote>said</blockquote>", "> said"),
        ("<p>a &lt;b&gt; &amp; c</p>", "a <b> & c"),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_html_becomes_markdown(html: str, text: str) -> None:
    assert markdown(html) == text


@pytest.mark.parametrize(
    "html",
    [
        *("<script>X</script>", "<style>X</style>", "<noscript>X</noscript>", "<!-- X -->"),
        *("<template>X</template>", "<svg><text>X</text></svg>", "<head><title>X</title></head>"),
        *("<p hidden>X</p>", "<div aria-hidden='true'><p>X</p></div>", "<iframe>X</iframe>"),
        *("<p style='display:none'>X</p>", "<p style='color: red; Display : None'>X</p>"),
        *("<p style='visibility: hidden'>X</p>", "<div hidden><p hidden>X</p></div>"),
        *("<select><option>X</option></select>", "<textarea>X</textarea>", "<button>X</button>"),
    ],
)
def test_hidden_content_is_left_out(html: str) -> None:
    assert markdown(f"<p>seen</p>{html}") == "seen"


def test_the_title_is_on_one_line() -> None:
    assert convert("<title>\n A\n  B </title>x", HERE) == {"text": "x", "title": "A B"}
    assert convert("<title> </title>x", HERE)["title"] is None
    assert convert("x", HERE)["title"] is None


def run(html: bytes) -> subprocess.CompletedProcess[bytes]:
    request = json.dumps({"url": HERE, "path": [path for path in sys.path if path]})
    program = [sys.executable, "-I", str(Path(converter.__file__)), request]
    return subprocess.run(program, input=html, capture_output=True, timeout=60)


def test_a_page_nested_too_deep_ends_only_the_converter() -> None:
    assert json.loads(run(b"<p>a\xff</p>").stdout) == {"text": "a\ufffd", "title": None}
    assert json.loads(run(b"<div>" * 1000 + b"deep").stdout)["text"] == "deep"
    deep = run(b"<div>" * 20_000 + b"too deep")
    assert deep.returncode != 0
    assert deep.stdout == b""


def test_memory_holds_a_limited_number_of_characters() -> None:
    pages = PageCache(None, "rules")
    made: dict[str, Any] = {"kind": "k", "title": None, "cut": False, "fetched": 0, "fresh_for": 0}
    for number in range(5):
        pages.keep(f"https://{number}/", Page(url="u", text="x" * 6_000_000, **made))
    kept = [number for number in range(5) if pages.find(f"https://{number}/") is not None]
    assert kept == [2, 3, 4]
