"""pytest plugin for module authors: fixtures that find, mount and clean up the module under test.

pytest loads it in every environment that has the kernel installed. It does nothing until one of its
fixtures is used: it does not import the kernel, search folders or affect other tests. Its options exist only in
runs that use one of them, because other projects may have options of the same names.

Options: ``--module-path``, ``--module-type``, ``--module-config``. Marker: ``module_validation``.
"""

import argparse
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from amplifier_kit.testing import EventRecorder, MockContextManager, MockCoordinator, MockTool

try:
    # In strict mode, pytest-asyncio runs only async fixtures created with its decorator.
    from pytest_asyncio import fixture as _async_fixture
except ImportError:  # pragma: no cover - pytest itself reports async fixtures without a plugin
    _async_fixture = cast("Any", pytest.fixture)

# Failed assertions of the suites then show their values.
for _suite in ("amplifier_core.validation.behavioral", "amplifier_kit.validation.suites"):
    if _suite not in sys.modules:  # pytest would warn about one that is loaded.
        pytest.register_assert_rewrite(_suite)

# A copy, as the plugin does not import the kernel; a test compares it.
MODULE_TYPES = ("provider", "tool", "hook", "orchestrator", "context")

_OPTION = "--module-"
_PACKAGES = Path(__file__).parents[2]
_SUITES_FOLDERS = tuple(
    str(_PACKAGES / package / "validation") for package in ("amplifier_core", "amplifier_kit")
)
_SUITE_FILES = ("structural.py", "behavioral.py")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Register the options of this plugin, if one of them or the help is asked for."""
    config = cast("pytest.Config", pluginmanager.get_plugin("pytestconfig"))
    arguments = (*config.invocation_params.args, *config.getini("addopts"))
    text = " ".join(map(str, (os.environ.get("PYTEST_ADDOPTS", ""), *arguments)))
    if _OPTION not in text and not {"-h", "--help"} & {*map(str, arguments)}:
        return
    group = parser.getgroup("amplifier", "Amplifier module validation")
    group.addoption(
        "--module-path",
        dest="amplifier_module_path",
        help="package folder of the module under test",
    )
    group.addoption(
        "--module-type",
        dest="amplifier_module_type",
        choices=MODULE_TYPES,
        help="kind of the module under test (default: guessed from its name)",
    )
    group.addoption(
        "--module-config",
        dest="amplifier_module_config",
        type=_json_object,
        help="JSON object passed to mount() of the module under test (default: {})",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and reject a module path that does not exist."""
    config.addinivalue_line(
        "markers", "module_validation: checks a module against the contract of its kind"
    )
    path = config.getoption("amplifier_module_path", None)
    if path and not (config.invocation_params.dir / path).exists():
        raise pytest.UsageError(f"--module-path: '{path}' does not exist")


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Skip suites for other kinds of modules when the kernel's suite files are run directly."""
    for item in items:
        # Comparing texts costs a run with many tests nothing.
        if not str(item.path).startswith(_SUITES_FOLDERS) or item.path.name not in _SUITE_FILES:
            continue
        located = _fixtures().locate(config, item.path)
        expected = getattr(getattr(item, "cls", None), "module_kind", None)
        if located is not None and located.kind not in (None, expected):
            item.add_marker(pytest.mark.skip(reason=f"the module is a {located.kind}"))


@pytest.fixture
def module_path(request: pytest.FixtureRequest) -> Path | None:
    """Package folder of the module under test, or None."""
    located = _fixtures().locate(request.config, request.path)
    return None if located is None else located.path


@pytest.fixture
def module_type(request: pytest.FixtureRequest) -> str | None:
    """Kind of the module under test: provider, tool, hook, orchestrator, context, or None."""
    located = _fixtures().locate(request.config, request.path)
    return None if located is None else located.kind


@pytest.fixture
def is_module_context(module_path: Path | None) -> bool:
    """Return True if there is a module under test."""
    return module_path is not None


@pytest.fixture
def coordinator() -> "MockCoordinator":
    """A new test coordinator."""
    return _fixtures().MockCoordinator()


@pytest.fixture
def mock_deps() -> "tuple[MockContextManager, dict[str, Any], dict[str, MockTool], EventRecorder]":
    """Arguments of an orchestrator's ``execute`` after the prompt: context, providers, tools, hooks."""
    return _fixtures().orchestrator_arguments()


def _instance_fixture(kind: str) -> Any:
    async def instance(
        request: pytest.FixtureRequest, module_path: Path | None, coordinator: "MockCoordinator"
    ) -> AsyncGenerator[Any, None]:
        async with _fixtures().mounted(request.config, module_path, coordinator) as returned:
            yield _fixtures().first(kind, module_path, coordinator, returned)

    instance.__doc__ = f"The {kind} that the module under test mounts; of several, the first."
    return _async_fixture(instance)


provider_module = _instance_fixture("provider")
tool_module = _instance_fixture("tool")
orchestrator_module = _instance_fixture("orchestrator")
context_module = _instance_fixture("context")


@_async_fixture
async def hook_cleanup(
    request: pytest.FixtureRequest, module_path: Path | None, coordinator: "MockCoordinator"
) -> AsyncGenerator[Callable[[], Any] | None, None]:
    """Return value of ``mount`` of the hook module under test, if callable."""
    async with _fixtures().mounted(request.config, module_path, coordinator) as returned:
        yield returned if callable(returned) else None


def _fixtures() -> Any:
    """Return the code of the fixtures: it imports the kernel, which few runs of pytest need."""
    from amplifier_kit.pytest_plugins import module_under_test

    return module_under_test


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return cast("dict[str, Any]", value)
