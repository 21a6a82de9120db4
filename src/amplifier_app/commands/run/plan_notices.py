"""Show the notices about a plan in full once, and then as one line until they change.

A bundle with many includes has dozens, which its user cannot fix.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amplifier_app.base import paths
from amplifier_app.base.errors import SessionError
from amplifier_app.base.private_files import make_private_folder, write_private
from amplifier_app.plan import ResolvedPlan
from amplifier_app.runtime.describe import count
from amplifier_app.runtime.observers.observer import Renderer

_FEW = 3
"""As many notices are shown each time."""
_MAX_PLANS = 500


def show_plan_notices(plan: ResolvedPlan, renderer: Renderer, command: str) -> None:
    """Show the notices about a plan; `command` lists them all."""
    notices = plan.warnings
    if len(notices) > _FEW and _are_known(plan, notices):
        text = (
            f"{count(len(notices), 'notice')} about the plan, as before; list them with: {command}"
        )
        renderer.notice(text, "info", "plan")
        return
    for notice in notices:
        renderer.notice(notice, "info", "plan")


def _are_known(plan: ResolvedPlan, notices: Sequence[str]) -> bool:
    """Return True if the plan had the same notices the last time; otherwise remember them."""
    file = paths.state_dir() / "notices.json"
    known = _read(file)
    key = _digest([plan.name, *map(str, plan.files)])
    digest = _digest(sorted(notices))
    if known.pop(key, None) == digest:
        return True
    known[key] = digest
    latest = dict(list(known.items())[-_MAX_PLANS:])
    # What cannot be remembered is shown again.
    with contextlib.suppress(SessionError):
        make_private_folder(file.parent)
        write_private(file, json.dumps(latest))
    return False


def _read(file: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode(errors="surrogatepass")).hexdigest()
