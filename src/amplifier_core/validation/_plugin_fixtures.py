"""What the fixtures of ``amplifier_core.pytest_plugin`` do: it loads this when the first one is used."""

import inspect
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.testing import (
    EventRecorder,
    MockContextManager,
    MockCoordinator,
    MockProvider,
    MockTool,
)
from amplifier_core.validation import _locate
from amplifier_core.validation._fresh import fresh_module
from amplifier_core.validation._kinds import KINDS, cleanup_of

__all__ = ["MockCoordinator", "first", "locate", "mounted", "orchestrator_arguments"]


def orchestrator_arguments() -> tuple[
    MockContextManager, dict[str, MockProvider], dict[str, MockTool], EventRecorder
]:
    """Arguments of an orchestrator's ``execute`` after the prompt."""
    providers, tools = {"default": MockProvider()}, {"test_tool": MockTool("test_tool")}
    return MockContextManager(), providers, tools, EventRecorder()


def locate(config: pytest.Config, test_file: Path) -> _locate.LocatedModule | None:
    """The module under test, from the options or else from the surrounding folders."""
    start = config.invocation_params.dir
    given = config.getoption("amplifier_module_path", None)
    if given:
        located = _locate.locate_given((start / given).resolve())
    else:
        arguments = [start / argument.split("::")[0] for argument in config.args]
        located = _locate.locate_around(test_file) or next(
            filter(None, map(_locate.locate_in, [start, config.rootpath, *arguments])), None
        )
    kind = config.getoption("amplifier_module_type", None)
    return located._replace(kind=kind) if located and kind else located


@asynccontextmanager
async def mounted(
    config: pytest.Config, module_path: Path | None, coordinator: MockCoordinator
) -> AsyncGenerator[Any]:
    """Mount the module for the duration of a test; yields the return value of its ``mount``."""
    if module_path is None:
        pytest.skip(_locate.NO_MODULE)
    settings = config.getoption("amplifier_module_config", None) or {}
    with fresh_module(module_path) as module:
        returned = await module.mount(coordinator, dict(settings))
        try:
            yield returned
        finally:
            cleanup = cleanup_of(returned)
            if cleanup is not None:
                pending = cleanup()
                if inspect.isawaitable(pending):
                    await pending
            await coordinator.cleanup()


def first(
    kind: str, module_path: Path | None, coordinator: MockCoordinator, returned: object
) -> Any:
    """The first mounted instance; fails the test if there is none."""
    instances = KINDS[kind].instances(coordinator, returned)
    if not instances and callable(returned) and any(coordinator.channels.values()):
        pytest.skip(f"it mounts no {kind} with this config")
    if not instances:
        pytest.fail(
            f"mount() of {module_path} mounted no {kind} and returned {type(returned).__name__}:"
            " nothing to test",
            pytrace=False,
        )
    return instances[0][1]
