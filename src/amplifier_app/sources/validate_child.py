"""The child process of `amplifier module validate`: imports and mounts a foreign module.

    python -P -m amplifier_app.sources.validate_child FOLDER

reads `request.json` in that folder and leaves `result.json` there. Standard output and
error belong to the module.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from amplifier_core.loader import ModuleValidationError, kind_of
from amplifier_core.package_import import import_from_path
from amplifier_core.validation import VALIDATORS

# A module's own code may raise anything, and may call sys.exit().
_FOREIGN_ERRORS = (Exception, SystemExit)


def main(folder: Path) -> None:
    """Carry out the request in `folder`."""
    request = json.loads((folder / "request.json").read_text("utf-8"))
    sys.path.insert(0, request["folder"])
    sys.path.extend(request["import_paths"])
    if request["mode"] == "contract":
        answer = asyncio.run(check_contract(request))
    else:
        answer = {"checks": run_suite(request)}
    part = folder / "result.json.part"
    part.write_text(json.dumps(answer), "utf-8")
    part.rename(folder / "result.json")


def check(
    name: str, passed: bool, message: str, severity: str = "error", advice: str | None = None
) -> dict[str, Any]:
    """One finding, in the form of `validation.Check`."""
    return {
        "name": name,
        "passed": passed,
        "message": message,
        "severity": severity,
        "advice": advice,
    }


# -- the contract ------------------------------------------------------------------------


async def check_contract(request: dict[str, Any]) -> dict[str, Any]:
    """The kernel's own validator of the module's kind, then schemas and cleanup."""
    target, _, attribute = (request["entry_point"] or "").partition(":")
    place: str | Path = target or Path(request["package"])
    checks: list[dict[str, Any]] = []
    kind = _kind(request, place, checks)
    if kind not in VALIDATORS:
        if not checks or checks[-1]["passed"]:
            message = f"there is no contract of kind {kind!r} to check"
            checks.append(check("contract", False, message, "warning"))
        return {"kind": kind, "checks": checks}
    entry_point = attribute if attribute not in ("", "mount") else None
    result = await VALIDATORS[kind]().validate(place, entry_point, request["config"])
    checks += [check(c.name, c.passed, c.message, c.severity) for c in result.checks]
    if result.passed:
        package = _import(place)
        mount = getattr(package, attribute or "mount")
        checks += await _check_mounted(mount, request["config"], result.checks)
    return {"kind": kind, "checks": checks}


def _import(place: str | Path) -> Any:
    return importlib.import_module(place) if isinstance(place, str) else import_from_path(place)


def _kind(request: dict[str, Any], place: str | Path, checks: list[dict[str, Any]]) -> str:
    wanted = request["kind"]
    try:
        package = _import(place)
        declared = getattr(package, "__amplifier_module_type__", None)
        found = kind_of(request["name"], package)
    except ModuleValidationError as error:
        checks.append(check("module_type", False, str(error)))
        return wanted or ""
    except _FOREIGN_ERRORS:
        # The validator imports it again and tells why it cannot.
        return wanted or kind_of(request["name"])
    if declared is None and wanted:
        checks.append(check("module_type", True, f"{wanted}, as asked for"))
    elif declared is None:
        advice = f'add __amplifier_module_type__ = "{found}" to the package, or give --type'
        message = f"{found}, guessed from its name"
        checks.append(check("module_type", False, message, "warning", advice))
    elif wanted and wanted != declared:
        advice = f"check it with --type {declared}"
        message = f"it says it is a {declared}, and is checked as a {wanted}"
        checks.append(check("module_type", False, message, "error", advice))
    else:
        checks.append(check("module_type", True, f"{declared}, as it says itself"))
    return wanted or found


async def _check_mounted(
    mount: Any, config: dict[str, Any], seen: list[Any]
) -> list[dict[str, Any]]:
    """Mount once more, as a session does after the loader's trial, and look at what is there."""
    from amplifier_core.testing import MockCoordinator
    from amplifier_core.validation.kinds import cleanup_of

    coordinator = MockCoordinator()
    before = asyncio.all_tasks()
    try:
        returned = await mount(coordinator, config)
    except _FOREIGN_ERRORS as error:
        message = f"mounting it a second time raised {type(error).__name__}: {error}"
        return [check("second_mount", False, message, advice="keep no state between mounts")]
    checks = [check("second_mount", True, "it can be mounted more than once in a process")]
    checks += [_check_schema(name, tool) for name, tool in coordinator.get("tools").items()]
    if any(c.name == "cleanup" and not c.passed for c in seen):
        return checks
    cleanup = cleanup_of(returned)
    try:
        if cleanup is not None:
            pending = cleanup()
            if inspect.isawaitable(pending):
                await pending
        await coordinator.cleanup()
    except _FOREIGN_ERRORS as error:
        message = f"the cleanup raised {type(error).__name__}: {error}"
        return [*checks, check("cleanup", False, message)]
    await asyncio.sleep(0)
    left = {task.get_name() for task in asyncio.all_tasks() - before if not task.done()}
    if left:
        message = f"tasks still run after the cleanup: {', '.join(sorted(left))}"
        advice = "return a cleanup from mount() that cancels and awaits them"
        return [*checks, check("cleanup", False, message, "warning", advice)]
    found = "it ran" if cleanup is not None else "mount() returned none, and nothing is left"
    return [*checks, check("cleanup", True, found)]


