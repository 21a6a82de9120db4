"""The docstring of the ground floor names all that is on it."""

import re
from pathlib import Path

import amplifier_support


def test_every_file_is_named() -> None:
    named = set(re.findall(r"`(\w+)`", amplifier_support.__doc__ or ""))
    folder = Path(amplifier_support.__file__).parent
    parts = [path for path in folder.iterdir() if path.is_dir() or path.suffix == ".py"]
    assert {path.stem for path in parts if not path.name.startswith("__")} == named
