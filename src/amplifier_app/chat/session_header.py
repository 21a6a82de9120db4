"""The beginning of a chat: what its session continues, the last exchange, and how a session is opened again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from amplifier_app.base.sanitize import one_line
from amplifier_app.render.conversation import ConversationView
from amplifier_app.runtime import describe
from amplifier_app.runtime.approvals import current_mode
from amplifier_app.runtime.export.parts import build_parts, last_prompts
from amplifier_app.runtime.module_modes import active_module_mode
from amplifier_app.runtime.session import OpenSession
from amplifier_app.sessions.backups import files_changed_since
from amplifier_app.sessions.conversation import Conversation, read_conversation
from amplifier_app.sessions.folder import SessionFolder

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession


_MAX_LINES = 12


async def build_conversation(session: OpenSession) -> Conversation:
    """The whole conversation of an open session.

    Raises:
        SessionError: Its transcript cannot be read.
    """
    if session.saved is None:
        return read_conversation(await session.context.get_messages())
    return SessionFolder(session.saved.path).conversation()


async def resume_header(session: OpenSession, conversation: Conversation) -> Group:
    """The header of a resumed session with a conversation, and its last exchange."""
    prompts = len(conversation.prompts)
    metadata = session.saved.metadata if session.saved is not None else {}
    title = metadata.get("title")
    facts = [
        f'{_verb(metadata)} "{one_line(title, 60)}"' if isinstance(title, str) else _verb(metadata),
        describe.count(prompts, "prompt"),
        describe.age(str(metadata.get("updated"))),
        f"plan {one_line(session.facts.profile, 40)}",
    ]
    lines: list[RenderableType] = [Text(" · ".join(filter(None, facts)), style="bold")]
    project = metadata.get("project")
    if session.saved is not None and isinstance(project, str):
        changed = await asyncio.to_thread(files_changed_since, session.saved.path, project)
        if changed:
            lines.append(Text(describe.changed_since(changed), style="yellow"))
    parts = build_parts(last_prompts(conversation, 1), session.renderer.visibility)
    shown = [part for part in parts if part.kind in ("prompt", "answer")]
    answers = [part for part in shown if part.kind == "answer"]
    last = [*shown[:1], *answers[-1:]] if prompts else answers[-1:]
    lines.append(ConversationView(last, style="dim", max_lines=_MAX_LINES))
    if prompts > 1:
        lines.append(
            Text(f"{describe.count(prompts - 1, 'earlier prompt')}: /history", style="dim")
        )
    return Group(*lines)


def _verb(metadata: Mapping[str, Any]) -> str:
    """`Forked` for a fork that nothing was sent to yet."""
    is_new = "forked_from" in metadata and "usage" not in metadata
    return "Forked" if is_new else "Resumed"


_IN_SAVED_PLAN = ("plan", "profile", "sets", "max_steps")
"""Options that are part of the saved plan of a new session."""


def reopening_options(session: OpenSession) -> dict[str, Any] | None:
    """Fields of the request that differ when the session is opened again as it is now.

    Returns:
        None if it has a conversation that is not saved.
    """
    coordinator = session.session.coordinator
    modes = {"mode": current_mode(coordinator), "module_mode": active_module_mode(coordinator)}
    if not session.is_saved:
        return modes if session.recorder.context_tokens is None else None
    options: dict[str, Any] = {} if session.facts.resumed else dict.fromkeys(_IN_SAVED_PLAN)
    # As they are now: the user may have raised a limit or changed a mode.
    options |= {name: session.budget.limits.get(name) for name in ("max_cost", "max_tokens")}
    return {"resume": session.id, **options, **modes}
