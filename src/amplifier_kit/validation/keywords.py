"""Finds arguments that the kernel's models ignore, such as `HookResult(actoin="deny")`.

The models accept unknown fields, because published modules pass some. Read from the source, so that
code which the other checks do not run is covered as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import amplifier_core
from amplifier_app.base.checks import Check
from amplifier_support.did_you_mean import did_you_mean

_MORE = {"ToolResult": {"is_error"}}
"""Arguments that a model reads although they are not fields."""


def check_keywords(package: Path) -> Check:
    """Check the calls of the kernel's models in a package or a single file."""
    faults = [
        f"{file.relative_to(package.parent)}, line {line}: {fault}"
        for file in (sorted(package.rglob("*.py")) if package.is_dir() else [package])
        for line, fault in _faults(file)
    ]
    if not faults:
        return Check("model_fields", True, "no argument of a model of the kernel is ignored")
    return Check("model_fields", False, "; ".join(faults[:3]), "warning", "correct the name")


def _faults(file: Path) -> Iterator[tuple[int, str]]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        # Reported by the import.
        return
    models = dict(_imported(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        model = models.get(node.func.id)
        if model is None:
            continue
        known = model.model_fields.keys() | _MORE.get(model.__name__, set())
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in known:
                hint = did_you_mean(keyword.arg, known)
                fault = f"{model.__name__} has no field {keyword.arg!r} and ignores it"
                yield node.lineno, fault + (f"; {hint}" if hint else "")


def _imported(tree: ast.AST) -> Iterator[tuple[str, type[BaseModel]]]:
    """Models that are imported from the kernel and ignore unknown fields, by local name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("amplifier_core"):
            for alias in node.names:
                model: Any = getattr(amplifier_core, alias.name, None)
                is_model = isinstance(model, type) and issubclass(model, BaseModel)
                if is_model and model.model_config.get("extra") != "allow":
                    yield alias.asname or alias.name, model
