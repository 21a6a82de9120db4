"""Plan files on the scripted provider, for tests of the running program."""

from pathlib import Path
from typing import Any

import yaml

SMALL = """\
session: {orchestrator: loop-basic, context: context-simple}
providers: [provider-mock]
"""
"""A plan to extend where modules are mounted, with few of them."""


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


BLOCKING_TOOL = """
import time

from amplifier_core.models import ToolResult

__amplifier_module_type__ = "tool"


class Tool:
    name = "block"
    description = "Blocks the event loop."
    input_schema = {"type": "object", "properties": {}}

    async def execute(self, input):
        open("begun", "w").close()
        time.sleep(300)
        return ToolResult(success=True)


async def mount(coordinator, config=None):
    await coordinator.mount("tools", Tool(), name="block")
"""
"""A module with a tool that writes the file `begun`."""

HELD_PROVIDER = """
import asyncio
import itertools
from contextlib import aclosing
from pathlib import Path

from amplifier_modules import provider_mock

__amplifier_module_type__ = "provider"


async def mount(coordinator, config):
    folder, held, requests = Path(config["folder"]), config["held"], itertools.count()
    await provider_mock.mount(coordinator, {"replies": config["replies"]})
    provider = coordinator.get("providers", "mock")
    to_answer = provider.stream_complete

    async def stream_complete(request, **kwargs):
        number = next(requests)
        while number in held and not (folder / f"answer-{number}").exists():
            await asyncio.sleep(0.01)
        async with aclosing(to_answer(request, **kwargs)) as answer:
            async for part in answer:
                yield part

    provider.stream_complete = stream_complete
"""


def held_plan(folder: Path, replies: list[Any], held: tuple[int, ...] = (0,), **more: Any) -> Path:
    """Like `mock_plan`; the answers whose numbers are `held` come once the test lets them go."""
    source = module_folder(folder, HELD_PROVIDER, "amplifier_module_provider_held")
    config = {"replies": replies, "folder": str(folder), "held": list(held)}
    provider = {"module": "provider-held", "source": str(source), "config": config}
    return mock_plan(folder, [], providers=[provider], **more)


def let_go(folder: Path, number: int = 0) -> None:
    """Let an answer of `held_plan` come."""
    (folder / f"answer-{number}").touch()
