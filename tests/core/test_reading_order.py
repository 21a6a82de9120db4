"""The kernel stays small enough to read, and its docstring names what to read."""

import re
from pathlib import Path

import amplifier_core

FOLDER = Path(amplifier_core.__file__).parent
DOCSTRING = amplifier_core.__doc__ or ""


def test_the_files_that_a_prompt_passes_are_few() -> None:
    rows = re.findall(r"^([a-z_, ]+?) {2,}\S", DOCSTRING, re.MULTILINE)
    names = [name for row in rows for name in row.split(", ")]
    assert len(set(names)) == len(names)
    assert 8 <= len(names) <= 12
    assert sum(len((FOLDER / f"{name}.py").read_text().splitlines()) for name in names) <= 3_100


def test_every_file_is_named() -> None:
    words = set(re.findall(r"\w+", DOCSTRING))
    parts = [path for path in FOLDER.iterdir() if path.is_dir() or path.suffix == ".py"]
    assert {path.stem for path in parts if not path.name.startswith("__")} <= words
