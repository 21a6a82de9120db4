"""The notice of which provider answers, and why, when the user did not name one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from amplifier_app.base.paths import state_dir
from amplifier_app.base.stdio import stderr_is_tty
from amplifier_app.plan.resolution import unset
from amplifier_app.runtime.capabilities import credential_variable
from amplifier_support.files import make_private_folder, write_private

if TYPE_CHECKING:
    from amplifier_app.plan import ResolvedPlan
    from amplifier_app.runtime.observers.observer import Renderer
    from amplifier_app.runtime.session import OpenSession

_FILE = "provider-notice"


def notify_provider(plan: ResolvedPlan, session: OpenSession, renderer: Renderer) -> None:
    """Show the provider if the file that lists it also lists others, which were left out.

    Shown on a terminal only, and again only when the choice changes.
    """
    if not plan.dropped or not stderr_is_tty():
        return
    file = plan.origin(["providers", 0]).file
    left_out = [entry for entry in plan.dropped if entry.at.file == file]
    facts = session.facts
    chosen = f"{facts.provider} ({facts.model})" if facts.model else facts.provider
    key = credential_variable(session.session)
    missing = tuple(name for entry in left_out for name in entry.variables)
    if not (left_out and (key or missing)):
        return
    if facts.provider == "local" and not key:
        text = f"the demo model ({facts.model}) answers; set up another one: amplifier init"
    else:
        verb = "stored" if key in session.mounting.stored_keys else "set"
        why = f"{key} is {verb}" if key else unset(missing)
        text = f"using {chosen} because {why}; change with --provider, --model or --profile"
    if _is_new(text):
        renderer.notice(text, "info", "session")


def _is_new(text: str) -> bool:
    """Return True if this is not the notice shown last."""
    file = state_dir() / _FILE
    # Without the file the notice is shown again, which does no harm.
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if file.read_text(encoding="utf-8") == text:
            return False
    with contextlib.suppress(OSError):
        make_private_folder(file.parent)
        write_private(file, text.encode())
    return True
