"""What can be told of a module by looking at its folder; then it is tried out in a child process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amplifier_app import paths
from amplifier_app.sources.dependencies import DependencyCache
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.layout import ENTRY_POINT_GROUP, Layout, find_layout
from amplifier_app.validation.isolation import MEMORY_BYTES, try_out
from amplifier_app.validation.report import Check, Report
from amplifier_app.validation.subject import Subject

DEFAULT_SECONDS = 60.0


def validate_module(
    subject: Subject,
    *,
    kind: str | None = None,
    config: Mapping[str, Any] | None = None,
    behavioral: bool = False,
    seconds: float = DEFAULT_SECONDS,
    memory: int = MEMORY_BYTES,
) -> Report:
    """Check a module from its folder to its behaviour.

    Args:
        subject: The module.
        kind: What it is to be checked as; by default what it says it is.
        config: What `mount` is given.
        behavioral: Whether the suite of its kind is run as well.
        seconds: The longest each of the two child processes may take.
        memory: Bytes of resident memory each of them may take.
    """
    checks: list[Check] = []
    layout = subject.layout or _check_layout(subject.path or Path(), checks)
    folders = _check_dependencies(layout, checks) if layout is not None else []
    if layout is None or _failed(checks):
        entry_point = layout.entry_point if layout is not None else None
        return Report(subject.shown, kind, entry_point, tuple(checks))
    request: dict[str, Any] = {
        "mode": "contract",
        # What is installed is on the child's path already.
        "folder": str(layout.folder) if subject.path is not None else "",
        "import_paths": folders,
        "entry_point": layout.entry_point,
        "package": str(layout.package),
        "name": layout.module_id or layout.package.stem,
        "kind": kind,
        "config": dict(config or {}),
    }
    tried = try_out(request, seconds=seconds, memory=memory)
    kind = tried.kind or kind
    checks += tried.checks
    output = tried.output
    if behavioral and not _failed(checks) and kind is not None:
        folder = _suite_folder(checks)
        request |= {"mode": "behaviour", "kind": kind, "import_paths": [*folders, *folder]}
        if not _failed(checks):
            tried = try_out(request, seconds=seconds, memory=memory)
            checks += [check for check in tried.checks if check not in checks]
            output = "\n".join(filter(None, (output, tried.output)))
    return Report(subject.shown, kind, layout.entry_point, tuple(checks), output)


def _failed(checks: list[Check]) -> bool:
    return any(not check.passed and check.severity == "error" for check in checks)


def _check_layout(path: Path, checks: list[Check]) -> Layout | None:
    try:
        layout = find_layout(path)
    except SourceError as error:
        advice = error.hint or "the page contracts/README.md says what a module has"
        checks.append(Check("structure", False, error.message, advice=advice))
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


def _check_dependencies(layout: Layout, checks: list[Check]) -> list[str]:
    """What goes to the end of `sys.path` for the module's requirements."""
    if layout.project_file is None:
        return []
    try:
        folder = DependencyCache(paths.cache_dir() / "dependencies").folder_for(layout)
    except SourceError as error:
        advice = error.hint or "mend 'dependencies' in pyproject.toml"
        checks.append(Check("dependencies", False, error.message, advice=advice))
        return []
    count = len(layout.dependencies)
    found = f"installed into {folder}" if folder else "all there" if count else "none"
    checks.append(Check("dependencies", True, found))
    return [str(folder)] if folder is not None else []


def _suite_folder(checks: list[Check]) -> list[str]:
    """What goes to the end of `sys.path` for the suite: pytest, where the environment has none."""
    return []
