"""Checks a module's import, mount, protocol, schemas and cleanup in the child process."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import importlib
import inspect
import re
import threading
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from jsonschema import Draft202012Validator

from amplifier_app.base.checks import Check, some
from amplifier_app.base.tool_schemas import TOOL_NAME, read_input_schema, schema_problem
from amplifier_app.runtime import describe
from amplifier_core.events import ALL_EVENTS
from amplifier_core.loader import ModuleValidationError, import_from_path
from amplifier_core.module_checks import KINDS
from amplifier_core.module_sources import declared_kind, find_kind
from amplifier_core.mounting import Footprint
from amplifier_kit.testing import MockCoordinator
from amplifier_kit.validation.advice import (
    ANY_CLEANUP,
    for_import,
    for_kernel_check,
)
from amplifier_kit.validation.isolation import Findings
from amplifier_kit.validation.validators import (
    FOREIGN_ERRORS,
    VALIDATORS,
    conforms,
    find_cleanup,
    run_cleanup,
)
from amplifier_support.text import did_you_mean

if TYPE_CHECKING:
    from amplifier_kit.validation.isolation import Findings


def _check_config_schema(findings: Findings, package: ModuleType) -> list[str]:
    """Check that the module's `config_schema()` is valid and that the config matches it.

    Returns:
        The required settings that are missing.
    """
    name = "config_schema"
    function: Any = getattr(package, name, None)
    if function is None:
        advice = (
            f"add 'def {name}() -> dict' next to mount(), returning a JSON Schema of its config"
        )
        message = "not defined: a plan's config for this module is checked only when it is mounted"
        findings.bad(name, message, advice, "info")
        return []
    expected = f"write 'def {name}() -> dict[str, Any]', returning a JSON Schema"
    if not callable(function) or inspect.iscoroutinefunction(function):
        kind = "async" if callable(function) else f"a {type(function).__name__}"
        findings.bad(name, f"{name} is {kind}, not a plain function", expected)
        return []
    try:
        schema = function()
    except FOREIGN_ERRORS as error:
        findings.bad(name, f"{name}() raised {findings.describe(error)}", expected)
        return []
    if not isinstance(schema, dict):
        findings.bad(name, f"{name}() returned {type(schema).__name__}, not dict", expected)
        return []
    declared: dict[str, Any] = schema
    problem = schema_problem(declared)
    if problem is not None:
        findings.bad(name, f"{name}() does not return a valid JSON Schema: {problem}", expected)
        return []
    if declared.get("type") != "object":
        message = f"{name}() is a schema of type {declared.get('type')!r}; a config is a mapping"
        findings.bad(name, message, 'add "type": "object"')
        return []
    return _check_config(findings, declared)


def _check_config(findings: Findings, schema: dict[str, Any]) -> list[str]:
    config = findings.request.config
    findings.settings = tuple(map(str, schema.get("properties") or ()))
    required: list[Any] = schema.get("required", [])
    missing = [str(key) for key in required if key not in config]
    problems = _mismatches(schema, config)
    if not problems:
        settings = describe.count(len(schema.get("properties") or ()), "setting")
        findings.good("config_schema", f"a JSON Schema with {settings}; the config matches it")
    else:
        advice = (
            f"pass the required settings: {_as_options(missing)}"
            if missing
            else "fix the config, or the schema if mount() accepts the config"
        )
        findings.bad(
            "config_schema", f"the config does not match it: {'; '.join(problems)}", advice
        )
    return missing


def _as_options(keys: list[str]) -> str:
    return " ".join(f"--config {key}=…" for key in keys)


def _check_tool_schema(findings: Findings, name: str, tool: Any) -> None:
    """Check that a tool's schema is a JSON Schema of an object; calls are validated against it."""
    label = f"schema of {name!r}"
    try:
        schema = read_input_schema(tool)
    except FOREIGN_ERRORS as error:
        message = f"the {label} raised {findings.describe(error)}"
        findings.bad("schema", message, "define it as a plain dict")
        return
    if schema is not None and not isinstance(schema, dict):
        message = f"the {label} is of type {type(schema).__name__}, not dict"
        findings.bad("schema", message, "define a JSON Schema as a plain dict")
        return
    if not schema:
        advice = "add an 'input_schema' to the tool, so that a model knows what to send"
        findings.bad("schema", f"the {label} is missing", advice, "warning")
        return
    declared = cast("dict[str, Any]", schema)
    problem = schema_problem(declared)
    undeclared = _undeclared_keys(declared) if problem is None else []
    if problem is not None:
        advice = "use the keywords of JSON Schema, draft 2020-12"
        findings.bad("schema", f"the {label} is not a valid JSON Schema: {problem}", advice)
    elif declared.get("type") != "object":
        advice = 'add "type": "object", which providers require'
        message = f"the {label} is of type {declared.get('type')!r}"
        findings.bad("schema", message, advice, "warning")
    elif undeclared:
        message = f"the {label} requires properties it does not define: {', '.join(undeclared)}"
        findings.bad("schema", message, "define them under 'properties'", "warning")
    else:
        findings.good("schema", f"the {label} is a valid JSON Schema")


def _undeclared_keys(schema: dict[str, Any]) -> list[str]:
    properties: Any = schema.get("properties") or {}
    required: Any = schema.get("required") or []
    return [str(key) for key in required if key not in properties]


