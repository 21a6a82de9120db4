"""Every source file can be imported on its own, in an interpreter that has imported no other of its floor.

The floors below are imported first: they must work in any order by themselves, and import-linter keeps them from
importing what is above. Processes under test are mostly cloned from one that has imported the whole program; an import
that a file lacks would not fail in them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"

NEEDS_MORE = {"amplifier_modules.provider_local.engine": "xllamacpp"}
"""Module → the optional package it imports."""

FLOORS = (
    "amplifier_support",
    "amplifier_core",
    "amplifier_modules._shared",
    "amplifier_modules",
    *(
        f"amplifier_app.{room}"
        for room in (
            *("base", "plan", "sources", "trust", "sessions"),
            *("runtime", "render", "chat", "commands"),
        )
    ),
    "amplifier_app",
    *("amplifier_batch", "amplifier_kit", "amplifier_extras", "amplifier_serve"),
)
"""Packages from the bottom up; a package above a part of itself stands for its other files."""

PROGRAM = """
import gc, importlib, json, os, sys, traceback
import anthropic, anyio, httpx, jsonschema, prompt_toolkit, pydantic, pytest, rich, typer, yaml  # as a base
gc.disable()
failed = {}
for names in json.load(sys.stdin):
    before = {name for name in sys.modules if name.startswith("amplifier_")}
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
    for name in names:
        if name not in failed:
            importlib.import_module(name)
print(json.dumps(failed))
"""


def find_floors() -> list[list[str]]:
    files = [file.relative_to(SOURCES) for file in SOURCES.rglob("*.py")]
    names = {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files}
    floors: dict[str, list[str]] = {floor: [] for floor in FLOORS}
    for name in sorted(names - NEEDS_MORE.keys()):
        floor = max((floor for floor in FLOORS if f"{name}.".startswith(f"{floor}.")), key=len)
        floors[floor].append(name)
    return list(floors.values())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_every_file_can_be_imported_alone() -> None:
    floors = find_floors()
    assert all(floors)
    assert sum(map(len, floors)) > 450
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        input=json.dumps(floors),
        capture_output=True,
        text=True,
        check=True,
    )
    failed = json.loads(done.stdout.splitlines()[-1])
    assert not failed, "\n".join(failed.values())
