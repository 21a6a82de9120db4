"""Wording that CONTRIBUTING.md advises against stays out of what people read."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORDS = re.compile(
    r"(?<![A-Za-z])(told|tells|stands|nobody|somebody|whoever|mend(s|ed|ing)?|anew|beside|cannot be had"
    r"|(?<!there )is no (?!longer)[a-z]+|exclude each other|brings along)(?![A-Za-z])",
    re.IGNORECASE,
)
MAX_IN_100_000 = 10

FORMATS = {
    "told",  # a kind of record of hooks-backup
    "nobody to ask",  # a value of approval events
    "I told Bob that lunch is at noon.",  # part of an example in the prompt of the embedded model
}
"""Texts that files, events and programs rely on."""


def sources() -> Iterator[Path]:
    for folder in ("src", "tests"):
        yield from (ROOT / folder).rglob("*.py")
    yield from pages()


def pages() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from (ROOT / "src").rglob("*.md")
    yield from (ROOT / "profiles").glob("*.*")


def texts_in(source: str) -> Iterator[str]:
    """The string literals of a program: messages, hints and help.

    No docstrings but those of configurations, which `module show` prints.
    """
    docstrings: set[int] = set()
    # What contains a docstring comes before it.
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in docstrings:
                yield node.value
        elif (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
            and not (isinstance(node, ast.ClassDef) and node.name.endswith("Config"))
        ):
            docstrings.add(id(node.body[0].value))


def test_the_list_of_words_finds_them() -> None:
    assert WORDS.search("What is wrong is told at once")
    assert WORDS.search("it is no folder")
    assert WORDS.search("test_deltas_are_told_as_they_come")
    assert WORDS.search("self._stands_alone")
    assert not WORDS.search("besides a standard word")


def test_pages_are_in_plain_english() -> None:
    lines = ((page, line) for page in pages() for line in page.read_text().splitlines())
    assert [(page.name, line) for page, line in lines if WORDS.search(line)] == []


_JOINED = re.compile(r"""(\\[nrt]|["']\s*[rbf]*["'])+""")
"""What separates words in a source, but not in the strings of its program."""


def may_have_texts_with_words(source: str) -> bool:
    """Whether to look at its strings one by one, for which it must be parsed."""
    return (
        WORDS.search(_JOINED.sub(" ", source)) is not None
        or WORDS.search(_JOINED.sub("", source)) is not None
    )


def test_messages_and_help_are_in_plain_english() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {text}"
        for path in (ROOT / "src").rglob("*.py")
        if may_have_texts_with_words(source := path.read_text())
        for text in texts_in(source)
        if WORDS.search(text) and text not in FORMATS
    }
    assert found == set()


def test_docstrings_comments_and_tests_are_mostly_in_plain_english() -> None:
    this = Path(__file__)
    texts = {path: path.read_text() for path in sources() if path != this}
    words = sum(len(text.split()) for text in texts.values())
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path, text in texts.items()
        for match in WORDS.finditer(text)
    ]
    assert len(found) / words * 100_000 < MAX_IN_100_000, "\n".join(found)
