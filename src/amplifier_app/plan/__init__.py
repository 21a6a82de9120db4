"""Plans and profiles: YAML files → one merged plan that knows the origin of each value.

Names are imported on first use, so importing `amplifier_app` does not import the YAML reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amplifier_app.plan.documents.scopes import Override
    from amplifier_app.plan.model import (
        ResolvedPlan,
        apply_overrides,
    )
    from amplifier_app.plan.tree.problems import PlanError, Problem

__all__ = [
    "Override",
    "PlanError",
    "Problem",
    "ResolvedPlan",
    "apply_overrides",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("PlanError", "Problem"):
        from amplifier_app.plan.tree import problems as home
    elif name == "Override":
        from amplifier_app.plan.documents import scopes as home
    else:
        from amplifier_app.plan import model as home
    return getattr(home, name)
