"""`amplifier module validate`: is this folder a module, and does it keep its contract?

What can be told by looking is told here; the module itself is imported and mounted in a
child process (`validate_child`) with a time limit, so that whatever it does there it does
not do to us.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from amplifier_app import paths
from amplifier_app.sources.dependencies import DependencyCache
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.layout import ENTRY_POINT_GROUP, Layout, find_layout
from amplifier_app.sources.process import Finished, TimedOut, run

KINDS = ("provider", "tool", "hook", "orchestrator", "context")
DEFAULT_SECONDS = 60.0

Severity = Literal["error", "warning", "info"]
_OUTPUT_LINES = 20


class Check(NamedTuple):
    """One thing that was looked at.

    Attributes:
        name: Stable identifier.
        passed: Whether it was in order.
        message: What was found.
        severity: What a failure means; only an `error` fails the module.
        advice: How to mend it, where the message does not say so.
    """

    name: str
    passed: bool
    message: str
    severity: Severity = "error"
    advice: str | None = None


class Report(NamedTuple):
    """What was found out about one module.

    Attributes:
        path: The folder or file that was checked.
        kind: What it was checked as; None if that could not be told.
        entry_point: `"package:mount"`, if there is one.
        checks: In the order they were made.
        output: The end of what the module wrote while it was checked.
    """

    path: Path
    kind: str | None
    entry_point: str | None
    checks: tuple[Check, ...]
    output: str = ""

    @property
    def failed(self) -> list[Check]:
        """The failed checks of severity `error`."""
        return [one for one in self.checks if not one.passed and one.severity == "error"]

    @property
    def passed(self) -> bool:
        return not self.failed

    def as_json(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {
            "schema_version": 1,
            "path": str(self.path),
            "type": self.kind,
            "entry_point": self.entry_point,
            "passed": self.passed,
            "checks": [check._asdict() for check in self.checks],
            "output": self.output,
        }


def validate_module(
    path: Path,
    *,
    kind: str | None = None,
    config: Mapping[str, Any] | None = None,
    behavioral: bool = False,
    seconds: float = DEFAULT_SECONDS,
) -> Report:
    """Check a module from its folder to its behaviour.

    Args:
        path: Its folder, or a single Python file.
        kind: What it is to be checked as; by default what it says it is.
        config: What `mount` is given.
        behavioral: Whether the suite of its kind is run as well.
        seconds: The longest each of the two child processes may take.
    """
    path = path.absolute()
    checks: list[Check] = []
    layout = _check_layout(path, checks)
    folder = _check_dependencies(layout, checks) if layout is not None else None
    if layout is None or not all(check.passed or check.severity != "error" for check in checks):
        return Report(path, kind, layout.entry_point if layout else None, tuple(checks))
    request: dict[str, Any] = {
        "folder": str(layout.folder),
        "entry_point": layout.entry_point,
        "package": str(layout.package),
        "import_paths": [str(folder)] if folder else [],
        "name": layout.module_id or path.stem,
        "kind": kind,
        "config": dict(config or {}),
    }
    answer, output = _in_child("contract", request, seconds)
    kind = answer.get("kind") or kind
    checks += [Check(**check) for check in answer["checks"]]
    if behavioral and not any(not c.passed and c.severity == "error" for c in checks):
        answer, more = _in_child("behavior", {**request, "kind": kind}, seconds)
        checks += [Check(**check) for check in answer["checks"]]
        output = "\n".join(filter(None, (output, more)))
    return Report(path, kind, layout.entry_point, tuple(checks), output)


def _check_layout(path: Path, checks: list[Check]) -> Layout | None:
    try:
        layout = find_layout(path)
    except SourceError as error:
        checks.append(Check("structure", False, error.message, advice=error.hint))
        return None
    shown = layout.package.relative_to(path) if path.is_dir() else Path(path.name)
    found = "the folder is itself the package" if shown == Path() else f"the package is {shown}"
    checks.append(Check("structure", True, found))
    if layout.module_id is not None:
        target = layout.entry_point or "the package"
        message = f"pyproject.toml declares {layout.module_id} as {target}"
        checks.append(Check("entry_point", True, message))
    else:
        target = layout.entry_point or f"{layout.package.name}:mount"
        checks.append(
            Check(
                "entry_point",
                False,
                "no pyproject.toml declares it: a folder works, an installed package does not",
                "warning",
                f'add [project.entry-points."{ENTRY_POINT_GROUP}"] with '
                f'{path.stem.replace("_", "-")} = "{target}"',
            )
        )
    return layout


def _check_dependencies(layout: Layout, checks: list[Check]) -> Path | None:
    if layout.project_file is None:
        return None
    try:
        folder = DependencyCache(paths.cache_dir() / "dependencies").folder_for(layout)
    except SourceError as error:
        checks.append(Check("dependencies", False, error.message, advice=error.hint))
        return None
    count = len(layout.dependencies)
    found = f"installed into {folder}" if folder else "all there" if count else "none"
    checks.append(Check("dependencies", True, found))
    return folder


def _in_child(mode: str, request: dict[str, Any], seconds: float) -> tuple[dict[str, Any], str]:
    """Run one part in a child: what it answers, and the end of what it wrote."""
    with tempfile.TemporaryDirectory(prefix="amplifier-validate-") as name:
        home = Path(name)
        (home / "work").mkdir()
        (home / "request.json").write_text(json.dumps({"mode": mode, **request}), "utf-8")
        # -P: what lies in the current folder is not importable by accident.
        command = [sys.executable, "-P", "-m", "amplifier_app.sources.validate_child", name]
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        try:
            done = run(command, cwd=home / "work", env=env, seconds=seconds)
        except TimedOut:
            message = f"it did not end within {seconds:g} s and was stopped"
            advice = "nothing may block in import, mount or cleanup; or give a longer --timeout"
            return _failed(mode, message, advice), ""
        output = _end_of(done)
        result = home / "result.json"
        if not result.is_file():
            return _failed(mode, f"it ended the process with exit code {done.code}", None), output
        return json.loads(result.read_text("utf-8")), output


def _failed(mode: str, message: str, advice: str | None) -> dict[str, Any]:
    name = "isolation" if mode == "contract" else "behavior"
    return {"checks": [Check(name, False, message, advice=advice)._asdict()]}


def _end_of(done: Finished) -> str:
    lines = [line for text in (done.stdout, done.stderr) for line in text.splitlines() if line]
    return "\n".join(lines[-_OUTPUT_LINES:])
