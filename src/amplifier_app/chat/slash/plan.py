"""Commands that show the plan: its values, its modules and its agents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.text import Text

from amplifier_app.base.errors import UsageError
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.chat.slash.layout import rows
from amplifier_app.chat.slash.registry import Chat, Reply, command
from amplifier_app.plan.masking import masked_tree
from amplifier_app.plan.tree.entries import entry_key, module_entries
from amplifier_app.plan.tree.nodes import Node
from amplifier_app.plan.tree.paths import NoSuchPath, find, parse_path
from amplifier_app.plan.tree.writing import place_of, yaml_text
from amplifier_core.discovery import SECTION_KINDS


def short_place(place: str) -> str:
    """Return `file:line` with the file's name alone."""
    return place.replace("\\", "/").rpartition("/")[2]


def _complete_path(chat: Chat, argument: str) -> Iterable[str]:
    return ("session", *SECTION_KINDS, "agents")


@command(
    "/plan",
    "The plan of the session, or a part of it",
    usage="[PATH]",
    during_turn=True,
    complete=_complete_path,
)
async def plan(chat: Chat, argument: str) -> Reply:
    tree: Node = masked_tree(chat.session.plan.tree)
    if argument:
        try:
            tree = find(tree, parse_path(argument))
        except (NoSuchPath, ValueError) as error:
            raise UsageError(f"/plan: {error}") from None
    return Text(for_terminal(yaml_text(tree, origins=True)).rstrip())


@command("/modules", "Modules of the session and where the plan has them", during_turn=True)
async def modules(chat: Chat, argument: str) -> Reply:
    return rows(
        (f"{one.kind:<12}  {entry_key(one.node)}", short_place(place_of(one.node)))
        for one in module_entries(chat.session.plan.tree)
        if one.agent is None
    )


@command("/agents", "Agents the model can delegate to", during_turn=True)
async def agents(chat: Chat, argument: str) -> Reply:
    known: dict[str, Any] = chat.session.session.config.get("agents") or {}
    listed = [
        (one_line(name, 40), one_line(str(agent.get("description") or ""), 200))
        for name, agent in known.items()
        if isinstance(agent, dict)
    ]
    return rows(listed) if listed else "The plan has no agents."