def _mismatches(schema: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """Mismatches between a config and the schema, without values, which may be secrets."""
    errors = Draft202012Validator(schema).iter_errors(config)
    problems: list[str] = []
    for error in errors:
        where = ".".join(map(str, error.absolute_path))
        if error.validator in ("required", "additionalProperties"):
            problems.append(str(error.message))
        else:
            problems.append(f"{where or 'config'} does not satisfy {error.validator!r}")
    return problems[:5]


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
    missing = _check_config_schema(findings, package)
    findings.say(stage="mount")
    asyncio.run(_check_mounting(findings, kind, package, attribute, missing))


def _import(findings: Findings, place: str | Path) -> ModuleType | None:
    try:
        return import_package(place)
    except FOREIGN_ERRORS as error:
        message = f"cannot be imported: {findings.describe(error)}"
        findings.bad("module_importable", message, for_import(error, findings.request))
    return None


def import_package(place: str | Path) -> ModuleType:
    """Import the package of a dotted name or at a path."""
    return importlib.import_module(place) if isinstance(place, str) else import_from_path(place)


def _kind(findings: Findings, package: ModuleType, mount_name: str) -> str:
    """The kind to check the module as: as requested, declared, mounted, or guessed from its
    name."""
    kind = findings.request.kind
    try:
        declared = declared_kind(findings.request.name, package)
    except ModuleValidationError as error:
        advice = f'set __amplifier_module_type__ = "{kind or "tool"}", or another kind'
        findings.bad("module_type", str(error), advice)
        return ""
    if declared is not None and kind not in (None, declared):
        message = f"it is declared as a {declared}, but checked as a {kind}"
        findings.bad("module_type", message, f"check it with --type {declared}")
        return kind
    if declared is not None:
        findings.good("module_type", f"{declared}, declared by the module")
        return declared
    findings.say(stage="mount")
    mount: Any = getattr(package, mount_name, None)
    mounted = asyncio.run(_kind_mounted_by(mount, findings.request.config))
    if kind and mounted not in (None, kind):
        what = "registers event handlers" if mounted == "hook" else f"mounts a {mounted}"
        message = f"it is checked as a {kind}, but its mount function {what}: it is a {mounted}"
        findings.bad("module_type", message, f"check it with --type {mounted}")
    elif kind:
        findings.good("module_type", f"{kind}, as requested")
    elif mounted:
        findings.good("module_type", f"{mounted}, determined from its mount function")
    else:
        mounted = find_kind(findings.request.name)
        advice = f'add __amplifier_module_type__ = "{mounted}" to the package, or pass --type'
        findings.bad("module_type", f"{mounted}, guessed from its name", advice, "warning")
    return kind or mounted or ""


async def _kind_mounted_by(mount: Any, config: dict[str, Any]) -> str | None:
    """The kind of what `mount` mounts; None if it mounts nothing or fails."""
    coordinator = MockCoordinator()
    before = Footprint(coordinator)
    returned: Any = None
    try:
        returned = await mount(coordinator, copy.deepcopy(config))
        if kinds := before.kinds():
            return kinds[0]
        # A tool also has every member of an orchestrator, hence the order.
        for kind in ("provider", "context", "tool", "orchestrator"):
            if not isinstance(returned, type) and conforms(KINDS[kind], returned):
                return kind
        return "hook" if any("handler" in text for text in before.registered()) else None
    # The checks that follow report the error.
    except FOREIGN_ERRORS:
        return None
    finally:
        with contextlib.suppress(*FOREIGN_ERRORS):
            await run_cleanup(returned)
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
    except FOREIGN_ERRORS as error:
        message = f"the second mount raised {findings.describe(error)}"
        findings.bad("second_mount", message, "keep no state between mounts")
        return
    findings.good("second_mount", "can be mounted more than once in a process")
    await _check_ready(findings, package, coordinator)
    await _check_events(findings, coordinator)
    for tool_name, tool in coordinator.get("tools").items():
        _check_tool_schema(findings, tool_name, tool)
        if not re.fullmatch(TOOL_NAME, tool_name):
            message = f"the tool is mounted as {tool_name!r}, a name that model services reject"
            advice = "use at most 64 letters, digits, '_' and '-'"
            findings.bad("tool_name_form", message, advice, "warning")
    if all(check.name != "cleanup" or check.passed for check in result.checks):
        findings.say(stage="cleanup")
        await _check_cleanup(findings, returned, coordinator)
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
    except FOREIGN_ERRORS as error:
        advice = "handle a session in which what it looks for is not mounted"
        findings.bad(name, f"{name}() raised {findings.describe(error)}", advice)
        return
    findings.good(name, "ran without errors")


async def _check_cleanup(
    findings: Findings, returned: object, coordinator: MockCoordinator
) -> None:
    try:
        await run_cleanup(returned)
        await coordinator.cleanup()
    except FOREIGN_ERRORS as error:
        findings.bad("cleanup", f"the cleanup raised {findings.describe(error)}", ANY_CLEANUP)
        return
    has_cleanup = find_cleanup(returned) is not None
    findings.good("cleanup", "ran without errors" if has_cleanup else "no cleanup function")


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
