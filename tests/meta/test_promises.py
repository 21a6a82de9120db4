"""The page of promises names a test for each of them, and the tests it names exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "src" / "amplifier_app" / "commands" / "docs" / "promises.md"

_LABELS = ("Tests", "Figure", "Not promised")


def sections() -> dict[str, str]:
    """Heading → text of each promise."""
    parts = re.split(r"^### (\d+\. .+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_promises_are_numbered_in_order() -> None:
    numbers = [int(heading.partition(".")[0]) for heading in sections()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 20


@pytest.mark.parametrize("heading", sections())
def test_a_promise_has_tests_a_figure_and_limits(heading: str) -> None:
    text = sections()[heading]
    items = re.findall(r"^- \*\*(.+?):\*\* (.*(?:\n  .*)*)", text, re.MULTILINE)
    assert [label for label, _ in items] == list(_LABELS)
    assert all(value.strip() for _, value in items)
    assert text[: text.index("- **Tests")].strip(), "it does not state what is promised"
    assert re.search(r"\d", items[1][1]), "its figure has no number"
    named = re.findall(r"`(tests/[^`]+)`", items[0][1])
    assert named
    for name in named:
        path, _, test = name.partition("::")
        collected = collected_from(ROOT / path)
        assert collected, f"{path} has no tests"
        assert not test or test in collected, f"{path} has no {test}"


def collected_from(path: Path) -> set[str]:
    """The tests that pytest collects from a file."""
    if not path.is_file() or not path.name.startswith("test_"):
        return set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    bodies = [tree.body, *(node.body for node in classes if node.name.startswith("Test"))]
    return {
        node.name
        for body in bodies
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    }
