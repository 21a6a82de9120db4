"""The module under test: find it without importing it, load a fresh copy, mount it.

``module_fixtures`` loads this file when the first of its fixtures is used.
"""

import importlib.util
import re
import sys
import tomllib
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from amplifier_core.module_checks import KINDS
from amplifier_kit.testing import (
    EventRecorder,
    MockContextManager,
    MockCoordinator,
    MockProvider,
    MockTool,
)
from amplifier_kit.validation.suites import NO_MODULE
from amplifier_kit.validation.validators import find_instances, run_cleanup
from amplifier_support.named_tuple import NamedTuple


@contextmanager
def fresh_module(path: Path) -> Generator[ModuleType]:
    """Execute the package or file at ``path`` as a new module object that is not kept in ``sys.modules``.

    Its folder is importable while the block runs. Afterwards ``sys.path`` and the entries of
    ``sys.modules`` under the module's name are restored.

    Raises:
        ImportError: ``path`` is not a Python package or file.
        Exception: any exception of the module's code.
    """
    file = path / "__init__.py" if path.is_dir() else path
    name = path.name if path.is_dir() else path.stem
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ImportError(f"{path} is not a Python package or file")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent)
    before = _own_modules(name)
    sys.path.insert(0, folder)
    try:
        # Relative imports and dataclasses look up the name. If it is taken, the tests have imported
        # the package themselves and must keep seeing the same classes.
        sys.modules.setdefault(name, module)
        try:
            spec.loader.exec_module(module)
        finally:
            if name not in before:
                del sys.modules[name]
        yield module
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
        for added in _own_modules(name) - before:
            del sys.modules[added]


def _own_modules(name: str) -> set[str]:
    return {key for key in sys.modules if key == name or key.startswith(f"{name}.")}


_KIND_BY_WORD: Final = {
    "provider": "provider",
    "tool": "tool",
    "hook": "hook",
    "hooks": "hook",
    "loop": "orchestrator",
    "orchestrator": "orchestrator",
    "context": "context",
}
_NAME: Final = re.compile(r"amplifier[-_]module[-_]([a-z]+)([-_]|$)")
_DECLARATION: Final = re.compile(r"^__amplifier_module_type__\s*(?::.*)?=\s*['\"](\w+)['\"]", re.M)


class LocatedModule(NamedTuple):
    """A module's package and its kind, if known."""

    path: Path
    kind: str | None


def locate_given(path: Path) -> LocatedModule:
    """The module at ``path``: a package, a file, or a project folder that contains a package."""
    if path.is_dir() and not (path / "__init__.py").is_file():
        path = _package_in(path) or _only_package_in(path) or path
    return LocatedModule(path, find_kind(path))


def locate_around(file: Path) -> LocatedModule | None:
    """The package of the nearest project that contains ``file``, if any.

    A project is a folder ``amplifier-module-*``, or one whose ``pyproject.toml`` declares one module.
    """
    for folder in file.parents:
        is_named = folder.name.startswith("amplifier-module-")
        package = (_package_in(folder) if is_named else None) or _package_declared_in(folder)
        if package is not None:
            return LocatedModule(package, find_kind(package))
    return None


def locate_in(folder: Path) -> LocatedModule | None:
    """The module whose project folder is ``folder`` or contains it."""
    located = locate_around(folder / "any")
    if located is not None:
        return located
    package = _package_in(folder, "amplifier_module_")
    return None if package is None else LocatedModule(package, find_kind(package))


def find_kind(package: Path) -> str | None:
    """Kind of the module, from the package's name, its declaration, or the names of parent folders."""
    return (
        _kind_by_name(package.name)
        or _declared_kind(package)
        or next(filter(None, (_kind_by_name(folder.name) for folder in package.parents)), None)
    )


def _kind_by_name(name: str) -> str | None:
    match = _NAME.match(name)
    return None if match is None else _KIND_BY_WORD.get(match[1])


def _declared_kind(package: Path) -> str | None:
    file = package / "__init__.py" if package.is_dir() else package
    if not file.is_file():
        return None
    match = _DECLARATION.search(file.read_text(encoding="utf-8", errors="replace"))
    return None if match is None else _KIND_BY_WORD.get(match[1])


def _package_in(folder: Path, *prefixes: str) -> Path | None:
    """The package whose name starts with one of `prefixes`; earlier prefixes take precedence.

    A project may contain other packages as well, so the full prefix comes before the short one.
    """
    packages = _packages_in(folder)
    for prefix in prefixes or ("amplifier_module_", "amplifier_"):
        for path in packages:
            if path.name.startswith(prefix):
                return path
    return None


def _package_declared_in(folder: Path) -> Path | None:
    """The package of the only module that the project in ``folder`` declares."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        (target,) = project["entry-points"]["amplifier.modules"].values()
        name = target.partition(":")[0].partition(".")[0]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        # No project, an invalid one, or not exactly one module; not reported, as it is not required.
        return None
    packages = [package for package in _packages_in(folder) if package.name == name]
    return packages[0] if packages else None


def _only_package_in(folder: Path) -> Path | None:
    packages = [path for path in _packages_in(folder) if path.name not in ("tests", "test")]
    return packages[0] if len(packages) == 1 else None


def _packages_in(folder: Path) -> list[Path]:
    """Packages directly in ``folder`` or in its ``src`` folder, sorted by name."""
    files = [*folder.glob("*/__init__.py"), *(folder / "src").glob("*/__init__.py")]
    return sorted((file.parent for file in files), key=lambda path: path.name)


def orchestrator_arguments() -> tuple[
    MockContextManager, dict[str, MockProvider], dict[str, MockTool], EventRecorder
]:
    """Arguments of an orchestrator's ``execute`` after the prompt."""
    providers, tools = {"default": MockProvider()}, {"test_tool": MockTool("test_tool")}
    return MockContextManager(), providers, tools, EventRecorder()


def locate(config: pytest.Config, test_file: Path) -> LocatedModule | None:
    """The module under test, from the options or else from the surrounding folders."""
    start = config.invocation_params.dir
    path = config.getoption("amplifier_module_path", None)
    if path:
        located = locate_given((start / path).resolve())
    else:
        arguments = [start / argument.split("::")[0] for argument in config.args]
        located = locate_around(test_file) or next(
            filter(None, map(locate_in, [start, config.rootpath, *arguments])), None
        )
    kind = config.getoption("amplifier_module_type", None)
    return located._replace(kind=kind) if located and kind else located


@asynccontextmanager
async def mounted(
    config: pytest.Config, module_path: Path | None, coordinator: MockCoordinator
) -> AsyncGenerator[Any]:
    """Mount the module for the duration of a test; yields the return value of its ``mount``."""
    if module_path is None:
        pytest.skip(NO_MODULE)
    settings = config.getoption("amplifier_module_config", None) or {}
    with fresh_module(module_path) as module:
        returned = await module.mount(coordinator, dict(settings))
        try:
            yield returned
        finally:
            await run_cleanup(returned)
            await coordinator.cleanup()


def first(
    kind: str, module_path: Path | None, coordinator: MockCoordinator, returned: object
) -> Any:
    """The first mounted instance; fails the test if there is none."""
    instances = find_instances(KINDS[kind], coordinator, returned)
    if not instances and callable(returned) and any(coordinator.channels.values()):
        pytest.skip(f"it mounts no {kind} with this config")
    if not instances:
        pytest.fail(
            f"mount() of {module_path} mounted no {kind} and returned {type(returned).__name__}:"
            " nothing to test",
            pytrace=False,
        )
    return instances[0][1]
