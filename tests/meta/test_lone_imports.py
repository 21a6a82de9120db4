"""Every source file can be imported on its own, in an interpreter that has imported no other of its floor.

The kernel and what lies below it are imported first for the packages above: they must work in any order by themselves.
Processes under test are mostly cloned from one that has imported the whole program; an import that a file lacks
would not fail in them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"

PROGRAM = """
import gc, importlib, json, os, sys, traceback
import anthropic, anyio, httpx, jsonschema, prompt_toolkit, pydantic, pytest, rich, typer, yaml  # as a base
below, names = json.load(sys.stdin)
for name in below:
    importlib.import_module(name)
before = {name for name in sys.modules if name.startswith("amplifier_")}
gc.disable()
failed = {}
for name in names:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            importlib.import_module(name)
        except BaseException:
            os.write(writer, traceback.format_exc()[-2000:].encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        if text := stream.read():
            failed[name] = text
    os.waitpid(child, 0)
assert before == {name for name in sys.modules if name.startswith("amplifier_")}
print(json.dumps(failed))
"""


def find_modules() -> list[str]:
    files = [file.relative_to(SOURCES) for file in SOURCES.rglob("*.py")]
    names = {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files}
    return sorted(names)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("part", range(4))
def test_every_file_can_be_imported_alone(part: int) -> None:
    names = find_modules()
    kernel = [name for name in names if name.startswith(("amplifier_support", "amplifier_core"))]
    above = [name for name in names if name not in kernel]
    assert len(kernel) > 50
    assert len(above) > 400
    below, names = ([], kernel) if part == 0 else (kernel, above[part - 1 :: 3])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        input=json.dumps([below, names]),
        capture_output=True,
        text=True,
        check=True,
    )
    failed = json.loads(done.stdout.splitlines()[-1])
    assert not failed, "\n".join(failed.values())
