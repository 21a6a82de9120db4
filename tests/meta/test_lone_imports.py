"""Source files can be imported on their own, in an interpreter that has imported no other of their floor.

The default run imports every eighth of them and a thorough one all.

The kernel and what lies below it are imported first for the packages above: they must work in any order by themselves.
Processes under test are mostly cloned from one that has imported the whole program; an import that a file lacks
would not fail in them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.thorough import Scale

SOURCES = Path(__file__).parents[2] / "src"


def find_modules() -> list[str]:
    files = [file.relative_to(SOURCES) for file in SOURCES.rglob("*.py")]
    names = {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files}
    return sorted(names)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", ["above", pytest.param("kernel", marks=pytest.mark.thorough)])
def test_every_file_can_be_imported_alone(part: str, scale: Scale) -> None:
    names = find_modules()
    kernel = [name for name in names if name.startswith(("amplifier_support", "amplifier_core"))]
    above = [name for name in names if name not in kernel]
    assert len(kernel) > 50
    assert len(above) > 400
    below, names = ([], kernel) if part == "kernel" else (kernel, above)
    names = names[:: scale(8, 1)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", Path(__file__).with_name("lone_imports.py")],
        input=json.dumps([below, names]),
        capture_output=True,
        text=True,
        check=True,
    )
    failures = json.loads(done.stdout.splitlines()[-1])
    assert sorted(failures) == names
    assert not any(failures.values()), "\n".join(filter(None, failures.values()))
