"""Checks a module's import, mount, protocol, schemas and cleanup in the child process."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import importlib
import inspect
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from amplifier_app.base.checks import Check, some
from amplifier_app.base.tool_schemas import TOOL_NAME
from amplifier_core._placement import Footprint
from amplifier_core.discovery import declared_kind, kind_of
from amplifier_core.events import ALL_EVENTS
from amplifier_core.loader import ModuleValidationError
from amplifier_core.module_checks import cleanup_of
from amplifier_core.package_import import import_from_path
from amplifier_kit.testing import MockCoordinator
from amplifier_kit.validation.advice import (
    ANY_CLEANUP,
    for_import,
    for_kernel_check,
)
from amplifier_kit.validation.findings import Findings
from amplifier_kit.validation.schemas import check_config_schema, check_tool_schema
from amplifier_kit.validation.validators import VALIDATORS
from amplifier_support.did_you_mean import did_you_mean

# A module's own code may raise anything, and may call sys.exit().
_FOREIGN_ERRORS = (Exception, SystemExit)


def check_contract(findings: Findings) -> None:
    """Check a module against the contract of its kind, and report the findings."""
    request = findings.request
    target, _, attribute = (request.entry_point or "").partition(":")
    place: str | Path = target or Path(request.package)
    findings.say(stage="import")
    package = _import(findings, place)
    if package is None:
        return
    kind = _kind(findings, package, attribute or "mount")
    if kind not in VALIDATORS:
        if not findings.failed:
            message = f"no contract to check for kind {kind!r}"
            findings.add(Check("contract", False, message, "info"))
        return
    findings.say(kind=kind)
    findings.say(stage="config_schema()")
    missing = check_config_schema(findings, package)
    findings.say(stage="mount")
    asyncio.run(_check_mounting(findings, kind, package, attribute, missing))


def _import(findings: Findings, place: str | Path) -> ModuleType | None:
    try:
        return import_package(place)
    except _FOREIGN_ERRORS as error:
        message = f"cannot be imported: {findings.describe(error)}"
        findings.bad("module_importable", message, for_import(error, findings.request))
    return None


def import_package(place: str | Path) -> ModuleType:
    """Import the package of a dotted name or at a path."""
    return importlib.import_module(place) if isinstance(place, str) else import_from_path(place)


def _kind(findings: Findings, package: ModuleType, mount_name: str) -> str:
    """The kind to check the module as: as requested, declared, mounted, or guessed from its
    name."""
    wanted = findings.request.kind
    try:
        declared = declared_kind(findings.request.name, package)
    except ModuleValidationError as error:
        advice = f'set __amplifier_module_type__ = "{wanted or "tool"}", or another kind'
        findings.bad("module_type", str(error), advice)
        return ""
    if declared is not None and wanted not in (None, declared):
        message = f"it is declared as a {declared}, but checked as a {wanted}"
        findings.bad("module_type", message, f"check it with --type {declared}")
        return wanted
    if declared is not None:
        findings.good("module_type", f"{declared}, declared by the module")
        return declared
    findings.say(stage="mount")
    mount: Any = getattr(package, mount_name, None)
    mounted = asyncio.run(_kind_mounted_by(mount, findings.request.config))
    if wanted and mounted not in (None, wanted):
        what = "registers event handlers" if mounted == "hook" else f"mounts a {mounted}"
        message = f"it is checked as a {wanted}, but its mount function {what}: it is a {mounted}"
        findings.bad("module_type", message, f"check it with --type {mounted}")
    elif wanted:
        findings.good("module_type", f"{wanted}, as requested")
    elif mounted:
        findings.good("module_type", f"{mounted}, determined from its mount function")
    else:
        mounted = kind_of(findings.request.name)
        advice = f'add __amplifier_module_type__ = "{mounted}" to the package, or pass --type'
        findings.bad("module_type", f"{mounted}, guessed from its name", advice, "warning")
    return wanted or mounted or ""


async def _kind_mounted_by(mount: Any, config: dict[str, Any]) -> str | None:
    """The kind of what `mount` mounts; None if it mounts nothing or fails."""
    coordinator = MockCoordinator()
    before = Footprint(coordinator)
    returned: Any = None
    try:
        returned = await mount(coordinator, copy.deepcopy(config))
        return before.kind(returned)
    # The checks that follow report the error.
    except _FOREIGN_ERRORS:
        return None
    finally:
        with contextlib.suppress(*_FOREIGN_ERRORS):
            cleanup = cleanup_of(returned)
            pending = cleanup() if cleanup is not None else None
            if inspect.isawaitable(pending):
                await pending
        await coordinator.cleanup()


async def _check_mounting(
    findings: Findings, kind: str, package: ModuleType, attribute: str, missing: list[str]
) -> None:
    """Run the kernel's validator, then mount a second time, as a sub-agent's session does."""
    name = attribute or "mount"
    config = findings.request.config
    # By its dotted name, so that the imported package is used and not imported again.
    result = await VALIDATORS[kind]().validate(
        package.__name__, None if name == "mount" else name, config
    )
    for check in result.checks:
        findings.add(
            for_kernel_check(check, kind, missing, findings.settings, configured=bool(config))
        )
    if not result.passed:
        return
    findings.say(stage="a second mount")
    mount: Any = getattr(package, name)
    coordinator = MockCoordinator()
    before, threads = asyncio.all_tasks(), set(threading.enumerate())
    try:
        returned = await mount(coordinator, config)
    except _FOREIGN_ERRORS as error:
        message = f"the second mount raised {findings.describe(error)}"
        findings.bad("second_mount", message, "keep no state between mounts")
        return
    findings.good("second_mount", "can be mounted more than once in a process")
    await _check_ready(findings, package, coordinator)
    await _check_events(findings, coordinator)
    for tool_name, tool in coordinator.get("tools").items():
        check_tool_schema(findings, tool_name, tool)
        if not re.fullmatch(TOOL_NAME, tool_name):
            message = f"the tool is mounted as {tool_name!r}, a name that model services reject"
            advice = "use at most 64 letters, digits, '_' and '-'"
            findings.bad("tool_name_form", message, advice, "warning")
    if all(check.name != "cleanup" or check.passed for check in result.checks):
        findings.say(stage="cleanup")
        await _check_cleanup(findings, cleanup_of(returned), coordinator)
    await _check_left(findings, before, threads)


async def _check_ready(
    findings: Findings, package: ModuleType, coordinator: MockCoordinator
) -> None:
    name = "on_session_ready"
    ready: Any = getattr(package, name, None)
    if ready is None:
        return
    findings.say(stage=name)
    try:
        await ready(coordinator)
    except _FOREIGN_ERRORS as error:
        advice = "handle a session in which what it looks for is not mounted"
        findings.bad(name, f"{name}() raised {findings.describe(error)}", advice)
        return
    findings.good(name, "ran without errors")


async def _check_cleanup(
    findings: Findings, cleanup: Callable[[], Any] | None, coordinator: MockCoordinator
) -> None:
    try:
        if cleanup is not None:
            pending = cleanup()
            if inspect.isawaitable(pending):
                await pending
        await coordinator.cleanup()
    except _FOREIGN_ERRORS as error:
        findings.bad("cleanup", f"the cleanup raised {findings.describe(error)}", ANY_CLEANUP)
        return
    findings.good("cleanup", "ran without errors" if cleanup is not None else "no cleanup function")


async def _check_events(findings: Findings, coordinator: MockCoordinator) -> None:
    """Report handlers of events that no contract defines, such as misspelt ones."""
    contributed: set[str] = set()
    for names in await coordinator.collect_contributions("observability.events"):
        contributed.update(names if isinstance(names, (list, tuple, set)) else ())
    registered = [event for event, names in coordinator.hooks.list_handlers().items() if names]
    for event in registered:
        near = did_you_mean(event, ALL_EVENTS, 0.8)
        # Events of other modules have a namespace and resemble none of the contracts' events.
        if event in {*ALL_EVENTS, *contributed} or (":" in event and not near):
            continue
        message = f"it registers a handler for {event!r}, which is not an event of the contracts"
        advice = near or "see amplifier_core.events"
        findings.bad("events", message, advice, "warning")


async def _check_left(
    findings: Findings, before: set[asyncio.Task[Any]], threads: set[threading.Thread]
) -> None:
    await asyncio.sleep(0)
    tasks = {task.get_name() for task in asyncio.all_tasks() - before if not task.done()}
    if tasks:
        message = f"tasks still run after the cleanup: {some(tasks)}"
        advice = "return a cleanup from mount() that cancels and awaits them"
        findings.bad("left_behind", message, advice, "warning")
    # Python ends the worker threads of executors itself.
    started = [thread for thread in set(threading.enumerate()) - threads if not thread.daemon]
    names = [thread.name for thread in started if "ThreadPoolExecutor" not in thread.name]
    if names:
        message = f"threads still run after the cleanup: {some(names)}"
        advice = (
            "return a cleanup from mount() that stops and joins them, or make them daemon threads"
        )
        findings.bad("left_behind", message, advice, "warning")