def _check_schema(name: str, tool: Any) -> dict[str, Any]:
    """A tool's schema has to be a JSON Schema of an object, or calls cannot be checked."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    label = f"schema of {name!r}"
    try:
        schema: Any = getattr(tool, "input_schema", None)
        if not schema and callable(getattr(tool, "get_schema", None)):
            schema = tool.get_schema()
    except _FOREIGN_ERRORS as error:
        return check("schema", False, f"the {label} raised {type(error).__name__}: {error}")
    if not isinstance(schema, dict) or not schema:
        advice = "give the tool an 'input_schema', so that a model knows what to send"
        return check("schema", False, f"there is no {label}", "warning", advice)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        where = ".".join(map(str, error.absolute_path)) or "its top"
        return check(
            "schema", False, f"the {label} is no JSON Schema: {error.message} (at {where})"
        )
    kind: Any = cast("dict[str, Any]", schema).get("type")
    if kind != "object":
        advice = '"type": "object" is what providers take'
        return check("schema", False, f"the {label} is of type {kind!r}", "warning", advice)
    return check("schema", True, f"the {label} is a JSON Schema")


# -- the behaviour -----------------------------------------------------------------------


def run_suite(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The kernel's behavioural suite for the module's kind, test by test."""
    # Only what this run needs: plugins of the environment are no business of the module.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    missing = [name for name in ("pytest", "pytest_asyncio") if find_spec(name) is None]
    if missing:
        advice = "install pytest and pytest-asyncio beside Amplifier"
        message = f"the suite cannot run without {' and '.join(missing)}"
        return [check("behavior", False, message, advice=advice)]
    import pytest

    import amplifier_core

    suite = Path(amplifier_core.__file__).parent / "validation" / "behavioral.py"
    recorder = _Recorder()
    code = pytest.main(
        [
            *("-p", "pytest_asyncio.plugin", "-p", "amplifier_core.pytest_plugin"),
            *("-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", os.getcwd(), "-q"),
            *("-o", "python_classes=*Tests", "-o", "asyncio_default_fixture_loop_scope=function"),
            *("--module-path", request["package"], "--module-type", request["kind"]),
            *("--module-config", json.dumps(request["config"])),
            f"{suite}::{request['kind'].capitalize()}BehaviorTests",
        ],
        plugins=[recorder],
    )
    if not recorder.checks:
        return [check("behavior", False, f"the suite did not run: pytest ended with {code}")]
    return recorder.checks


class _Recorder:
    """Keeps the outcome of every test, the first failing phase of each."""

    def __init__(self) -> None:
        self.checks: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.rpartition("::")[2].removeprefix("test_")
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = str(crash.message if crash else report.longrepr).strip()
            if report.when != "call":
                text = f"{report.when}: {text}"
            self.checks.append(check(name, False, text))
        elif report.skipped:
            self.checks.append(check(name, False, f"skipped: {report.longrepr}", "warning"))
        elif report.when == "call":
            self.checks.append(check(name, True, "as the contract has it"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
