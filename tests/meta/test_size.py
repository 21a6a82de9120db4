"""The size of each package in code lines: no blank lines, comments, docstrings or imports.

`python -m tests.meta.test_size` prints the table. A ceiling is raised on purpose, in the commit that needs it.
"""

import ast
from collections import Counter
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"

CEILINGS = {
    "amplifier_app": 31_500,
    "amplifier_batch": 4_600,
    "amplifier_core": 3_600,
    "amplifier_extras": 3_600,
    "amplifier_kit": 4_700,
    "amplifier_modules": 19_000,
    "amplifier_support": 5_100,
}


def code_lines(text: str) -> int:
    """Count the lines of a source text that are code."""
    other: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, (ast.Import, ast.ImportFrom)) or (
            constant and isinstance(node.value.value, str)
        ):
            other.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in other
        for number, line in lines
    )


def measure() -> tuple[Counter[str], Counter[str]]:
    """Return the code lines and the files of each package."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in SOURCES.rglob("*.py"):
        package = path.relative_to(SOURCES).parts[0]
        lines[package] += code_lines(path.read_text(encoding="utf-8"))
        files[package] += 1
    return lines, files


def test_each_package_stays_below_its_ceiling() -> None:
    lines, _ = measure()
    assert set(lines) == set(CEILINGS)
    over = {name: lines[name] for name, most in CEILINGS.items() if lines[name] > most}
    assert over == {}


def test_code_lines_are_neither_blank_nor_comments_docstrings_or_imports() -> None:
    text = '"""A\nB"""\nimport os\n\n# C\ndef f():\n    """D"""\n    return os\n'
    assert code_lines(text) == 2


if __name__ == "__main__":
    counted, number = measure()
    for name in sorted(counted):
        print(
            f"{name:20} {counted[name]:6} of {CEILINGS[name]:6} code lines, {number[name]:4} files"
        )
    print(f"{'all':20} {sum(counted.values()):6} code lines, {sum(number.values()):4} files")
