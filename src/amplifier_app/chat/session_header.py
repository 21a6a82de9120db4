"""The beginning of a chat: what its session continues, and the last exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from amplifier_app.base.sanitize import one_line
from amplifier_app.render.conversation import ConversationView
from amplifier_app.runtime import describe
from amplifier_app.runtime.export.parts import build_parts, last_prompts
from amplifier_app.sessions.backups import files_changed_since
from amplifier_app.sessions.conversation import Conversation

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession


_MAX_LINES = 12


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
