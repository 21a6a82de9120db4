"""A module's own description: its kind, summary and configuration.

    python -P -m amplifier_app.commands.module.description FOLDER

A module that is not bundled is imported in this child process, with a time limit, so that its code
never runs in the main process. The child reads `request.json` in FOLDER and writes `facts.json`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import ModuleError
from amplifier_app.plan.schema.module_schemas import config_schema
from amplifier_app.sources.resolved import ResolvedSource
from amplifier_app.trust.imports import is_guarded
from amplifier_core.loader import before_installed, import_from_path
from amplifier_core.module_sources import find_kind
from amplifier_support.environment import without_secrets
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.programs import TimedOut, run

DEFAULT_SECONDS = 30.0


class ModuleFacts(NamedTuple):
    """Facts about a module beyond where it comes from.

    Attributes:
        kind: `"provider"`, `"tool"`, `"hook"`, `"orchestrator"` or `"context"`.
        summary: Its purpose in one line; may be empty.
        config: The JSON Schema of its config; None if it has none.
        problem: Why it could not be imported; None if it could.
    """

    kind: str
    summary: str = ""
    config: dict[str, Any] | None = None
    problem: str | None = None


def collect_facts(
    module_id: str, source: ResolvedSource, *, seconds: float = DEFAULT_SECONDS
) -> ModuleFacts:
    """Import a module and read its description.

    Args:
        module_id: Its id in the plan.
        source: Where it is.
        seconds: Time limit of the import.
    """
    if source.kind == "bundled":
        return _facts_from(module_id, source.entry_point or "", None)
    request = {
        "module_id": module_id,
        "entry_point": source.entry_point or "",
        "folder": "" if source.installed else str(source.resolve()),
        "alone": _alone(source),
        "import_paths": [str(path) for path in source.import_paths],
        "preferred_paths": [str(path) for path in source.preferred_paths],
    }
    with tempfile.TemporaryDirectory(prefix="amplifier-facts-") as name:
        home = Path(name)
        (home / "request.json").write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-P", "-m", __name__, name]
        try:
            done = run(command, cwd=home, env=without_secrets(os.environ), seconds=seconds)
        except TimedOut:
            return _unknown(module_id, f"importing it took longer than {seconds:g} s")
        try:
            return ModuleFacts(*json.loads((home / "facts.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            # The module ended the process, or overwrote the file.
            return _unknown(module_id, f"importing it ended the process with code {done.code}")


def _alone(source: ResolvedSource) -> str:
    """The file of a project's single-file module: trust does not cover the files next to it."""
    file = source.root
    return str(file) if file is not None and file.is_file() and is_guarded(file) else ""


def _unknown(module_id: str, problem: str) -> ModuleFacts:
    return ModuleFacts(find_kind(module_id), problem=problem)


def _facts_from(module_id: str, entry_point: str, folder: Path | None) -> ModuleFacts:
    try:
        package = _package(entry_point, folder)
        first = (package.__doc__ or "").strip().partition("\n")[0]
        summary = first.removeprefix(f"{module_id}: ")
        return ModuleFacts(find_kind(module_id, package), summary, config_schema(package))
    except ModuleError as error:
        return _unknown(module_id, error.message)
    # A module's code may fail in any way; the reason is reported.
    except (Exception, SystemExit) as error:
        return _unknown(module_id, f"cannot be imported: {type(error).__name__}: {error}")


def _package(entry_point: str, folder: Path | None) -> Any:
    """Return the module to describe: the entry point's, or the nearest parent package with a
    `config_schema`."""
    name = entry_point.partition(":")[0]
    if not name and folder is not None:
        return import_from_path(folder)
    package = importlib.import_module(name)
    while not hasattr(package, "config_schema") and "." in name:
        name = name.rpartition(".")[0]
        package = importlib.import_module(name)
    return package


def main(home: Path) -> None:
    """Carry out the request in the child process."""
    request = json.loads((home / "request.json").read_text(encoding="utf-8"))
    folder = Path(request["folder"]) if request["folder"] else None
    entry_point = request["entry_point"]
    if request["alone"]:
        folder, entry_point = Path(request["alone"]), ""
    elif folder is not None:
        sys.path.insert(0, request["folder"])
    if folder is not None:
        # Run the source that was reviewed, and write nothing next to it.
        sys.pycache_prefix = os.devnull
    if request["preferred_paths"]:
        position = before_installed()
        sys.path[position:position] = request["preferred_paths"]
    sys.path.extend(request["import_paths"])
    facts = _facts_from(request["module_id"], entry_point, folder)
    (home / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    # Threads of the module are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
