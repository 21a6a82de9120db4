"""Plans and profiles: YAML files → one merged plan that knows the origin of each value.

Names are imported on first use, so importing `amplifier_app` does not import the YAML reader.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amplifier_app.plan.documents.scopes import Override
    from amplifier_app.plan.model import ResolvedPlan, apply_overrides
    from amplifier_app.plan.tree.problems import PlanError, Problem

__all__ = [
    "Override",
    "PlanError",
    "Problem",
    "ResolvedPlan",
    "apply_overrides",
]


_HOMES = {
    "Override": "documents.scopes",
    "PlanError": "tree.problems",
    "Problem": "tree.problems",
    "ResolvedPlan": "model",
    "apply_overrides": "model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
