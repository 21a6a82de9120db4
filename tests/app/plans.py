"""Plan files on the scripted provider, for tests of the running program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def mock_plan(folder: Path, replies: list[Any], *, name: str = "plan.yaml", **more: Any) -> Path:
    """A plan whose provider answers `replies`; `more` are sections of the plan.

    `mock` among them is further config of the provider.
    """
    mock = {"replies": replies, **more.pop("mock", {})}
    plan = {
        "name": "test",
        "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
        "providers": [{"module": "provider-mock", "config": mock}],
        **more,
    }
    path = folder / name
    path.write_text(yaml.safe_dump(plan), encoding="utf-8")
    return path


NOISY_TOOL = """
import os, subprocess, sys

print("noise at import")
__amplifier_module_type__ = "tool"


class Noisy:
    name = "noisy"
    description = "prints in every way there is"
    input_schema = {"type": "object", "properties": {}}

    async def execute(self, input):
        from amplifier_core.models import ToolResult

        print("noise from print")
        sys.__stdout__.write("noise from the original stdout\\n")
        sys.__stdout__.flush()
        os.write(1, b"noise from descriptor 1\\n")
        subprocess.run(["echo", "noise from a child"])
        return ToolResult(output="done")


async def mount(coordinator, config=None):
    print("noise at mount")
    await coordinator.mount("tools", Noisy(), name="noisy")
"""


def module_folder(folder: Path, code: str, package: str = "amplifier_module_noisy") -> Path:
    """A module in a folder of its own, to be a `source`."""
    home = folder / package.replace("_", "-")
    (home / package).mkdir(parents=True)
    (home / package / "__init__.py").write_text(code, encoding="utf-8")
    return home
