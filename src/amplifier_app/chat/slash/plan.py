"""Commands that show the plan: its values, its modules and its agents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from rich.text import Text

from amplifier_app.base.errors import UsageError
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.chat.slash.layout import rows
from amplifier_app.chat.slash.registry import Chat, Reply, command
from amplifier_app.plan import ResolvedPlan
from amplifier_app.plan.masking import masked_tree
from amplifier_app.plan.nodes import MapNode, Node, text_of
from amplifier_app.plan.paths import NoSuchPath, find, parse_path
from amplifier_app.plan.writing import place_of, yaml_text

_KINDS = ("providers", "tools", "hooks")


class PlanModule(NamedTuple):
    """A module of the plan.

    Attributes:
        kind: `orchestrator`, `context`, `provider`, `tool` or `hook`.
        id: Its id.
        at: Where its entry is, as `file:line`.
    """

    kind: str
    id: str
    at: str


def modules_of(plan: ResolvedPlan) -> Iterator[PlanModule]:
    """Yield the modules of a plan, in the order they are mounted."""
    tree = plan.tree
    session = tree.items.get("session")
    if isinstance(session, MapNode):
        for part in ("orchestrator", "context"):
            yield from _module(part, session.items.get(part))
    for kind in _KINDS:
        section = tree.items.get(kind)
        if isinstance(section, MapNode):
            for entry in section.items.values():
                yield from _module(kind[:-1], entry)
        elif section is not None:
            for entry in getattr(section, "items", ()):
                yield from _module(kind[:-1], entry)


def _module(kind: str, entry: Node | None) -> Iterator[PlanModule]:
    if entry is None:
        return
    named = entry.items.get("module") if isinstance(entry, MapNode) else entry
    module = text_of(named)
    if module is not None:
        yield PlanModule(kind, module, short_place(place_of(entry)))


def short_place(place: str) -> str:
    """Return `file:line` with the file's name alone."""
    return place.replace("\\", "/").rpartition("/")[2]


def _complete_path(chat: Chat, argument: str) -> Iterable[str]:
    return ("session", *_KINDS, "agents")


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
    return rows((f"{one.kind:<12}  {one.id}", one.at) for one in modules_of(chat.session.plan))


@command("/agents", "Agents the model can delegate to", during_turn=True)
async def agents(chat: Chat, argument: str) -> Reply:
    known: dict[str, Any] = chat.session.session.config.get("agents") or {}
    listed = [
        (one_line(name, 40), one_line(str(agent.get("description") or ""), 200))
        for name, agent in known.items()
        if isinstance(agent, dict)
    ]
    return rows(listed) if listed else "no agents"
