"""pytest plugin for module authors: fixtures that find, mount and clean up the module under test.

pytest loads it in every environment that has the kernel installed. It does nothing until one of its
fixtures is used: it does not import the kernel, search folders or affect other tests.

Options: ``--module-path``, ``--module-type``, ``--module-config``. Marker: ``module_validation``.
"""

import argparse
import inspect
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from amplifier_core.testing import EventRecorder, MockContextManager, MockCoordinator, MockTool
    from amplifier_core.validation._locate import LocatedModule

try:
    # In strict mode, pytest-asyncio runs only async fixtures created with its decorator.
    from pytest_asyncio import fixture as _async_fixture
except ImportError:  # pragma: no cover - pytest itself reports async fixtures without a plugin
    _async_fixture = cast("Any", pytest.fixture)

# Failed assertions of the suites then show their values.
pytest.register_assert_rewrite("amplifier_core.validation.behavioral")

_SUITES_FOLDER = Path(__file__).parent / "validation"
_SUITE_FILES = ("structural.py", "behavioral.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options of this plugin."""
    group = parser.getgroup("amplifier", "Amplifier module validation")
    group.addoption("--module-path", help="package folder of the module under test")
    group.addoption(
        "--module-type",
        choices=("provider", "tool", "hook", "orchestrator", "context"),
        help="kind of the module under test (default: guessed from its name)",
    )
    group.addoption(
        "--module-config",
        type=_json_object,
        help="JSON object passed to mount() of the module under test (default: {})",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and reject a module path that does not exist."""
    config.addinivalue_line(
        "markers", "module_validation: checks a module against the contract of its kind"
    )
    given = config.getoption("--module-path")
    if given and not (config.invocation_params.dir / given).exists():
        raise pytest.UsageError(f"--module-path: '{given}' does not exist")


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Skip suites for other kinds of modules when the kernel's suite files are run directly."""
    ours = [
        item
        for item in items
        if item.path.parent == _SUITES_FOLDER and item.path.name in _SUITE_FILES
    ]
    for item in ours:
        located = _locate(config, item.path)
        expected = getattr(getattr(item, "cls", None), "module_kind", None)
        if located is not None and located.kind not in (None, expected):
            item.add_marker(pytest.mark.skip(reason=f"the module is a {located.kind}"))


@pytest.fixture
def module_path(request: pytest.FixtureRequest) -> Path | None:
    """Package folder of the module under test, or None."""
    located = _locate(request.config, request.path)
    return None if located is None else located.path


@pytest.fixture
def module_type(request: pytest.FixtureRequest) -> str | None:
    """Kind of the module under test: provider, tool, hook, orchestrator, context, or None."""
    located = _locate(request.config, request.path)
    return None if located is None else located.kind


@pytest.fixture
def is_module_context(module_path: Path | None) -> bool:
    """Whether there is a module under test."""
    return module_path is not None


@pytest.fixture
def coordinator() -> "MockCoordinator":
    """A new test coordinator."""
    from amplifier_core.testing import MockCoordinator

    return MockCoordinator()


@pytest.fixture
def mock_deps() -> "tuple[MockContextManager, dict[str, Any], dict[str, MockTool], EventRecorder]":
    """Arguments of an orchestrator's ``execute`` after the prompt: context, providers, tools, hooks."""
    from amplifier_core.testing import EventRecorder, MockContextManager, MockProvider, MockTool

    return (
        MockContextManager(),
        {"default": MockProvider()},
        {"test_tool": MockTool("test_tool")},
        EventRecorder(),
    )


@_async_fixture
async def provider_module(
    request: pytest.FixtureRequest, module_path: Path | None, coordinator: "MockCoordinator"
) -> AsyncGenerator[Any, None]:
    """The provider that the module under test mounts."""
    async with _mounted(request, module_path, coordinator) as returned:
        yield _first("provider", module_path, coordinator, returned)


@_async_fixture
async def tool_module(
    request: pytest.FixtureRequest, module_path: Path | None, coordinator: "MockCoordinator"
) -> AsyncGenerator[Any, None]:
    """The first tool that the module under test mounts."""
    async with _mounted(request, module_path, coordinator) as returned:
        yield _first("tool", module_path, coordinator, returned)


@_async_fixture
async def orchestrator_module(
    request: pytest.FixtureRequest, module_path: Path | None, coordinator: "MockCoordinator"
) -> AsyncGenerator[Any, None]:
    """The orchestrator that the module under test mounts."""
    async with _mounted(request, module_path, coordinator) as returned:
        yield _first("orchestrator", module_path, coordinator, returned)


@_async_fixture
async def context_module(
    request: pytest.FixtureRequest, module_path: Path | None, coordinator: "MockCoordinator"
) -> AsyncGenerator[Any, None]:
    """The context manager that the module under test mounts."""
    async with _mounted(request, module_path, coordinator) as returned:
        yield _first("context", module_path, coordinator, returned)


@_async_fixture
async def hook_cleanup(
    request: pytest.FixtureRequest, module_path: Path | None, coordinator: "MockCoordinator"
) -> AsyncGenerator[Callable[[], Any] | None, None]:
    """Return value of ``mount`` of the hook module under test, if callable."""
    async with _mounted(request, module_path, coordinator) as returned:
        yield returned if callable(returned) else None


@asynccontextmanager
async def _mounted(
    request: pytest.FixtureRequest, module_path: Path | None, coordinator: "MockCoordinator"
) -> AsyncGenerator[Any, None]:
    """Mount the module for the duration of a test; yields the return value of its ``mount``."""
    if module_path is None:
        pytest.skip("no module under test: pass --module-path, or run inside a module's folder")
    from amplifier_core.validation._fresh import fresh_module
    from amplifier_core.validation._kinds import cleanup_of

    config = request.config.getoption("--module-config") or {}
    with fresh_module(module_path) as module:
        returned = await module.mount(coordinator, dict(config))
        try:
            yield returned
        finally:
            cleanup = cleanup_of(returned)
            if cleanup is not None:
                pending = cleanup()
                if inspect.isawaitable(pending):
                    await pending
            await coordinator.cleanup()


def _first(
    kind: str, module_path: Path | None, coordinator: "MockCoordinator", returned: object
) -> Any:
    """The first mounted instance; fails the test if there is none."""
    from amplifier_core.validation._kinds import KINDS

    instances = KINDS[kind].instances(coordinator, returned)
    if not instances:
        pytest.fail(
            f"mount() of {module_path} mounted no {kind} and returned {type(returned).__name__}:"
            " nothing to test",
            pytrace=False,
        )
    return instances[0][1]


def _locate(config: pytest.Config, test_file: Path) -> "LocatedModule | None":
    """The module under test, from the options or else from the surrounding folders."""
    from amplifier_core.validation import _locate as locate

    start = config.invocation_params.dir
    given = config.getoption("--module-path")
    if given:
        located = locate.locate_given((start / given).resolve())
    else:
        arguments = [start / argument.split("::")[0] for argument in config.args]
        located = locate.locate_around(test_file) or next(
            filter(None, map(locate.locate_in, [start, config.rootpath, *arguments])), None
        )
    kind = config.getoption("--module-type")
    return located._replace(kind=kind) if located and kind else located


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return cast("dict[str, Any]", value)
